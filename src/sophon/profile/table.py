"""The profile: what every sample costs at every cut, as data.

Three tables [samples, cuts] of float32, one contiguous column per cut: bytes on the link, CPU seconds near
storage, CPU seconds at the trainer (decoding the payload and the remaining ops). A cut that a sample cannot
have (a window of a progressive JPEG) is +inf in all three. float32 is exact for payloads up to 16 MiB and off
by less than one part in ten million above, far below what any clock or link repeats.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from sophon import artifact
from sophon.codec.cut import RAW, Cut
from sophon.errors import ArtifactError, ConfigError
from sophon.units import format_bytes, format_seconds

FORMAT = "profile"
FORMAT_VERSION = 1
MAX_CUTS = 256  # a plan names a cut by one byte

FloatTable = NDArray[np.float32]
_CUT = re.compile(r"(\d{1,4}):([A-Za-z0-9_.:+-]{1,32})")
_SIDES = ("height", "width")
_TABLES = ("payload_bytes", "storage_s", "trainer_s")


@dataclass(frozen=True)
class Quality:
    """How good one cut's predicted entries are, measured on samples held out from the fit.

    An error is None where too few samples were measured to know it.

    Args:
        measured: How many samples were measured rather than predicted.
        payload_bytes_error: Mean of |predicted − measured| / measured bytes.
        storage_s_error: The same of storage CPU seconds.
        trainer_s_error: The same of trainer CPU seconds.
    """

    measured: int
    payload_bytes_error: float | None = 0.0
    storage_s_error: float | None = 0.0
    trainer_s_error: float | None = 0.0


@dataclass(frozen=True, eq=False)
class Profile:
    """What every sample costs at every cut.

    Args:
        cuts: The cuts, one per column; `0:raw` must be among them and legal for every sample.
        payload_bytes: [samples, cuts] bytes on the link; +inf where the cut is illegal.
        storage_s: [samples, cuts] CPU seconds near storage.
        trainer_s: [samples, cuts] CPU seconds at the trainer.
        pipeline: Fingerprint of the pipeline.
        dataset: Fingerprint of the data set.
        measured: [samples, cuts] true where measured, false where predicted; None when all is measured.
        quality: How good the predictions are, one per cut; empty when all is measured.
        provenance: How the profile was made: a JSON object.
        sizes: [samples, 2] height and width of each picture, 0 where not known; None where nobody looked.
        resize_k: How many ops make pictures of one size; None where none do, or nobody has said.
    """

    cuts: tuple[Cut, ...]
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

    def __post_init__(self) -> None:
        cuts = tuple(self.cuts)
        object.__setattr__(self, "cuts", cuts)
        _check_cuts(cuts)
        for name in _TABLES:
            object.__setattr__(self, name, _frozen(getattr(self, name), name, len(cuts), np.float32))
        if self.measured is not None:
            object.__setattr__(self, "measured", _frozen(self.measured, "measured", len(cuts), np.bool_))
        if self.sizes is not None:
            object.__setattr__(self, "sizes", _frozen(self.sizes, "sizes", len(_SIDES), np.int32))
        shapes = {name: getattr(self, name).shape for name in _TABLES}
        rows = {len(table) for table in (self.payload_bytes, self.measured, self.sizes) if table is not None}
        if len(set(shapes.values())) != 1 or len(rows) != 1:
            raise ConfigError(f"the tables have shapes {shapes}; they must agree: give one row per sample.")
        if len(self) == 0:
            raise ConfigError("the profile is empty; profile at least one sample (run an epoch) before planning.")
        if self.sizes is not None and int(self.sizes.min()) < 0:
            raise ConfigError("some picture has a side below zero; give 0 where it is not known.")
        if self.quality and len(self.quality) != len(cuts):
            raise ConfigError(f"{len(self.quality)} qualities for {len(cuts)} cuts; give one per cut, or none.")
        object.__setattr__(self, "_illegal", self._check_values())

    def __len__(self) -> int:
        return int(self.payload_bytes.shape[0])

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of the job that was profiled."""
        return {"pipeline": self.pipeline, "dataset": self.dataset}

    def has_illegal(self, column: int) -> bool:
        """Return whether some sample cannot have the cut of this column."""
        illegal: tuple[bool, ...] = self._illegal  # type: ignore[attr-defined]  # set once in __post_init__
        return illegal[column]

    def column(self, cut: Cut) -> int:
        """Return the column of `cut`."""
        try:
            return self.cuts.index(cut)
        except ValueError:
            known = ", ".join(map(str, self.cuts))
            raise ConfigError(f"cut {cut} was not profiled; choose one of {known}, or profile it.") from None

    def raw_columns(self) -> tuple[int, ...]:
        """Return the columns whose codec is `raw`, by rising k: the cuts that the papers know."""
        raw = [column for column, cut in enumerate(self.cuts) if cut.codec == "raw"]
        return tuple(sorted(raw, key=lambda column: self.cuts[column].k))

    def require(self, *, pipeline: str | None = None, dataset: str | None = None) -> None:
        """Raise `ArtifactError` when the profile is of another job, with both fingerprints shown."""
        artifact.require_fingerprints(
            "the profile",
            self.fingerprints,
            {"pipeline": pipeline, "dataset": dataset},
            "Profile this job anew, or give the profile that was made with it.",
        )

    def explain(self) -> str:
        """Return what was found, in words: one line per cut, and how much of it was measured."""
        lines = [f"{len(self):,} samples; means per sample:"]
        for column, cut in enumerate(self.cuts):
            legal = np.isfinite(self.payload_bytes[:, column])
            if not legal.any():
                lines.append(f"  {cut!s:<10} never tried")
                continue
            size, there, here = (float(getattr(self, name)[legal, column].mean()) for name in _TABLES)
            line = (
                f"  {cut!s:<10} {format_bytes(size):>9} on the link, {format_seconds(there):>8} near storage, "
                f"{format_seconds(here):>8} at the trainer"
            )
            if not legal.all():
                line += f"; {1 - legal.mean():.1%} of the samples cannot have it"
            if self.measured is not None and not self.measured[:, column].all() and self.quality:
                known = self.quality[column]
                error = known.payload_bytes_error
                off = "too few to know how far off" if error is None else f"bytes ± {error:.0%}"
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
        columns: dict[str, NDArray[Any]] = {}
        for name in _schema(self.cuts, self.measured is not None):
            table, cut = name.split("/")
            columns[name] = getattr(self, table)[:, self.cuts.index(read_cut(cut))]
        if self.sizes is not None:
            columns |= {side: self.sizes[:, column] for column, side in enumerate(_SIDES)}
        provenance = {
            "cuts": [str(cut) for cut in self.cuts],
            "predicted": self.measured is not None,
            "sized": self.sizes is not None,
            "resize_k": self.resize_k,
            "quality": [list(vars(quality).values()) for quality in self.quality],
            "made": dict(self.provenance),
        }
        header = artifact.Header(FORMAT, FORMAT_VERSION, self.fingerprints, provenance)
        artifact.save(path, header, columns)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile that `save` wrote.

        Raises:
            ArtifactError: The file is missing, damaged, of another kind or version, or holds impossible
                numbers.
        """
        with artifact.load(path, format=FORMAT, version=FORMAT_VERSION) as file:
            try:
                said = file.header.provenance
                cuts = tuple(read_cut(text) for text in said["cuts"])
                _check_cuts(cuts)
                predicted, sized = bool(said["predicted"]), bool(said.get("sized", False))
                quality = tuple(
                    Quality(int(measured), *(None if error is None else float(error) for error in (size, there, here)))
                    for measured, size, there, here in said["quality"]
                )
                made = dict(said["made"])
                resize_k = None if said.get("resize_k") is None else int(said["resize_k"])
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
                raise ArtifactError(f"{path}: its header names no cuts ({error}); make the profile again.") from error
            schema = _schema(cuts, predicted)
            file.require_columns(schema | (dict.fromkeys(_SIDES, pa.int32()) if sized else {}))
            tables: dict[str, NDArray[Any]] = {
                name: np.empty((file.rows, len(cuts)), np.float32, order="F") for name in _TABLES
            }
            if predicted:
                tables["measured"] = np.empty((file.rows, len(cuts)), np.bool_, order="F")
            for name in schema:
                table, cut = name.split("/")
                file.read(name, tables[table][:, cuts.index(read_cut(cut))])
            if sized:
                tables["sizes"] = np.empty((file.rows, len(_SIDES)), np.int32, order="F")
                for column, side in enumerate(_SIDES):
                    file.read(side, tables["sizes"][:, column])
            prints = file.header.fingerprints
        try:
            return cls(
                cuts,
                **tables,
                pipeline=prints.get("pipeline", ""),
                dataset=prints.get("dataset", ""),
                quality=quality,
                provenance=made,
                resize_k=resize_k,
            )
        except ConfigError as error:
            raise ArtifactError(f"{path}: {error}") from error

    def _check_values(self) -> tuple[bool, ...]:
        illegal = []
        for column, cut in enumerate(self.cuts):
            endless = []
            for name in _TABLES:
                values = getattr(self, name)[:, column]
                # One pass each, no temporaries: NaN makes both extremes NaN.
                low, high = values.min(), values.max()
                if not low >= 0:
                    self._refuse_value(name, column, values)
                endless.append(bool(np.isinf(high)))
            if any(endless):
                marks = [np.isinf(getattr(self, name)[:, column]) for name in _TABLES]
                odd = (marks[0] != marks[1]) | (marks[0] != marks[2])
                if odd.any():
                    raise ConfigError(
                        f"sample {int(odd.argmax())}, cut {cut}: only some of {', '.join(_TABLES)} are "
                        "infinite; an illegal cut has all three infinite, a legal one none: profile it again."
                    )
                if cut == RAW:
                    raise ConfigError(
                        f"sample {int(marks[0].argmax())} has no {RAW} cut; raw bytes can always be sent: "
                        "profile it again."
                    )
            illegal.append(any(endless))
        return tuple(illegal)

    def _refuse_value(self, name: str, column: int, values: FloatTable) -> None:
        sample = int((~(values >= 0)).argmax())
        raise ConfigError(
            f"sample {sample}, cut {self.cuts[column]}: {name} is {values[sample]}; it must be zero or more: "
            "measure that sample again, or mark the cut illegal with +inf in all three tables."
        )


def read_cut(text: str) -> Cut:
    """Return the cut that a saved file names; its codec need not exist here, only where the plan is carried out."""
    found = _CUT.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text[:40]!r} is not a cut; ops near storage and codec were expected, such as 2:webp.")
    return Cut(int(found[1]), found[2])


def _check_cuts(cuts: tuple[Cut, ...]) -> None:
    odd = [cut for cut in cuts if not isinstance(cut, Cut) or _CUT.fullmatch(str(cut)) is None]
    if odd or not 0 < len(cuts) <= MAX_CUTS or len(set(cuts)) != len(cuts) or RAW not in cuts:
        shown = ", ".join(map(str, (odd or cuts)[:8]))
        raise ConfigError(
            f"a profile of {len(cuts)} cuts ({shown}) cannot be planned with; give 1 to {MAX_CUTS} different "
            f"cuts, {RAW} among them."
        )


def _frozen(values: ArrayLike, name: str, cuts: int, dtype: type[np.generic]) -> NDArray[Any]:
    table = np.asarray(values, dtype=dtype, order="F")
    if table.ndim != 2 or table.shape[1] != cuts:
        raise ConfigError(f"{name} has shape {table.shape}; it needs one row per sample and {cuts} columns.")
    table = table.view()
    table.flags.writeable = False
    return table


def _schema(cuts: tuple[Cut, ...], predicted: bool) -> dict[str, pa.DataType]:
    tables = {name: pa.float32() for name in _TABLES}
    if predicted:
        tables["measured"] = pa.bool_()
    return {f"{name}/{cut}": kind for cut in cuts for name, kind in tables.items()}
