"""Walks over spatial blocks: a native call's phases, with their arguments and scratch memory.

Channels-last data needs one phase for all spatial blocks. Channels-first data needs two more, which
transpose a spatial block before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..kernel_arguments import Blocks, Table, filled
from ..packing import Numbers
from ..steps import Launch
from ..values import whole_lines
from ..walk import Phase, part_bytes, phases
from .blocks import SpatialBlock
from .driver import ARGUMENTS, PART, STRETCH
from .form import ChannelsLast
from .points import runs_of
from .schedule import jobs
from .tables import PAD, Passes

CHUNK = 256  # positions that are transposed back at once if there is an epilogue


class Walk:
    """The walk that computes some spatial blocks together."""

    def __init__(
        self,
        passes: Passes,
        shared: dict[str, Table],
        data: ChannelsLast,
        blocks: Sequence[SpatialBlock],
        threads: int,
    ) -> None:
        form, codes, width = data.form, passes.codes, data.form.cut.lanes.width
        if form.transposed:
            data = ChannelsLast(blocks[0].kind.correlation, form)
        correlation = data.correlation
        plan = jobs(correlation, form.cut, threads, form.cpu)
        tables = runs_of(passes, data, blocks, plan.step)
        rows, by_outer = passes.rows(plan.block_run), correlation.has_larger_weight
        steps = [Phase(codes.steps["passes"], tables["runs"], rows, by_outer=by_outer)]
        stage = max((plan.step + PAD) * passes.widest, width * CHUNK) * form.element
        part = part_bytes(stage)
        self.scratch_x = self.scratch_y = -1
        self.nbytes = threads * part
        if form.transposed:
            plain = form.finish.is_plain
            before, after = transposing(data, threads, plain=plain)
            steps.insert(0, Phase(codes.steps["transpose_in"], *before))
            steps.append(Phase(codes.steps["transpose_out" if plain else "finish_out"], *after))
            self.scratch_x = self.nbytes
            x, y = prod(correlation.operand_shape), prod(correlation.result_shape)
            self.scratch_y = self.scratch_x + whole_lines(x * form.x_bytes)
            self.nbytes = self.scratch_y + whole_lines(y * form.y_bytes)
        tables["phases"] = phases(threads, *steps)
        self.resident_bytes = sum(table.nbytes for table in tables.values())
        self.tables = tables = tables | shared
        self.phases, self.data, self.passes = steps, data, passes
        self.template = ARGUMENTS.block(
            **{n: table.ctypes.data for n, table in tables.items() if n != "runs"},
            **codes.addresses, phase_count=len(steps), part=part, axes=correlation.rank,
            stage_point=passes.point_bytes, stage_row=CHUNK * form.element,
            element=form.element,
            in_row=int(data.x_steps[-1]), out_row=int(data.y_steps[-1]),
        )  # fmt: skip
        self.launch = Launch.of_walk(Blocks(self.template), codes.walk, threads, tables["phases"])


def transposing(data: ChannelsLast, threads: int, *, plain: bool) -> list[tuple[Table, Table]]:
    """Return stretches of positions and parts of channels, for the input and for the output."""
    correlation, width = data.correlation, data.form.cut.lanes.width
    batch, itemsize = correlation.batch, correlation.dtype.itemsize
    part = max(width, min(64, correlation.reduced))
    inputs = data.x_steps, correlation.reduced, part
    outputs = data.y_steps, correlation.made, width
    return [
        transposed_parts(batch, *inputs, itemsize, threads, whole=True),
        transposed_parts(batch, *outputs, itemsize, threads, whole=plain),
    ]


def transposed_parts(
    batch: int,
    steps: Numbers,
    channels: int,
    part: int,
    itemsize: int,
    threads: int,
    *,
    whole: bool,
) -> tuple[Table, Table]:
    """Return an operand's stretches of positions, and its parts of `part` channels of an image.
    `steps` belong to channels-last data. Unless `whole`, stretches fit in the stage."""
    image, channel = np.indices((batch, -(-channels // part)))
    channel *= part
    parts = filled(
        PART, image.shape, image=image, channel=channel,
        last=image * steps[0] + channel * (steps[-1] // channels),
        channels=np.minimum(part, channels - channel),
    )  # fmt: skip
    positions = int(steps[0] // steps[-1])
    quarter = -(-positions // (4 * threads * CHUNK)) * CHUNK  # of a thread's positions
    most = max(CHUNK, quarter) if whole else CHUNK
    start = np.arange(0, positions, most)
    stretches = filled(
        STRETCH, len(start), first=start * itemsize, last=start * steps[-1],
        positions=np.minimum(most, positions - start),
    )  # fmt: skip
    return stretches, parts.ravel()
