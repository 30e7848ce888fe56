"""The README's Python and commands do what it says."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from sophon.cli.main import cli
from tests.support.servers import make_images, serve
from tests.support.torchvision_import import import_torchvision

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_of_the_readme_runs_as_written(tmp_path):
    import_torchvision()
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    with serve(make_images(tmp_path / "train", 8), name="train") as server:
        code = code.replace("grpc://storage:7077/train", server.url).replace("range(90)", "range(2)")
        names: dict[str, object] = {}
        exec(compile(code, "README.md", "exec"), names)
        assert names["images"].shape == (8, 3, 224, 224)


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`(sophon [a-z]+(?: [a-z]+)?)", README))))
def test_every_command_of_the_readme_exists(command):
    words = [word for word in command.split() if word not in ("sophon",)]
    words = words if words[0] in ("bench",) else words[:1]
    done = CliRunner().invoke(cli, [*words, "--help"])
    assert done.exit_code == 0, done.output
