"""Profiles to plan with: by hand, at random, and from hypothesis; and the oracle that solves them exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from sophon.codec.cut import Cut
from sophon.plan.resources import Resources
from sophon.profile.table import Profile

CUTS = (
    Cut(0, "raw"),
    Cut(0, "window"),
    Cut(1, "raw"),
    Cut(2, "raw"),
    Cut(2, "webp"),
    Cut(2, "zstd"),
    Cut(2, "jpeg:95"),
    Cut(5, "raw"),
)


def profile_of(payload_bytes, storage_s, trainer_s, cuts=None, **fields):
    """Return a profile from nested lists; cuts are raw ones, k = 0, 1, …, unless given."""
    width = np.asarray(payload_bytes).shape[1]
    return Profile(cuts or tuple(Cut(k, "raw") for k in range(width)), payload_bytes, storage_s, trainer_s, **fields)


def random_profile(rng, samples, cuts=CUTS, style="spread", illegal=0.0):
    """Return a profile of one of several characters.

    Args:
        rng: A NumPy generator.
        samples: How many samples.
        cuts: The cuts; the first must be 0:raw.
        style: ``spread`` (no two alike), ``grid`` (small whole numbers, many ties) or ``alike`` (few kinds of samples).
        illegal: Share of (sample, cut) pairs that are illegal.
    """
    shape = (samples, len(cuts))
    if style == "grid":
        tables = [rng.integers(0, 5, shape).astype(float) for _ in range(3)]
    else:
        tables = [rng.lognormal(0, rng.uniform(0.1, 1.5), shape) for _ in range(3)]
    if style == "alike":
        kinds = rng.integers(0, 3, samples) % samples
        tables = [table[kinds] for table in tables]
    tables[0] = tables[0] * 1e5
    tables[1] = tables[1] * 1e-3 * np.array([cut.k > 0 or cut.codec != "raw" for cut in cuts])
    tables[2] = tables[2] * 1e-3
    gone = rng.random(shape) < illegal
    gone[:, 0] = False
    for table in tables:
        table[gone] = np.inf
    return Profile(tuple(cuts), *tables, pipeline="p", dataset="d", resize_k=2)


def random_resources(rng, profile, *, storage=True, consumer=True):
    """Return resources under which link, storage and trainer are of like weight, so that any of them may bind."""
    finite = [np.where(np.isfinite(t), t, 0).mean(axis=1).sum() for t in _tables(profile)]
    seconds = 10.0 ** rng.uniform(-1, 2)
    link, cores, trainer = (max(total, 1e-6) / seconds * 10.0 ** rng.uniform(-0.7, 0.7) for total in finite)
    rate = len(profile) / seconds * 10.0 ** rng.uniform(-0.7, 1.5)
    return Resources(link, cores if storage else 0, trainer, rate if consumer else float("inf"))


def _tables(profile):
    return profile.payload_bytes, profile.storage_s, profile.trainer_s


@st.composite
def problems(draw, most=60):
    """Draw a profile and resources: 5 to `most` samples, up to 8 cuts."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    width = draw(st.integers(1, len(CUTS)))
    cuts = (CUTS[0], *draw(st.permutations(CUTS[1:]))[: width - 1])
    profile = random_profile(
        rng,
        draw(st.integers(5, most)),
        cuts,
        draw(st.sampled_from(["spread", "grid", "alike"])),
        draw(st.sampled_from([0.0, 0.0, 0.3])),
    )
    storage = draw(st.sampled_from([True, True, True, False]))
    return profile, random_resources(rng, profile, storage=storage, consumer=draw(st.booleans()))


def worth_s(profile, resources):
    """Return one sample's worth, from its definition: the most seconds of one resource that one sample takes."""
    cores = resources.storage_cores
    scales = (1 / resources.link_bytes_per_s, 1 / cores if cores else 0.0, 1 / resources.trainer_cores)
    return max(float(t[np.isfinite(t)].max()) * scale for t, scale in zip(_tables(profile), scales, strict=True))


def milp_epoch_s(profile, resources, columns, seconds=5.0):
    """Return the best plan's epoch seconds by `scipy.optimize.milp`, or a lower bound where time ran out."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    n, width = len(profile), len(columns)
    tables = [table[:, columns].astype(float) for table in _tables(profile)]
    legal = np.isfinite(tables[0])
    if resources.storage_cores == 0:
        legal &= tables[1] == 0
    tables = [np.where(legal, table, 0.0).ravel() for table in tables]
    rows = [tables[0] / resources.link_bytes_per_s, tables[2] / resources.trainer_cores]
    if resources.storage_cores:
        rows.append(tables[1] / resources.storage_cores)
    scale = max(float(row.max()) for row in rows) or 1.0
    one = np.kron(np.eye(n), np.ones(width))
    solved = milp(
        np.r_[np.zeros(n * width), 1.0],
        integrality=np.r_[np.ones(n * width), 0],
        bounds=Bounds(
            np.r_[np.zeros(n * width), n / resources.consumer_samples_per_s / scale], np.r_[legal.ravel() * 1.0, np.inf]
        ),
        constraints=[
            LinearConstraint(np.c_[one, np.zeros(n)], 1, 1),
            LinearConstraint(np.c_[np.array(rows) / scale, -np.ones(len(rows))], -np.inf, 0),
        ],
        options={"time_limit": seconds, "mip_rel_gap": 1e-6},
    )
    assert solved.status in (0, 1), solved.message
    return float(solved.mip_dual_bound) * scale
