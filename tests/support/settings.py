"""Settings of a loader as one flat dict, so that tests can put them together and override them one by one."""

from __future__ import annotations

from typing import Any

import sophon


def grouped(**flat: Any) -> dict[str, Any]:
    """Return settings as `DataLoader` and `RemoteDataset` take them: those of one concern in one object."""
    told = dict(flat)
    faults = _taken(told, "deadline_s", "hedge", "fallback")
    if faults:
        told["faults"] = sophon.Faults(**faults)
    credentials = _taken(told, "token", "tls_ca", "tls_cert", "tls_key")
    if credentials:
        told["credentials"] = sophon.Credentials(**credentials)
    planning = _taken(told, "profile", "share", "allow_lossy")
    if planning:
        told["policy"] = sophon.Planning(told.get("policy"), **planning)
    if "budget" in told:
        told["on_error"] = sophon.OnError(told.get("on_error", "raise"), told.pop("budget"))
    if "columns" in told:
        told["output"] = sophon.Output(told.get("output", "torch"), told.pop("columns"))
    workers = _taken(told, "kind", "buffer_bytes", "max_requests")
    if workers:
        told["num_workers"] = sophon.Workers(told.get("num_workers", 0), **workers)
    ranks = _taken(told, "rank", "size", "uneven")
    if ranks:
        told["ranks"] = sophon.Ranks(**ranks)
    return told


def _taken(told: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: told.pop(name) for name in names if name in told}
