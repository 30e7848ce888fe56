"""`sophon doctor`: finds what is wrong with an installation, a node or the data, and what to do about it."""

from __future__ import annotations

import sys
from collections import Counter

import click
from rich.console import Console
from rich.text import Text

from sophon.cli.output import STDOUT, console_for, json_option, write_json
from sophon.doctor.finding import ADVICE, FAULT, FINE, NOTE, Finding
from sophon.doctor.visit import Visit
from sophon.units import counted

_MARKS = {FINE: ("✓", "green"), NOTE: ("·", "dim"), ADVICE: ("!", "yellow"), FAULT: ("✗", "bold red")}
_INDENT = "      "


@click.command()
@click.argument("places", nargs=-1, metavar="[URL|PATH]...")
@click.option(
    "--pipeline", "recipe", metavar="FILE",
    help="Recipe to try: a pipeline as JSON, or code such as train.py:transform. By default the ImageNet recipe.",
)  # fmt: skip
@click.option(
    "--samples",
    default=64,
    show_default=True,
    type=click.IntRange(1),
    help="Number of samples to examine in each place.",
)
@click.option(
    "--seconds", default=3.0, show_default=True, type=click.FloatRange(0.1), help="How long to measure a link."
)
@click.option(
    "--patience", default=10.0, show_default=True, type=click.FloatRange(0.1),
    help="Seconds that one step of the recipe may take.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Also exit with 1 if something could be better.")
@json_option
def doctor(
    *,
    places: tuple[str, ...],
    recipe: str | None,
    samples: int,
    seconds: float,
    patience: float,
    strict: bool,
    json_target: str | None,
) -> None:
    """Check this installation, a node or a data set, and a recipe.

    Without arguments the installation and this machine are checked. Given the address of a node (grpc://host:port/name)
    or the path of a data set, the doctor also checks whether it can be reached and read, how fast samples arrive,
    whether the bits are the same on both sides, and what could be offloaded. Exits with 1 if something must be fixed.
    """
    console = console_for(quiet=json_target == STDOUT)
    findings: list[Finding] = []
    for finding in Visit(places, recipe, samples, seconds, patience).examine():
        if not findings or findings[-1].about != finding.about:
            console.print(Text(finding.about, style="bold"), soft_wrap=True)
        findings.append(finding)
        _show(finding, console)
    count = Counter(finding.level for finding in findings)
    if json_target is not None:
        told = {
            "findings": [finding.to_json() for finding in findings],
            "faults": count[FAULT],
            "advice": count[ADVICE],
        }
        write_json(json_target, told)
    console.print(_sum(count), highlight=False, soft_wrap=True)
    if count[FAULT] or (strict and count[ADVICE]):
        sys.exit(1)


def _show(finding: Finding, console: Console) -> None:
    mark, style = _MARKS[finding.level]
    console.print(Text.assemble("  ", (mark, style), f" {finding.name}: {finding.text}"), soft_wrap=True)
    if finding.remedy:
        console.print(Text(f"{_INDENT}→ {finding.remedy}"), soft_wrap=True)


def _sum(count: Counter[str]) -> str:
    if not count[FAULT] and not count[ADVICE]:
        return "All is well."
    faults = counted(count[FAULT], "thing", "things") + " must be fixed"
    advice = counted(count[ADVICE], "thing", "things") + " could be better"
    return "; ".join(text for text, level in ((faults, FAULT), (advice, ADVICE)) if count[level]) + "."
