"""The date is set while everything runs."""

import re
from pathlib import Path

import pytest

import sophon
from tests.faults.struck import SLOWLY, Struck
from tests.support import jumping_clock
from tests.support.marks import slow
from tests.support.servers import serve

REPOSITORY = str(Path(__file__).parents[2])


@pytest.mark.parametrize("seconds", [-86_400 * 400, *slow(86_400 * 400)], ids=["backwards", "forwards"])
def test_the_clocks_on_the_wall_jump(images, expected, tmp_path, monkeypatch, seconds):
    monkeypatch.chdir(REPOSITORY)
    flag = tmp_path / "jump"
    monkeypatch.setenv(jumping_clock.FLAG, str(flag))
    jumping_clock.install()
    try:
        with serve(images, options=(*SLOWLY, "--import", "tests.support.jumped_server")) as server:
            struck = Struck(server.url, lambda: flag.write_text(str(seconds)), "mid-stream", policy="2:webp")
            assert struck.digest() == expected
            assert struck.loader.stats.retries == 0
    finally:
        jumping_clock.remove()


def test_nothing_that_waits_looks_at_the_clock_on_the_wall():
    """A clock that jumps moves no deadline: the loader, the server and its workers count monotonic seconds."""
    source = Path(sophon.__file__).parent
    for room in ("loader", "server", "codec", "pipeline"):
        for path in (source / room).rglob("*.py"):
            assert not re.search(r"\btime\.time(_ns)?\(|datetime\.(now|utcnow)\(", path.read_text()), path
