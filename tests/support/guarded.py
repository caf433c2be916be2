"""A bounds checker for engines: every array touches an inaccessible page.

`main`, for a separate process, prints each case before it starts, so that the output shows which
case killed the process.

Inside a `Fence` the memory of every new array is poisoned (NaN in every format), begins or ends at
an unmapped page, and is unmapped with the array: operands, results, packed weights, tables,
argument blocks, an engine's copies. Three kinds of stray access are detected:

    a read or write beyond the array on the fenced side, or after its lifetime: the process dies
    a write on the other side, within the same page: `StrayError`
    a read there: the result is wrong

Scratch memory on the stack of compiled functions has no pages of its own. Instead, zones on both
sides are checked before every function returns; a damaged zone ends the process too.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np

from tests.support.random_problems import Case, case, real_case
from upconv import testing
from upconv.arrays import Array
from upconv.engines import load
from upconv.problem import Direction, Problem
from upconv.testing.checks import compare

POISON = 0xFF  # NaN as a number of any format, -1 as an integer
BESIDE = 0x4B  # fill around arrays: not NaN, since adding to NaN changes nothing
_DONT_NEED = 4  # MADV_DONTNEED
_KEPT = 256  # freed regions that stay inaccessible, so that a late access is detected


class Side(Enum):
    """The end of an array that touches the unmapped page."""

    BEGIN = "begin"
    END = "end"


class StrayError(AssertionError):
    """Memory next to an array has changed."""


# The fence ----------------------------------------------------------------------------------------


class Allocator(ctypes.Structure):
    """NumPy's PyDataMem_Handler."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


_SIZE, _POINTER = ctypes.c_size_t, ctypes.c_void_p
_MALLOC = ctypes.PYFUNCTYPE(_POINTER, _POINTER, _SIZE)
_CALLOC = ctypes.PYFUNCTYPE(_POINTER, _POINTER, _SIZE, _SIZE)
_REALLOC = ctypes.PYFUNCTYPE(_POINTER, _POINTER, _POINTER, _SIZE)
_FREE = ctypes.PYFUNCTYPE(None, _POINTER, _POINTER, _SIZE)


@dataclass(frozen=True, slots=True)
class _Region:
    """Pages, the first and last of which are inaccessible, and the array in the others."""

    pages: int
    length: int
    start: int
    nbytes: int

    @property
    def beside(self) -> tuple[tuple[int, int], ...]:
        """(address, bytes) before and after the array, within its pages."""
        first, end = self.pages + mmap.PAGESIZE, self.pages + self.length - mmap.PAGESIZE
        stop = self.start + self.nbytes
        return (first, self.start - first), (stop, end - stop)


