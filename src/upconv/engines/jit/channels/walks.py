"""What is walked at once: the phases of some spatial blocks, their arguments and scratch memory.

Channels-last data takes one phase, for all of its spatial blocks. Channels-first data is transposed
before and after, one spatial block at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..cpu import Cpu
from ..kernel_arguments import Blocks
from ..steps import Launch
from ..walk import Phase, phases
from .blocks import SpatialBlock
from .driver import ARGUMENTS, PART, RUN, STRETCH, Records
from .points import points_of_kind
from .schedule import jobs
from .tables import PAD, ChannelsLast, Passes

CHUNK = 256  # positions that are transposed back at once where there is an epilogue


class Walk:
    """Spatial blocks that are computed together."""

    def __init__(self, passes: Passes, blocks: Sequence[SpatialBlock], cpu: Cpu) -> None:
        data, codes, plan = passes.data, passes.codes, passes.schedule
        self._transposed = data.transposed
        if data.transposed:
            kind = blocks[0].kind
            data = ChannelsLast(kind.correlation, data.lanes)
            plan = jobs(kind.correlation, kind.cut, plan.threads, cpu)
        self._threads = plan.threads
        tables = runs_of(passes, blocks, plan.step)
        listed = [Phase(codes.steps["passes"], tables["runs"], passes.rows(plan.block_run))]
        self._inner = self._y = self.nbytes = 0
        stage = max((plan.step + PAD) * passes.widest, data.lanes.width * CHUNK)
        # Parts of whole pages would all begin in the same cache sets.
        part = _rounded(stage * data.element, 4096) + 192
        self._inner = self._y = self.nbytes = self._threads * part
        if data.transposed:
            before, after = transposing(data, self._threads, plain=codes.plain)
            out = "transpose_out" if codes.plain else "finish_out"
            listed.insert(0, Phase(codes.steps["transpose_in"], *before))
            listed.append(Phase(codes.steps[out], *after))
            self._y += _rounded(prod(data.correlation.operand_shape) * data.x_bytes, 64)
            self.nbytes = self._y + _rounded(prod(data.correlation.result_shape) * data.y_bytes, 64)
        window = int(passes.records["merged"].max(initial=1))
        zeros = np.zeros(max(window * data.lanes.reduction, passes.widest), np.float64)
        shared = {"passes": passes.records, "taps": passes.taps, "outs": passes.outs}
        own = tables | {"phases": phases(*listed), "zeros": zeros}
        self.tables, self.phases, self.data, self.codes = own | shared, listed, data, codes
        self.resident_bytes = sum(table.nbytes for table in own.values())
        block = ARGUMENTS.block(
            **{n: table.ctypes.data for n, table in self.tables.items() if n != "runs"},
            **codes.addresses, phase_count=len(listed), part=part,
            axes=data.correlation.rank, stage_row=CHUNK * data.element,
            in_row=data.x_steps[-1], out_row=data.y_steps[-1],
        )  # fmt: skip
        self.launch = Launch.of_walk(Blocks(block), codes.walk, self._threads, own["phases"])

    def values(self, scratch: int, y: int, x: int) -> dict[str, int]:
        """The arguments for operands at these addresses, and for `nbytes` of scratch memory."""
        if not self._transposed:
            return {"scratch": scratch, "x": x, "y": y}
        first = {"scratch": scratch, "first_x": x, "first_y": y}
        return first | {"x": scratch + self._inner, "y": scratch + self._y}


def runs_of(passes: Passes, blocks: Sequence[SpatialBlock], step: int) -> dict[str, Records]:
    """The runs of some spatial blocks, of at most `step` points, and the tables they refer to."""
    data, sets = passes.data, list(passes.sets)
    parts: dict[str, list[Records]] = {"runs": [], "spans": [], "points": [], "sizes": []}
    ends, by_kind = {"spans": 0, "points": 0}, {}
    for number, kind in enumerate(dict.fromkeys(block.kind for block in blocks)):
        spans, points = points_of_kind(data, kind, sets, step)
        spans["points"] += ends["points"]
        runs = np.zeros(len(spans), RUN)
        runs["spans"] = ends["spans"] + np.arange(len(spans)) * spans.strides[0]
        runs["x"] = kind.before * data.x_steps[1]
        runs["sizes"] = number * data.correlation.rank * 8
        by_kind[kind] = runs
        for name, tables in (("spans", [spans.ravel()]), ("points", points)):
            parts[name] += tables
            ends[name] += sum(table.nbytes for table in tables)
        parts["sizes"].append(np.array(kind.correlation.operand_size, np.int64))
    for block in blocks:
        runs = by_kind[block.kind].copy()
        runs["x"] += block.image * data.x_steps[0] + block.input * data.x_steps[1]
        runs["y"] += block.image * data.y_steps[0] + block.output * data.y_steps[1]
        parts["runs"].append(runs)
    return {name: np.concatenate(tables) for name, tables in parts.items()}


def transposing(data: ChannelsLast, threads: int, *, plain: bool) -> list[tuple[Records, Records]]:
    """For the input and the output, stretches of positions and parts of the channels."""
    correlation, width = data.correlation, data.lanes.width
    sides = (
        (correlation.reduced, max(width, min(64, correlation.reduced)), data.x_steps),
        (correlation.made, width, data.y_steps),
    )
    tables = []
    for number, (channels, part, steps) in enumerate(sides):
        item = steps[-1] // channels
        image, channel = np.indices((correlation.batch, -(-channels // part)))
        parts = np.zeros(image.shape, PART)
        parts["image"], parts["channel"] = image, channel * part
        parts["last"] = image * steps[0] + channel * part * item
        parts["channels"] = np.minimum(part, channels - channel * part)
        positions = steps[0] // steps[-1]
        most = CHUNK if number and not plain else _stretch(positions, parts.size, threads)
        start = np.arange(0, positions, most)
        stretches = np.zeros(len(start), STRETCH)
        stretches["first"] = start * correlation.dtype.itemsize
        stretches["last"] = start * steps[-1]
        stretches["positions"] = np.minimum(most, positions - start)
        tables.append((stretches, parts.ravel()))
    return tables


def _stretch(positions: int, parts: int, threads: int) -> int:
    """Positions that are transposed at a time, so that there is work for every thread."""
    wanted = 1 if threads == 1 else 4 * threads
    stretches = max(1, min(-(-wanted // max(1, parts)), positions // CHUNK))
    return max(1, _rounded(-(-positions // stretches), CHUNK))


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step
