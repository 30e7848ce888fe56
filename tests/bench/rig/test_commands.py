"""A program that is told what to do by lines of JSON."""

import json
import subprocess
import sys

PROGRAM = """
import os
from sophon.bench.rig.commands import answer
from sophon.errors import Error

class Commands:
    def add(self, one, other):
        os.write(1, b"a library that prints\\n")
        return one + other
    def fail(self):
        raise Error("it cannot be done")

answer(Commands())
"""


def test_answers_are_told_apart_from_what_libraries_print():
    lines = [{"do": "add", "one": 1, "other": 2}, {"do": "fail"}, {"do": "add", "one": 3}]
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    first, second, third = map(json.loads, told.stdout.splitlines())
    assert (first, second) == ({"result": 3}, {"error": "it cannot be done"})
    assert "other" in third["error"]
    assert "a library that prints" in told.stderr
