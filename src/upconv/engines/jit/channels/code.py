"""Compiled code of the channel-vectorised kernel, each class once per process."""

from __future__ import annotations

from dataclasses import replace

from ..compile import CODE_BYTES, compiled
from ..cpu import Cpu
from ..emit import Module
from ..rows import finish_code, plain
from ..transpose import transpose_code, transpose_few_code
from ..values import BFLOAT
from ..walk import walk_code
from .driver import driver_code
from .form import Form
from .products import tap_products
from .reach import fitting
from .tile import ChannelTile, emit_channel_tile


class Codes:
    """The compiled code of a form's correlations: `steps` are the functions of driver.py, and
    `addresses` what these call."""

    def __init__(self, form: Form) -> None:
        cpu, element, stored = form.cpu, form.weight.element, form.finish.stored
        self._cpu, finish = cpu, finish_code(form.finish, cpu)
        codes = {"finish": finish, "finish_transposed": finish}
        if form.transposed:
            types, few = (stored, BFLOAT if form.cut.lanes.dots else element), form.weight.reduced
            is_few = 2 * few <= form.cut.lanes.width
            codes |= {
                "finish": finish_code(plain(element), cpu),
                "transpose_in": transpose_few_code(*types, few, cpu)
                if is_few
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
        """The addresses of a tile and of the tile of a `rest` of points, if there is a rest."""
        full = self._tile(tile)
        return full, self._tile(replace(tile, points=fitting(rest))) if rest else full

    def _tile(self, tile: ChannelTile) -> int:
        code = tile_code(tile, self._cpu)
        self._kept[id(code)] = code
        address: int = code.addresses["tile"]
        return address


@compiled("tile", kept=512)
def tile_code(module: Module, tile: ChannelTile, cpu: Cpu) -> None:
    """The code of a tile."""
    emit_channel_tile(module, "tile", tile, tap_products)
