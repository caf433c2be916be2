"""The search for libdnnl, and its single loaded copy with the state for this process.

The first match in this order is loaded:

1.  the file named by `UPCONV_ONEDNN_PATH`; if that is set, nothing else is tried;
2.  the wheel of the extra `onednn`, or another wheel that contains the library;
3.  `lib/libdnnl.so.3` in this Python environment, where conda installs it;
4.  `libdnnl.so.3` as the system's loader finds it.

It must be version 3, and use OpenMP or a single thread: with other threading runtimes, the number
of threads cannot be set per call.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_int
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from ... import forks
from ...errors import EngineError, EngineMissing, brief
from ...installation import install_command
from ...problem import Direction
from .abi import Library, Threading

VARIABLE = "UPCONV_ONEDNN_PATH"
FILE = "libdnnl.so.3"
WHEELS = ("onednn-cpu-gomp", "onednn-cpu-iomp", "onednn")
_CPU = 1


class Runtime:
    """The loaded library, its engine for this processor, and its number of threads.

    `building` is held while an object is created, so that none of the library's locks is held
    during a fork. `distrusted` contains the (kind, name) of each implementation that erred in the
    self-test of the directions `tested`.
    """

    def __init__(self, library: Library, source: str) -> None:
        self.library, self.source = library, source
        self.engine = library.create("engine", _CPU, 0)
        self.building = threading.Lock()
        self.distrusted: frozenset[tuple[str, str]] = frozenset()
        self.tested: frozenset[Direction] = frozenset()
        self.get_threads: Callable[[], int] = lambda: 1
        self.set_threads: Callable[[int], None] = lambda _: None
        if library.threading is Threading.OPENMP:
            # A process may have several OpenMP runtimes; these functions belong to the library's.
            # The number that they set applies only to the calling thread.
            self.get_threads = library.declared("omp_get_max_threads", c_int, [])
            self.set_threads = library.declared("omp_set_num_threads", None, [c_int])
        # upconv has a cache; a descriptor from the library's cache has no next implementation.
        library.call("set_primitive_cache_capacity", 0)
        forks.hold(self.building)

    @contextmanager
    def making(self, threads: int) -> Iterator[Library]:
        """Yield the library, to create objects that will run on `threads` threads."""
        with self.building:
            before = self.get_threads()
            self.set_threads(threads)
            try:
                yield self.library
            finally:
                self.set_threads(before)

    @property
    def version(self) -> str:
        """The library's version, such as "3.2.0"."""
        return ".".join(map(str, self.library.version))

    def __str__(self) -> str:
        faults = ", ".join(f"{name} ({kind})" for kind, name in sorted(self.distrusted))
        tested = f"excludes {faults}" if faults else "passed"
        return f"libdnnl {self.version} of {self.source}, {self.library.path}; self-test: {tested}"


def runtime() -> Runtime:
    """Return the library, loaded once; raise `EngineMissing` with all places searched."""
    path = _found(os.environ.get(VARIABLE, "").strip())
    if isinstance(path, str):
        raise EngineMissing(path)
    return path


@lru_cache(maxsize=4)
def _found(asked: str) -> Runtime | str:
    """Return the library, or say in a sentence why there is none."""
    complaints = []
    for source, path in [(VARIABLE, asked)] if asked else _places():
        try:
            return _loaded(path, source)
        except (OSError, AttributeError, EngineError) as error:
            complaints.append(f"{source}: {brief(str(error))[1:-1]}")
    command = install_command("onednn")
    if asked:
        return (
            f"{VARIABLE} names no libdnnl that upconv can use. {complaints[0]}. Correct or unset"
            f" it, or install one: {command}"
        )
    return f"upconv finds no usable {FILE}. {'; '.join(complaints)}. Install it: {command}"


def _loaded(path: str, source: str) -> Runtime:
    library = Library(path)
    if library.version[0] != 3:
        version = ".".join(map(str, library.version))
        raise EngineError(f"{path} is version {version}, not version 3")
    if library.threading not in (Threading.OPENMP, Threading.SEQUENTIAL):
        raise EngineError(f"{path} uses neither OpenMP nor a single thread")
    return Runtime(library, source)


def _places() -> Iterator[tuple[str, str]]:
    """Yield a description and the path of every file to try."""
    for wheel in WHEELS:
        try:
            files = metadata.distribution(wheel).files or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == FILE:
                yield f"the wheel {wheel}", str(Path(str(file.locate())).resolve())
    for prefix in dict.fromkeys((sys.prefix, sys.base_prefix)):
        path = Path(prefix) / "lib" / FILE
        if path.exists():
            yield "this environment", str(path)
    yield "the system", FILE
