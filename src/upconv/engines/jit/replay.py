"""Calls on contiguous arrays, repeated at other addresses.

Most overhead in calling a small layer is in Python, which binds about twenty numbers to argument
blocks. Between a kernel's calls on contiguous arrays, only the pointers into the arrays change. So
the first call keeps its blocks, and later calls replace these pointers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from . import pool
from .kernel_arguments import Block
from .steps import Launch

_MAX_LAUNCHES = 8  # with more launches, a call has so much work that binding hardly matters
_Pointers = list[tuple[int, int, int]]  # index in a block, number of the array, and offset in it


class Replay:
    """A call's launches, and the pointers in their blocks."""

    def __init__(self, launches: Sequence[tuple[Launch, Block, _Pointers]]) -> None:
        self._launches = launches
        self._free: deque[list[Block]] = deque(maxlen=8)

    @classmethod
    def of(
        cls, launches: Iterable[tuple[Launch, Mapping[str, int]]],
        addresses: Sequence[int], sizes: Sequence[int],
    ) -> Replay | None:  # fmt: skip
        """Record a call's launches on arrays of these sizes. Return None if there are too many, or
        if a pointer is outside all arrays."""
        bound: list[tuple[Launch, Block, _Pointers]] = []
        for launch, values in launches:
            pointers: _Pointers = []
            for index, value in launch.blocks.pointers(values):
                ranges = enumerate(zip(addresses, sizes, strict=True))
                array = next((i for i, (a, size) in ranges if a <= value < a + max(1, size)), None)
                if array is None or len(bound) == _MAX_LAUNCHES:
                    return None
                pointers.append((index, array, value - addresses[array]))
            bound.append((launch, launch.blocks.bound(values), pointers))
        return cls(bound)

    def run(self, addresses: Sequence[int]) -> None:
        """Run the launches on arrays at other addresses. Several threads may call this."""
        try:
            blocks = self._free.pop()
        except IndexError:
            blocks = [block.copy() for _, block, _ in self._launches]
        for block, (launch, _, pointers) in zip(blocks, self._launches, strict=True):
            block.restart()
            numbers = block.numbers
            for index, array, offset in pointers:
                numbers[index] = addresses[array] + offset
            pool.run(launch.work, block.address, launch.threads)
        self._free.append(blocks)
