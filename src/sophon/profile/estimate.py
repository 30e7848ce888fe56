"""Estimate: predicts the cost of every sample at every cut, from the records of a recorder.

The cost of a cut is the sum of parts, each of which is known from many samples::

    storage seconds = Σ over ops[:k] of trainer seconds × (storage : trainer of that op) + encoding
    trainer seconds = decoding + Σ over ops[k:] of trainer seconds
    bytes           = size of the codec's output; known exactly for uncompressed values of one shape

Each part is predicted by a rule (see `model`) from the sizes of file, picture and box, and every rule states its error.
The storage : trainer ratio of an op is the storage node's time for it divided by the rule's prediction for the trainer.

A sample that has not passed yet (most of them, if several ranks share an epoch) is assumed to have the usual size, with
the box that it will draw. Costs are not linear in sizes, so these estimates would be too low on average: they are
scaled to the mean of the samples that have passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.codec.cut import RAW, Cut, looks_ahead
from sophon.codec.route import Route
from sophon.errors import ConfigError
from sophon.pipeline import Pipeline
from sophon.pipeline.pipeline import in_words
from sophon.profile import features
from sophon.profile.columns import resize_k
from sophon.profile.kinds import kind_of
from sophon.profile.measures import REQUIRED
from sophon.profile.model import BLOCK, Fit, Rows, fit
from sophon.profile.recorder import Known, Record, Recorder
from sophon.profile.table import FloatTable, Profile, Quality

_FEW = 8  # records of this run before they replace those of an earlier one
_OF_RELAYS = ("relay_s", "relay_bytes")
_EXTREME = 10.0  # ratio of two CPUs beyond which the clock must be wrong


def estimate(
    recorder: Recorder,
    epoch: int,
    *,
    dataset: str = "",
    provenance: Mapping[str, Any] | None = None,
    is_early: bool = False,
    relayed: Relayed | None = None,
) -> Profile:
    """Return the predicted cost of every sample at every cut in an epoch.

    Args:
        recorder: The measurements so far.
        epoch: Epoch whose boxes are used.
        dataset: Fingerprint of the data set.
        provenance: Further notes on how the profile was made.
        is_early: Whether only a few records exist; cuts that were not tried are then left out.
        relayed: Routes through relays that also get a column; None if there are no relays.

    Raises:
        ConfigError: No sample was sent raw, so the times of ops are not known, or no op can run near storage.
    """
    if recorder.pipeline.max_cut == 0:
        raise ConfigError("no op of this pipeline can run near storage, so there is nothing to choose")
    made = _Estimate(recorder, epoch, is_early)
    profile = made.profile(dataset, provenance or {})
    return profile if relayed is None or not relayed.routes else made.with_relays(profile, relayed)


@dataclass(frozen=True)
class Relayed:
    """Routes through relays.

    Args:
        routes: The routes; both cuts of each have their own column.
        to_trainer: Time that relays take, relative to the trainer's time for the same work.
        more_s: CPU seconds of finishing at the trainer, beyond those of the same cut without a relay.
    """

    routes: tuple[Route, ...]
    to_trainer: float = 1.0
    more_s: float = 0.0


class _Estimate:
    def __init__(self, recorder: Recorder, epoch: int, is_early: bool) -> None:
        self._is_early = is_early
        self._pipeline: Pipeline = recorder.pipeline
        self._cuts = recorder.cuts
        self._seed = recorder.seed
        self._epoch = epoch
        self._told: Known = recorder.known(epoch)
        self._raw_bytes = features.filled(self._told.raw_bytes)
        self._kind = kind_of(recorder.pipeline)
        sizes = features.filled_sizes(self._told.sizes)
        self._rows = features.rows(self._kind, self._raw_bytes, sizes, self._told.areas, np.float32)
        self._rows_by_cut: dict[Cut, Rows] = {}
        self._rules: dict[str, Fit] = {}
        self._op_s: FloatTable | None = None
        self._op_rules = [self._op_rule(position) for position in range(self._pipeline.first_call)]
        self._ratios = self._storage_to_trainer()

    def profile(self, dataset: str, provenance: Mapping[str, Any]) -> Profile:
        shape = (len(self._told.raw_bytes), len(self._cuts))
        tables = tuple(np.empty(shape, np.float32, order="F") for _ in range(3))
        measured = np.zeros(shape, np.bool_, order="F")
        op_s = np.empty((shape[0], len(self._op_rules)), np.float32, order="F")
        for position, rule in enumerate(self._op_rules):
            rule.predict(self._rows, out=op_s[:, position])
        timed = self._timed(op_s)
        self._op_s = op_s
        columns = [self._column(cut) for cut in self._cuts]
        self._fill(columns, op_s, tables)
        seen = self._told.raw_bytes > 0
        unseen = np.flatnonzero(~seen)
        for place, cut in enumerate(self._cuts):
            illegal = self._told.refused[:, place]
            is_refused = bool(illegal.any())  # rare, and looking for such samples costs as much as a prediction
            for cost in (table[:, place] for table in tables):
                if len(unseen):
                    cost[unseen] = _scaled(cost[unseen], cost[seen & ~illegal])
                if is_refused:
                    cost[illegal] = np.inf
            if cut.codec == "raw":
                measured[timed, place] = True
        quality = [column.quality() for column in columns]
        made = {
            "how": "by a running loader",
            "ops": [op.name() for op in self._pipeline.ops],
            "recipe": in_words(self._pipeline),
            "seed": self._seed,
            "epoch": self._epoch,
            "storage_to_trainer": [round(float(ratio), 4) for ratio in self._ratios],
            "rules": {name: rule.to_json() for name, rule in self._rules.items()},
            **provenance,
        }
        return Profile(
            tuple(map(Route.of, self._cuts)),
            tables[0],
            tables[1],
            tables[2],
            pipeline=self._pipeline.fingerprint,
            dataset=dataset,
            measured=measured,
            quality=tuple(quality),
            provenance=made,
            sizes=self._told.sizes,
            resize_k=resize_k(self._pipeline),
        )

    def with_relays(self, profile: Profile, relayed: Relayed) -> Profile:
        """Return a profile with columns for routes through relays, combined from the columns of their cuts.

        A route costs as much as its first cut near storage, and as much as its second at the trainer. The relay decodes
        the first payload, runs the ops in between, and encodes the second.
        """
        routes = relayed.routes
        columns = [(profile.column(route.cuts[0]), profile.column(route.arrival)) for route in routes]
        shape = (len(profile), len(routes))
        tables: dict[str, Any] = {name: np.empty(shape, np.float32, order="F") for name in (*REQUIRED, *_OF_RELAYS)}
        for place, (route, (first, last)) in enumerate(zip(routes, columns, strict=True)):
            tables["payload_bytes"][:, place] = profile.payload_bytes[:, first]
            tables["storage_s"][:, place] = profile.storage_s[:, first]
            tables["relay_bytes"][:, place] = profile.payload_bytes[:, last]
            tables["trainer_s"][:, place] = profile.trainer_s[:, last] + np.float32(relayed.more_s)
            self._relay_seconds(route, relayed.to_trainer, out=tables["relay_s"][:, place])
            illegal = ~np.isfinite(tables["payload_bytes"][:, place] + tables["relay_bytes"][:, place])
            for table in tables.values() if illegal.any() else ():
                table[illegal, place] = np.inf
        none = np.where(np.isinf(profile.payload_bytes), np.float32(np.inf), np.float32(0))
        measured = profile.measured if profile.measured is not None else np.ones(profile.payload_bytes.shape, np.bool_)
        required: dict[str, Any] = {name: _beside(getattr(profile, name), tables[name]) for name in REQUIRED}
        return replace(
            profile,
            routes=(*profile.routes, *routes),
            **required,
            more={name: _beside(none, tables[name]) for name in _OF_RELAYS},
            measured=_beside(measured, np.zeros(shape, np.bool_)),
            quality=(*profile.quality, *(profile.quality[last] for _, last in columns)) if profile.quality else (),
        )

    def _relay_seconds(self, route: Route, to_trainer: float, out: FloatTable) -> None:
        """Fill in the relay's CPU seconds for all samples."""
        first, cut = route.cuts[0], route.arrival
        begin = 1 if looks_ahead(first) else first.k
        assert self._op_s is not None
        seconds(self._op_s[:, begin : cut.k], None, out=out)
        for rule in (self._rules.get(f"{first} decode"), self._rules.get(f"{cut} encode")):
            if rule is not None:
                rule.predict(self._rows, out=out, add=True)
        out *= np.float32(to_trainer)

    def _timed(self, op_s: FloatTable) -> NDArray[np.intp]:
        """Replace predictions with measurements from this epoch; return which samples were measured."""
        if self._told.op_s is None:
            return np.zeros(0, np.intp)
        timed = np.flatnonzero(np.isfinite(self._told.op_s).all(axis=1))
        op_s[timed] = self._told.op_s[timed]
        return timed

    def _fill(self, columns: Sequence[_Column], op_s: FloatTable, tables: Sequence[FloatTable]) -> None:
        """Fill in bytes, storage and trainer seconds of all samples, in blocks that fit in a core's cache."""
        size = min(BLOCK, len(op_s))
        buffers = np.empty((2 * len(self._op_rules) + 3, size), np.float32)
        for low in range(0, len(op_s), BLOCK):
            block = slice(low, min(low + BLOCK, len(op_s)))
            rows, ops, raw_bytes = self._rows[block], op_s[block], self._raw_bytes[block]
            free = iter(buffers[:, : len(rows)])
            part, sums = next(free), _Sums(ops, self._ratios, free)
            for place, column in enumerate(columns):
                column.fill(rows, raw_bytes, sums, part, [table[block, place] for table in tables])

    def _column(self, cut: Cut) -> _Column:
        """Return how the costs of a cut are composed."""
        first = 1 if looks_ahead(cut) else cut.k  # where the codec's decoder replaces Decode
        here_error = _mean([rule.error for rule in self._op_rules[first:]])
        there_error = _mean([rule.error for rule in self._op_rules[: cut.k]])
        if cut == RAW:
            return _Column(cut, first, (0.0, 0.0, here_error), len(self._told.records[cut]))
        prior = "ahead" if looks_ahead(cut) else "file" if cut.k == 0 else cut.codec
        size_rule = self._rule(f"{cut} bytes", cut, lambda r: r.payload_bytes, self._bytes_prior(cut))
        encode = self._rule(f"{cut} encode", cut, lambda r: r.encode_s, f"{prior} encode")
        decode = self._rule(f"{cut} decode", cut, lambda r: r.decode_s, f"{prior} decode")
        if size_rule is None and cut.codec == "raw" and not self._is_early:
            # No sample was cut there, but the results of its ops were seen here.
            size_rule = self._rule(f"{cut} bytes", RAW, lambda r: r.op_bytes[cut.k - 1], self._bytes_prior(cut))
        if size_rule is None or (cut.codec != "raw" and (encode is None or decode is None)):
            return _Column(cut, first, (None, None, None), 0, is_unknown=True)
        is_known = cut.codec == "raw" and self._pipeline.specs[cut.k].is_sized
        errors = (0.0 if is_known else size_rule.error, there_error, here_error)
        return _Column(cut, first, errors, size_rule.rows, size_rule, encode, decode)

    def _bytes_prior(self, cut: Cut) -> str:
        if cut.k == 0:
            return "ahead bytes" if looks_ahead(cut) else "file bytes"
        if cut.codec != "raw":
            return "codec bytes"
        return "one shape, one size" if self._pipeline.specs[cut.k].is_sized else "picture bytes"

    def _op_rule(self, position: int) -> Fit:
        found = self._rule(
            f"op {position}", RAW, lambda r: r.trainer_op_s[position], "decode op" if position == 0 else ""
        )
        if found is None:
            raise ConfigError("no sample was sent raw, so the times of the ops are not known; profile an epoch first")
        return found

    def _rule(self, name: str, cut: Cut, cost: Callable[[Record], float], prior: str) -> Fit | None:
        """Return the rule for one part from the records of a cut, or from an earlier run if there are few records."""
        records = self._told.records[cut]
        before = self._told.rules.get(name)
        if records and (len(records) >= _FEW or before is None):
            costs = np.array([cost(record) for record in records], np.float64)
            self._rules[name] = fit(self._rows_of(cut), costs, self._kind.priors.get(prior, ()))
        elif before is not None:
            self._rules[name] = before
        return self._rules.get(name)

    def _rows_of(self, cut: Cut) -> Rows:
        """Return the features of the records of a cut."""
        if cut not in self._rows_by_cut:
            samples = np.array([record.sample for record in self._told.records[cut]], np.intp)
            areas = self._told.record_areas[cut]
            self._rows_by_cut[cut] = features.rows(
                self._kind, self._raw_bytes[samples], self._told.sizes[samples], areas
            )
        return self._rows_by_cut[cut]

    def _storage_to_trainer(self) -> FloatTable:
        """Return, for each op, the ratio of its time near storage to its time at the trainer; 1 if unknown."""
        ops = len(self._op_rules)
        there_s, here_s = np.zeros(ops), np.zeros(ops)
        for cut in self._cuts:
            own = self._told.records[cut]
            told = np.array([len(record.storage_op_s) >= cut.k for record in own], np.bool_)
            if cut.k == 0 or not told.any():
                continue
            rows = self._rows_of(cut)[told]
            times = np.array([record.storage_op_s[: cut.k] for record in own if len(record.storage_op_s) >= cut.k])
            for position in range(cut.k):
                there_s[position] += times[:, position].sum()
                here_s[position] += float(self._op_rules[position].predict(rows).sum())
        known = there_s > 0
        if self._told.ratios and not known.any():
            return np.asarray(self._told.ratios, np.float32)
        overall = there_s.sum() / here_s.sum() if known.any() else 1.0
        ratios = np.full(ops, overall)
        ratios[known] = there_s[known] / here_s[known]
        return np.asarray(np.clip(ratios, 1 / _EXTREME, _EXTREME), np.float32)


