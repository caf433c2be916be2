"""Runs of upconv's elementwise kernel: the arrays determine its class and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ...devices import DeviceArray
from ...errors import EngineRefusal
from ...problem import DType
from ..jit.activation import NO_ACTIVATION, ActivationEpilogue
from .elementwise import Move, Row, arguments, merged
from .operation import MOST

Maybe = DeviceArray | None

_MOST = 64  # prepared runs per primitive: its arrays rarely have more combinations of strides


class Mover(Protocol):
    """A runner of elementwise kernels."""

    def move(self, move: Move, packed: bytes, total: int, arrays: Sequence[Maybe]) -> None:
        """Run a class's kernel on arrays in the order of `elementwise.POINTERS`."""


class Ends(NamedTuple):
    """The arrays of a problem's epilogue; None if it has no such array."""

    bias: Maybe = None
    residual: Maybe = None
    slopes: Maybe = None
    second: Maybe = None
    scale: Maybe = None


NO_ARRAYS = Ends()


class Moves:
    """A primitive's runs, prepared once for each combination of shapes and strides.

    channel: the results' channel axis, along which a bias runs.
    """

    def __init__(self, mover: Mover, channel: int) -> None:
        self._mover, self._channel = mover, channel
        self._prepared: dict[object, tuple[Move, bytes, int]] = {}

    def run(
        self,
        target: DeviceArray,
        source: Maybe,
        begins: tuple[int, ...],
        ends: Ends = NO_ARRAYS,
        epilogue: ActivationEpilogue = NO_ACTIVATION,
        *,
        accumulate: bool = False,
    ) -> None:
        """Write all of `target`: the epilogue of the source with its arrays `ends`.

        `begins` is the source's position in the target; a source of None is all zeros.
        """
        if not target.size:
            return
        if target.size >= MOST:
            words = f"kernels count in 32 bits, and an array has {target.size} elements"
            raise EngineRefusal(f"{words}. Work on smaller pieces of the input.")
        vectors = ends.slopes, ends.scale
        arrays = (target, ends.second, source, ends.bias, ends.residual, *vectors)
        layouts = tuple(None if v is None else (v.shape, v.strides) for v in arrays)
        key = layouts, begins, accumulate, epilogue, source and source.dtype
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= _MOST:
                self._prepared.clear()
            prepared = self._prepare(arrays, begins, epilogue, accumulate=accumulate)
            self._prepared[key] = prepared
        self._mover.move(*prepared, arrays)

    def _prepare(
        self,
        arrays: tuple[Maybe, ...],
        begins: tuple[int, ...],
        epilogue: ActivationEpilogue,
        *,
        accumulate: bool,
    ) -> tuple[Move, bytes, int]:
        target, _, source, bias, residual, slopes, scale = arrays
        if target is None:
            raise TypeError("a run needs a target")
        rows = merged([
            Row(
                size,
                tuple(_stride(array, axis, self._channel) for array in arrays),
                begins[axis],
                size if source is None else source.shape[axis],
            )
            for axis, size in enumerate(target.shape)
        ])  # fmt: skip
        move = Move(
            len(rows),
            None if source is None else DType(source.dtype.name),
            DType(target.dtype.name),
            DType(next((v for v in (bias, slopes, scale) if v is not None), target).dtype.name),
            not all(row.whole for row in rows),
            scale is not None,
            bias is not None,
            residual is not None,
            accumulate,
            epilogue,
        )
        return move, arguments(rows), target.size


def _stride(array: Maybe, axis: int, channel: int) -> int:
    """Return an array's stride along a result axis; per-channel arrays have 0 on other axes."""
    if array is None:
        return 0
    if array.ndim == 1:
        return array.strides[0] if axis == channel else 0
    return array.strides[axis]
