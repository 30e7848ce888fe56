"""Recognises a file by its content: a result of `bench paper`, a profile or a plan."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sophon import artifact
from sophon.errors import ArtifactError
from sophon.plan.plan import FORMAT as PLAN
from sophon.plan.plan import Plan
from sophon.profile.table import FORMAT as PROFILE
from sophon.profile.table import Profile

Source = Profile | Plan | dict[str, Any]
MAX_RESULT_BYTES = 2**26  # a hundred times a result with six policies, all figures and a timeline
_PARQUET = b"PAR1"


def read_source(path: str | os.PathLike[str]) -> Source:
    """Return the content of a file.

    Raises:
        ArtifactError: The file is missing, damaged, or none of the three.
    """
    place = Path(path)
    try:
        with place.open("rb") as file:
            head = file.read(MAX_RESULT_BYTES + 1)
    except OSError as error:
        raise ArtifactError(f"{place}: cannot be read ({error.strerror or error}); check the path.") from error
    if head.startswith(_PARQUET):
        return _read_artifact(place)
    if len(head) > MAX_RESULT_BYTES:
        raise ArtifactError(
            f"{place}: the file has more than {MAX_RESULT_BYTES:,} bytes of text; a result of `bench paper` was "
            "expected."
        )
    try:
        result = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{place}: the file is neither JSON nor a file that sophon saved; give a result of `sophon bench paper "
            "--json`, a "
            "profile or a plan."
        ) from error
    if not isinstance(result, dict) or not isinstance(result.get("policies"), dict):
        raise ArtifactError(f"{place}: the JSON has no policies; give the output of `sophon bench paper --json FILE`.")
    return result


def _read_artifact(path: Path) -> Source:
    kind = artifact.format_of(path)
    if kind == PLAN:
        return Plan.load(path)
    if kind == PROFILE:
        return Profile.load(path)
    raise ArtifactError(f"{path}: the file is a {kind[:40]}; a result, a profile or a plan was expected.")
