"""Walks over spatial blocks, each computed by all threads together or by a single thread.

If one thread computes all phases of a block, the data that it packs is in its second-level cache
when it multiplies. No thread waits for others between phases, and one call computes all blocks.
Each thread copies the kind's argument block into its scratch memory, before the walk's scratch
memory, and fills in the call's addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

from ...problem import DataLayout
from ..addresses import address_of
from . import walk
from .channels.blocks import Kind, SpatialBlock
from .channels.driver import ARGUMENTS
from .compile import compiled
from .correlation import Correlation
from .cpu import Cpu
from .emit import Module
from .kernel_arguments import Arguments, Block, Blocks, Record, Table, filled, record
from .operands import Operands
from .steps import Launch
from .values import I64, LINE, PTR, vector

_OF_CALL = "w bias slopes second in_image in_channel out_image out_channel"
_BLOCK = record("template nbytes walk image x y scratch_x scratch_y")
"""A spatial block: its kind's argument block and function; its image, and its operands' byte
offsets there; and the offsets in scratch memory of a packed operand and a result, or -1."""


class KindWalk(Protocol):
    """The walk for a kind of spatial blocks: its launch and argument block, and the bytes of its
    scratch memory and tables; `scratch_x` and `scratch_y` are as in `_BLOCK`."""

    launch: Launch
    template: Block
    nbytes: int
    resident_bytes: int
    scratch_x: int
    scratch_y: int


class PlacedBlock(NamedTuple):
    """A spatial block: its kind's walk, its image, and its operands' byte offsets in the image."""

    walk: KindWalk
    image: int
    x: int
    y: int


class Spatial:
    """The launches for spatial blocks, and the bytes of their scratch memory and tables.

    by_thread: whether one thread computes all phases of a block.
    """

    def __init__(
        self, correlation: Correlation, blocks: Sequence[SpatialBlock],
        walks: Mapping[Kind, KindWalk], threads: int, cpu: Cpu, *, by_thread: bool,
    ) -> None:  # fmt: skip
        first, item = correlation.layout is DataLayout.NCX, correlation.dtype.itemsize
        inputs = prod(correlation.operand_size[1:]) * item * (1 if first else correlation.reduced)
        outputs = prod(correlation.result_size[1:]) * item * (1 if first else correlation.made)
        self.blocks = tuple(
            PlacedBlock(walks[b.kind], b.image, b.input * inputs, b.output * outputs)
            for b in blocks
        )
        self._channel = 1 if first else -1
        self.nbytes = max(walk.nbytes for walk in walks.values())
        self.resident_bytes = sum(walk.resident_bytes for walk in walks.values())
        self._table = self._rows()
        # Python integers, because arithmetic with NumPy's takes ten times as long in every call.
        rows = self._table.tolist()
        self._records = [dict(zip(_BLOCK.fields or (), row, strict=True)) for row in rows]
        self._launch = self._by_thread(threads, cpu) if by_thread else None

    @property
    def by_thread(self) -> bool:
        """Whether one thread computes all phases of a block."""
        return self._launch is not None

    def _rows(self) -> Table:
        walks = [block.walk for block in self.blocks]
        return filled(
            _BLOCK, len(walks),
            template=[w.template.address for w in walks], nbytes=walks[0].template.nbytes,
            walk=[w.launch.work for w in walks],
            scratch_x=[w.scratch_x for w in walks], scratch_y=[w.scratch_y for w in walks],
            **{name: [getattr(b, name) for b in self.blocks] for name in ("image", "x", "y")},
        )  # fmt: skip

    def _by_thread(self, threads: int, cpu: Cpu) -> Launch:
        """Return the walk over all blocks, with one job per block."""
        table = self._table
        code, walking = block_code(cpu), walk.walk_code(cpu)
        phases = walk.phases(threads, walk.Phase(code.addresses["block"], table))
        self._kept = code, walking, phases
        self.resident_bytes += table.nbytes + phases.nbytes
        part = walk.part_bytes(LINE + self.blocks[0].walk.template.nbytes + self.nbytes)
        self.nbytes = threads * part
        block = ARGUMENTS.block(phases=phases.ctypes.data, phase_count=1, part=part)
        return Launch.of_walk(Blocks(block), walking.addresses["walk"], threads, phases)

    def launches(
        self, operands: Operands, scratch: int, values: dict[str, int], first_x: int
    ) -> Iterator[tuple[Launch, dict[str, int]]]:
        """Yield a call's launches in order, with the values that each binds; the operand begins at
        `first_x`."""
        x_steps, y_steps = operands.x.strides, operands.y.strides
        residual = operands.residual
        values |= {
            "in_image": x_steps[0], "in_channel": x_steps[self._channel],
            "out_image": y_steps[0], "out_channel": y_steps[self._channel],
            "first_x": first_x, "first_y": address_of(operands.y), "scratch": scratch,
            "residual": 0 if residual is None else address_of(residual),
            "second": operands.second,
        }  # fmt: skip
        if self._launch is not None:
            yield self._launch, values
            return
        for block, row in zip(self.blocks, self._records, strict=True):
            bound = _bound(values, row, scratch, lambda condition, a, b: a if condition else b)
            if residual is None:
                bound["residual"] = 0
            yield block.walk.launch, values | bound


def _bound(
    call: Mapping[str, Any] | Arguments, block: Any, scratch: Any, select: Callable[..., Any]
) -> dict[str, Any]:
    """Return a block's values computed from the call's: integers, or emitted values."""
    image, scratch_x, scratch_y = block["image"], block["scratch_x"], block["scratch_y"]
    y_offset = image * call["out_image"] + block["y"]
    x = call["first_x"] + (image * call["in_image"] + block["x"])
    y = call["first_y"] + y_offset
    return {
        "scratch": scratch, "first_x": x, "first_y": y, "residual": call["residual"] + y_offset,
        "x": select(scratch_x < 0, x, scratch + scratch_x),
        "y": select(scratch_y < 0, y, scratch + scratch_y),
    }  # fmt: skip


@compiled("block", kept=4, opt=0)
def block_code(module: Module, cpu: Cpu) -> None:
    """Emit the job `block`: all phases of one spatial block on one thread."""
    with module.function("block", walk.JOB) as f:
        call, block = ARGUMENTS.reader(f), Record(f, f["inner"], _BLOCK)
        arguments, template = f["mine"] + LINE, f.convert("inttoptr", block["template"], PTR)
        nbytes = block["nbytes"]
        with f.loop(0, nbytes, LINE) as loop:
            f.store(f.load(vector(I64, LINE // 8), template + loop.index), arguments + loop.index)
        values = {name: call[name] for name in _OF_CALL.split()}
        values |= _bound(call, block, arguments + nbytes, f.select)
        for name, value in values.items():
            f.store(value, f.at(arguments, ARGUMENTS.indices[name], I64))
        f.call(f.convert("inttoptr", block["walk"], PTR), arguments)
