"""What is walked at once: the phases of some spatial blocks, their arguments and scratch memory.

Channels-last data takes one phase, for all of its spatial blocks. Channels-first data is transposed
before and after, one spatial block at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

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

    def __init__(
        self, passes: Passes, data: ChannelsLast, blocks: Sequence[SpatialBlock], threads: int
    ) -> None:
        form, codes = data.form, passes.codes
        self._transposed = form.transposed
        if form.transposed:
            data = ChannelsLast(blocks[0].kind.correlation, form)
        plan = jobs(data.correlation, form.cut, threads, form.cpu)
        tables = runs_of(passes, data, blocks, plan.step)
        listed = [Phase(codes.steps["passes"], tables["runs"], passes.rows(plan.block_run))]
        self._inner = self._y = self.nbytes = 0
        stage = max((plan.step + PAD) * passes.widest, form.cut.lanes.width * CHUNK)
        # Parts of whole pages would all begin in the same cache sets.
        part = _rounded(stage * form.element, 4096) + 192
        self._inner = self._y = self.nbytes = threads * part
        if form.transposed:
            before, after = transposing(data, threads, plain=codes.plain)
            out = "transpose_out" if codes.plain else "finish_out"
            listed.insert(0, Phase(codes.steps["transpose_in"], *before))
            listed.append(Phase(codes.steps[out], *after))
            size = prod(data.correlation.operand_shape) * form.x_bytes
            self._y += _rounded(size, 64)
            size = prod(data.correlation.result_shape) * form.y_bytes
            self.nbytes = self._y + _rounded(size, 64)
        window = int(passes.records["merged"].max(initial=1))
        zeros = np.zeros(max(window * form.cut.lanes.reduction, passes.widest), np.float64)
        tables |= passes.placed(data) | {"phases": phases(*listed), "zeros": zeros}
        self.tables, self.phases, self.data, self.passes = tables, listed, data, passes
        self.resident_bytes = sum(table.nbytes for table in tables.values())
        block = ARGUMENTS.block(
            **{n: table.ctypes.data for n, table in self.tables.items() if n != "runs"},
            **codes.addresses, phase_count=len(listed), part=part,
            axes=data.correlation.rank, stage_row=CHUNK * form.element,
            in_row=int(data.x_steps[-1]), out_row=int(data.y_steps[-1]),
        )  # fmt: skip
        self.launch = Launch.of_walk(Blocks(block), codes.walk, threads, tables["phases"])

    def values(self, scratch: int, y: int, x: int) -> dict[str, int]:
        """The arguments for operands at these addresses, and for `nbytes` of scratch memory."""
        if not self._transposed:
            return {"scratch": scratch, "x": x, "y": y}
        first = {"scratch": scratch, "first_x": x, "first_y": y}
        return first | {"x": scratch + self._inner, "y": scratch + self._y}


def runs_of(
    passes: Passes, data: ChannelsLast, blocks: Sequence[SpatialBlock], step: int
) -> dict[str, Records]:
    """The runs of some spatial blocks, of at most `step` points, and the tables they refer to."""
    sets = list(passes.sets)
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
    correlation, width = data.correlation, data.form.cut.lanes.width
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
