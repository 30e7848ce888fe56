"""The scripts that shells complete `sophon` with, and what they are told."""

import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from sophon.cli.main import cli
from sophon.cli.start.completion import SHELLS


def test_without_arguments_it_shows_five_things_to_do():
    done = CliRunner().invoke(cli, [])
    assert done.exit_code == 0
    for words in ("sophon demo", "sophon demo --data DIR", "sophon doctor", "sophon serve PATH", "sophon.DataLoader("):
        assert words in done.output


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_that_the_shell_understands(shell):
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert "_SOPHON_COMPLETE" in done.output
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=done.output, text=True, check=True)


def test_the_command_completes_its_commands_and_their_options():
    told = {**os.environ, "_SOPHON_COMPLETE": "bash_complete"}
    program = "import sys; sys.argv[0] = 'sophon'; from sophon.cli.main import main; main()"
    for typed, expected in (("sophon do", {"doctor"}), ("sophon serve --na", {"--name"})):
        words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=told | words, capture_output=True, text=True, check=True
        )
        assert {line.partition(",")[2] for line in done.stdout.split()} == expected, done
