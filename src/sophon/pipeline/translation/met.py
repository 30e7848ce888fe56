"""The input of a transform, its origin, and the ops that it may become.

A transform becomes an op only where the kind of its input is known and the op is proven for that kind
(`tests/pipeline/test_every_transform.py`). Everywhere else the user's own object runs unchanged on the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from sophon.errors import ConfigError
from sophon.pipeline.call import OWN_CODE, Form, of_library
from sophon.pipeline.code import LIBRARIES, is_altered
from sophon.pipeline.op import Op
from sophon.pipeline.spec import Kind, Spec

_TORCHVISION = "torchvision.transforms."
# Library classes that only call a user's function.
_WRAPPERS = ("Lambda",)


class NoOp(Exception):  # noqa: N818 - not an error: there is no counterpart
    """Raised when a transform has no op at this point of a recipe; the text says why."""


@dataclass(frozen=True)
class Met:
    """The input of a step: the value's spec, and the form of torchvision's tensor at that point."""

    spec: Spec
    form: Form = field(default_factory=Form)

    @property
    def is_picture(self) -> bool:
        """Whether the input is a PIL image."""
        return self.spec.kind is Kind.IMAGE


@dataclass(frozen=True)
class Became:
    """The translation of a transform: its ops (none if it changes nothing), and the form of the tensor after them."""

    ops: Sequence[Op] = ()
    form: Form | None = None


Build: TypeAlias = Callable[[Any, Met], Op | Became]
Rows: TypeAlias = Mapping[str, Build]


@dataclass(frozen=True)
class Origin:
    """The library of a class ("torchvision", "timm", …, "" for the user's own), its name, and whether it is in v2."""

    library: str
    name: str
    is_v2: bool = False

    def why(self, reason: str = "has no op") -> str:
        """Return why an object of this class stays on the trainer, in words."""
        if not self.library or self.name in _WRAPPERS:
            return OWN_CODE
        return f"{of_library(self.library, self.name)} {reason}"


def origin(transform: Any) -> Origin:
    """Return the library that a transform's class comes from; a subclass belongs to its author and may do anything."""
    cls = type(transform)
    module, name = f"{cls.__module__}.", cls.__name__
    if module.partition(".")[0] in LIBRARIES and is_altered(transform):
        return Origin("", name)
    if module.startswith(_TORCHVISION):
        return Origin("torchvision", name, module.startswith(_TORCHVISION + "v2."))
    library = module.partition(".")[0]
    return Origin(library if library in LIBRARIES else "", name)


def after(met: Met, became: Became) -> Met:
    """Return the input of the next step; raise `NoOp` if an op does not accept its input."""
    spec = met.spec
    try:
        for op in became.ops:
            spec = op.output(spec)
    except ConfigError as error:
        raise NoOp(str(error)) from error
    return Met(spec, met.form if became.form is None else became.form)


def with_image(met: Met, is_image: bool) -> Became:
    """Return a step that changes only the class of a tensor."""
    return Became(form=replace(met.form, is_image=is_image))
