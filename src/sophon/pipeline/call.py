"""Call: a step that only the trainer can run, which is user code or a transform without an op.

The callable sees what torchvision would give it, down to the class and the memory layout of a tensor, and its result is
passed on unchanged. It may use Python's, NumPy's or torch's global generators: these are seeded from (seed, epoch,
sample, position) before each call and restored after it, so the result depends on the sample and not on the worker or
the order. An object with its own generator is seeded through `set_random_seed`, if it has that method. A callable that
still depends on something else is detected when a loader opens (`loader.trial`).

Concurrency: the global generators are shared by all threads of a process, so calls take turns under one lock, and
loaders run them in the iterating thread or in worker processes. Use worker processes where such a step is slow. Limits:
a cut is never after a Call; the callable is never sent anywhere.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from sophon.errors import ConfigError, OpError
from sophon.pipeline.code import LIBRARIES, digest, is_altered, label
from sophon.pipeline.op import Json, Op
from sophon.pipeline.part import Signal
from sophon.pipeline.rng import Rng
from sophon.pipeline.seeding import seeded
from sophon.pipeline.spec import OBJECT, Kind, Spec, Value, ViewSet, arranged, seen

OWN_CODE = "your own code"
_KEYPOINTS = "KeyPoints"  # torchvision class, which may not be installed


@dataclass(frozen=True)
class Form:
    """Describes torchvision's tensor at a point where our own value is an array.

    Args:
        is_image: Whether it is a `tv_tensors.Image`.
        channels_last: Whether the channels of a pixel lie side by side in memory.
    """

    is_image: bool = False
    channels_last: bool = False

    def tensor(self, array: np.ndarray[Any, Any], torch: Any) -> Any:
        """Return an array as the tensor that torchvision would produce."""
        if self.channels_last:
            tensor = torch.from_numpy(array.transpose(1, 2, 0).copy()).permute(2, 0, 1)
        else:
            # A callable may write into its tensor; the array may be a read-only view of a payload.
            tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        return sys.modules["torchvision.tv_tensors"].Image(tensor) if self.is_image else tensor


@dataclass(frozen=True)
class Call(Op):
    """Run any callable on the trainer.

    Args:
        function: The callable.
        reason: Why it stays on the trainer, in words.
        form: The form of tensor that it expects in place of an op's array.
        is_joint: Whether it gets a whole sample (picture and targets) rather than only the picture.
    """

    function: Callable[..., Any]
    reason: str = OWN_CODE
    form: Form = field(default_factory=Form)
    is_joint: bool = False
    takes: ClassVar[Kind] = Kind.OBJECT

    @property
    def portable(self) -> bool:
        """Always false: a callable never leaves its process."""
        return False

    @property
    def is_own(self) -> bool:
        """Always true: there is no way to know which generators a callable draws from."""
        return True

    @property
    def title(self) -> str:
        """The name of the callable, as shown to users."""
        library, _, name = self._label.partition(".")
        if self.is_of_library:
            return of_library(library, name.rpartition(".")[2])
        code = getattr(getattr(self.function, "lambd", self.function), "__code__", None)
        if code is not None and name.endswith("<lambda>"):  # all lambdas have the same name
            return f"Call({self._label}, line {code.co_firstlineno})"
        return f"Call({self._label})"

    @property
    def is_of_library(self) -> bool:
        """Whether the callable comes from torchvision, timm or another library rather than from the user."""
        library, _, name = self._label.partition(".")
        return library in LIBRARIES and not name.endswith(".Lambda") and not is_altered(self.function)

    @property
    def may_look_at_metadata(self) -> bool:
        """Whether the callable may depend on more than pixels: user code may, even inside a library's container."""
        return not self.is_of_library or hasattr(self.function, "transforms")

    @property
    def _label(self) -> str:
        inner = getattr(self.function, "lambd", None)  # the function inside torchvision's Lambda is user code
        return label(self.function if inner is None else inner)

    @cached_property
    def _code(self) -> str:
        """Digest of the callable; computed only once, since a callable may change its own state with every call."""
        return digest(self.function)

    def output(self, spec: Spec) -> Spec:  # noqa: ARG002 - part of the contract
        """Return the spec of an unknown value."""
        return OBJECT

    def draw(self, rng: Rng, spec: Spec) -> int:  # noqa: ARG002 - part of the contract
        """Return the seed for the generators."""
        return rng.word()

    def met(self, value: Value) -> Value:
        """Return the value that torchvision would pass to the function in place of an op's result."""
        torch: Any = sys.modules.get("torch")  # already loaded by any callable that wants tensors
        if isinstance(value, ViewSet):
            return arranged(value.container, list(map(self.met, value.values)))
        if isinstance(value, Signal):
            value = seen(value)
            if isinstance(value, ViewSet):
                return self.met(value)
        return self.form.tensor(value, torch) if torch is not None and isinstance(value, np.ndarray) else value

    def apply(self, value: Value, params: int) -> Value:
        """Call the function with seeded generators."""
        with seeded(params):
            reseed(self.function, params & 0x7FFFFFFF)
            if self.is_joint:
                return _on_sample(self.function, value)
            if is_albumentations(self.function):
                return self.function(image=np.array(value) if isinstance(value, Image.Image) else value)["image"]
            return self.function(value)

    def to_spec(self) -> dict[str, Json]:
        """Return a description that distinguishes callables, but from which none can be built."""
        return {
            "op": "Call",
            "version": self.version,
            "function": self._label,
            "code": self._code,
        }


