"""Packing weights in the order in which a kernel uses them, with a copy for every use.

A packed weight is cut into *pieces* of [input channel][entries]. A table lists the elements that
each piece gathers. In input gradients of IOX weights, entries are far apart, while all taps of all
reduced channels are adjacent. Gathering would then read a cache line for each number, so squares
are transposed in registers (packing_code.py), or a few results are gathered at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from ... import memory
from ..addresses import address_of
from ..base import Array
from ..copies import contiguous
from ..nonfinite import NonFinite
from ..workspace import KEPT_BYTES, warm
from . import pool
from .compile import Code
from .correlation import WeightForm
from .cpu import Cpu
from .kernel_arguments import Block, Blocks
from .packing_code import (
    ARGUMENTS,
    channels_of_square,
    few_taps,
    packing_code,
    pair_packing_code,
    transposed_packing_code,
)
from .rows import gather_code
from .transpose import transpose_code
from .values import DOUBLE, FLOAT, I16, LINE, STORED

_PART = 8  # input channels that are packed together: their source stays in the cache
_RUN_BYTES = 1 << 14
"""Bytes that a job gathers if results are far apart; parts of 8 channels would read about a hundred
bytes of each result. Weights of 512 x 512 x 3 x 3 take 1.3 ns a number instead of 2.4, and
pointwise ones of 1024 x 1024 1.4 instead of 4.6 to 6.1 (Zen 3, 2026-11-28)."""
_COLUMNS_OF_PART = 1024  # about how many taps and input channels a transposing job packs
_FEW = 1 << 16  # numbers that one thread packs
_WARM = 1 << 20  # arrays of at least so many bytes are in warm memory
_SHARE = 8  # weights of at least 1 / _SHARE of the third-level cache are written past it

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Shared = TypeVar("Shared")


_shared: WeakValueDictionary[Any, Any] = WeakValueDictionary()


def shared(make: Callable[..., Shared], *key: Hashable) -> Shared:
    """Return `make(*key)`, the same object for equal keys as long as it is referenced.

    So primitives that read a weight in the same order share a packer, whatever their sizes.
    """
    value: Shared | None = _shared.get((make, key))
    if value is None:
        value = _shared.setdefault((make, key), make(*key))
    return value


class Packer:
    """A packer of weights with `groups` groups of `channels` input channels, into numbers of type
    `compute`; a pair of 16-bit numbers is one entry. With `transposed_taps`, a result's taps,
    pieces are blocks of lanes, and their third number is the count of active lanes. A packed tap
    has `row_channels` input channels; if `has_gaps`, code skips the last ones, which are 0. `run`
    is how many consecutive pieces read the same results, which are far apart, or 0."""

    def __init__(
        self,
        weight: WeightForm,
        compute: np.dtype[Any],
        groups: int,
        channels: int,
        group_bytes: int,
        pieces: Numbers,
        tables: Numbers,
        cpu: Cpu,
        transposed_taps: int | None = None,
        row_channels: int = 0,
        run: int = 0,
    ) -> None:
        self.group_bytes, self.nbytes = group_bytes, groups * group_bytes
        self.has_gaps = row_channels > channels + channels % 2
        self.resident_bytes = int(pieces.nbytes + tables.nbytes)
        self._compute, self._tables = compute, (pieces, tables)
        stored, move = STORED[weight.dtype], None
        element, columns, count = {2: I16, 4: FLOAT, 8: DOUBLE}[compute.itemsize], channels, 1
        self.pieces_code: Callable[[], Code] | None = None
        """Compiles `pack_pieces`, which takes the arguments of `work`; None for gathered pieces."""
        if transposed_taps is None:
            move, part = gather_code(stored, element, cpu), _PART
            if run:
                of_channel = int(pieces[:run, 3].sum()) * weight.dtype.itemsize
                part *= max(1, _RUN_BYTES // max(1, _PART * of_channel))
            run = max(1, run or len(pieces))
            count = -(-len(pieces) // run)
            self._code = packing_code(element, cpu)
        else:  # taps may be 0, if crops leave a result none
            count, part = len(pieces), _COLUMNS_OF_PART
            if element == I16:
                code: Any = partial(pair_packing_code, stored, few_taps(transposed_taps, cpu))
                square = channels_of_square(transposed_taps, cpu)
                part = max(1, part // max(1, square * transposed_taps)) * square
                columns = channels if transposed_taps else 0
            else:
                move = transpose_code(stored, element, cpu)
                code = partial(transposed_packing_code, element)
                columns = channels * transposed_taps
            self._code = code(goes_past(self.nbytes, cpu), cpu)
            self.pieces_code = partial(code, False, cpu)
        self._move = move
        self.work: int = self._code.addresses["pack"]  # the code that packs
        parts, itemsize = -(-columns // part), weight.dtype.itemsize
        by_group, by_reduced, by_made = (s * itemsize for s in weight.strides[:3])
        self._blocks = Blocks(ARGUMENTS.block(
            gather=0 if move is None else move.address,
            pieces=pieces.ctypes.data, tables=tables.ctypes.data, count=len(pieces),
            channels=channels, row_channels=row_channels or channels, part=part, parts=parts,
            jobs=parts * groups * count, run=run, runs=count,
            element=compute.itemsize, columns=columns, taps=transposed_taps or 0,
            dst_group=group_bytes, src_group=by_group, src_channel=by_reduced,
            src_lane=by_made, stored=itemsize,
        ))  # fmt: skip

    def pack(self, weight: Array, threads: int) -> Array:
        """Return a weight of the correlation's shape in the order in which it is used.

        Raises `NonFinite` if it is not finite."""
        packed, block, _read = self.begin(weight)
        pool.run(self.work, block.address, threads_for(packed, threads))
        self.end(block)
        return packed

    def begin(self, weight: Array, nbytes: int = 0) -> tuple[Array, Block, Array]:
        """Return memory for a packed weight (or for `nbytes` bytes of pieces), the arguments of
        `work`, and the array that it reads."""
        nbytes = nbytes or self.nbytes
        memory.require(nbytes, "the packed weight")
        if not weight.flags.c_contiguous:
            memory.require(weight.nbytes, "a copy of the weight")
            weight = contiguous(weight)
        packed = aligned(nbytes // self._compute.itemsize + 64, self._compute)
        if self.has_gaps and nbytes == self.nbytes:
            packed.fill(0)
        addresses = {"dst": address_of(packed), "src": address_of(weight)}
        return packed, self._blocks.taken(addresses), weight

    def end(self, block: Block) -> None:
        """Return a block to its pool; raise `NonFinite` if the packed weight is not finite."""
        if self._blocks.given_back(block, "bad"):
            raise NonFinite


def threads_for(packed: Array, threads: int) -> int:
    """Return the number of threads worth using to pack a weight."""
    return threads if packed.size > _FEW else 1


def aligned(count: int, dtype: np.dtype[Any]) -> Array:
    """Return an uninitialized array aligned to a cache line; a large one is in warm memory.

    NumPy does not align arrays, so each load of a full vector may touch two cache lines. That
    took up to a tenth of a layer's time on a Xeon (2026-11-21). New pages took as long as packing.
    """
    if count * dtype.itemsize >= _WARM:
        return warm(count * dtype.itemsize).view(dtype)
    spare = LINE // dtype.itemsize
    array = np.empty(count + spare, dtype)
    first = -address_of(array) % LINE // dtype.itemsize
    return array[first : first + count]


def goes_past(nbytes: int, cpu: Cpu) -> bool:
    """Whether to write a packed weight past the caches, which avoids reading lines first. That is
    1.2 to 1.4 times as fast for 6 to 33 MB if the third-level cache has 32 MB (2026-11-23, Zen 4).
    Larger weights use new pages, which are in the caches already. If the cache keeps a weight until
    it is used, writing past it made input gradients take 1.1 to 1.4 times as long (8 to 17 MB of
    480, Xeon, 2026-11-27)."""
    return cpu.l3 // _SHARE <= nbytes <= KEPT_BYTES
