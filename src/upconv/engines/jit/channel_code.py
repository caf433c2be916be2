"""Compiled code of the channels kernel, each class once per process."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ...activations import Activation
from ...problem import Problem
from .channel_driver import emit_driver
from .channel_lanes import Lanes, element_of
from .channel_pairs import dot_tap, paired_tap
from .channel_schedule import fitting
from .channel_tile import ChannelTile, Products, broadcast_tap, emit_channel_tile
from .compile import CODE_BYTES, Code
from .cpu import Cpu
from .depthwise import own_tap
from .emit import Module
from .rows import Finish, emit_finish
from .turn import emit_turn
from .values import BFLOAT
from .weights import STORED


class Codes:
    """The compiled code that one problem uses."""

    def __init__(self, problem: Problem, lanes: Lanes, cpu: Cpu) -> None:
        self._cpu = cpu
        epilogue = problem.epilogue
        element, stored = element_of(problem), STORED[problem.dtype]
        late = (epilogue.activation, epilogue.slope, epilogue.residual, problem.accumulate)
        kind = Finish(element, stored, *late)
        self.plain = kind == plain(element)
        self.rows = rows_code(kind, stored if lanes.dots else element, cpu)
        self.driver = driver_code(cpu)
        self._kept = {id(code): code for code in (self.rows, self.driver)}

    @property
    def nbytes(self) -> int:
        """Bytes of code."""
        return CODE_BYTES * len(self._kept)

    def tiles(self, tile: ChannelTile, rest: int) -> list[int]:
        """Addresses by the number of points: whole tiles, and one tile for the rest."""
        addresses = [self._tile(tile)] * tile.points
        if rest:
            addresses[rest - 1] = self._tile(replace(tile, points=fitting(rest)))
        return addresses

    def _tile(self, tile: ChannelTile) -> int:
        code = tile_code(tile, self._cpu)
        self._kept[id(code)] = code
        address: int = code.addresses["tile"]
        return address


def plain(element: str) -> Finish:
    """Storing results as they are computed."""
    return Finish(element, element, Activation.NONE, 0.0, False, False)


@lru_cache(maxsize=512)
def tile_code(tile: ChannelTile, cpu: Cpu) -> Code:
    """The code of a tile."""
    module = Module(cpu.attributes)
    emit_channel_tile(module, "tile", tile, cpu, _products(tile))
    return Code(module, ("tile",), cpu)


def _products(tile: ChannelTile) -> Products:
    """What adds the products of one tap."""
    if tile.own:
        return own_tap
    if tile.dots:
        return dot_tap
    return paired_tap if tile.stored == BFLOAT else broadcast_tap


@lru_cache(maxsize=64)
def rows_code(kind: Finish, turned: str, cpu: Cpu) -> Code:
    """Finishing rows, and turning data between element types: inputs into `turned`."""
    module = Module(cpu.attributes)
    emit_finish(module, "finish", kind, cpu)
    emit_finish(module, "copy", plain(kind.computed), cpu)
    emit_turn(module, "turn_in", kind.stored, turned, cpu)
    emit_turn(module, "turn_out", kind.computed, kind.computed, cpu)
    return Code(module, ("finish", "copy", "turn_in", "turn_out"), cpu)


@lru_cache(maxsize=4)
def driver_code(cpu: Cpu) -> Code:
    """The driver, the same for every layer."""
    module = Module(cpu.attributes)
    emit_driver(module, cpu)
    return Code(module, ("channels",), cpu)
