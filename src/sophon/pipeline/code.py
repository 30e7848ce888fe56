"""A digest of a user's callable: its source and all settings that can be reached from it.

The digest becomes part of fingerprints, so a state or profile of one recipe is never mistaken for that of another. It
is the same in every run and on every machine: addresses, hash order and generator states do not enter it.

Limits: globals of a function's module, the order of a dict and everything beyond a few thousand values are ignored;
only some evenly spaced elements of a large array are hashed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np
from PIL import Image

LIBRARIES = (
    "torchvision",
    "torchaudio",
    "timm",
    "albumentations",
    "torch",
    "kornia",
)  # libraries, whose classes are not the user's own code
# Packages whose code is identified only by name: their code changes with every release, and reading their files takes
# long.
_BY_NAME = frozenset((*LIBRARIES, "PIL", "numpy", "scipy", "cv2", "albucore", "sophon", *sys.stdlib_module_names))
_BUILT_ON = ("torch", "dataclasses", "abc")
# Packages whose functions are made from others by decorators.
_MAKERS = frozenset((*_BUILT_ON, "typing_extensions", "pydantic", *sys.stdlib_module_names)) - {"__main__"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")  # attributes of a torch module
_MAX_VALUES = 5_000
_MAX_DEPTH = 100
_MAX_ELEMENTS = 1 << 16
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
# Their state differs in every run unless they were seeded, and says nothing about what a callable does.
_GENERATORS = (random.Random, np.random.Generator, np.random.BitGenerator, np.random.RandomState)
# The attributes of a torch module that determine what it does; the others are bookkeeping.
_MODULE_PARTS = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "training")


def digest(function: Callable[..., Any]) -> str:
    """Return the digest of a callable."""
    return _Walk().digest(function)


def label(function: Callable[..., Any]) -> str:
    """Return the full name of a callable, or of the class of an object."""
    owner = function if inspect.isroutine(function) else type(function)
    return _name(owner)


def is_altered(transform: Any) -> bool:
    """Return whether a library object runs code that is not the library's.

    It does if a hook is registered on it, or if a method of the object or its class was replaced.
    """
    cls = type(transform)
    held = getattr(transform, "__dict__", {})
    if any(held.get(hooks) for hooks in _HOOKS) or any(callable(getattr(cls, name, None)) for name in held):
        return True
    for owner in cls.__mro__:
        library = owner.__module__.partition(".")[0]
        if library not in LIBRARIES:
            continue
        methods = (getattr(found, "__func__", found) for found in vars(owner).values())
        if any(inspect.isfunction(found) and not _is_of(found, library) for found in methods):
            return True
    return False


def _is_of(function: types.FunctionType, library: str) -> bool:
    """Return whether a function belongs to a library or to a package the library is built on.

    Its `__module__` is not enough: `functools.wraps` copies that attribute from the replaced function.
    """
    said, found = str(function.__module__), str(function.__globals__.get("__name__"))
    return said.partition(".")[0] in (library, *_BUILT_ON) and found.partition(".")[0] in (library, *_MAKERS)


def _name(owner: Any) -> str:
    return f"{getattr(owner, '__module__', None)}.{getattr(owner, '__qualname__', type(owner).__qualname__)}"


class _Walk:
    """Walks through a callable and everything it holds, and hashes what it finds."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._met: dict[int, tuple[int, Any]] = {}  # by id; the value is kept as well, so that its id is not reused
        self._count = 0
        self._depth = 0

    def digest(self, function: Callable[..., Any]) -> str:
        """Return the digest of a callable; its own source is included no matter who wrote it."""
        owner: Any = function if inspect.isroutine(function) else type(function)
        self._add(_source(owner))
        self._value(function)
        return self._hash.hexdigest()[:16]

    def _add(self, *texts: str | bytes) -> None:
        for text in texts:
            data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
            self._hash.update(len(data).to_bytes(8, "little") + data)

    def _value(self, value: Any) -> None:
        self._count += 1
        if self._count > _MAX_VALUES or self._depth > _MAX_DEPTH:
            return
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            self._add(type(value).__name__, repr(value))
            return
        if id(value) in self._met:
            self._add("again", str(self._met[id(value)][0]))
            return
        self._met[id(value)] = (len(self._met), value)
        self._depth += 1
        self._parts(value)
        self._depth -= 1

    def _parts(self, value: Any) -> None:  # noqa: PLR0912 - one branch per kind
        if isinstance(value, type):
            self._code(value)
        elif isinstance(value, Enum):
            self._add("enum", _name(type(value)), value.name)
        elif isinstance(value, functools.partial):
            self._all("partial", value.func, value.args, value.keywords)
        elif inspect.ismethod(value):
            self._all("method", value.__func__, value.__self__)
        elif inspect.isfunction(value):
            self._code(value)
            cells = value.__closure__ or ()
            self._all("function", value.__defaults__, value.__kwdefaults__, *map(_content, cells))
        elif inspect.isroutine(value) or isinstance(value, types.ModuleType):
            self._add("named", getattr(value, "__name__", ""), _name(value))
        elif isinstance(value, Mapping):
            items = list(value.items())
            if all(isinstance(name, str) for name, _ in items):
                items.sort(key=lambda item: item[0])  # the dict may have been made from a set
            self._all(_name(type(value)), *(part for item in items for part in item))
        elif isinstance(value, list | tuple):
            self._all(_name(type(value)), *value)
        elif isinstance(value, set | frozenset):
            self._add("set", *sorted(repr(e) if isinstance(e, _PLAIN) else label(e) for e in value))
        elif isinstance(value, np.ndarray | np.generic):
            self._array(np.asarray(value))
        elif isinstance(value, Image.Image):
            self._add("picture", value.mode, repr(value.size), value.tobytes())
        elif _is_torchs(value, "Tensor"):
            self._tensor(value)
        else:
            self._object(value)

    def _all(self, kind: str, *values: Any) -> None:
        self._add(kind, str(len(values)))
        for value in values:
            self._value(value)

    def _code(self, owner: Any) -> None:
        self._add("code", _name(owner))
        if str(owner.__module__).partition(".")[0] not in _BY_NAME:
            self._add(_source(owner))

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        self._add("array", array.dtype.str, repr(array.shape))
        if array.dtype.hasobject:
            self._all("objects", *array.ravel().tolist()[:_MAX_VALUES])
        else:
            self._add(array.ravel()[:: max(1, array.size // _MAX_ELEMENTS)].tobytes())

    def _tensor(self, tensor: Any) -> None:
        self._add("tensor", str(tensor.dtype), repr(tuple(tensor.shape)))
        try:
            some = tensor.detach().reshape(-1)[:: max(1, tensor.numel() // _MAX_ELEMENTS)]
            self._add(repr(some.cpu().tolist()))
        except (RuntimeError, NotImplementedError):  # an array without values, or of a kind that has no rows
            return

    def _object(self, value: Any) -> None:
        self._code(type(value))
        if isinstance(value, _GENERATORS) or _is_torchs(value, "Generator"):
            return
        held = _settings(value)
        if held:
            self._all("object", *(part for name in sorted(held) for part in (name, held[name])))
            return
        try:
            printed = repr(value)
        except Exception:  # noqa: BLE001 - third-party class: it may raise anything
            return
        if " at 0x" not in printed:
            self._add(printed)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty closure cell
        return None


def _settings(value: Any) -> dict[str, Any]:
    """Return the settings of an object, by name."""
    if type(value).__module__.startswith("albumentations."):
        # albumentations keeps its last random draw among its attributes, but can list its settings separately.
        with contextlib.suppress(Exception):  # not every class can; then its attributes are used
            return dict(value.to_dict())
    return dict(_attributes(value))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, by name."""
    held = getattr(value, "__dict__", None)
    held = dict(held) if isinstance(held, Mapping) else {}
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                held.setdefault(name, getattr(value, name))
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        others = vars(torch.nn.Module()).keys() - set(_MODULE_PARTS)
        held = {name: part for name, part in held.items() if name not in others}
    yield from held.items()


def _is_torchs(value: Any, name: str) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, name))


# Cached, since Python parses the whole file. Weak references, since a function keeps its module and closure alive.
_sources: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def _compiled(code: object) -> str:
    """Return the bytecode of a function without source; it differs between Python releases."""
    if not isinstance(code, types.CodeType):
        return ""
    values = [_compiled(value) or _printed(value) for value in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {' '.join(values)}"


def _printed(value: object) -> str:
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)  # its order differs in every run


def _source(owner: Any) -> str:
    """Return the source of a function or class, or its bytecode if it was typed in interactively."""
    found = _sources.get(owner)
    if found is None:
        try:
            found = inspect.getsource(owner)
        except (OSError, TypeError):
            methods = vars(owner).values() if isinstance(owner, type) else (owner,)
            found = " ".join(_compiled(getattr(method, "__code__", None)) for method in methods)
            return found.strip()
        if found.count("lambda") > 1 and getattr(owner, "__name__", "") == "<lambda>":
            found += _compiled(owner.__code__)  # the source covers the whole line, even if it has several lambdas
        _sources[owner] = found
    return found
