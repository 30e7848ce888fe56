"""obstore, the object store library: imported when needed, and loaded again after a fork.

obstore's threads do not exist in a forked child, where every call would wait for them forever. So a child whose parent
has used obstore loads a second copy of it from memory: to the dynamic linker this is a different file, with its own
threads and connections. If the parent has not used obstore yet, the child needs no copy.

Concurrency: any thread may call `library`; the first call loads obstore.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import Any

from sophon.errors import ConfigError
from sophon.version import install_command


class _Library:
    """Holds the library of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._module: Any = None
        self._is_stale = False

    def forked(self) -> None:
        """Note, in a child, that the parent's copy cannot be used."""
        self._lock = threading.Lock()
        self._is_stale = self._is_stale or self._module is not None
        self._module = None

    def get(self) -> Any:
        if self._module is None:
            with self._lock:
                if self._module is None:
                    self._module = _second_copy() if self._is_stale else _first()
        return self._module


def _first() -> Any:
    try:
        importlib.import_module("obstore.store")
        return importlib.import_module("obstore")
    except ImportError as error:
        missing = f"object stores need obstore, which is not installed; run: {install_command('s3')}"
        raise ConfigError(missing) from error


def _second_copy() -> Any:
    """Import the library again, its compiled part from memory: the linker identifies files by inode."""
    file = sys.modules["obstore._obstore"].__file__
    assert file is not None
    fd = os.memfd_create("obstore", os.MFD_CLOEXEC)
    try:
        with os.fdopen(fd, "wb", closefd=False) as copy:
            copy.write(Path(file).read_bytes())
        for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
            del sys.modules[name]
        place = f"/proc/self/fd/{fd}"
        loader = importlib.machinery.ExtensionFileLoader("obstore._obstore", place)
        spec = importlib.util.spec_from_file_location("obstore._obstore", place, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        module.__file__ = file  # from which a grandchild makes its copy
        sys.modules["obstore._obstore"] = module
        loader.exec_module(module)
        return _first()
    finally:
        os.close(fd)


_LIBRARY = _Library()
os.register_at_fork(after_in_child=_LIBRARY.forked)


def library() -> Any:
    """Return obstore, ready for use in this process.

    Raises:
        ConfigError: obstore is not installed.
    """
    return _LIBRARY.get()
