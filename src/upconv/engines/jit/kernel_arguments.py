"""Argument blocks: the 64-bit numbers that a compiled function reads, by name on both sides.

A function that all threads run takes one pointer to such a block. Counters that threads share are
in separate cache lines.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import pool
from .cpu import Cpu
from .emit import Function, signature
from .values import I32, I64, PTR, Value

Table = np.ndarray[Any, Any]
_LINE = 16  # numbers in 128 bytes: processors fetch lines in pairs


class ArgumentLayout:
    """The layout of an argument block: numbers and addresses (`signature`), and counters.

    The counters follow the first line of numbers, so their indices are fixed. Each begins a line,
    in which further counters may follow it."""

    def __init__(self, numbers: str, counters: str) -> None:
        self.types, shared = signature(numbers), counters.split()
        counters_size = _LINE * len(shared)
        self.indices = {n: i + (i >= _LINE) * counters_size for i, n in enumerate(self.types)}
        self.indices |= {name: _LINE * (1 + i) for i, name in enumerate(shared)}
        self.zeros = array("q", bytes(8 * counters_size))
        self.pointers = {self.indices[n] for n, kind in self.types.items() if kind == PTR}
        self._count = counters_size + -(-len(self.types) // _LINE) * _LINE

    def block(self, **values: int) -> Block:
        """Return a new block with these values; the others are zero."""
        numbers = array("q", bytes(8 * self._count))
        block = Block(self, numbers)
        block.update(values)
        return block

    def reader(self, f: Function) -> Arguments:
        """Return a reader for the block to which a function's parameter `args` points."""
        return Arguments(f, self)


class Block:
    """An argument block, in an array type that is faster to copy and fill than NumPy's."""

    __slots__ = ("address", "layout", "numbers")

    def __init__(self, layout: ArgumentLayout, numbers: array[int]) -> None:
        self.layout, self.numbers = layout, numbers
        self.address, _ = numbers.buffer_info()

    def update(self, values: Mapping[str, int]) -> None:
        """Set values by name."""
        numbers, indices = self.numbers, self.layout.indices
        for name, value in values.items():
            numbers[indices[name]] = value

    def __getitem__(self, name: str) -> int:
        return self.numbers[self.layout.indices[name]]

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return 8 * len(self.numbers)

    def address_of(self, name: str) -> int:
        """Return the address of a number."""
        return self.address + 8 * self.layout.indices[name]

    def restart(self) -> None:
        """Set the counters to zero, for another run."""
        zeros = self.layout.zeros
        self.numbers[_LINE : _LINE + len(zeros)] = zeros

    def copy(self) -> Block:
        """Return a block with the same values."""
        return Block(self.layout, self.numbers[:])

    def is_pointer(self, index: int) -> bool:
        """Whether the value at an index is an address."""
        return index in self.layout.pointers


class Blocks:
    """A pool of argument blocks copied from a template. Values that a run does not set may be left
    over from an earlier run."""

    def __init__(self, template: Block) -> None:
        self._template = template
        self._free: deque[Block] = deque(maxlen=8)

    def bound(self, values: Mapping[str, int]) -> Block:
        """Return a new block with these values, which `run` never reuses."""
        block = self._template.copy()
        block.update(values)
        return block

    def pointers(self, values: Mapping[str, int]) -> list[tuple[int, int]]:
        """Return the index and value of each value that is an address."""
        layout = self._template.layout
        numbered = [(layout.indices[name], value) for name, value in values.items()]
        return [(i, value) for i, value in numbered if value and i in layout.pointers]

    def run(self, work: int, threads: int, flag: str = "", /, **values: int) -> int:
        """Run the function at address `work` on `threads` threads with a block of these values.
        Return the value of the counter `flag`, or 0."""
        block = self.taken(values)
        pool.run(work, block.address, threads)
        return self.given_back(block, flag)

    def taken(self, values: Mapping[str, int]) -> Block:
        """Take a block from the pool, and set values; `given_back` returns it after the run."""
        try:
            block = self._free.pop()
            block.restart()
        except IndexError:
            block = self._template.copy()
        block.update(values)
        return block

    def given_back(self, block: Block, flag: str = "") -> int:
        """Keep a block for later runs; return the value of the counter `flag`, or 0."""
        raised = block[flag] if flag else 0
        self._free.append(block)
        return raised


class Arguments:
    """A reader of an argument block inside a function."""

    def __init__(self, f: Function, layout: ArgumentLayout) -> None:
        self._f, self._layout = f, layout

    def address(self, name: str) -> Value:
        """Return the address of a number in the block."""
        return self._f.at(self._f["args"], self._layout.indices[name], I64)

    def __getitem__(self, name: str) -> Value:
        return self._f.load(self._layout.types[name], self.address(name))


def record(long: str, short: str = "") -> np.dtype[Any]:
    """Return the type of a record of 64-bit and 32-bit integers."""
    fields = [(name, np.int64) for name in long.split()]
    return np.dtype(fields + [(name, np.int32) for name in short.split()], align=True)


def filled(kind: np.dtype[Any], shape: int | tuple[int, ...], **columns: Any) -> Table:
    """Return a table of records with these columns; the others are zero."""
    table = np.zeros(shape, kind)
    for name, column in columns.items():
        table[name] = column
    return table


def offsets(counts: Sequence[int], *steps: Sequence[int]) -> Table:
    """Return sums of index times step over all index tuples below `counts`, last index fastest. The
    result has one row for each element of `steps`."""
    total = np.zeros((len(steps), 1), np.int64)
    for count, step in zip(counts, zip(*steps, strict=True), strict=True):
        if count != 1:
            along = np.arange(count) * np.array(step)[:, None]
            total = (total[:, :, None] + along[:, None]).reshape(len(steps), -1)
    return total


class Record:
    """A reader of a table's record of 64-bit and 32-bit integers, inside a function."""

    def __init__(self, f: Function, address: Value, kind: np.dtype[Any]) -> None:
        self._f, self.address, self._kind = f, address, kind

    @classmethod
    def of(cls, f: Function, table: Value, number: Value, kind: np.dtype[Any]) -> Record:
        """Return the record with this number in a table."""
        return cls(f, table + number * kind.itemsize, kind)

    def __getitem__(self, name: str) -> Value:
        kind, offset = self._kind.fields[name][:2]  # type: ignore[index]  # has names
        address = self.address + offset
        if kind.itemsize == 8:
            return self._f.load(I64, address)
        return self._f.convert("sext", self._f.load(I32, address), I64)


@contextmanager
def jobs(f: Function, counter: Value, count: Value) -> Iterator[Value]:
    """Emit a loop that takes numbers below `count` from a counter that all threads share."""
    with f.forever() as taking:
        job = f.take(counter)
        f.leave(taking, job >= count)
        yield job


_PATIENCE = 1000  # wait iterations, about 30 us, before the thread yields


def wait(
    f: Function, counter: Value, count: Value, cpu: Cpu, meanwhile: Callable[[], None] | None = None
) -> None:
    """Wait until a counter that all threads share has reached `count`.

    `meanwhile` emits the waiting loop's body; the default is a pause instruction.
    """
    iterations = f.scratch(8)
    f.store(f.integer(0), iterations)
    with f.forever() as waiting:
        f.leave(waiting, f.observe(counter) >= count)
        meanwhile() if meanwhile else f.relax(cpu.triple)
        iteration = f.load(I64, iterations) + 1
        f.store(iteration, iterations)
        with f.when(iteration > _PATIENCE):  # the other threads may be waiting for a processor
            f.call_foreign(pool.switch())
