"""What nodes, files and tenants say is shown, and steers no terminal."""

import io
import json
import logging

import pytest
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from sophon.cli.logs import _Dated, say
from sophon.cli.output import console_for
from sophon.errors import printable
from sophon.link.wire import error_from_json

EVIL = "a\x1b[2J\x1b]0;title\x07b\x9b31mc\u202ed\r\x7f\ud800"


def _is_harmless(text):
    return not any(char in text for char in "\x1b\x07\x9b\u202e\r\x7f\ud800")


def test_controls_are_spelled_out_and_lines_stay():
    assert printable("a\x1b[2Jb\tc\nd é 日本 🎉") == "a\\x1b[2Jb\tc\nd é 日本 🎉"
    assert _is_harmless(printable(EVIL))


@pytest.mark.parametrize("form", ["text", "plain", "table", "bar"])
def test_a_console_shows_names_that_hold_escape_sequences(form):
    shown = io.StringIO()
    console = console_for(file=shown, width=200)
    if form == "table":
        what = Table("name", EVIL)
        what.add_row(EVIL, "x")
    else:
        what = Text(EVIL) if form == "text" else EVIL
    if form == "bar":
        with Progress(console=console) as progress:
            progress.add_task(EVIL)
    else:
        console.print(what)
    assert _is_harmless(shown.getvalue())
    assert "\\x1b[2J" in shown.getvalue()


def test_lines_of_the_command_are_plain(capsys):
    say(f"there is nothing at {EVIL}")
    assert _is_harmless(capsys.readouterr().out)


def test_a_record_of_the_log_is_one_line():
    record = logging.LogRecord(
        "sophon", logging.INFO, "", 0, "10.0.0.3 opened %s", ("a\n2026-01-01 sophon: INFO: b",), None
    )
    said = _Dated().format(record)
    assert said.count("\n") == 0
    assert "opened a\\n2026" in said


def test_errors_of_a_node_are_plain():
    error = error_from_json(json.dumps({"type": "StoreError", "message": EVIL, "traceback": EVIL}))
    assert _is_harmless(str(error))
    assert _is_harmless("".join(getattr(error, "__notes__", ())))


def test_brackets_in_names_are_no_markup():
    shown = io.StringIO()
    table = Table("name")
    table.add_row("[link=http://evil]a[/link] [/b]")
    console_for(file=shown, width=100).print(table)
    assert "[link=http://evil]a[/link] [/b]" in shown.getvalue()
