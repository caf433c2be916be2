"""Sequences of primitives, and the memory for their arguments.

A sequence is built once. Its *slots* are memory: the caller's arrays (arguments) or parts of a
workspace (temporaries). Its *steps* are primitives with a slot for each argument. Many threads may
run it at once: each borrows an execution context, which has a stream and one memory object per
slot, and returns it afterwards.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from ...errors import EngineError
from ..workspace import Workspace
from . import openmp
from .abi import Arg, Argument, Handle, LibraryError, Query
from .library import Runtime

_KEPT = 4
"""Contexts kept for later calls; when more threads run at once, the others create new ones."""

_ARGUMENT, _SCRATCHPAD = -1, -2


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """Memory with a layout; `offset` is in the workspace, or `_ARGUMENT`, or `_SCRATCHPAD`."""

    layout: Handle
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    primitive: Handle
    arguments: tuple[tuple[int, int], ...]


class PrimitiveSequence:
    """A sequence; see the module's docstring. Arguments are numbered in the order of creation."""

    def __init__(self, runtime: Runtime, threads: int) -> None:
        self._runtime, self._threads = runtime, threads
        self.slots: list[_Slot] = []
        self.arguments: list[int] = []
        self.steps: list[_Step] = []
        self.temporary_bytes = self._scratchpad = 0
        self.reorders = 0
        self._contexts: deque[_Context] = deque()

    @property
    def nbytes(self) -> int:
        """Bytes of workspace that one run needs."""
        return self.temporary_bytes + self._scratchpad

    def argument(self, layout: Handle) -> int:
        """Add a slot for one of the caller's arrays."""
        self.arguments.append(len(self.slots))
        return self._slot(layout, _ARGUMENT)

    def temporary(self, layout: Handle) -> int:
        """Add a slot in the workspace."""
        offset = self.temporary_bytes
        self.temporary_bytes += _rounded(self._runtime.library.memory_desc_get_size(layout))
        return self._slot(layout, offset)

    def layout(self, slot: int) -> Handle:
        """Return a slot's memory layout."""
        return self.slots[slot].layout

    def step(self, descriptor: Handle, arguments: dict[int, int]) -> None:
        """Add a step: the descriptor's primitive, with a slot for each argument."""
        with self._runtime.making(self._threads) as library:
            layout = library.queried_md(descriptor, Query.SCRATCHPAD)
            needed = library.memory_desc_get_size(layout)
            if needed:
                self._scratchpad = max(self._scratchpad, _rounded(needed))
                arguments = {**arguments, Arg.SCRATCHPAD: self._slot(layout, _SCRATCHPAD)}
            primitive = library.create("primitive", descriptor)
        self.steps.append(_Step(primitive, tuple(arguments.items())))

    def reorder(self, source: int, target: int, *, add: bool = False) -> None:
        """Add a step that copies one slot to another, or adds it to the target's values."""
        engine, layouts = self._runtime.engine, (self.layout(source), self.layout(target))
        with self._runtime.making(self._threads) as library:
            attributes = library.attributes(*[("sum", 1.0, 0, 0)] * add)
            sides = (side for layout in layouts for side in (layout, engine))
            descriptor = library.primitive_desc("reorder", *sides, attributes)
        self.reorders += 1
        self.step(descriptor, {Arg.SRC: source, Arg.DST: target})

    def run(self, *addresses: int) -> None:
        """Execute every step, with the arrays at `addresses` as arguments."""
        try:
            context = self._contexts.pop()
        except IndexError:
            context = _Context(self._runtime, self)
        with Workspace(self.nbytes) as workspace:
            context.place(workspace)
            context.bind(addresses)
            openmp.run(self._runtime, self._threads, context.execute)
        if len(self._contexts) < _KEPT:
            self._contexts.append(context)

    def close(self) -> None:
        """Destroy the primitives and their contexts."""
        self._contexts.clear()
        for step in self.steps:
            step.primitive.close()

    def _slot(self, layout: Handle, offset: int) -> int:
        self.slots.append(_Slot(layout, offset))
        return len(self.slots) - 1


class _Context:
    """A stream and memory objects, used by one thread at a time."""

    def __init__(self, runtime: Runtime, sequence: PrimitiveSequence) -> None:
        library, engine, slots = runtime.library, runtime.engine, sequence.slots
        self._stream = library.create("stream", engine, 1)
        self._memories = [library.create("memory", slot.layout, engine, None) for slot in slots]
        self._arguments = [self._memories[slot].address for slot in sequence.arguments]
        temporary_bytes = sequence.temporary_bytes
        self._temporaries = [
            (memory.address, temporary_bytes if slot.offset == _SCRATCHPAD else slot.offset)
            for memory, slot in zip(self._memories, slots, strict=True)
            if slot.offset != _ARGUMENT
        ]
        self._calls = [self._call(step) for step in sequence.steps]
        self._run, self._wait = library.execute, library.wait
        self._set_address = library.memory_set_data_handle
        self._workspace = 0

    def _call(self, step: _Step) -> tuple[int, int, int, Any]:
        arguments = (Argument * len(step.arguments))()
        for argument, (code, slot) in zip(arguments, step.arguments, strict=True):
            argument.arg, argument.memory = code, self._memories[slot].address
        return step.primitive.address, self._stream.address, len(arguments), arguments

    def place(self, workspace: int) -> None:
        """Place the temporaries in a workspace."""
        if workspace != self._workspace:
            for memory, offset in self._temporaries:
                self._set_address(memory, workspace + offset)
            self._workspace = workspace

    def bind(self, addresses: tuple[int, ...]) -> None:
        """Bind the caller's arrays to the arguments."""
        for memory, address in zip(self._arguments, addresses, strict=True):
            self._set_address(memory, address)

    def execute(self) -> None:
        """Execute the steps; raise `EngineError` if one fails."""
        for call in self._calls:
            status = self._run(*call)
            if status:
                raise LibraryError("primitive_execute", status)
        if self._wait(self._stream.address):
            raise EngineError("oneDNN's stream_wait failed")


def _rounded(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
