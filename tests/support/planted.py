"""Faults planted for real: each makes something that `sophon doctor` has to find and name."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sophon
from tests.support.certificates import Authority
from tests.support.other_release import WHAT
from tests.support.pictures import encode, scene
from tests.support.python_process import PATHS
from tests.support.servers import make_images, serve
from tests.support.warm import cold

TOKEN, OTHER = "t" * 32, "u" * 32
ODD_RESIZE = """
from PIL import Image
resize = Image.Image.resize
Image.Image.resize = lambda self, *args, **named: resize(self, *args, **named).point(lambda value: value ^ 1)
"""
BLOCKS = """
import time
from sophon import ops
def wait(picture):
    time.sleep(3600)
recipe = [ops.Decode(), ops.RandomResizedCrop(32), wait, ops.ToTensor()]
"""
FIRST = """
from sophon import ops
def negative(picture):
    return picture.point(lambda value: 255 - value)
recipe = [ops.Decode(), negative, ops.RandomResizedCrop(32), ops.ToTensor()]
"""
UNSEEDED = """
import numpy as np
from sophon import ops
own = np.random.default_rng()
def noise(tensor):
    return tensor + float(own.random())
recipe = [ops.Decode(), ops.RandomResizedCrop(32), ops.ToTensor(), noise]
"""


@dataclass
class Scene:
    """Where a fault is planted, and what `sophon doctor` is then told.

    Args:
        folder: A folder of this test.
        stack: Ends servers.
        setenv: Sets a variable of this process, and of servers that it starts.
    """

    folder: Path
    stack: contextlib.ExitStack
    setenv: Callable[[str, str], None]
    words: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    wrapper: list[str] = field(default_factory=list)

    def images(self, name: str = "images", count: int = 6) -> Path:
        """Make a folder of pictures."""
        return make_images(self.folder / name, count)

    def node(self, *options: str, count: int = 6, name: str = "images", **more: Any) -> str:
        """Start a node and return the address of its data set."""
        return self.stack.enter_context(serve(self.images(name, count), options=options, **more)).url

    def path(self, folder: Path) -> None:
        """Let Python look into a folder first."""
        self.variables["PYTHONPATH"] = f"{folder}:{PATHS}"

    def customized(self, code: str) -> None:
        """Let the doctor's Python run some code before anything else."""
        home = self.folder / "custom"
        home.mkdir()
        (home / "sitecustomize.py").write_text(code)
        self.path(home)

    def recipe(self, code: str) -> None:
        """Give the doctor a recipe."""
        file = self.folder / "recipe.py"
        file.write_text(code)
        self.words += ["--pipeline", f"{file}:recipe"]

    def without_extensions(self) -> Path:
        """Return a copy of the package as it is where no compiler was found."""
        home = self.folder / "bare"
        if not home.exists():
            package = Path(sophon.__file__).parent
            shutil.copytree(package, home / "sophon", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        return home


def wrong_pillow(scene_: Scene) -> None:
    scene_.words.append(scene_.node())
    scene_.customized(ODD_RESIZE)


def old_pillow(scene_: Scene) -> None:
    home = scene_.folder / "old" / "pillow-11.0.0.dist-info"
    home.mkdir(parents=True)
    (home / "METADATA").write_text("Metadata-Version: 2.1\nName: pillow\nVersion: 11.0.0\n")
    scene_.path(home.parent)


def missing_package(scene_: Scene) -> None:
    scene_.words.append(str(scene_.images()))
    scene_.customized("import sys; sys.modules['pyarrow'] = None")


def missing_extension(scene_: Scene) -> None:
    scene_.path(scene_.without_extensions())


def node_without_extension(scene_: Scene) -> None:
    scene_.setenv("PYTHONPATH", f"{scene_.without_extensions()}")
    with cold():  # one that is forked has loaded them
        scene_.words.append(scene_.node())


def no_token(scene_: Scene) -> None:
    scene_.words.append(scene_.node("--token-file", str(_tokens(scene_))))


def no_right(scene_: Scene) -> None:
    url = scene_.node("--token-file", str(_tokens(scene_)))
    scene_.variables["SOPHON_TOKEN"] = OTHER
    scene_.words.append(url)


def _tokens(scene_: Scene) -> Path:
    file = scene_.folder / "tokens"
    file.write_text(f"{TOKEN} data\n")
    return file


def clock_off(scene_: Scene) -> None:
    flag = scene_.folder / "jump"
    flag.write_text("4000")
    scene_.setenv("SOPHON_TEST_CLOCK", str(flag))
    scene_.setenv("PYTHONPATH", PATHS)
    scene_.words.append(scene_.node("--import", "tests.support.jumped_server"))


def port_closed(scene_: Scene) -> None:
    nobody = scene_.stack.enter_context(socket.socket())
    nobody.bind(("127.0.0.1", 0))
    scene_.words.append(f"grpc://127.0.0.1:{nobody.getsockname()[1]}/train")


def no_such_host(scene_: Scene) -> None:
    scene_.words.append("grpc://no-such-host.invalid:7077/train")


def no_node(scene_: Scene) -> None:
    """Something else listens there, and never says a word."""
    silent = scene_.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    scene_.words.append(f"grpc://127.0.0.1:{silent.getsockname()[1]}/train")


def other_name(scene_: Scene) -> None:
    scene_.words.append(scene_.node().replace("/data", "/date"))


def other_data(scene_: Scene) -> None:
    scene_.words += [scene_.node(), scene_.node(name="others", count=5)]


def blocking_step(scene_: Scene) -> None:
    scene_.words += [str(scene_.images()), "--patience", "1"]
    scene_.recipe(BLOCKS)


def blocked_offloading(scene_: Scene) -> None:
    scene_.words.append(str(scene_.images()))
    scene_.recipe(FIRST)


def unseeded_step(scene_: Scene) -> None:
    scene_.words.append(str(scene_.images()))
    scene_.recipe(UNSEEDED)


def unreadable(scene_: Scene) -> None:
    folder = scene_.images()
    (folder / "class_0").chmod(0)
    scene_.stack.callback((folder / "class_0").chmod, 0o755)
    scene_.words.append(str(folder))
    if os.geteuid() == 0:  # root may read everything, unless it gives that up
        rights = "-dac_override,-dac_read_search"
        scene_.wrapper = ["setpriv", "--bounding-set", rights, "--inh-caps", rights]


def no_pictures(scene_: Scene) -> None:
    folder = scene_.folder / "texts"
    folder.mkdir()
    (folder / "readme.txt").write_text("no picture")
    scene_.words.append(str(folder))


def nothing_there(scene_: Scene) -> None:
    scene_.words.append(str(scene_.folder / "nowhere"))


def truncated_photo(scene_: Scene) -> None:
    folder = scene_.folder / "photos"
    folder.mkdir()
    for number in range(4):
        data = encode(scene(200, 150, number), "jpeg 4:2:0")
        (folder / f"{number}.jpg").write_bytes(data[: len(data) // 2] if number == 2 else data)
    scene_.words.append(str(folder))


def cache_unwritable(scene_: Scene) -> None:
    (scene_.folder / "file").write_text("in the way")
    scene_.variables["XDG_CACHE_HOME"] = str(scene_.folder / "file")


def cache_full(scene_: Scene) -> None:
    home = scene_.folder / "small"
    home.mkdir()
    scene_.variables["XDG_CACHE_HOME"] = str(home)
    mounted = f'mount -t tmpfs -o size=64k none {home} && exec "$@"'
    scene_.wrapper = ["unshare", "--mount", "sh", "-c", mounted, "sh"]


def cache_of_others(scene_: Scene) -> None:
    home = scene_.folder / "open"
    (home / "sophon").mkdir(parents=True)
    (home / "sophon").chmod(0o777)
    scene_.variables["XDG_CACHE_HOME"] = str(home)


def other_release(scene_: Scene) -> None:
    scene_.setenv(WHAT, "protocol")
    scene_.setenv("PYTHONPATH", PATHS)
    scene_.words.append(scene_.node("--import", "tests.support.other_release"))


def other_op(scene_: Scene) -> None:
    scene_.setenv(WHAT, "op")
    scene_.setenv("PYTHONPATH", PATHS)
    scene_.words.append(scene_.node("--import", "tests.support.other_release"))


def wrong_authority(scene_: Scene) -> None:
    ours, theirs = Authority(scene_.folder, "ours"), Authority(scene_.folder, "theirs")
    pair = theirs.issue("node")
    scene_.words.append(scene_.node("--tls-cert", str(pair.cert), "--tls-key", str(pair.key)))
    scene_.variables["SOPHON_TLS_CA"] = str(ours.ca)


def tiny_link(scene_: Scene) -> None:
    scene_.words += [scene_.node("--limit", "1mbit"), "--seconds", "1"]


def few_files(scene_: Scene) -> None:
    scene_.wrapper = ["sh", "-c", 'ulimit -n 100 && exec "$@"', "sh"]


def no_cores(scene_: Scene) -> None:
    scene_.words.append(scene_.node(cores=0))
