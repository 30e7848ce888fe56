"""The profile: a table of the cost of every sample at every route.

Tables [samples, routes] of float32, one for each measure (`sophon.profile.measures`), with one contiguous column per
route: bytes on the link, CPU seconds near storage, CPU seconds at the trainer (decoding the payload and the remaining
ops), and optional measures. A route that is impossible for a sample (a window of a progressive JPEG) is +inf in all of
them. float32 is exact for payloads up to 16 MiB and off by less than one part in ten million above, far below the
repeatability of any clock or link.

Without a relay a route is one cut (`sophon.codec.route`). If the samples are on several nodes, `parts` says which node
has which samples.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from sophon import artifact
from sophon.codec.cut import RAW, Cut
from sophon.codec.route import UNTOUCHED, Route
from sophon.errors import ArtifactError, ConfigError
from sophon.profile.measures import OPTIONAL, REQUIRED, measure_named

FORMAT = "profile"
FORMAT_VERSION = 1
MAX_CUTS = 256  # a plan names a route by one byte

FloatTable = NDArray[np.float32]
PartIndex = NDArray[np.uint16]
_SIDES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}  # by axes of the value
_PART = "part"


@dataclass(frozen=True)
class Quality:
    """The quality of one route's predictions, measured on samples held out from the fit.

    An error is None if too few samples were measured to know it.

    Args:
        measured: How many samples were measured rather than predicted.
        payload_bytes_error: Mean of |predicted − measured| / measured bytes.
        storage_s_error: The same for storage CPU seconds.
        trainer_s_error: The same for trainer CPU seconds.
    """

    measured: int
    payload_bytes_error: float | None = 0.0
    storage_s_error: float | None = 0.0
    trainer_s_error: float | None = 0.0


@dataclass(frozen=True, eq=False)
class Profile:
    """The cost of every sample at every route.

    Args:
        routes: One per column; a cut stands for the route with only that cut. `0:raw` must be among them and legal for
            every sample.
        payload_bytes: [samples, routes] bytes on the link; +inf where the route is illegal.
        storage_s: [samples, routes] CPU seconds near storage.
        trainer_s: [samples, routes] CPU seconds at the trainer.
        pipeline: Fingerprint of the pipeline.
        dataset: Fingerprint of the data set.
        measured: [samples, routes] true where measured, false where predicted; None if everything is measured.
        quality: How good the predictions are, one per route; empty if everything is measured.
        provenance: How the profile was made: a JSON object.
        sizes: [samples, axes] height and width of each picture, or the size of another kind of value, 0 if not known;
            None if that was not measured.
        resize_k: Number of ops after which all pictures have one size; None if they never do, or if unknown.
        more: Tables of optional measures, by name.
        parts: Number of the part that each sample is in, which is also the number of its node; None if there is only
            one part.
    """

    routes: tuple[Route, ...]
    payload_bytes: FloatTable
    storage_s: FloatTable
    trainer_s: FloatTable
    pipeline: str = ""
    dataset: str = ""
    measured: NDArray[np.bool_] | None = None
    quality: tuple[Quality, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    sizes: NDArray[np.int32] | None = None
    resize_k: int | None = None
    more: Mapping[str, FloatTable] = field(default_factory=dict)
    parts: PartIndex | None = None

    def __post_init__(self) -> None:
        routes = tuple(map(_route, self.routes))
        object.__setattr__(self, "routes", routes)
        _check_routes(routes)
        for name in REQUIRED:
            object.__setattr__(self, name, _frozen(getattr(self, name), name, len(routes), np.float32))
        odd = [name for name in self.more if name not in OPTIONAL]
        if odd:
            raise ConfigError(f"{odd[0]!r} is not a known measure; choose from {', '.join(OPTIONAL)}.")
        more = {name: _frozen(table, name, len(routes), np.float32) for name, table in self.more.items()}
        object.__setattr__(self, "more", more)
        if self.measured is not None:
            object.__setattr__(self, "measured", _frozen(self.measured, "measured", len(routes), np.bool_))
        if self.sizes is not None:
            object.__setattr__(self, "sizes", _frozen(self.sizes, "sizes", _axes(self.sizes), np.int32))
        if self.parts is not None:
            column = np.asarray(self.parts)
            if column.ndim != 1 or column.size == 0 or column.min() < 0 or column.max() > np.iinfo(np.uint16).max:
                raise ConfigError(f"parts has shape {column.shape}; it needs one number from 0 to 65,535 per sample.")
            object.__setattr__(self, "parts", _frozen(column[:, None], _PART, 1, np.uint16)[:, 0])
        shapes = {name: table.shape for name, table in self.measures.items()}
        other = (self.payload_bytes, self.measured, self.sizes, self.parts)
        rows = {len(table) for table in other if table is not None}
        if len(set(shapes.values())) != 1 or len(rows) != 1:
            raise ConfigError(f"the tables have shapes {shapes}; they must agree: give one row per sample.")
        if len(self) == 0:
            raise ConfigError("the profile is empty; profile at least one sample (run an epoch) before planning.")
        if self.sizes is not None and int(self.sizes.min()) < 0:
            raise ConfigError("a picture has a negative side; give 0 for an unknown size.")
        if self.quality and len(self.quality) != len(routes):
            raise ConfigError(
                f"there are {len(self.quality)} qualities for {len(routes)} cuts; give one per cut, or none."
            )
        object.__setattr__(self, "_illegal", self._check_values())

    def __len__(self) -> int:
        return int(self.payload_bytes.shape[0])

    @property
    def measures(self) -> dict[str, FloatTable]:
        """The tables, by the name of their measure."""
        return {name: getattr(self, name) for name in REQUIRED} | dict(self.more)

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The cut at which each route reaches the trainer."""
        return tuple(route.arrival for route in self.routes)

    @property
    def untouched(self) -> int:
        """The index of the column for raw bytes."""
        return self.routes.index(UNTOUCHED)

    @property
    def part_count(self) -> int:
        """How many parts the samples are in."""
        return 1 if self.parts is None else int(self.parts.max()) + 1

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of the job that was profiled."""
        return {"pipeline": self.pipeline, "dataset": self.dataset}

    def rows(self, index: slice | NDArray[Any]) -> Profile:
        """Return the profile of some samples only."""
        tables = {name: table[index] for name, table in self.measures.items()}
        per_sample = {name: getattr(self, name) for name in ("measured", "sizes", "parts")}
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        given |= {name: tables.pop(name) for name in REQUIRED}
        given |= {name: None if table is None else table[index] for name, table in per_sample.items()}
        return Profile(**{**given, "more": tables})

    def has_illegal(self, column: int) -> bool:
        """Return whether the route of this column is impossible for some sample."""
        illegal: tuple[bool, ...] = self._illegal  # type: ignore[attr-defined]  # set once in __post_init__
        return illegal[column]

    def column(self, way: Cut | Route) -> int:
        """Return the column of a route, or of the route with only the given cut."""
        try:
            return self.routes.index(Route.of(way))
        except ValueError:
            known = ", ".join(map(str, self.routes))
            raise ConfigError(f"cut {way} was not profiled; choose one of {known}, or profile it.") from None

    def raw_columns(self) -> tuple[int, ...]:
        """Return the columns of direct routes with codec `raw`, in ascending order of k, as in the papers."""
        direct = [column for column, route in enumerate(self.routes) if route.is_direct]
        raw = [column for column in direct if self.routes[column].arrival.codec == "raw"]
        return tuple(sorted(raw, key=lambda column: self.routes[column].arrival.k))

    @property
    def recipe(self) -> str:
        """The pipeline in words; "" if unknown."""
        return str(self.provenance.get("recipe", ""))

    def require(self, *, pipeline: str | None = None, dataset: str | None = None, recipe: str = "") -> None:
        """Raise `ArtifactError` if the profile belongs to a different job; the message shows both.

        Args:
            pipeline: Fingerprint of this job's pipeline.
            dataset: Fingerprint of this job's data set.
            recipe: This job's pipeline in words.
        """
        artifact.require_fingerprints(
            "the profile",
            self.fingerprints,
            {"pipeline": pipeline, "dataset": dataset},
            "Profile this job again, or give the profile that was made with it.",
            {"pipeline": (self.recipe, recipe)},
        )

    def explain(self) -> str:
        """Return a summary in words: one line per route, with the number of measurements."""
        lines = [f"{len(self):,} samples; means per sample:"]
        for column, route in enumerate(self.routes):
            legal = np.isfinite(self.payload_bytes[:, column])
            if not legal.any():
                lines.append(f"  {route!s:<10} never tried")
                continue
            means = []
            for name, table in self.measures.items():
                measure = measure_named(name)
                shown = measure.format(float(table[legal, column].mean()))
                means.append(f"{shown:>{9 if measure.unit == 'bytes' else 8}} {measure.where}")
            line = f"  {route!s:<10} {', '.join(means)}"
            if not legal.all():
                line += f"; {1 - legal.mean():.1%} of the samples cannot use it"
            if self.measured is not None and not self.measured[:, column].all() and self.quality:
                known = self.quality[column]
                error = known.payload_bytes_error
                off = "too few to know the error" if error is None else f"bytes ± {error:.0%}"
                line += f"; from {known.measured:,} measured, {off}"
            lines.append(line)
        ratios = self.provenance.get("storage_to_trainer")
        if ratios:
            lines.append(
                f"Ops near storage take {', '.join(f'{ratio:.2f}' for ratio in ratios)} times as long as here."
            )
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile to a Parquet file."""
        tables: dict[str, NDArray[Any]] = {**self.measures}
        if self.measured is not None:
            tables["measured"] = self.measured
        columns: dict[str, NDArray[Any]] = {
            f"{name}/{route}": table[:, column]
            for column, route in enumerate(self.routes)
            for name, table in tables.items()
        }
        if self.sizes is not None:
            columns |= {side: self.sizes[:, column] for column, side in enumerate(_SIDES[_axes(self.sizes)])}
        if self.parts is not None:
            columns[_PART] = self.parts
        provenance = {
            "cuts": [str(route) for route in self.routes],
            "more": list(self.more),
            "predicted": self.measured is not None,
            "sized": 0 if self.sizes is None else _axes(self.sizes),
            "parted": self.parts is not None,
            "resize_k": self.resize_k,
            "quality": [list(vars(quality).values()) for quality in self.quality],
            "made": dict(self.provenance),
        }
        header = artifact.Header(FORMAT, FORMAT_VERSION, self.fingerprints, provenance)
        artifact.save(path, header, columns)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile written by `save`.

        Raises:
            ArtifactError: The file is missing, damaged, of a different kind or version, or holds impossible numbers.
        """
        with artifact.load(path, format=FORMAT, version=FORMAT_VERSION) as file:
            try:
                said = _Said.of(file.header.provenance)
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
                raise ArtifactError(f"{path}: its header names no cuts ({error}); recreate the profile.") from error
            tables = said.read(file)
            prints = file.header.fingerprints
        try:
            required: dict[str, Any] = {name: tables.pop(name) for name in REQUIRED}
            return cls(
                said.routes,
                **required,
                pipeline=prints.get("pipeline", ""),
                dataset=prints.get("dataset", ""),
                quality=said.quality,
                provenance=said.made,
                resize_k=said.resize_k,
                measured=tables.pop("measured", None),
                sizes=tables.pop("sizes", None),
                parts=tables.pop(_PART)[:, 0] if said.parted else None,
                more=tables,
            )
        except ConfigError as error:
            raise ArtifactError(f"{path}: {error}") from error

    def _check_values(self) -> tuple[bool, ...]:
        illegal = []
        tables = self.measures
        for column, route in enumerate(self.routes):
            endless = []
            for name, table in tables.items():
                values = table[:, column]
                # One pass each, no temporaries: NaN makes both extremes NaN.
                low, high = values.min(), values.max()
                if not low >= 0:
                    self._refuse_value(name, column, values)
                endless.append(bool(np.isinf(high)))
            if any(endless):
                marks = [np.isinf(table[:, column]) for table in tables.values()]
                odd = np.logical_or.reduce([mark != marks[0] for mark in marks[1:]])
                if odd.any():
                    raise ConfigError(
                        f"sample {int(odd.argmax())}, cut {route}: only some of {', '.join(tables)} are infinite; for "
                        "an illegal cut all of them must be infinite, for a legal one none: profile it again."
                    )
                if route == UNTOUCHED:
                    raise ConfigError(
                        f"sample {int(marks[0].argmax())} has no {RAW} cut; raw bytes can always be sent: "
                        "profile it again."
                    )
            illegal.append(any(endless))
        return tuple(illegal)

    def _refuse_value(self, name: str, column: int, values: FloatTable) -> None:
        sample = int((~(values >= 0)).argmax())
        raise ConfigError(
            f"sample {sample}, cut {self.routes[column]}: {name} is {values[sample]}; it must be zero or more: "
            "measure that sample again, or mark the cut illegal with +inf in all tables."
        )


@dataclass(frozen=True)
class _Said:
    # The header of a saved profile.
    routes: tuple[Route, ...]
    more: tuple[str, ...]
    predicted: bool
    axes: int  # number of axes of sizes, 0 if there are none
    parted: bool
    quality: tuple[Quality, ...]
    made: dict[str, Any]
    resize_k: int | None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> _Said:
        routes = tuple(Route.parse(text) for text in said["cuts"])
        _check_routes(routes)
        more = tuple(map(str, said.get("more", ())))
        if set(more) - set(OPTIONAL):
            raise ValueError(f"measures {sorted(set(more) - set(OPTIONAL))} are not known")
        quality = tuple(
            Quality(int(measured), *(None if error is None else float(error) for error in (size, there, here)))
            for measured, size, there, here in said["quality"]
        )
        resize_k = None if said.get("resize_k") is None else int(said["resize_k"])
        axes, parted = _read_axes(said.get("sized", False)), bool(said.get("parted", False))
        return cls(routes, more, bool(said["predicted"]), axes, parted, quality, dict(said["made"]), resize_k)

    def read(self, file: artifact.Artifact) -> dict[str, NDArray[Any]]:
        """Return the tables of a file, by name."""
        kinds: dict[str, tuple[Any, type[np.generic]]] = {
            name: (pa.float32(), np.float32) for name in (*REQUIRED, *self.more)
        }
        if self.predicted:
            kinds["measured"] = (pa.bool_(), np.bool_)
        places = {f"{name}/{route}": (name, place) for place, route in enumerate(self.routes) for name in kinds}
        tables: dict[str, NDArray[Any]] = {
            name: np.empty((file.rows, len(self.routes)), dtype, order="F") for name, (_, dtype) in kinds.items()
        }
        schema = {name: kinds[table][0] for name, (table, _) in places.items()}
        if self.axes:
            sides = _SIDES[self.axes]
            places |= {side: ("sizes", place) for place, side in enumerate(sides)}
            schema |= dict.fromkeys(sides, pa.int32())
            tables["sizes"] = np.empty((file.rows, len(sides)), np.int32, order="F")
        if self.parted:
            places[_PART] = (_PART, 0)
            schema[_PART] = pa.uint16()
            tables[_PART] = np.empty((file.rows, 1), np.uint16, order="F")
        file.require_columns(schema)
        for name, (table, place) in places.items():
            file.read(name, tables[table][:, place])
        return tables


def _route(way: Cut | Route) -> Route:
    try:
        return Route.of(way)
    except ConfigError:
        raise ConfigError(
            f"a plan cannot be made from a profile with a cut {way!s}; give 1 to {MAX_CUTS} different cuts, {RAW} "
            "among them."
        ) from None


def _check_routes(routes: Sequence[Route]) -> None:
    if not 0 < len(routes) <= MAX_CUTS or len(set(routes)) != len(routes) or UNTOUCHED not in routes:
        shown = ", ".join(map(str, routes[:8]))
        raise ConfigError(
            f"a plan cannot be made from a profile of {len(routes)} cuts ({shown}); give 1 to {MAX_CUTS} different "
            f"cuts, {RAW} among them."
        )


def _frozen(values: ArrayLike, name: str, cuts: int, dtype: type[np.generic]) -> NDArray[Any]:
    table = np.asarray(values, dtype=dtype, order="F")
    if table.ndim != 2 or table.shape[1] != cuts:
        raise ConfigError(f"{name} has shape {table.shape}; it needs one row per sample and {cuts} columns.")
    table = table.view()
    table.flags.writeable = False
    return table


def _axes(sizes: NDArray[Any]) -> int:
    """Return the number of axes in `sizes`; for invalid sizes that of pictures, and `_frozen` reports the problem."""
    return sizes.shape[1] if np.ndim(sizes) == 2 and sizes.shape[1] in _SIDES else 2


def _read_axes(said: Any) -> int:
    """Return the number of axes that a file declares; early releases, which always had 2 axes, wrote a boolean."""
    axes = 2 if said is True else int(said)
    if axes not in (0, *_SIDES):
        raise ValueError(f"sizes along {axes} axes are not supported")
    return axes