class _Sums:
    # Seconds of the ops before and after each cut, for one block of samples; many cuts are after the same op.
    def __init__(self, op_s: FloatTable, ratios: FloatTable, free: Iterator[FloatTable]) -> None:
        self._op_s, self._ratios, self._free = op_s, ratios, free
        self._known: dict[tuple[str, int], tuple[FloatTable, float]] = {}

    def there(self, k: int) -> tuple[FloatTable, float]:
        """Return the storage seconds of the first k ops, by sample and in total."""
        return self._of("there", k, self._op_s[:, :k], self._ratios[:k])

    def here(self, first: int) -> tuple[FloatTable, float]:
        """Return the trainer seconds of all ops from `first` on, by sample and in total."""
        return self._of("here", first, self._op_s[:, first:], None)

    def _of(self, side: str, at: int, op_s: FloatTable, ratios: FloatTable | None) -> tuple[FloatTable, float]:
        found = self._known.get((side, at))
        if found is None:
            out = next(self._free)
            seconds(op_s, ratios, out=out)
            found = self._known[side, at] = (out, float(out.sum()))
        return found


@dataclass
class _Column:
    # How the costs of one cut are composed: seconds of ops on both sides, and what the codec adds. The sums of both,
    # accumulated while samples are filled in, say how much the error of each matters.
    cut: Cut
    first: int
    errors: tuple[float | None, float | None, float | None]
    records: int
    size: Fit | None = None
    encode: Fit | None = None
    decode: Fit | None = None
    is_unknown: bool = False
    ops_s: list[float] = field(default_factory=lambda: [0.0, 0.0])
    codec_s: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def fill(
        self, rows: Rows, raw_bytes: FloatTable, sums: _Sums, part: FloatTable, costs: Sequence[FloatTable]
    ) -> None:
        """Write bytes, storage and trainer seconds of a block of samples; `part` is scratch memory."""
        if self.is_unknown:
            for cost in costs:
                cost[:] = np.inf
            return
        if self.size is None:
            costs[0][:] = raw_bytes
        else:
            self.size.predict(rows, out=costs[0])
        sides = ((sums.there(self.cut.k), self.encode), (sums.here(self.first), self.decode))
        for side, ((ops, total_s), rule) in enumerate(sides):
            self.ops_s[side] += total_s
            if rule is None:
                costs[1 + side][:] = ops
                continue
            rule.predict(rows, out=part)
            self.codec_s[side] += float(part.sum())
            np.add(ops, part, out=costs[1 + side])

    def quality(self) -> Quality:
        """Return the errors of bytes, storage and trainer seconds, once all samples are filled in."""
        if self.is_unknown or self.size is None:
            return Quality(self.records, *self.errors)
        rules = (self.encode, self.decode)
        of_sides = [
            _weighted((ops_s, error), (codec_s, 0.0 if rule is None else rule.error))
            for ops_s, codec_s, error, rule in zip(self.ops_s, self.codec_s, self.errors[1:], rules, strict=True)
        ]
        return Quality(self.records, self.errors[0], *of_sides)


