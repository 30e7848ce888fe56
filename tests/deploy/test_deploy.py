"""The examples under deploy/: the unit is sound, its flags exist, and the container's commands work."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from sophon import Credentials, DataLoader, LocalServer
from sophon.cli.serve import serve as serve_command
from tests.support.servers import RECIPE, make_images
from tests.support.waiting import HANG_S

ROOT = Path(__file__).parents[2]
UNIT = (ROOT / "deploy/sophon-serve.service").read_text()
SETTINGS = (ROOT / "deploy/serve.env").read_text()
CONTAINER = (ROOT / "deploy/Containerfile").read_text()
TOKEN = "a-token-for-tests-only"
FLAGS = {flag for option in serve_command.params for flag in option.opts if flag.startswith("--")}


def _flags(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def _settings():
    lines = [line for line in SETTINGS.splitlines() if line and not line.startswith("#")]
    return {
        name: "".join(shlex.split(value)) if value else "" for name, _, value in (line.partition("=") for line in lines)
    }


def _command():
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    return line


def _instructions():
    joined = re.sub(r"\\\n\s*", "", "\n".join(line for line in CONTAINER.splitlines() if not line.startswith("#")))
    return [tuple(line.split(" ", 1)) for line in joined.splitlines() if line]


def test_every_flag_of_the_unit_and_its_settings_exists():
    found = _flags(_command()) | _flags(SETTINGS.split("`sophon serve --help`")[1])
    assert "--cores" in found
    assert found <= FLAGS


def test_every_file_that_the_page_installs_is_there():
    named = set(re.findall(r"deploy/[\w.-]+\w", (ROOT / "docs" / "deploy.md").read_text()))
    assert named == {f"deploy/{path.name}" for path in (ROOT / "deploy").iterdir() if path.is_file()}


def test_every_setting_of_the_unit_is_in_the_file_and_no_other():
    assert set(re.findall(r"\$\{?(SOPHON_[A-Z_]+)", _command())) == set(_settings())


def test_the_units_command_serves(tmp_path):
    # As systemd would expand it, with folders and ports of the test.
    for name in ("train", "val"):
        make_images(tmp_path / name, 6)
    values = {**_settings(), "SOPHON_DATA": f"train={tmp_path}/train val={tmp_path}/val", "SOPHON_CORES": "1"}
    values |= {"SOPHON_HOST": "127.0.0.1", "SOPHON_PORT": "0", "SOPHON_METRICS_PORT": "0"}
    (tmp_path / "tokens").write_text(f"{TOKEN} *\n")
    text = _command().replace("%C", str(tmp_path)).replace("%d", str(tmp_path))
    text = re.sub(r"\$\{(\w+)\}", lambda found: shlex.quote(values[found[1]]), text)
    text = re.sub(r"\$(\w+)", lambda found: values[found[1]], text)
    words = [*shlex.split(text)[1:], "--ready-file", str(tmp_path / "ready")]
    process = subprocess.Popen(
        [sys.executable, "-m", "sophon.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        for line in process.stdout:
            if "ready" in line:
                break
        port = json.loads((tmp_path / "ready").read_text())["port"]
        for name in ("train", "val"):
            url = f"grpc://127.0.0.1:{port}/{name}"
            assert len(list(DataLoader(url, RECIPE, batch_size=3, credentials=Credentials(token=TOKEN)))) == 2
    finally:
        process.terminate()
        process.communicate(timeout=HANG_S)
    assert process.returncode == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_finds_no_fault_with_the_unit(tmp_path):
    unit = tmp_path / "sophon-serve.service"
    unit.write_text(UNIT.replace("/opt/sophon/bin/sophon", "/bin/true"))  # it wants the command to exist
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_rates_the_units_exposure_as_low(tmp_path):
    unit = tmp_path / "sophon-serve.service"
    unit.write_text(UNIT)
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(unit)]  # 2.0 of 10
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd cannot rate a file")
    assert done.returncode == 0, done.stdout


def test_the_server_works_where_memory_cannot_be_made_executable(tmp_path):
    # As the unit's MemoryDenyWriteExecute, by the kernel's own switch: PR_SET_MDWE, Linux 6.3.
    code = (
        "import ctypes, os, sys\n"
        "if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0): sys.exit(77)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'sophon.cli.main', *sys.argv[1:]])"
    )
    ready = tmp_path / "ready"
    words = ["serve", str(make_images(tmp_path / "images", 6)), "--name", "images", "--port", "0", "--cores", "1"]
    words += ["--cache-dir", str(tmp_path / "cache"), "--ready-file", str(ready)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        for line in process.stdout:
            if "ready" in line:
                break
        if process.poll() == 77:
            pytest.skip("this kernel has no such switch")
        url = f"grpc://127.0.0.1:{json.loads(ready.read_text())['port']}/images"
        assert len(list(DataLoader(url, RECIPE, batch_size=3, policy="all"))) == 2
    finally:
        process.terminate()
        process.communicate(timeout=HANG_S)


def test_every_flag_of_the_containers_command_exists():
    commands = dict(_instructions())
    entry = json.loads(commands["ENTRYPOINT"])
    assert entry[:2] == ["sophon", "serve"]
    assert {word for word in entry if word.startswith("--")} <= FLAGS
    example = CONTAINER.split("sophon-cache:/cache sophon-serve")[1].split("/data/train")[0]
    assert _flags(example) <= FLAGS


def test_the_container_runs_without_root_and_its_health_is_asked_where_it_listens(tmp_path):
    names = [name for name, _ in _instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")
    commands = dict(_instructions())
    port = commands["ENTRYPOINT"].split('"--metrics-port", "')[1].split('"')[0]
    check = json.loads(commands["HEALTHCHECK"].split("CMD ", 1)[1])
    assert f":{port}/health" in check[2]
    options = ("--metrics-port", "0", "--cache-dir", str(tmp_path / "cache"))
    with LocalServer(make_images(tmp_path / "images", 3), options=options) as server:
        asked = [sys.executable, check[1], check[2].replace(f":{port}/", f":{server.metrics_port}/")]
        assert subprocess.run(asked, check=False).returncode == 0
    assert subprocess.run(asked, check=False, capture_output=True).returncode != 0


@pytest.mark.slow
def test_the_containers_build_works_in_a_fresh_environment(tmp_path):
    # The RUN lines of the build stage, with the image's folders under the test's own; what is not copied is not there.
    build = CONTAINER.split("FROM ")[1]
    places = {"/source": tmp_path / "source", "/wheels": tmp_path / "wheels", "/opt/sophon": tmp_path / "sophon"}
    places["/source"].mkdir()
    for words in re.findall(r"^COPY (.*)$", build, re.MULTILINE):
        *sources, target = words.split()
        for name in sources:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, places["/source"] / target, ignore=shutil.ignore_patterns("*.so", "*.c"))
            else:
                shutil.copy(ROOT / name, places["/source"])
    venv.create(tmp_path / "python", with_pip=True)
    commands = [line for line in re.findall(r"^RUN (.*)$", build, re.MULTILINE) if not line.startswith("apt-get")]
    assert len(commands) == 4
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # or it would find our own
    for line in commands:
        command = re.sub(r"^python ", f"{tmp_path}/python/bin/python ", line)
        for place, own in places.items():
            command = re.sub(rf"(?<![\w]){place}\b", str(own), command)
        done = subprocess.run(
            command, shell=True, cwd=places["/source"], env=clean, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    help_text = subprocess.run(
        [tmp_path / "sophon/bin/sophon", "serve", "--help"], env=clean, capture_output=True, text=True, check=True
    ).stdout
    assert "--metrics-port" in help_text
    listed = subprocess.run(
        [tmp_path / "sophon/bin/python", "-m", "pip", "list"], env=clean, capture_output=True, text=True, check=True
    ).stdout
    assert not re.search(r"^(torch|matplotlib)\b", listed, re.MULTILINE)
