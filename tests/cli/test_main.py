import json
import logging
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import sophon
from sophon.cli.main import cli, main
from sophon.errors import AccessError, ConfigError, StoreError, UnavailableError
from tests.support.pictures import encode, scene
from tests.support.waiting import HANG_S, wait_until


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.jpg").write_bytes(encode(scene(300, 250, i), "jpeg 4:2:0"))
    return folder


def _run(*args):
    return CliRunner().invoke(cli, [str(a) for a in args], catch_exceptions=False)


def test_help_lists_every_command():
    result = _run("--help")
    assert result.exit_code == 0
    assert all(name in result.output for name in ("synth", "bench", "demo"))


def test_version():
    assert _run("--version").output == f"sophon, version {sophon.__version__}\n"


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "sophon", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: python -m sophon [OPTIONS] [COMMAND] [ARGS]...")


def test_bench_ops_prints_a_table_and_writes_json(photos, tmp_path):
    result = _run("bench", "ops", "--data", photos, "--seconds", 0.2, "--json", tmp_path / "out.json")
    assert result.exit_code == 0
    assert "RandomResizedCrop" in result.output
    assert "ImageNet recipe" in result.output
    written = json.loads((tmp_path / "out.json").read_text())
    assert set(written["recipe"]) == {"ours_ms", "torchvision_ms"}
    assert set(written["ops"]["Decode"]) == {"ours_ms", "torchvision_ms"}


def test_bench_cuts_ends_with_the_gain_and_the_verdict_on_the_bits(photos):
    result = _run("bench", "cuts", "--data", photos, "--count", 3)
    assert result.exit_code == 0
    assert "fewer bytes cross the link" in result.output
    assert result.output.rstrip().endswith("tensors are bit-identical to those of the uncut pipeline.")


def test_an_error_is_one_line_with_a_remedy_and_an_exit_code(tmp_path):
    command = [sys.executable, "-m", "sophon", "bench", "cuts", "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"sophon: no images in {tmp_path}; looked for")


def _commands(group=cli, *names):
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield from _commands(command, *names, name) if hasattr(command, "commands") else [(*names, name)]


@pytest.mark.parametrize("names", list(_commands()), ids=" ".join)
def test_every_command_has_help_that_fits_into_a_list_and_words_for_every_option(names):
    command = cli
    for name in names:
        command = command.get_command(None, name)
        assert "..." not in command.get_short_help_str(63), name
    for option in command.params:
        assert not isinstance(option, click.Option) or option.help.endswith("."), option.name


@pytest.mark.parametrize(
    "arguments",
    [
        *[("bench", name, "--data", "nowhere") for name in ("cuts", "isolation", "link", "loader", "ops", "paper")],
        *[("bench", name, "--data", "nowhere") for name in ("profile", "window")],
        *[("bench", name, "--seconds", "-1") for name in ("isolation", "link", "loader", "ops", "profile")],
        *[("bench", name, "--seconds", "-1") for name in ("slow", "tune", "window")],
        *[("bench", name, "--json", "nowhere/file") for name in ("ops", "paper", "soak", "tune")],
        ("bench", "soak", "--minutes", "-1"),
        ("bench", "plan", "--policy", "nonsense"),
        ("bench", "paper", "--link", "fast"),
        ("bench", "paper", "--consumer", "slow"),
        ("demo", "--data", "nowhere"),
        ("demo", "--link", "0mbit"),
        ("serve", "photos", "--limit", "fast"),
        ("serve", "photos", "--max-in-flight", "much"),
        ("index", "photos", "--out", "nowhere/file"),
        ("profile", "photos", "--pipeline", "pipeline.json", "--out", "nowhere/file"),
        ("plan", "nowhere"),
        ("report", "nowhere"),
    ],
    ids=" ".join,
)
def test_bad_input_is_refused_before_anything_is_done_and_the_option_is_named(photos, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.json").write_text("{}")
    done = _run(*arguments)
    assert done.exit_code == 2
    named = [argument for argument in arguments if argument.startswith("--")]
    assert done.output.splitlines()[-1].startswith("Error: Invalid value for")
    assert not named or named[-1] in done.output.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bench", "paper", "--policies", "none,nonsense"), "policies: expected one of none"),
        (("bench", "paper", "--figures", "9"), "figures: expected one of 1a"),
        (("demo", "--out", "photos/0.jpg/x"), "--out: photos/0.jpg/x cannot be created"),
        (("serve", "nowhere"), r"there is nothing at .*nowhere"),
        (("index", "nowhere"), r"there is nothing at .*nowhere"),
        (("probe", "photos", "--pipeline", "pipeline.json"), "expected a pipeline as"),
        (("synth", "photos"), "--force"),
    ],
)
def test_what_cannot_work_is_a_config_error(photos, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.json").write_text("{}")
    with pytest.raises(ConfigError, match=words):
        _run(*arguments)


def test_ctrl_c_ends_a_command_with_130_and_no_traceback(tmp_path):
    # Shells have what they run in the background ignore Ctrl+C, and so do those who inherit it from them.
    heeds = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program = heeds + "runpy.run_module('sophon', run_name='__main__')"
    command = [sys.executable, "-c", program, "synth", str(tmp_path / "photos"), "--count", "1000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list(tmp_path.glob("photos/**/*.jpg")))
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(HANG_S) == 130
    assert said.splitlines()[-1] == "sophon: interrupted"
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no"), 2),
        (AccessError("no"), 2),
        (click.UsageError("no"), 2),
        (StoreError("no"), 1),
        (UnavailableError("no"), 1),
        (click.ClickException("no"), 1),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
    ids=repr,
)
def test_wrong_use_is_2_a_failure_1_and_ctrl_c_130(monkeypatch, capsys, error, code):
    @click.command()
    def failing():
        raise error

    monkeypatch.setitem(cli.commands, "failing", failing)
    monkeypatch.setattr(sys, "argv", ["sophon", "failing"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert "Traceback" not in capsys.readouterr().err


def test_warnings_and_logs_are_lines_of_the_command_and_gone_with_it(monkeypatch, capsys):
    @click.command()
    def telling():
        warnings.warn("something is odd", sophon.AwayWarning, stacklevel=1)
        logging.getLogger("sophon.nodes").warning("a node is away")
        logging.getLogger("sophon.nodes").info("not worth a line")

    monkeypatch.setitem(cli.commands, "telling", telling)
    monkeypatch.setattr(sys, "argv", ["sophon", "telling"])
    warnings.simplefilter("always")  # pytest puts it back
    with pytest.raises(SystemExit):
        main()
    logging.getLogger("sophon.nodes").warning("nobody asked")
    said = capsys.readouterr().err
    assert said == "sophon: warning: something is odd\nsophon: warning: a node is away\n"
