"""What is to run on a Ray cluster, checked before anything is started."""

import pytest

from sophon.cluster.on_ray.layout import Layout
from sophon.errors import ConfigError

NODE = {"name": "store-1", "data": {"train": "/data/train"}, "label": {"sophon-store": 1}, "part": "1/2", "cores": 2}


def test_a_file_says_what_is_to_run(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "nodes.yaml"
    path.write_text(
        "registry: {port: 7070}\nnodes:\n  - {name: a, data: {train: /d}, part: 1/1, options: [--insecure]}\n"
    )
    layout = Layout.load(path)
    assert layout.registry.port == 7070
    assert layout.nodes[0].actor == "sophon:storage:a"
    assert layout.nodes[0].options == ("--insecure",)
    path.write_text("nodes: [")
    with pytest.raises(ConfigError, match="not YAML"):
        Layout.load(path)


def test_labels_are_texts_and_folders_are_told_apart():
    layout = Layout.parse({"nodes": [NODE, NODE | {"name": "store-2"}]})
    assert layout.nodes[0].label == {"sophon-store": "1"}
    assert len({layout.place(node.actor) for node in layout.nodes}) == 2


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"part": "3/2"}, "part"),
        ({"cores": -1}, "cores"),
        ({"cores": True}, "cores"),
        ({"data": {}}, "data"),
        ({"data": "/data"}, "data"),
        ({"name": "a b"}, "name"),
        ({"port": 70_000}, "port"),
        ({"label": ["x"]}, "label"),
        ({"options": "--insecure"}, "options"),
        ({"options": ["--port=7"]}, "has its own key"),
        ({"labels": {}}, "unknown key 'labels'"),
    ],
)
def test_what_cannot_run_is_refused(change, what):
    with pytest.raises(ConfigError, match=what):
        Layout.parse({"nodes": [NODE | change]})


def test_names_are_unique_and_there_is_a_node():
    with pytest.raises(ConfigError, match="used more than once"):
        Layout.parse({"nodes": [NODE, NODE]})
    with pytest.raises(ConfigError, match="at least one"):
        Layout.parse({"nodes": []})


def test_relays_have_bounds_and_cores_and_there_are_none_unless_asked_for():
    assert Layout.parse({"nodes": [NODE]}).relays.most == 0
    relays = Layout.parse({"nodes": [NODE], "relays": {"least": 1, "most": 4, "cores": 2}}).relays
    assert (relays.least, relays.most, relays.cores) == (1, 4, 2.0)
    assert relays.actor(3) == "sophon:relay:3"


@pytest.mark.parametrize(
    ("relays", "what"),
    [
        ({"most": -1}, "most"),
        ({"least": 2, "most": 1}, "more than most"),
        ({"most": 1, "cores": 0}, "cores"),
        ({"number": 3}, "unknown key 'number'"),
        ([1], "dictionary"),
    ],
)
def test_relays_that_cannot_run_are_refused(relays, what):
    with pytest.raises(ConfigError, match=what):
        Layout.parse({"nodes": [NODE], "relays": relays})
