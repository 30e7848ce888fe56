"""``sophon report``: shows a result, a profile or a plan as one page that needs no network."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import click
from rich.table import Table

from sophon.cli.options import resource_options
from sophon.cli.output import STDOUT, console_for, json_option, write_json
from sophon.profile.table import Profile
from sophon.report import chart
from sophon.report.facts import Facts

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("report")
@click.argument("file", type=_FILE, metavar="RESULT|PROFILE|PLAN")
@click.option("--profile", type=_FILE, help="Profile of the PLAN; adds which samples get which cut, and what-ifs.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for report.html and the pictures; by default NAME-report for a file NAME.json.",
)
@resource_options(required=False)
@json_option
def report(
    *,
    file: Path,
    profile: Path | None,
    out: Path | None,
    json_target: str | None,
    **rates: float | None,
) -> None:
    """Show a result, a profile or a plan as text, a table and figures.

    RESULT is a file written by `sophon demo` or `sophon bench paper --json`. A PROFILE is shown with plans for the link
    and cores that its loader measured, or otherwise for 500mbit, 2 storage cores and 8 trainer cores.
    """
    from sophon.report.profile import ASSUMED
    from sophon.report.reading import read_source
    from sophon.report.write import facts_of, write_report

    said = {name: rate for name, rate in rates.items() if rate is not None}
    resources = ASSUMED.having(**said) if said else None
    facts = facts_of(read_source(file), profile=None if profile is None else Profile.load(profile), resources=resources)
    page = write_report(facts, out or Path(f"{file.stem}-report"))
    if json_target is not None:
        write_json(json_target, facts.to_json())
    if json_target != STDOUT:
        _show(facts, page)


def _show(facts: Facts, page: Path) -> None:
    console = console_for()
    for words in facts.words:
        console.print(words, highlight=False)
    table = Table(title=facts.subject, title_justify="left")
    shown = _fitting(facts.summary, console.width)
    for place, name in enumerate(facts.summary.header[:shown]):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for row in facts.summary.rows:
        table.add_row(*row[:shown])
    console.print(table)
    console.print(
        f"{page!s}: the report, with {len(facts.charts)} figures as PNG files next to it",
        highlight=False,
        soft_wrap=True,
    )


def _fitting(summary: chart.Table, width: int) -> int:
    # As many columns as fit the terminal, with their borders; the HTML page has all of them.
    widths = [max(map(len, column)) + 3 for column in zip(summary.header, *summary.rows, strict=True)]
    return max(2, sum(total < width for total in accumulate(widths)))