def _on_sample(function: Callable[..., Any], sample: Value) -> Value:
    """Call a function with a sample: parts of a tuple by position, parts of a dict by name if it accepts them."""
    if isinstance(sample, tuple):
        return function(*sample)
    if is_albumentations(function):
        if not isinstance(sample, dict):
            raise TypeError('albumentations takes its arguments by name: make the sample a dict with an "image"')
        points = {tuple(part.shape[:2]) for part in sample.values() if type(part).__name__ == _KEYPOINTS}
        return function(**{name: _array(part, points) for name, part in sample.items()})
    return function(sample)


def _array(part: Any, points: set[tuple[int, ...]]) -> Any:
    """Return a picture or a tensor as a writable array, the only form that albumentations accepts.

    albumentations does not group points by object: the points of all objects, and the labels of each point, form one
    list.

    Args:
        part: One part of a sample.
        points: Number of objects and of points per object in the sample's keypoints.
    """
    if isinstance(part, Image.Image):
        return np.array(part)
    if not hasattr(part, "numpy"):
        return part
    array = part.numpy().copy()
    if type(part).__name__ == _KEYPOINTS:
        return array.reshape(-1, array.shape[-1])
    return array.reshape(-1) if type(part).__name__ == "Tensor" and array.shape in points else array


def met(op: Op, value: Value, spec: Spec, *, by_op: bool) -> Value:
    """Return the value in the form that an op takes; raise if it is of a different kind.

    Args:
        op: The op about to run.
        value: Input of the op.
        spec: Spec of the value.
        by_op: Whether the previous step is an op, so that its output is known to match its declaration.
    """
    if isinstance(op, Call):
        # An array made by an op stands for torchvision's tensor; an array returned by a callable is left as it is.
        return op.met(value) if by_op else value
    kind = op.kind
    if kind is Kind.OBJECT:
        return value
    if kind is spec.kind:
        if kind is Kind.TENSOR and not isinstance(value, np.ndarray):
            return np.ascontiguousarray(value)  # a torch tensor, returned by an earlier user step
        return value
    found = str(spec) if spec.kind is not Kind.OBJECT else f"a value of type {type(value).__name__}"
    raise OpError(
        f"it takes a value of kind {kind.value}, but the step before it gave {found}.",
        remedy="Convert it in the step before, or leave this op out.",
    )


def as_call(step: Any) -> Op:
    """Return a step as an op: a callable that is not an op becomes a `Call`."""
    if isinstance(step, Op):
        return step
    if isinstance(step, type) or not callable(step):
        raise no_step("an op or a callable", step)
    return Call(step)


def no_step(expected: str, found: object) -> ConfigError:
    """Return the error for a pipeline item that cannot be called."""
    remedy = ""
    if isinstance(found, type):
        remedy = "; did you forget the parentheses?"
    elif found is None:
        remedy = "; leave it out"
    elif isinstance(found, list | tuple):
        remedy = "; unpack it with *, or wrap it in Compose"
    elif isinstance(found, dict):
        remedy = "; give one of its values"
    else:
        remedy = "; such as [ops.Decode(), ops.ToTensor()], or a torchvision transform"
    return ConfigError(f"expected {expected}, got {found!r}{remedy}")


def is_albumentations(function: Callable[..., Any]) -> bool:
    """Return whether something takes the picture as `image=` and returns it in a dict, as albumentations does."""
    return any(cls.__module__.startswith("albumentations.") for cls in type(function).__mro__)


def reseed(function: Callable[..., Any], seed: int) -> None:
    """Seed an object that has its own generators and allows them to be seeded."""
    if is_albumentations(function) and hasattr(function, "set_random_state"):
        # albumentations' own `set_random_seed` gives every transform of a Compose the same seed, so a horizontal and a
        # vertical flip would always happen together; it is also 30 times slower.
        function.set_random_state(np.random.default_rng(seed), random.Random(seed))
        return
    set_seed = getattr(function, "set_random_seed", None)
    if set_seed is not None:
        set_seed(seed)


def of_library(library: str, name: str) -> str:
    """Return a readable name for a library's class, such as "timm's RandAugment"."""
    whose = f"{library}'" if library.endswith("s") else f"{library}'s"
    return f"{whose} {name}"
