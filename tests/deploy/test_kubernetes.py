"""The manifests under deploy/kubernetes: valid by the published schemas, and with options that exist."""

import re
from pathlib import Path

import pytest
import yaml

from sophon.cli.cluster.registry import registry as registry_command
from sophon.cli.serve import serve as serve_command
from sophon.store.part import Part

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
DOCUMENTS = [(path.name, document) for path in FILES for document in yaml.safe_load_all(path.read_text())]


def test_there_are_nodes_and_a_registry():
    assert [path.name for path in FILES] == ["nodes.yaml", "registry.yaml"]


@pytest.mark.parametrize(("name", "document"), DOCUMENTS, ids=lambda value: value if isinstance(value, str) else "")
def test_the_published_schema_takes_it(name, document):
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(document, "1.31", strict=True)


@pytest.mark.parametrize(("kind", "command"), [("StatefulSet", serve_command), ("Deployment", registry_command)])
def test_its_options_exist(kind, command):
    (found,) = [document for _, document in DOCUMENTS if document["kind"] == kind]
    flags = {flag for option in command.params for flag in option.opts}
    (container,) = found["spec"]["template"]["spec"]["containers"]
    used = {re.split("=", text, maxsplit=1)[0] for text in container["args"] if text.startswith("--")}
    assert used <= flags


def test_there_are_as_many_pods_as_parts_and_names_fit():
    by_kind = {document["kind"]: document for _, document in DOCUMENTS}
    pods = by_kind["StatefulSet"]["spec"]
    (container,) = pods["template"]["spec"]["containers"]
    (part,) = [text.partition("=")[2] for text in container["args"] if text.startswith("--part=")]
    assert Part.parse(part.replace("ordinal", "1")).of == pods["replicas"]
    services = {
        document["metadata"]["name"]: document["spec"] for _, document in DOCUMENTS if document["kind"] == "Service"
    }
    headless = services[pods["serviceName"]]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True
    assert headless["selector"].items() <= pods["template"]["metadata"]["labels"].items()
    (registry,) = [text.partition("=")[2] for text in container["args"] if text.startswith("--registry=")]
    assert registry == "sophon://sophon-registry:7070"
    assert {port["port"] for port in services["sophon-registry"]["ports"]} == {7070}