def seconds(op_s: FloatTable, ratios: FloatTable | None, out: FloatTable) -> None:
    """Compute the total seconds that some ops take for every sample.

    A sum of columns rather than a matrix product: for a float32 matrix of exactly five columns OpenBLAS uses a kernel
    that also reads uninitialised memory (seen in 0.3.31 on AVX-512). The result is correct, but if that memory happens
    to hold a signalling NaN, NumPy warns of an invalid value.

    Args:
        op_s: [samples, ops] seconds at the trainer.
        ratios: Storage : trainer ratio of each op; None if the trainer runs them.
        out: Receives the seconds of each sample.
    """
    out[:] = 0
    for low in range(0, len(out), BLOCK):
        block = out[low : low + BLOCK]
        for column in range(op_s.shape[1]):
            one = op_s[low : low + BLOCK, column]
            block += one if ratios is None else ratios[column] * one


def _beside(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Return two tables as one, with contiguous columns."""
    return np.asfortranarray(np.concatenate([left, right], axis=1))


def _scaled(costs: FloatTable, others: FloatTable) -> FloatTable:
    """Return costs scaled to the mean of other costs, if there are any."""
    mean = float(costs.mean(dtype=np.float64))
    if not len(others) or not 0 < mean < np.inf:
        return costs
    return costs * np.float32(others.mean(dtype=np.float64) / mean)


def _mean(errors: Sequence[float | None]) -> float | None:
    """Return the mean of some errors; None if one of them is unknown."""
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return None
    return float(np.mean(known)) if known else 0.0


def _weighted(*parts: tuple[float, float | None]) -> float | None:
    """Return the error of a sum of parts, weighted by their contributions; None if one is unknown."""
    total, sum_of_errors = 0.0, 0.0
    for weight, error in parts:
        if error is None and weight > 0:
            return None
        total += weight
        sum_of_errors += weight * (error or 0.0)
    return sum_of_errors / total if total else 0.0
