"""The paper's greedy (SOPHON, HotStorage 2024, section 3.2), exactly.

Each sample's candidate is the cut with the fewest bytes among those without a codec. Samples whose candidate is smaller
than their raw bytes are offloaded in decreasing order of efficiency, bytes saved per storage CPU second, until T_Net is
no longer the largest of the times or no such sample is left. If T_Net is not the largest to begin with, nothing is
offloaded. The sample that ends T_Net's lead is still offloaded, as in the paper. If every node has its own link, T_Net
is the longest of their times.

Ties in bytes go to the cut with fewer storage seconds, and ties in efficiency to the sample with the smaller index.
Without storage cores only samples that cost no storage seconds are candidates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sophon.plan.cost import CutIndex, Loads, Totals, gather, predict_totals
from sophon.plan.policies.choice import Choice, Options, untouched
from sophon.plan.resources import Resources, kind_named
from sophon.profile.table import Profile

_BLOCK = 2**16
_LINK = "link"
_INFINITE = np.uint64(np.array(np.inf).view(np.uint64))


def choose(profile: Profile, resources: Resources, options: Options) -> Choice:  # noqa: ARG001 - the policies' signature
    """Offload the most efficient samples until the link is no longer the bottleneck."""
    cut = untouched(profile)
    totals = gather(profile, cut)
    if not _link_leads(totals, resources):
        bottleneck = predict_totals(totals, resources).bottleneck
        return Choice(cut, f"the bottleneck is the {bottleneck} and not the link: nothing is offloaded")
    smallest, order = _rank(profile, with_cores=all(row.rate > 0 for row in resources.rows()))
    taken = _until_link_no_longer_leads(profile, resources, totals, smallest, order)
    cut[order[:taken]] = smallest[order[:taken]]
    why = "no other sample would shrink" if taken == len(order) else "then the link is no longer the bottleneck"
    return Choice(cut, f"{taken:,} of {len(order):,} samples that shrink are offloaded, best first; {why}")


def _link_leads(totals: Totals, resources: Resources) -> bool:
    times = predict_totals(totals, resources)
    others = [s for label, s in times.busy_s.items() if kind_named(label).name != _LINK]
    return times.link_s > max(others, default=0.0)


def _rank(profile: Profile, *, with_cores: bool) -> tuple[CutIndex, NDArray[np.intp]]:
    # Returns each sample's cut with the fewest bytes, and the samples that shrink, most efficient first.
    n = len(profile)
    raw = profile.untouched
    columns = [raw, *(column for column in profile.raw_columns() if column != raw)]
    smallest = np.full(n, raw, np.uint8)
    index_bits = np.uint64(n.bit_length())
    keys = []
    for low in range(0, n, _BLOCK):
        block = slice(low, min(n, low + _BLOCK))
        least = profile.payload_bytes[block, raw].copy()
        cost = profile.storage_s[block, raw].copy()
        for column in columns[1:]:
            size, spent = profile.payload_bytes[block, column], profile.storage_s[block, column]
            better = (size < least) | ((size == least) & (spent < cost))
            np.copyto(least, size, where=better)
            np.copyto(cost, spent, where=better)
            np.copyto(smallest[block], np.uint8(column), where=better)
        saved = profile.payload_bytes[block, raw].astype(np.float64) - least
        extra = np.maximum(cost.astype(np.float64) - profile.storage_s[block, raw], 0.0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            efficiency = saved / extra
        shrinks = np.flatnonzero((saved > 0) & (with_cores | (extra == 0)))
        # A single sort of one integer: the inverted bits of the efficiency, with the index in the lowest bits. Positive
        # floats sort as their bits do; at ten million samples efficiencies that differ by 2^-30 are still
        # distinguished.
        key = (_INFINITE - efficiency[shrinks].view(np.uint64)) << np.uint64(1)
        key = (key >> index_bits << index_bits) | (shrinks + low).astype(np.uint64)
        keys.append(key)
    ranked = np.concatenate(keys)
    ranked.sort()
    ranked &= (np.uint64(1) << index_bits) - np.uint64(1)
    return smallest, ranked.astype(np.intp)


def _until_link_no_longer_leads(
    profile: Profile, resources: Resources, totals: Totals, smallest: CutIndex, order: NDArray[np.intp]
) -> int:
    # Returns how many samples of `order` are offloaded: sums are carried over from block to block.
    n = len(profile)
    raw = profile.untouched
    tables = profile.measures
    flat = [table.T.reshape(-1) for table in tables.values()]
    loads = Loads.of(resources, tuple(totals.sums), profile.part_count)
    own = [loads.measures.index(name) for name in tables]
    is_link = np.array([row.kind.name == _LINK for row in loads.rows])
    sums = np.stack(list(totals.sums.values()), axis=1)
    for low in range(0, len(order), _BLOCK):
        index = order[low : low + _BLOCK]
        place = smallest[index].astype(np.intp) * n + index
        after = np.zeros((len(loads.rows), len(index)))
        for part, column in np.ndindex(sums.shape):
            per_s = loads.per_s[:, part, column]
            if column in own:
                table = flat[own.index(column)]
                change = table.take(place).astype(np.float64) - table.take(raw * n + index)
                if profile.parts is not None:
                    change[profile.parts[index] != part] = 0.0
                change[0] += sums[part, column]
                running = np.cumsum(change)
                sums[part, column] = running[-1]
            else:
                running = np.full(len(index), sums[part, column])
            for row in np.flatnonzero(per_s):
                after[row] += running * per_s[row]
        ended = np.flatnonzero(after[is_link].max(axis=0) <= after[~is_link].max(axis=0, initial=0.0))
        if len(ended):
            return low + int(ended[0]) + 1
    return len(order)
