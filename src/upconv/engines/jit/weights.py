"""Packing weights: every weight once per use, in the order in which the tiles use them.

A group's weight is cut by block, combination of outer phases and outer tap into *pieces* of
[input channel][entries]. Pieces of one block lie together, those of one combination within them
too: a tile reads its weights from the first to the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .correlation import Correlation
from .cpu import Cpu
from .packing import Packer


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


class Packing(Packer):
    """Packs the weights of one correlation; places[combination][block] are byte offsets."""

    def __init__(
        self,
        correlation: Correlation,
        compute: np.dtype[Any],
        uses: Entries,
        threads: int,
        cpu: Cpu,
    ) -> None:
        channels = correlation.reduced // correlation.groups
        piece_bytes = np.array([len(e) for e in uses.entries]) * channels * compute.itemsize
        counts = np.array([len(taps) for taps in uses.taps])
        before = np.concatenate(([0], np.cumsum(counts)))
        starts = np.concatenate(([0], np.cumsum(piece_bytes * before[-1])))
        self.places = starts[None, :-1] + before[:-1, None] * piece_bytes[None, :]
        tables = _piece_table(correlation, uses, starts[:-1], piece_bytes)
        own = correlation.groups, channels, int(starts[-1])
        super().__init__(correlation, compute, *own, *tables, threads, cpu)


def _piece_table(
    correlation: Correlation, uses: Entries, starts: Any, piece_bytes: Any
) -> tuple[Any, Any]:
    """The pieces of all blocks, and the element numbers their entries gather."""
    _, _, by_made, *by_tap = correlation.weight_strides
    outer = np.array(
        [sum(i * s for i, s in zip(tap, by_tap, strict=False)) for t in uses.taps for tap in t],
        np.int64,
    ).reshape(-1)
    limit = correlation.made // correlation.groups
    tables: dict[tuple[Any, int], int] = {}
    numbers: list[Any] = []
    pieces = np.zeros((len(uses.channels), len(outer), 4), np.int64)
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
    return pieces.reshape(-1, 4), np.array(numbers or [0], np.int64)
