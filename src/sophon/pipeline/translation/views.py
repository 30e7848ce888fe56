"""Recognises classes that make several views of a picture, such as those of MoCo, SimCLR and DINO.

Such a class is user code, and its name proves nothing. It is recognised if its `__call__` can be shown to do nothing
but pass the picture to transforms that the object holds, and collect their results:

- Its bytecode uses no global names except a few builtins, stores only local variables, imports nothing, and reads
  only attributes of the object. So nothing can make the next call behave differently.
- It is then called once, on a copy of the object in which stand-ins replace the transforms, with a stand-in for the
  picture that refuses every other use. The result must be a list, a tuple or a dict, or a nest of these, of the
  stand-ins' results, and the object must be unchanged. The result of a transform may be passed to one other transform:
  that is one view with two steps. If it were passed to two, the two views would share random draws.

Everything else stays a user step.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any, NoReturn

from sophon.pipeline.call import Call
from sophon.pipeline.ops import Views
from sophon.pipeline.ops.combined.views import MOST_VIEWS
from sophon.pipeline.spec import arrangement

_BUILTINS = ("range", "len", "list", "tuple", "map", "zip", "enumerate")
_METHODS = ("append", "extend")  # list methods that may be called
_PLAIN = (bool, int, float, str, type(None))
# Instructions that could reach beyond the object, the picture and local variables, or hide an error.
_BARRED = (
    "STORE_ATTR",
    "DELETE_ATTR",
    "STORE_GLOBAL",
    "DELETE_GLOBAL",
    "DELETE_SUBSCR",
    "IMPORT_NAME",
    "IMPORT_FROM",
    "LOAD_NAME",
    "LOAD_BUILD_CLASS",
    "YIELD_VALUE",
    "PUSH_EXC_INFO",
    "BEFORE_WITH",
    "LOAD_SPECIAL",
)
_MOST_INSTRUCTIONS = 1000

Found = tuple[Sequence[Any], str]


def views_of(transform: Any) -> Found | None:
    """Return the transforms of each view and the container of the views; None if it is not known to make views."""
    if isinstance(transform, Views):
        # An argument that is not an op is a user's transform, which may be translated.
        views = [[op.function if isinstance(op, Call) else op for op in steps] for steps in transform.views]
        return views, transform.container
    function = _call_of(transform)
    if function is None or not _is_plain(function, transform):
        return None
    try:
        return _seen(transform, function)
    except Exception:  # noqa: BLE001 - the user's own code, called with unexpected input
        return None


def _call_of(transform: Any) -> FunctionType | None:
    """Return the function that runs when an object is called, if it can be inspected."""
    cls = type(transform)
    function = inspect.getattr_static(cls, "__call__", None)
    reads = inspect.getattr_static(cls, "__getattribute__"), inspect.getattr_static(cls, "__getattr__", None)
    has_plain_attributes = reads == (object.__getattribute__, None) and type(getattr(transform, "__dict__", 0)) is dict
    if not isinstance(function, FunctionType) or not has_plain_attributes:
        return None
    code = function.__code__
    return function if code.co_argcount == 2 and not code.co_freevars else None  # the object and a picture


def _is_plain(function: FunctionType, transform: Any) -> bool:
    """Return whether a function can call only the transforms that an object holds."""
    held, cls = vars(transform), type(transform)
    for at, instruction in enumerate(_instructions(function.__code__)):
        does, name = instruction.opname, instruction.argval
        if does in _BARRED or at > _MOST_INSTRUCTIONS:
            return False
        if does == "LOAD_GLOBAL" and (name not in _BUILTINS or name in function.__globals__):
            return False
        is_of_object = name in held and not hasattr(cls, name)
        if does in ("LOAD_ATTR", "LOAD_METHOD") and name not in _METHODS and not is_of_object:
            return False
    return True


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions of a function and of its inner functions."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


class _Looked(Exception):  # noqa: N818 - not an error: it is the user's own step then
    """Raised when a stand-in is used in any way other than being passed on."""


class _StandIn:
    """An object that can be passed on and nothing else."""

    def _refuse(self, *_: Any) -> NoReturn:
        raise _Looked

    __getattr__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse
    __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = __index__ = __int__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __truediv__ = __invert__ = __neg__ = _refuse
    __str__ = __repr__ = __format__ = _refuse


class _View(_StandIn):
    """The result that one or more transforms in a row would have returned."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms
        self.is_handed_on = False


class _Transform(_StandIn):
    """Stands in for a transform, and records that it was called with the picture."""

    def __init__(self, transform: Callable[..., Any], picture: _StandIn, made: list[_View]) -> None:
        self.transform, self.picture, self.made = transform, picture, made

    def __call__(self, given: Any) -> _View:
        before = []
        if type(given) is _View and not given.is_handed_on:
            given.is_handed_on = True
            before = given.transforms
        elif given is not self.picture:
            raise _Looked
        self.made.append(_View([*before, self.transform]))
        return self.made[-1]


def _seen(transform: Any, function: FunctionType) -> Found | None:
    """Return how an object uses a picture, as found by a call with stand-ins."""
    picture, made = _StandIn(), list[_View]()

    def stand_in(value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        if type(value) in (list, tuple):
            return type(value)(map(stand_in, value))
        return _Transform(value, picture, made) if callable(value) else _StandIn()

    copied = object.__new__(type(transform))
    copied.__dict__.update({name: stand_in(value) for name, value in vars(transform).items()})
    before = _held(copied.__dict__)
    result = function(copied, picture)
    views = [view for view in made if not view.is_handed_on]
    if _held(copied.__dict__) != before or type(result) is _View or not 1 <= len(views) <= MOST_VIEWS:
        return None
    numbers = {id(view): number for number, view in enumerate(views)}
    used: set[int] = set()
    container = arrangement(_shape(result, numbers, used), len(views))
    return ([view.transforms for view in views], container) if len(used) == len(views) else None


def _held(value: Any) -> Any:
    """Return the contents of an object, for a later comparison."""
    if type(value) is dict:
        return {name: _held(part) for name, part in value.items()}
    return (id(value), [_held(part) for part in value]) if type(value) in (list, tuple) else id(value)


def _shape(result: Any, numbers: dict[int, int], used: set[int]) -> Any:
    """Return a result with each view replaced by its number; raise if it contains anything else."""
    if type(result) in (list, tuple):
        return type(result)(_shape(part, numbers, used) for part in result)
    if type(result) is dict and all(type(name) is str for name in result):
        return {name: _shape(part, numbers, used) for name, part in result.items()}
    number = numbers[id(result)]
    used.add(number)
    return number
