"""Finishing: the trainer's work on a sample, from a payload to the user's value.

The same code does this in every thread and process, so it does not matter where a sample is finished.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sophon.bundle import unpack
from sophon.codec.boxes import with_sight
from sophon.codec.codec import Payload
from sophon.codec.cut import RAW, finish_payload
from sophon.codec.targets import taken_apart
from sophon.errors import ConfigError, ProtocolError
from sophon.link.wire import Reply
from sophon.loader.epoch.collate import as_arrays, numpy_collate
from sophon.loader.epoch.targets import LABEL, Targets, collated, size_bytes
from sophon.loader.torch_import import torch
from sophon.pipeline import Key, Kind, Op, Pipeline, Tensor, Trace, Value
from sophon.pipeline.call import Call
from sophon.pipeline.ops import Views
from sophon.pipeline.part import Signal
from sophon.pipeline.rng import Rng
from sophon.pipeline.seeding import seeded
from sophon.pipeline.spec import SIGNALS, ViewSet, arranged, seen

_TARGET_POSITION = (1 << 32) + 1  # neither a pipeline's op nor collating draws the same random words
_DEFAULT_SAMPLE_BYTES = 1 << 20  # a guess for pipelines whose result has no fixed size

Layout = tuple[tuple[int, ...], str]
"""Shape and dtype of a finished sample."""


@dataclass
class Made:
    """A finished sample, or its error.

    Args:
        key: Key of the sample.
        value: The result of the pipeline; an array or tensor may already be in its place in the batch.
        target: Its target, if there are labels.
        columns: Further columns.
        error: Why it failed.
        trace: Cost of its ops, if requested.
        cpu_s: CPU seconds spent on it.
        size_bytes: Size of the value.
        is_placed: Whether the value was written into its place in the batch by another process.
        layout: Shape and dtype of the value, if another process made it and it fits into a batch's array.
    """

    key: Key
    value: Any = None
    target: Any = None
    columns: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    trace: Trace | None = None
    cpu_s: float = 0.0
    size_bytes: int = 0
    is_placed: bool = False
    layout: Layout | None = None

    def or_raise(self) -> Made:
        """Return the sample, or raise its error."""
        if self.error is not None:
            raise self.error
        return self


@dataclass(frozen=True)
class Finishing:
    """Turns replies into finished samples.

    Args:
        pipeline: All ops; those that have run near storage are skipped.
        seed: Seed of all randomness.
        url: Name of the data set for messages.
        has_labels: Whether samples have labels.
        columns: Names of further columns and fields, as users see them.
        fields: Which of `columns` are fields.
        target_transform: The user's own function for labels, if any.
        output: "torch" or "numpy".
        targets: Targets that belong to a picture, if a sample has any; they then define the whole sample.
    """

    pipeline: Pipeline
    seed: int
    url: str
    has_labels: bool
    columns: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    target_transform: Callable[[Any], Any] | None = None
    output: str = "torch"
    targets: Targets | None = None

    @property
    def runs_own_code(self) -> bool:
        """Whether user code runs, which may draw from the global generators."""
        has_calls = self.pipeline.first_call < len(self.pipeline)
        return has_calls or (self.target_transform is not None and self.has_labels)

    @property
    def layout(self) -> Layout | None:
        """Shape and dtype of a finished sample, if it is a tensor of known size."""
        spec = self.pipeline.specs[-1]
        is_one = spec.kind in (Kind.TENSOR, *SIGNALS) and not spec.views
        if not is_one or None in spec.shape or self.targets is not None:
            return None
        return tuple(d or 0 for d in spec.shape), spec.dtype

    @property
    def result_bytes(self) -> int:
        """Size of a finished sample, or a guess."""
        spec = self.pipeline.specs[-1]
        is_known = spec.kind in (Kind.TENSOR, Kind.VIEWS, *SIGNALS) and spec.is_sized
        return spec.size_bytes if is_known else _DEFAULT_SAMPLE_BYTES

    def make(self, reply: Reply, key: Key, out: Tensor | None = None, wants_trace: bool = False) -> Made:
        """Finish a sample; an error is part of the result, since its batch decides how to handle it.

        Args:
            reply: The reply for the sample.
            key: Key of the sample.
            out: The sample's place in the batch, used if that saves a copy.
            wants_trace: Whether to record the cost of each op.
        """
        start_s = time.thread_time()
        made = Made(key)
        try:
            made.trace = Trace(len(self.pipeline)) if wants_trace else None
            if self.targets is not None:
                made.value = self._run_joint(self.targets, reply, key, made.trace)
                made.size_bytes = size_bytes(made.value)
            else:
                payload, made.columns = self.taken_apart(reply)
                made.value, made.target = self._run(payload, reply, key, out, made.trace)
                made.size_bytes = _size_bytes(made.value)
        except Exception as error:  # noqa: BLE001 - decoders and the user's own code may raise anything
            made.error, made.trace = error, None
        made.size_bytes = made.size_bytes or self.result_bytes
        made.cpu_s = time.thread_time() - start_s
        return made

    def taken_apart(self, reply: Reply) -> tuple[Payload, dict[str, Any]]:
        """Return the payload of the pipeline's field, and all columns in the order of their names.

        If the fields of a sample belong together, the payload contains all of them.
        """
        if reply.error is not None:
            raise reply.error
        if not self.fields or self.targets is not None:
            return reply.payload, reply.columns
        payload, *others = unpack(reply.payload, 1 + len(self.fields))
        found = {**reply.columns, **dict(zip(self.fields, map(bytes, others), strict=True))}
        return payload, {name: found[name] for name in self.columns}

    def _run(
        self, payload: Payload, reply: Reply, key: Key, out: Tensor | None, trace: Trace | None
    ) -> tuple[Value, Any]:
        if self.has_labels and reply.label is None:
            raise ProtocolError(f"{self.url}: a reply without a label from a data set that has labels")
        pipeline, own = self.pipeline, self.pipeline.first_call
        value = finish_payload(pipeline, payload, key, reply.cut, own, out if own == len(pipeline) else None, trace)
        start_s = time.monotonic()
        if own < len(pipeline):
            value = pipeline.run(value, key, own, out=out)
        if isinstance(value, Signal):  # users see its numbers
            value = seen(value)
        target = self._target(reply.label, key)
        if trace is not None:
            trace.own_s = time.monotonic() - start_s
        return value, target

    def _run_joint(self, targets: Targets, reply: Reply, key: Key, trace: Trace | None) -> Any:
        """Finish a sample that consists of a picture and its targets."""
        if reply.error is not None:
            raise reply.error
        pipeline, own, is_raw = self.pipeline, self.pipeline.first_call, reply.cut == RAW
        payload, size, fields = taken_apart(pipeline, reply.payload, is_raw)
        noted = Trace(len(pipeline)) if trace is None else trace  # records the picture's size, if it is decoded here
        values = {**reply.columns, **dict(zip(targets.fields, fields, strict=True)), LABEL: reply.label}
        if pipeline.looks:
            key = with_sight(pipeline, key, payload, size, targets.boxes(values))
        value = finish_payload(pipeline, payload, key, reply.cut, own, None, noted)
        if 0 in size:
            height, width = noted.size
            size = height, width
        sample = targets.put_together(pipeline, value, values, key, size, is_raw)
        start_s = time.monotonic()
        if own < len(pipeline):
            sample = pipeline.run(sample, key, own)
        if trace is not None:
            trace.own_s = time.monotonic() - start_s
        return sample

    def _target(self, label: Any, key: Key) -> Any:
        """Apply the user's own function to a label."""
        if self.target_transform is None or not self.has_labels:
            return label
        try:
            with seeded(Rng(key, _TARGET_POSITION).word()):
                return self.target_transform(label)
        except Exception as error:
            error.add_note(f"in target_transform, called with {label!r}, for sample {key.sample} of {self.url}")
            raise

    def item(self, made: Made, fit: bool = False) -> Any:
        """Return a sample in the form that users get.

        Args:
            made: The finished sample.
            fit: Whether to copy an array returned by a user-defined step if torch cannot use it directly.
        """
        if self.targets is not None:
            return as_arrays(made.value) if self.output == "numpy" else made.value
        value = _fit(made.value) if fit and isinstance(made.value, np.ndarray) else made.value
        parts = [value if self.gives_own else self.as_output(value)]
        if self.has_labels:
            parts.append(made.target)
        if self.columns:
            parts.append(made.columns)
        return tuple(parts) if len(parts) > 1 else parts[0]

    @property
    def gives_own(self) -> bool:
        """Whether a sample is the result of a user step, which users get unchanged."""
        return self.output == "torch" and isinstance(self.pipeline.ops[-1], Call)

    def as_output(self, value: Value) -> Any:
        """Return a value in the output form: arrays as writable tensors, or tensors as arrays."""
        if isinstance(value, np.ndarray):
            own = _fit(value)
            return torch.from_numpy(own) if self.output == "torch" else own
        if isinstance(value, ViewSet):
            return arranged(value.container, list(map(self._view, self._last_steps, value.values)))
        return as_arrays(value) if self.output == "numpy" else value

    @property
    def _last_steps(self) -> list[tuple[Op, ...]]:
        """The last steps of each view; none if the image and label of a volume were processed together."""
        last = self.pipeline.ops[-1]
        return list(last.views) if isinstance(last, Views) else [(), ()]

    def _view(self, steps: tuple[Op, ...], value: Value) -> Any:
        """Return a view in the output form; the result of a user step is returned unchanged."""
        is_own = self.output == "torch" and bool(steps) and isinstance(steps[-1], Call)
        return value if is_own else self.as_output(value)

    def collate(self, items: list[Any]) -> Any:
        """Make a batch of samples, as torch does by default."""
        if self.targets is not None and self.targets.is_ragged:
            return collated(items)
        if self.output == "numpy":
            return numpy_collate(items)
        return torch.utils.data.default_collate(items)

    def collate_columns(self, rows: list[dict[str, Any]]) -> Any:
        """Make a batch of the further columns of samples."""
        try:
            return self.collate(rows)
        except (TypeError, ValueError, KeyError, RuntimeError, OverflowError) as error:
            kinds = {name: sorted({type(row[name]).__name__ for row in rows}) for name in rows[0]}
            odd = [name for name, found in kinds.items() if len(found) > 1 or "NoneType" in found] or list(kinds)
            raise ConfigError(
                f"column {odd[0]!r} of {self.url} has values that cannot be batched ({', '.join(kinds[odd[0]])}: "
                f"{error}); leave it out, or batch it with a collate_fn"
            ) from error

    def collate_targets(self, targets: list[Any]) -> Any:
        """Make a batch of targets."""
        if self.output == "torch" and all(type(target) is int for target in targets):
            return self.as_output(np.array(targets, np.int64))
        if self.output == "torch":
            # A tuple, as torch makes when it transposes samples: texts keep their container.
            apart: Any = tuple(targets)
            return torch.utils.data.default_collate(apart)
        return self.collate(targets)


def _fit(value: Tensor) -> Tensor:
    """Return a writable array without negative strides, which torch does not support."""
    return value if value.flags.writeable and min(value.strides, default=0) >= 0 else value.copy()


def _size_bytes(value: Any) -> int:
    """Return the size of an array or a tensor; 0 if unknown, as for a sparse one."""
    try:
        return int(getattr(value, "nbytes", 0))
    except Exception:  # noqa: BLE001 - the user's own class may raise anything
        return 0
