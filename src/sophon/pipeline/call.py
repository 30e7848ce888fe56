"""Call: a step that only the trainer can run, because it is the user's own code.

The callable sees what torchvision would give it (a PIL image, or a torch tensor where torch is loaded) and may use
Python's, NumPy's or torch's global generators: these are seeded from (seed, epoch, sample, position) before each call
and put back after it, so that its result depends on the sample and not on the worker or the order.

Concurrency: the global generators are shared by all threads of a process, so calls take turns under one lock, and
loaders run them in the thread that iterates or in worker processes. Use worker processes where such a step is slow.
Limits: a cut is never behind a Call; the callable is never sent anywhere.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sophon.pipeline.op import Json, Op
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import OBJECT, Kind, Spec, Value


class _Turn:
    """The lock under which calls take turns; made anew in a forked child, where its holder does not exist."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.RLock()  # a callable may run a pipeline of its own


_turn = _Turn()


@dataclass(frozen=True)
class Call(Op):
    """Run any callable on the trainer.

    Args:
        function: What to call with the value.
        reason: Why it stays on the trainer, for people.
    """

    function: Callable[[Any], Any]
    reason: str = "your own code"
    takes: ClassVar[Kind] = Kind.OBJECT

    @property
    def portable(self) -> bool:
        """A callable never leaves its process."""
        return False

    def output(self, spec: Spec) -> Spec:  # noqa: ARG002 - part of the contract
        """Nothing is known of what it returns."""
        return OBJECT

    def draw(self, rng: Rng, spec: Spec) -> int:  # noqa: ARG002 - part of the contract
        """Return the seed for the global generators."""
        return rng.word()

    def apply(self, value: Value, params: int) -> Value:
        """Call the function under a seed."""
        torch: Any = sys.modules.get("torch")  # loaded by whoever wrote a callable that wants tensors
        if torch is not None and isinstance(value, np.ndarray):
            # A callable may write into its tensor; the array may be a read-only view of a payload.
            value = torch.from_numpy(value if value.flags.writeable else value.copy())
        with _turn.lock, _seeded(params, torch):
            result = self.function(value)
        if torch is not None and isinstance(result, torch.Tensor):
            result = result.detach().cpu().contiguous().numpy()
        return result

    def to_spec(self) -> dict[str, Json]:
        """Return a description that tells callables apart; no callable can be built from it."""
        return {
            "op": "Call",
            "version": self.version,
            "function": _label(self.function),
            "code": _digest(self.function),
        }


def _label(function: Callable[[Any], Any]) -> str:
    owner = function if inspect.isroutine(function) else type(function)
    return f"{owner.__module__}.{owner.__qualname__}"


def _digest(function: Callable[[Any], Any]) -> str:
    """Return a digest of the source and, for an object, of its printed form, where that is the same in every run."""
    owner = function if inspect.isroutine(function) else type(function)
    try:
        text = inspect.getsource(owner)
    except (OSError, TypeError):
        text = ""
    printed = "" if inspect.isroutine(function) else repr(function)
    if " at 0x" not in printed:
        text += printed
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _seeded(seed: int, torch: Any) -> Iterator[None]:
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = None if torch is None else torch.random.get_rng_state()
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    if torch is not None:
        torch.random.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is not None:
            torch.random.set_rng_state(torch_state)
