"""JAX: `jax.lax.conv_transpose`.

Per axis, ek = d*(k-1) + 1, full = (I-1)*s + ek, T = full - O split so that p = floor(T/2) and a
negative T extends the end:

    padding                          p, q                         O
    "SAME"                           T split                      I*s
    "VALID"                          0, -max(s - ek, 0)           max(I*s, full)
    (lo, hi)                         ek - 1 - lo, ek - 1 - hi     full - p - q
    (lo, hi), use_consistent_padding lo, hi                       full - p - q

In the third row lo and hi are zeros around the dilated input; in the last row they are crops. All
may be negative. The kernel is not flipped: JAX multiplies x[i] by w[k-1-t] where every other
framework, and JAX with transpose_kernel, uses w[t]; hence `flipped` layers. With default dimension
numbers, weights are (*k, C_in, C_out), or with transpose_kernel (*k, C_out, C_in), and data is NXC.
There are no groups.

A negative size, which JAX replaces by 0, is refused.

Source: jax 0.10.2, run for every row.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Any

from ..argument_checks import boolean
from ..errors import ArgumentError, TranslationError, brief
from ..geometry import LIMIT, Axis
from ..problem import DataLayout, WeightLayout
from . import arguments
from .keras import window
from .layer import Layer, require_layer


class Mode(Enum):
    """The names that `padding` accepts."""

    SAME = "SAME"
    VALID = "VALID"


_SPATIAL = "DHWXYZTUVABEFGJKLMPQRS"
"""Letters that name spatial axes; N, C, I and O are reserved."""


def from_jax(
    size: object,
    kernel: object,
    *,
    strides: object,
    padding: object,
    rhs_dilation: object = None,
    dimension_numbers: object = None,
    transpose_kernel: object = False,
    use_consistent_padding: object = False,
) -> Layer:
    """Return the layer that `jax.lax.conv_transpose` computes.

    size: the spatial input size. kernel: the spatial sizes of the weight. padding: "SAME", "VALID"
    or a (lo, hi) pair per axis. dimension_numbers: None or three strings such as
    ("NCHW", "OIHW", "NCHW"), the first equal to the last.

    Raises `ArgumentError` for arguments that JAX refuses, and for axis orders that upconv does not
    support.

    >>> layer = from_jax((5,), (3,), strides=(2,), padding="SAME")
    >>> layer.crops, layer.weight_layout.value, layer.flipped
    (((0, 1),), 'XIO', True)
    """
    size = arguments.sizes(size)
    rank = len(size)
    k = arguments.per_axis("kernel", kernel, rank, low=1)
    s = arguments.per_axis("strides", strides, rank, low=1)
    d = arguments.per_axis("rhs_dilation", rhs_dilation, rank, low=1, absent=1)
    transposed = boolean("transpose_kernel", transpose_kernel)
    consistent = boolean("use_consistent_padding", use_consistent_padding)
    if isinstance(padding, (str, bytes)):
        mode = arguments.member("padding", padding, Mode, "JAX spells it in capitals.")
        axes = arguments.axes(partial(window, mode is Mode.SAME), size, k, s, d)
    else:
        pairs = _pairs(padding, rank)
        axes = arguments.axes(partial(_padded, consistent), size, k, s, d, pairs)
    layout, weights = _layouts(dimension_numbers, rank)
    weights = weights.swapped() if transposed else weights
    return Layer(axes, 1, layout, weights, flipped=not transposed)


def to_jax(layer: Layer) -> dict[str, Any]:
    """Return the arguments of `jax.lax.conv_transpose`, and `kernel`.

    `from_jax(size, **to_jax(layer))` is the same layer, since dimension numbers can name any order
    of the weight. Raises `TranslationError` for groups.

    >>> to_jax(from_jax((5,), (3,), strides=(2,), padding="SAME"))["padding"]
    ((0, 1),)
    """
    require_layer(layer)
    rank = len(layer.axes)
    if layer.groups > 1:
        raise TranslationError(
            f"the layer has {layer.groups} groups, and jax.lax.conv_transpose has none."
        )
    if rank > len(_SPATIAL):
        raise TranslationError(
            f"the layer has {rank} spatial axes, and there are not enough letters to name them."
        )
    weights = layer.weight_layout if layer.flipped else layer.weight_layout.swapped()
    data = layer.layout.value.replace("X", _letters(rank))
    return {
        "kernel": layer.kernel,
        "strides": layer.strides,
        "padding": layer.crops,
        "rhs_dilation": layer.dilations,
        "dimension_numbers": (data, weights.value.replace("X", _letters(rank)), data),
        "transpose_kernel": not layer.flipped,
        "use_consistent_padding": True,
    }


def _padded(consistent: bool, size: int, k: int, s: int, d: int, pair: tuple[int, int]) -> Axis:
    reach = Axis(size, k, s, d).extent - 1
    return Axis(size, k, s, d, *(pair if consistent else (reach - pair[0], reach - pair[1])))


def _pairs(padding: object, rank: int) -> tuple[tuple[int, int], ...]:
    expected = f"'SAME', 'VALID' or {rank} pairs (lo, hi)"
    entries = arguments.entries(padding)
    if entries is None or len(entries) != rank:
        raise ArgumentError("padding", brief(padding), expected)
    pairs = []
    for i, entry in enumerate(entries):
        if not arguments.is_sequence(entry):
            raise ArgumentError(f"padding[{i}]", brief(entry), "a pair (lo, hi)")
        pair = arguments.integers(f"padding[{i}]", entry, low=-LIMIT)
        if len(pair) != 2:
            raise ArgumentError(f"padding[{i}]", str(pair), "a pair (lo, hi)")
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)


def _letters(rank: int) -> str:
    """Return letters for the spatial axes: W, HW, DHW, or more."""
    return _SPATIAL[max(3 - rank, 0) : max(3, rank)]


def _layouts(dimension_numbers: object, rank: int) -> tuple[DataLayout, WeightLayout]:
    if dimension_numbers is None:
        return DataLayout.NXC, WeightLayout.XIO
    entries = arguments.entries(dimension_numbers)
    if entries is None:
        raise ArgumentError("dimension_numbers", brief(dimension_numbers), "three strings or None")
    words = [arguments.text(f"dimension_numbers[{i}]", word) for i, word in enumerate(entries)]
    if len(words) != 3 or words[0] != words[2]:
        raise ArgumentError(
            "dimension_numbers",
            brief(tuple(words)),
            "three strings, the input's equal to the output's",
            "Transpose the output if the two should differ.",
        )
    spatial = words[0].replace("N", "").replace("C", "")
    data = {layout.value.replace("X", spatial): layout for layout in DataLayout}
    weights = {layout.value.replace("X", spatial): layout for layout in WeightLayout}
    if len(spatial) != rank or words[0] not in data or words[1] not in weights:
        letters = _letters(rank)
        raise ArgumentError(
            "dimension_numbers",
            brief(tuple(words)),
            f"{rank} adjacent spatial letters in one order, N first and C next to them",
            f"For example ('N{letters}C', '{letters}IO', 'N{letters}C').",
        )
    return data[words[0]], weights[words[1]]
