"""An op that passes tensors on, for tests that want to know of each or to hold it up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sophon.pipeline import Kind, Op, Rng, Spec


@dataclass(frozen=True)
class SeesSamples(Op):
    """Its params are the number of the sample."""

    takes: ClassVar[Kind] = Kind.TENSOR

    def output(self, spec: Spec) -> Spec:
        return spec

    def draw(self, rng: Rng, spec: Spec) -> Any:  # noqa: ARG002 - part of the contract
        return int(rng._stream[3])
