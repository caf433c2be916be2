"""Compiled code of the channel-vectorised kernel, each class once per process."""

from __future__ import annotations

from dataclasses import replace

from ....problem import DataLayout, Epilogue
from ..compile import CODE_BYTES, compiled
from ..correlation import WeightForm
from ..cpu import Cpu
from ..emit import Module
from ..rows import Finish, finish_code, plain
from ..transpose import transpose_code, transpose_few_code
from ..values import BFLOAT, STORED
from ..walk import walk_code
from .driver import driver_code
from .lanes import Lanes
from .pairs import depthwise_tap, dot_tap, paired_tap
from .reach import fitting
from .tile import ChannelTile, Products, broadcast_tap, emit_channel_tile


class Codes:
    """The compiled code that correlations of one form use: `steps` are the functions of driver.py,
    and `addresses` what these call."""

    def __init__(
        self,
        weight: WeightForm,
        layout: DataLayout,
        epilogue: Epilogue,
        accumulate: bool,
        lanes: Lanes,
        cpu: Cpu,
    ) -> None:
        self._cpu = cpu
        element, stored = weight.element, STORED[weight.dtype]
        late = (epilogue.activation, epilogue.slope, epilogue.residual, accumulate)
        kind = Finish(element, stored, *late)
        self.plain = kind.is_plain
        finish = finish_code(kind, cpu)
        codes = {"finish": finish, "finish_transposed": finish}
        if layout is DataLayout.NCX:
            types, few = (stored, stored if lanes.dots else element), weight.reduced
            some = 2 * few <= lanes.width
            codes |= {
                "finish": finish_code(plain(element), cpu),
                "transpose_in": transpose_few_code(*types, few, cpu)
                if some
                else transpose_code(*types, cpu),
                "transpose_out": transpose_code(element, element, cpu),
            }
        driver, walk = driver_code(cpu), walk_code(cpu)
        self.walk, self.steps = walk.addresses["walk"], driver.addresses
        self.addresses = {name: next(iter(code.addresses.values())) for name, code in codes.items()}
        self._kept = {id(code): code for code in (driver, walk, *codes.values())}

    @property
    def nbytes(self) -> int:
        """Bytes of code."""
        return CODE_BYTES * len(self._kept)

    def tiles(self, tile: ChannelTile, rest: int) -> tuple[int, int]:
        """The addresses of a tile, and of the one that computes a `rest` of points, if any."""
        whole = self._tile(tile)
        return whole, self._tile(replace(tile, points=fitting(rest))) if rest else whole

    def _tile(self, tile: ChannelTile) -> int:
        code = tile_code(tile, self._cpu)
        self._kept[id(code)] = code
        address: int = code.addresses["tile"]
        return address


@compiled("tile", kept=512)
def tile_code(module: Module, tile: ChannelTile, cpu: Cpu) -> None:
    """The code of a tile."""
    emit_channel_tile(module, "tile", tile, _products(tile))


def _products(tile: ChannelTile) -> Products:
    """What adds the products of one tap."""
    if tile.depthwise:
        return depthwise_tap
    if tile.dots:
        return dot_tap
    return paired_tap if tile.stored == BFLOAT else broadcast_tap
