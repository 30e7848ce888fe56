"""Turns a file into a page: recognises the file, gathers its facts, and writes the page and its pictures."""

from __future__ import annotations

import os
from pathlib import Path

from sophon.errors import ArtifactError, ConfigError
from sophon.plan.plan import Plan
from sophon.plan.resources import Resources
from sophon.profile.table import Profile
from sophon.report.facts import Facts
from sophon.report.paper import paper_facts
from sophon.report.plan import plan_facts
from sophon.report.profile import profile_facts
from sophon.report.reading import Source
from sophon.version import install_command

PAGE = "report.html"


def facts_of(source: Source, *, profile: Profile | None = None, resources: Resources | None = None) -> Facts:
    """Return the facts about a file's content.

    Args:
        source: A result, a profile or a plan.
        profile: The profile that a plan was made from.
        resources: Resources to plan for; only if the source is a profile.
    """
    if not isinstance(source, Plan) and profile is not None:
        raise ConfigError("--profile is for a plan, and this file is not a plan: leave it out.")
    if not isinstance(source, Profile) and resources is not None:
        raise ConfigError(
            "a plan or a result contains its own link and cores; give --link and cores only with a profile."
        )
    if isinstance(source, Profile):
        return profile_facts(source, resources)
    return plan_facts(source, profile) if isinstance(source, Plan) else paper_facts(source)


def write_report(facts: Facts, folder: str | os.PathLike[str]) -> Path:
    """Write the page and one PNG per figure into a folder, and return the path of the page.

    Raises:
        ConfigError: matplotlib is not installed.
        ArtifactError: The folder cannot be written to.
    """
    try:
        from sophon.report import draw, page  # matplotlib is slow to load, and storage nodes do not have it
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a report needs {error.name}, which is not installed; run: {install_command('report')}"
        ) from error
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        for chart in facts.charts:
            (place / f"{chart.key}.png").write_bytes(draw.png(chart))
        (place / PAGE).write_text(page.page(facts), encoding="utf-8")
    except OSError as error:
        raise ArtifactError(f"{place}: cannot be written ({error.strerror or error}); choose another --out.") from error
    return place / PAGE
