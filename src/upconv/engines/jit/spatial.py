"""Walks of spatial blocks: one after another by all threads, or each by one thread alone.

Where a thread computes all phases of a block alone, what it packs is in its own second-level cache
when it multiplies. No thread waits for others between phases, and one call computes all blocks. The
argument block of a thread is a copy of that of the block's kind, with the addresses of the call. It
lies in the thread's scratch memory, before that of the walk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple, Protocol

from ...problem import DataLayout
from ..addresses import address_of
from . import walk
from .channels.blocks import Kind, SpatialBlock
from .channels.driver import ARGUMENTS
from .compile import compiled
from .correlation import Correlation
from .cpu import Cpu
from .emit import Module
from .kernel_arguments import Block, Blocks, Record, filled, record
from .operands import Operands
from .steps import Launch
from .values import I64, LINE, PTR, vector

_OF_CALL = "w bias slopes second in_image in_channel out_image out_channel"
_BLOCK = record("template nbytes walk image x y own_x own_y")
"""A spatial block: argument block and function of its kind; the image; offsets of its operands; and
where scratch memory has a packed operand or a result to transpose, or -1."""


class KindWalk(Protocol):
    """The walk of a kind of spatial blocks: its launch, the argument block of that, and bytes of
    scratch memory; `own_x` and `own_y` as in `_BLOCK`."""

    launch: Launch
    template: Block
    nbytes: int
    resident_bytes: int
    own_x: int
    own_y: int


class Placed(NamedTuple):
    """A spatial block: the walk of its kind, its image, and byte offsets of its operands in it."""

    walk: KindWalk
    image: int
    x: int
    y: int


class Spatial:
    """The launches of spatial blocks, and the bytes of their scratch memory and tables; `alone`:
    each is one thread's."""

    def __init__(
        self, correlation: Correlation, blocks: Sequence[SpatialBlock],
        walks: Mapping[Kind, KindWalk], threads: int, cpu: Cpu, *, alone: bool,
    ) -> None:  # fmt: skip
        first, item = correlation.layout is DataLayout.NCX, correlation.dtype.itemsize
        inputs = prod(correlation.operand_size[1:]) * item * (1 if first else correlation.reduced)
        outputs = prod(correlation.result_size[1:]) * item * (1 if first else correlation.made)
        self.blocks = tuple(
            Placed(walks[b.kind], b.image, b.input * inputs, b.output * outputs) for b in blocks
        )
        self._channel = 1 if first else -1
        self.nbytes = max(walk.nbytes for walk in walks.values())
        self.resident_bytes = sum(walk.resident_bytes for walk in walks.values())
        self._launch = self._alone(threads, cpu) if alone else None

    def _alone(self, threads: int, cpu: Cpu) -> Launch:
        """The walk over all blocks, of which each is a job."""
        walks = [block.walk for block in self.blocks]
        table = filled(
            _BLOCK, len(walks),
            template=[w.template.address for w in walks], nbytes=walks[0].template.nbytes,
            walk=[w.launch.work for w in walks],
            own_x=[w.own_x for w in walks], own_y=[w.own_y for w in walks],
            **{name: [getattr(b, name) for b in self.blocks] for name in ("image", "x", "y")},
        )  # fmt: skip
        code, walking = block_code(cpu), walk.walk_code(cpu)
        phases = walk.phases(walk.Phase(code.addresses["block"], table))
        self._kept = table, code, walking, phases
        self.resident_bytes += table.nbytes + phases.nbytes
        # Parts that are multiples of a page would all begin in the same cache sets.
        part = -(-(LINE + walks[0].template.nbytes + self.nbytes) // 4096) * 4096 + 3 * LINE
        self.nbytes = threads * part
        block = ARGUMENTS.block(phases=phases.ctypes.data, phase_count=1, part=part)
        return Launch.of_walk(Blocks(block), walking.addresses["walk"], threads, phases)

    def launches(
        self, operands: Operands, scratch: int, values: dict[str, int], first_x: int
    ) -> Iterator[tuple[Launch, dict[str, int]]]:
        """What a call runs one after another, and the values that it binds, for an operand that
        begins at `first_x`."""
        x, y, more = operands.x, operands.y, operands.residual
        values |= {"in_image": x.strides[0], "in_channel": x.strides[self._channel]}
        values |= {"out_image": y.strides[0], "out_channel": y.strides[self._channel]}
        values |= {"first_x": first_x, "first_y": address_of(y), "scratch": scratch}
        values |= {"second": operands.second, "residual": 0 if more is None else address_of(more)}
        if self._launch is not None:
            yield self._launch, values
            return
        for block in self.blocks:
            yield block.walk.launch, _placed(block, values)


def _placed(block: Placed, call: Mapping[str, int]) -> dict[str, int]:
    """The values of a block, of those of the call: what `block_code` computes."""
    moved = block.image * call["out_image"] + block.y
    x = call["first_x"] + block.image * call["in_image"] + block.x
    y, own_x, own_y = call["first_y"] + moved, block.walk.own_x, block.walk.own_y
    values = {**call, "first_x": x, "first_y": y, "residual": call["residual"] + moved}
    values["x"] = x if own_x < 0 else call["scratch"] + own_x
    values["y"] = y if own_y < 0 else call["scratch"] + own_y
    return values


@compiled("block", kept=4, opt=0)
def block_code(module: Module, cpu: Cpu) -> None:
    """`block`: all phases of one spatial block, by one thread."""
    with module.function("block", walk.JOB) as f:
        call, block = ARGUMENTS.reader(f), Record(f, f["inner"], _BLOCK)
        own, template = f["mine"] + LINE, f.convert("inttoptr", block["template"], PTR)
        with f.loop(0, block["nbytes"], LINE) as loop:
            f.store(f.load(vector(I64, LINE // 8), template + loop.index), own + loop.index)
        scratch, image = own + block["nbytes"], block["image"]
        moved = image * call["out_image"] + block["y"]
        x = call["first_x"] + (image * call["in_image"] + block["x"])
        y, own_x, own_y = call["first_y"] + moved, block["own_x"], block["own_y"]
        values = {name: call[name] for name in _OF_CALL.split()}
        values |= {"first_x": x, "first_y": y, "residual": call["residual"] + moved}
        values |= {
            "scratch": scratch,
            "x": f.select(own_x < 0, x, scratch + own_x),
            "y": f.select(own_y < 0, y, scratch + own_y),
        }
        for name, value in values.items():
            f.store(value, f.at(own, ARGUMENTS.place(name), I64))
        f.call(f.convert("inttoptr", block["walk"], PTR), own)