class Fence:
    """Memory between inaccessible pages, which NumPy uses inside `with fence.raised(side):`."""

    def __init__(self) -> None:
        self.side = Side.END
        self._c = ctypes.CDLL(None, use_errno=True)
        self._c.mmap.restype = _POINTER
        self._c.mmap.argtypes = [_POINTER, _SIZE] + [ctypes.c_int] * 3 + [ctypes.c_long]
        self._c.mprotect.argtypes = [_POINTER, _SIZE, ctypes.c_int]
        self._c.munmap.argtypes = [_POINTER, _SIZE]
        self._c.madvise.argtypes = [_POINTER, _SIZE, ctypes.c_int]
        self._live: dict[int, _Region] = {}
        self._freed: deque[_Region] = deque()
        self._stray: list[str] = []
        self._calls = (
            _MALLOC(lambda _, n: self.taken(n)),
            _CALLOC(lambda _, n, each: self.taken(n * each, 0)),
            _REALLOC(lambda _, place, n: self._moved(place, n)),
            _FREE(lambda _, place, n: self.given_back(place)),
        )
        addresses = [ctypes.cast(call, _POINTER).value for call in self._calls]
        self._allocator = Allocator(b"guarded", 1, None, *addresses)
        self._capsule = handler(self._allocator)

    @contextmanager
    def raised(self, side: Side) -> Iterator[None]:
        """Fence NumPy's new arrays of this thread on one side."""
        self.side = side
        before = set_handler(self._capsule)
        try:
            yield
        finally:
            set_handler(before)

    def taken(self, nbytes: int, fill: int = POISON, align: int = 1) -> int:
        """Return the address of new memory, at the fence up to alignment."""
        page = mmap.PAGESIZE
        length = (-(-max(nbytes, 1) // page) + 2) * page
        pages = self._c.mmap(None, length, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if self._c.mprotect(pages + page, length - 2 * page, mmap.PROT_READ | mmap.PROT_WRITE):
            raise MemoryError
        end = pages + length - page
        start = pages + page if self.side is Side.BEGIN else (end - nbytes) // align * align
        ctypes.memset(pages + page, BESIDE, length - 2 * page)
        ctypes.memset(start, fill, nbytes)
        self._live[start] = _Region(pages, length, start, nbytes)
        return start

    def given_back(self, start: int) -> None:
        """Free memory after a last check, and make it inaccessible."""
        region = self._live.pop(start)
        self._look(region)
        self._c.mprotect(region.pages, region.length, 0)
        self._c.madvise(region.pages, region.length, _DONT_NEED)
        self._freed.append(region)
        if len(self._freed) > _KEPT:
            old = self._freed.popleft()
            self._c.munmap(old.pages, old.length)

    def _moved(self, start: int | None, nbytes: int) -> int:
        moved = self.taken(nbytes)
        if start:
            ctypes.memmove(moved, start, min(nbytes, self._live[start].nbytes))
            self.given_back(start)
        return moved

    def _look(self, region: _Region) -> None:
        for place, nbytes in region.beside:
            if ctypes.string_at(place, nbytes) != bytes([BESIDE]) * nbytes:
                side = "before" if place < region.start else "after"
                self._stray.append(f"a write {side} an array of {region.nbytes} bytes")

    def check(self) -> None:
        """Raise `StrayError` if memory next to any array has changed since the last check."""
        for region in list(self._live.values()):
            self._look(region)
        stray, self._stray = self._stray, []
        if stray:
            raise StrayError("; ".join(stray))


def handler(allocator: Allocator) -> Any:
    """Return a handler's capsule; the handler must outlive all arrays in its memory."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [_POINTER, ctypes.c_char_p, _POINTER]
    return make(ctypes.addressof(allocator), b"mem_handler", None)


def set_handler(capsule: Any) -> Any:
    """Make NumPy allocate with a handler; return the previous one."""
    return _numpy_function(304)(capsule)  # PyDataMem_SetHandler in numpy's table of functions


@cache
def _numpy_function(number: int) -> Callable[[Any], Any]:
    old = np.lib.NumpyVersion(np.__version__) < "2.0.0"  # the table has no public name
    umath = import_module(f"numpy.{'core' if old else '_core'}._multiarray_umath")
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = _POINTER, [ctypes.py_object, ctypes.c_char_p]
    table = get(umath._ARRAY_API, None)
    address = ctypes.cast(table, ctypes.POINTER(_POINTER))[number]
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address)


# Scratch memory of the JIT engine -----------------------------------------------------------------


@contextmanager
def fenced_workspaces(fence: Fence) -> Iterator[None]:
    """Make the JIT engine's scratch memory new each time, ending at the fence."""
    workspace = import_module("upconv.engines.workspace")

    def taken(nbytes: int, most: int = 0) -> Any:
        """Return a buffer that `workspace` considers too large to keep."""
        buffer = object.__new__(workspace._Buffer)
        buffer.address = fence.taken(nbytes, align=64)
        buffer.nbytes = max(nbytes, workspace.KEPT_BYTES + 1)
        taken_here.append(buffer.address)
        return buffer

    taken_here: list[int] = []
    with mock.patch.object(workspace, "_borrow", taken):
        yield
    for start in taken_here:
        fence.given_back(start)


_ZONE = 64  # bytes
_ZONE_TYPE = "<8 x i64>"


@contextmanager
def zoned_stacks() -> Iterator[None]:
    """Make compiled functions end the process if memory next to their `scratch` has changed."""
    from upconv.engines.jit.emit import Function
    from upconv.engines.jit.values import PTR, Value

    scratch, text = Function.scratch, Function.text
    zones: dict[int, list[str]] = {}

    def zoned(self: Function, nbytes: int) -> Value:
        whole = scratch(self, nbytes + 2 * _ZONE).name
        lines = []
        for name, offset in (("low", 0), ("in", _ZONE), ("high", _ZONE + nbytes)):
            lines.append(f"  {whole}.{name} = getelementptr i8, ptr {whole}, i64 {offset}")
        mine = [f"{whole}.low", f"{whole}.high"]
        ones = f"{_ZONE_TYPE} splat (i64 -1)"
        lines += [f"  store volatile {ones}, ptr {zone}, align 1" for zone in mine]
        self._allocas += lines
        zones.setdefault(id(self), []).extend(mine)
        return Value(PTR, f"{whole}.in", self._do)

    def looking(self: Function) -> str:
        mine = zones.pop(id(self), [])
        return text(self).replace("  ret void\n}", _looks(mine)) if mine else text(self)

    with mock.patch.multiple(Function, scratch=zoned, text=looking):
        yield


def _looks(zones: list[str]) -> str:
    """Return the end of a function that returns only if all zones are unchanged."""
    lines, all_ones = [], f"{_ZONE_TYPE} splat (i64 -1)"
    for i, zone in enumerate(zones):
        lines.append(f"  %zone{i} = load volatile {_ZONE_TYPE}, ptr {zone}, align 1")
        before = all_ones if i == 0 else f"{_ZONE_TYPE} %both{i - 1}"
        lines.append(f"  %both{i} = and {before}, %zone{i}")
    last = f"%both{len(zones) - 1}"
    lines += [
        f"  %differs = icmp ne {_ZONE_TYPE} {last}, splat (i64 -1)",
        "  %bits = bitcast <8 x i1> %differs to i8",
        "  %damaged = icmp ne i8 %bits, 0",
        "  br i1 %damaged, label %stop, label %return",
        "stop:",
        "  store volatile i64 0, ptr inttoptr (i64 4096 to ptr)",
        "  unreachable",
        "return:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


# One case inside the fence ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class How:
    """How to compute cases: by `variant` if the engine has it, otherwise by a random one.

    Without `values`, wrong values pass, and only stray accesses count. A case that takes more than
    `seconds` has hung, even on a busy machine.
    """

    engine: str = "jit"
    variant: str | None = None
    values: bool = True
    seconds: float = 600


def check(fence: Fence, case: Case, side: Side, how: How) -> bool | None:
    """Raise `AssertionError` if the engine accesses memory outside arrays, or is wrong.

    Return whether the result is mistrusted; None if the engine refuses.
    """
    engine, problem = load(how.engine), case.problem
    if engine.refuses(problem) is not None:
        return None
    variants = engine.variants(problem, case.threads)
    variant = how.variant if how.variant in variants else variants[case.variant % len(variants)]
    given = testing.operands(problem, case.seed)
    wanted = testing.expected(problem, given)
    with fence.raised(side), fenced_workspaces(fence):
        mine = _fenced(problem, given)
        primitive = engine.build(problem, case.threads, variant)
        b = mine.b if problem.direction is Direction.WEIGHT_GRAD else primitive.pack(mine.b)
        fence.check()
        second = np.empty_like(given.before) if wanted.second else None
        primitive.run(mine.before, mine.a, b, *testing.ends_of(problem, mine, second))
        fence.check()
        primitive.close()
    for name in ("a", "b", "bias", "residual", "slopes"):
        if not _same(getattr(mine, name), getattr(given, name)):
            raise StrayError(f"operand {name} has changed")
    if how.values:
        compare(f"variant {variant!r}", mine.before, wanted)
        if second is not None and wanted.second:
            compare(f"variant {variant!r}, second result", second, wanted.second)
    return testing.mistrusted(mine.before)


def _fenced(problem: Problem, given: testing.Operands) -> testing.Operands:
    """Return copies inside the fence; the output is poison unless the problem accumulates."""
    before = given.before.copy() if problem.accumulate else np.empty_like(given.before)
    a, b, bias, residual, slopes = (
        None if array is None else array.copy()
        for array in (given.a, given.b, given.bias, given.residual, given.slopes)
    )
    assert a is not None
    assert b is not None
    return testing.Operands(a, b, bias, residual, before, slopes)


def _same(mine: Array | None, given: Array | None) -> bool:
    return mine is given is None or mine.tobytes() == given.tobytes()


def main(seeds: range, **how: Any) -> None:
    """Check the small cases of these seeds, each on both sides; see `How`."""
    cases = ((case(seed), side) for seed in seeds for side in Side)
    _run(cases, How(**how), mistrusted=0.5)  # many have few elements, or none that data reaches


def real_sizes(seeds: range, directions: tuple[str, ...], **how: Any) -> None:
    """Check the real-size cases of these seeds, each on one side."""
    ways, sides = tuple(map(Direction, directions)), tuple(Side)
    _run(((real_case(seed, ways), sides[seed // 2 % 2]) for seed in seeds), How(**how))


def conformance(part: int, **how: Any) -> None:
    """Check every third of the conformance suite's cases, each on one side."""
    sides = tuple(Side)
    numbered = list(enumerate(testing.cases()))[part % 3 :: 3]
    _run(((Case(i, problem, 1 + i % 2, 0), sides[i % 2]) for i, problem in numbered), How(**how))


def _run(cases: Iterable[tuple[Case, Side]], how: How, mistrusted: float = 0.125) -> None:
    """Check cases, and that at most a part `mistrusted` of the results are mistrusted."""
    faulthandler.enable()
    try:
        fence, results = Fence(), list[bool]()
        with zoned_stacks():
            for here, side in cases:
                print(f"the {side.value} of arrays, {here}", flush=True)
                faulthandler.dump_traceback_later(how.seconds, exit=True)
                result = check(fence, here, side, how)
                results += [] if result is None else [result]
        alike = sum(results)
        if how.values and alike > mistrusted * len(results):
            raise AssertionError(f"{alike} of {len(results)} results are mostly the same number")
        print(f"done: {len(results)}", flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # Python would free its last arrays after the fence is gone
    os._exit(0)
