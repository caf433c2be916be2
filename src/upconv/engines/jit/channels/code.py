"""The channels kernel's compiled code, one copy of each class per process."""

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
    """The compiled code for a form: `steps` are the addresses of driver.py's functions, and
    `addresses` those of the functions that they call."""

    def __init__(self, form: Form) -> None:
        cpu, element, stored = form.cpu, form.weight.element, form.finish.stored
        self._cpu, finish = cpu, finish_code(form.finish, cpu)
        codes = {"finish": finish, "finish_transposed": finish}
        if form.transposed:
            types = stored, BFLOAT if form.cut.lanes.dots else element
            reduced = form.weight.reduced
            has_few = 2 * reduced <= form.cut.lanes.width
            codes |= {
                "finish": finish_code(plain(element), cpu),
                "transpose_in": transpose_few_code(*types, reduced, cpu)
                if has_few
                else transpose_code(*types, cpu),
                "transpose_out": transpose_code(element, element, cpu),
            }
        driver, walk = driver_code(cpu), walk_code(cpu)
        self.walk, self.steps = walk.addresses["walk"], driver.addresses
        self.addresses = {name: code.address for name, code in codes.items()}
        self._kept = {id(code): code for code in (driver, walk, *codes.values())}

    @property
    def nbytes(self) -> int:
        """Approximate bytes of the code."""
        return CODE_BYTES * len(self._kept)

    def tiles(self, tile: ChannelTile, rest: int) -> tuple[int, int]:
        """Return the addresses of a tile and of the tile for the `rest` of the points, if any."""
        full = self._tile(tile)
        return full, self._tile(replace(tile, points=fitting(rest))) if rest else full

    def _tile(self, tile: ChannelTile) -> int:
        code = tile_code(tile, self._cpu)
        self._kept[id(code)] = code
        return code.address


@compiled("tile", kept=512)
def tile_code(module: Module, tile: ChannelTile, cpu: Cpu) -> None:
    """Emit a tile's code."""
    emit_channel_tile(module, "tile", tile, tap_products)
