"""Packing weights: every weight once per use, in the order in which the tiles use them.

A group's weight is cut by block, combination of outer phases and outer tap into *pieces* of
[input channel][entries]. Pieces of one block lie together, those of one combination within them
too: a tile reads its weights from the first to the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ... import memory
from ..base import Array
from ..copies import contiguous
from . import pool
from .compile import Code
from .correlation import Correlation
from .cpu import Cpu
from .emit import Module
from .row_code import gather_code
from .slots import Slots, jobs
from .values import BYTES, DOUBLE, FLOAT, I64, PTR, STORED

_SLOTS = Slots(
    ("dst", "src", "pieces", "tables", "gather"),
    ("blocks", "run", "channels", "dst_group", "src_group", "src_channel", "jobs", "element"),
    ("next",),
)
_PIECE = 4  # numbers per piece: byte offsets in dst and src, first number in tables, entries


@dataclass(frozen=True, slots=True)
class Entries:
    """Which weights are used, in order.

    `channels[b]` is the first output channel of block b, `entries[b]` the (channel of the block,
    tap of the last axis) of each weight of one input channel, `taps[c]` the outer taps (an index
    per outer axis) of combination c of outer phases.
    """

    channels: tuple[int, ...]
    entries: tuple[tuple[tuple[int, int], ...], ...]
    taps: tuple[tuple[tuple[int, ...], ...], ...]


class Packing:
    """Packs the weights of one correlation into elements of type `compute`."""

    def __init__(
        self,
        correlation: Correlation,
        compute: np.dtype[Any],
        uses: Entries,
        threads: int,
        cpu: Cpu,
    ) -> None:
        self._correlation, self._compute, self._uses = correlation, compute, uses
        self._threads = threads
        groups = correlation.groups
        self._channels = correlation.reduced // groups
        piece_bytes = np.array([len(e) for e in uses.entries]) * self._channels * compute.itemsize
        counts = np.array([len(taps) for taps in uses.taps])
        before = np.concatenate(([0], np.cumsum(counts)))
        starts = np.concatenate(([0], np.cumsum(piece_bytes * before[-1])))
        self.group_bytes = int(starts[-1])
        # places[combination][block]
        self.places = starts[None, :-1] + before[:-1, None] * piece_bytes[None, :]
        self._run = int(before[-1])
        self._pieces, self._tables = self._piece_table(starts[:-1], piece_bytes)
        computed = DOUBLE if compute.itemsize == BYTES[DOUBLE] else FLOAT
        self._code, self._gather = (
            weights_code(cpu),
            gather_code(STORED[correlation.dtype], computed, cpu),
        )
        self._block = self._arguments()

    @property
    def nbytes(self) -> int:
        """Bytes of a packed weight."""
        return self._correlation.groups * self.group_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of the tables."""
        return int(self._pieces.nbytes + self._tables.nbytes + self.places.nbytes)

    def pack(self, weight: Array) -> Array:
        """A weight of the correlation's shape in the order of use."""
        memory.require(self.nbytes, "the packed weight")
        if not weight.flags.c_contiguous:
            memory.require(weight.nbytes, "a copy of the weight")
        weight = contiguous(weight)
        packed = np.empty(self.nbytes // self._compute.itemsize, self._compute)
        block = self._block.copy()
        block.update(dst=packed.ctypes.data, src=weight.ctypes.data)
        threads = self._threads if packed.size > 1 << 16 else 1
        pool.run(self._code.addresses["weights"], block.address, threads)
        return packed

    def _piece_table(self, starts: Any, piece_bytes: Any) -> tuple[Any, Any]:
        """The pieces of all blocks, and the element numbers their entries gather."""
        uses, correlation = self._uses, self._correlation
        _, _, by_made, *by_tap = correlation.weight_strides
        outer = np.array(
            [sum(i * s for i, s in zip(tap, by_tap, strict=False)) for t in uses.taps for tap in t],
            np.int64,
        ).reshape(-1)
        limit = correlation.made // correlation.groups
        tables: dict[tuple[Any, int], int] = {}
        numbers: list[Any] = []
        pieces = np.zeros((len(uses.channels), len(outer), _PIECE), np.int64)
        size = 0
        for b, (channel, entries) in enumerate(zip(uses.channels, uses.entries, strict=True)):
            live = min(limit - channel, max((c for c, _ in entries), default=0) + 1)
            if (entries, live) not in tables:
                tables[entries, live] = size
                numbers += [c * by_made + t * by_tap[-1] if c < live else -1 for c, t in entries]
                size = len(numbers)
            pieces[b, :, 0] = starts[b] + np.arange(len(outer)) * piece_bytes[b]
            pieces[b, :, 1] = (channel * by_made + outer) * correlation.dtype.itemsize
            pieces[b, :, 2] = tables[entries, live]
            pieces[b, :, 3] = len(entries)
        return pieces, np.array(numbers or [0], np.int64)

    def _arguments(self) -> Any:
        correlation = self._correlation
        by_group, by_reduced = (
            s * correlation.dtype.itemsize for s in correlation.weight_strides[:2]
        )
        return _SLOTS.block(
            gather=self._gather.addresses["gather"],
            pieces=self._pieces.ctypes.data,
            tables=self._tables.ctypes.data,
            blocks=len(self._uses.channels),
            run=self._run,
            channels=self._channels,
            dst_group=self.group_bytes,
            src_group=by_group,
            src_channel=by_reduced,
            jobs=correlation.groups * len(self._uses.channels),
            element=self._compute.itemsize,
        )


@lru_cache(maxsize=16)
def weights_code(cpu: Cpu) -> Code:
    """The function `weights(args)`, which every thread runs."""
    module = Module(cpu.attributes)
    with module.function("weights", {"args": PTR}) as f:
        a = _SLOTS.reader(f)
        with jobs(f, a.address("next"), a["jobs"]) as job:
            block, group = f.rem(job, a["blocks"]), f.div(job, a["blocks"])
            dst = f.at(a["dst"], f.mul(group, a["dst_group"]))
            src = f.at(a["src"], f.mul(group, a["src_group"]))
            with f.loop(0, a["run"]) as loop:
                number = f.add(f.mul(block, a["run"]), loop.index)
                piece = f.at(a["pieces"], f.mul(number, _PIECE), I64)
                to, start, first, entries = (
                    f.load(I64, f.at(piece, i, I64)) for i in range(_PIECE)
                )
                f.call(
                    a["gather"],
                    f.at(dst, to),
                    f.at(src, start),
                    f.at(a["tables"], first, I64),
                    entries,
                    a["channels"],
                    f.mul(entries, a["element"]),
                    a["src_channel"],
                )
    return Code(module, ("weights",), cpu, opt=0)
