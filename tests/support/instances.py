"""Profiles to plan with: by hand, at random, and from hypothesis; and the oracle that solves them exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from sophon.codec.cut import Cut
from sophon.plan.resources import Node, Resources
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


def spread_over_nodes(rng, profile, resources, count):
    """Return a profile whose samples lie on several nodes, and resources of which a choice of cuts spends `count`.

    Args:
        rng: A NumPy generator.
        profile: A profile without parts.
        resources: What one node has; storage cores among them.
        count: 4 for two nodes with a link each, 8 for three nodes with a link and cores each, behind one link.
    """
    nodes = {4: 2, 8: 3}[count]
    parted = replace(profile, parts=rng.integers(0, nodes, len(profile)).astype(np.uint16))
    shares = rng.dirichlet(np.ones(nodes) * 3, 2)
    names = ("link_bytes_per_s", "storage_cores")[: 1 if count == 4 else 2]
    made = [
        Node(name, {rate: getattr(resources, rate) * max(share, 0.01) for rate, share in zip(names, own, strict=False)})
        for name, own in zip("abc", shares.T, strict=False)
    ]
    whole = {"trainer_cores": resources.trainer_cores, "consumer_samples_per_s": resources.consumer_samples_per_s}
    if count == 4:
        whole["storage_cores"] = resources.storage_cores
    else:
        whole["link_bytes_per_s"] = resources.link_bytes_per_s * rng.uniform(0.7, 1.2)
    sending = rng.choice([0.0, 1e-9, 1e-8])
    return parted, Resources(nodes=made, **whole, sending_s_per_byte=sending, sending_s_per_sample=1e4 * sending)


def uses(profile, resources, columns):
    """Return [resources, samples, columns] the seconds that each sample takes at each cut, one entry at a time."""
    made = []
    for row in resources.rows():
        entries = np.zeros((len(profile), len(columns)))
        for use in row.kind.uses:
            factor = getattr(resources, use.factor) if use.factor else 1.0
            if factor == 0 or (use.factor and row.rate == 0):
                continue
            if use.measure == "samples":
                entries += factor
            else:
                name = use.measure if use.measure in profile.measures else "payload_bytes"
                at = list(columns) if use.measure in profile.measures else [profile.untouched] * len(columns)
                entries += factor * profile.measures[name][:, at].astype(float)
        if row.part is not None:
            entries[profile.parts != row.part] = 0.0
        made.append(np.where(entries > 0, np.inf, 0.0) if row.rate == 0 else entries / row.rate)
    return np.array(made)


def _tables(profile):
    return profile.payload_bytes, profile.storage_s, profile.trainer_s


@st.composite
def problems(draw, most=60, count=3):
    """Draw a profile and resources: 5 to `most` samples, up to 8 cuts, and `count` resources that a plan changes."""
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
    resources = random_resources(rng, profile, storage=storage, consumer=draw(st.booleans()))
    return (profile, resources) if count == 3 else spread_over_nodes(rng, profile, resources, count)


def worth_s(profile, resources):
    """Return one sample's worth, from its definition: the most seconds of one resource that one sample takes."""
    found = uses(profile, resources.having(consumer_samples_per_s=np.inf), range(len(profile.routes)))
    return float(found[np.isfinite(found)].max())


def milp_epoch_s(profile, resources, columns, seconds=5.0):
    """Return the best plan's epoch seconds by `scipy.optimize.milp`, or a lower bound where time ran out."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    n, width = len(profile), len(columns)
    times = uses(profile, resources, columns)
    legal = np.isfinite(times).all(axis=0)
    rows = [np.where(legal, row, 0.0).ravel() for row in times]
    scale = max(float(row.max()) for row in rows) or 1.0
    one = np.kron(np.eye(n), np.ones(width))
    solved = milp(
        np.r_[np.zeros(n * width), 1.0],
        integrality=np.r_[np.ones(n * width), 0],
        bounds=Bounds(np.zeros(n * width + 1), np.r_[legal.ravel() * 1.0, np.inf]),
        constraints=[
            LinearConstraint(np.c_[one, np.zeros(n)], 1, 1),
            LinearConstraint(np.c_[np.array(rows) / scale, -np.ones(len(rows))], -np.inf, 0),
        ],
        options={"time_limit": seconds, "mip_rel_gap": 1e-6},
    )
    assert solved.status in (0, 1), solved.message
    return float(solved.mip_dual_bound) * scale
