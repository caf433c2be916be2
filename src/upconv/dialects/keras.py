"""Keras: the Conv1DTranspose to Conv3DTranspose layers; and TensorFlow's rule for output_shape.

Per axis, ek = d*(k-1) + 1, full = (I-1)*s + ek, output padding a < s, T = full - O shared out so
that p = floor(T/2) and a negative T extends the end:

    padding   output_padding    p, q                     O
    valid     None              0, -max(s - ek, 0)       max(I*s, full)
    valid     a                 0, -a                    full + a
    same      None              T shared out             I*s
    same      a                 T shared out             (I-1)*s + ek mod 2 + a

Hence output_padding 0 is not None. With TensorFlow's `output_shape` O is given: VALID has p = 0 and
SAME shares out what a convolution of O would pad; O must be a size which that convolution maps to
I. Data is NXC ("channels_last") or NCX, the weight (*k, C_out, C_in); there are no groups.

Sources: `keras.ops.conv_transpose` and the layers of Keras 3.15 run on its JAX backend;
TensorFlow's page of conv2d_transpose. The layers refuse stride and dilation above 1 together
although the function computes it: it is read here, `to_keras` refuses it. Keras' torch backend
shifts some "same" layers by one position (keras-team/keras#20949); the table above is what the JAX
backend computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import product
from typing import Any

from ..errors import ArgumentError, ShapeError, TranslationError, brief
from ..geometry import Axis, convolved, same_padding
from ..problem import DataLayout, WeightLayout
from . import values
from .layer import Layer, require_layer
from .limits import Limits
from .tensorflow import window

LIMITS = Limits("Keras", 3, False, lambda axis: axis.stride, "the stride")


class Mode(Enum):
    """The values of padding."""

    VALID = "valid"
    SAME = "same"


LAYOUTS = {"channels_last": DataLayout.NXC, "channels_first": DataLayout.NCX}
_FORMATS = {layout: name for name, layout in LAYOUTS.items()}


def from_keras(
    size: object,
    kernel_size: object,
    *,
    strides: object = 1,
    padding: object = "valid",
    output_padding: object = None,
    dilation_rate: object = 1,
    data_format: object = "channels_last",
    output_shape: object = None,
    groups: object = 1,
    filters: object = None,
    activation: object = None,
    use_bias: object = None,
    kernel_initializer: object = None,
    bias_initializer: object = None,
    kernel_regularizer: object = None,
    bias_regularizer: object = None,
    activity_regularizer: object = None,
    kernel_constraint: object = None,
    bias_constraint: object = None,
    name: object = None,
    trainable: object = None,
    dtype: object = None,
    batch_input_shape: object = None,
) -> Layer:
    """The layer that Keras, or with `output_shape` TensorFlow, computes; an int means every axis.

    size: the spatial input size. `padding` is "valid" or "same" in any case. `output_shape`: the
    spatial output sizes alone, without N and C; it rules out `output_padding`. `groups`, which
    Keras 2 names, can only be 1. The arguments from `filters` on say nothing of geometry and have
    no effect: they are there so that `from_keras(size, **layer.get_config())` reads a Keras layer.

    Raises `ArgumentError` or `ShapeError` for what they refuse.

    >>> from_keras((5,), 3, strides=2, padding="same").crops
    ((0, 1),)
    >>> from_keras((5,), 3, strides=2, padding="same", output_padding=0).crops
    ((1, 1),)
    """
    size = values.sizes(size)
    rank = len(size)
    LIMITS.check_size(size)
    mode = values.member("padding", values.text("padding", padding).lower(), Mode)
    k = values.per_axis_or_one("kernel_size", kernel_size, rank, low=1)
    s = values.per_axis_or_one("strides", strides, rank, low=1)
    d = values.per_axis_or_one("dilation_rate", dilation_rate, rank, low=1)
    word = values.text("data_format", data_format)
    if word not in LAYOUTS:
        raise ArgumentError("data_format", brief(word), "one of " + ", ".join(map(repr, LAYOUTS)))
    if values.integer("groups", groups, low=1) > 1:
        raise ArgumentError("groups", str(groups), "1", "Keras computes no groups in these layers.")
    same = mode is Mode.SAME
    if output_shape is not None:
        if output_padding is not None:
            raise ArgumentError("output_padding", "given", "None when output_shape is given")
        outs = values.per_axis("output_shape", output_shape, rank, low=0)
        axes = values.axes(partial(_shaped, same), range(rank), size, k, s, d, outs)
    elif output_padding is not None:
        extra = values.per_axis_or_one("output_padding", output_padding, rank, low=0)
        axes = values.axes(partial(window, same), size, k, s, d, extra)
        LIMITS.check_output_padding(axes, extra)
    else:
        axes = values.axes(partial(window, same), size, k, s, d)
    return Layer(axes, 1, LAYOUTS[word], WeightLayout.XOI)


def to_keras(layer: Layer) -> dict[str, Any]:
    """The arguments of a Keras layer but `filters`; raises `TranslationError` if none fit.

    `from_keras(size, **to_keras(layer))` has the same axes.

    >>> to_keras(from_keras((5,), 4, strides=2, padding="same"))["padding"]
    'same'
    """
    require_layer(layer)
    closest = _closest(layer)
    for i, (axis, found) in enumerate(zip(layer.axes, closest.axes, strict=True)):
        if axis != found:
            raise TranslationError(
                f"axis {i} is cropped by {axis.crop_begin} at its begin and {axis.crop_end} at its"
                ' end, and Keras has only "valid", "same" and an output_padding below the stride,'
                f" one mode for all axes; the nearest of those crops {found.crop_begin} and"
                f" {found.crop_end}."
            )
    if layer.groups > 1:
        raise TranslationError(f"the layer has {layer.groups} groups, and Keras' layers have none.")
    return {
        "kernel_size": layer.kernel,
        "strides": layer.strides,
        "padding": closest.mode.value,
        "output_padding": closest.output_padding,
        "dilation_rate": layer.dilations,
        "data_format": _FORMATS[layer.layout],
    }


def nearest_keras(layer: Layer) -> Layer:
    """The layer with the crops that come closest, and no groups; raises as `to_keras` if none."""
    return replace(layer, axes=_closest(layer).axes, groups=1)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One choice of mode and output padding, and the axes it makes."""

    mode: Mode
    output_padding: tuple[int, ...] | None
    axes: tuple[Axis, ...]


def _closest(layer: Layer) -> _Candidate:
    """The candidate nearest in crops; of equals one that crops less, then one without padding."""
    LIMITS.check_rank(layer)
    if any(axis.size == 0 for axis in layer.axes):
        raise TranslationError("the layer has an axis without input; read it at a size above 0.")
    if max(layer.strides) > 1 and max(layer.dilations) > 1:
        raise TranslationError(
            "the layer is strided and dilated, and Keras' layers refuse the two together."
        )
    candidates = []
    for mode in Mode:
        plain = tuple(_like(axis, mode) for axis in layer.axes)
        candidates.append(_Candidate(mode, None, plain))
        best = tuple(_closest_extended(mode, axis) for axis in layer.axes)
        extended = tuple(_like(a, mode, more) for a, more in zip(layer.axes, best, strict=True))
        candidates.append(_Candidate(mode, best, extended))
    return min(candidates, key=lambda candidate: _distance(layer.axes, candidate.axes))


def _closest_extended(mode: Mode, axis: Axis) -> int:
    """The output padding, from 0 to s - 1, whose crops come closest.

    Each position of it lowers the total crop by one, so that only those around the total of this
    axis, and around twice its smaller crop, can be best.
    """
    total = sum(_crops(_like(axis, mode, 0)))
    begin, end = _crops(axis)
    wanted = [begin + end, 2 * begin, 2 * end]
    tried = {total - goal + step for goal, step in product(wanted, (-1, 0, 1))}
    return min(
        sorted({min(max(extra, 0), axis.stride - 1) for extra in tried}),
        key=lambda extra: _distance((axis,), (_like(axis, mode, extra),)),
    )


def _distance(wanted: tuple[Axis, ...], found: tuple[Axis, ...]) -> tuple[int, int]:
    differences = [
        there - here
        for axis, other in zip(wanted, found, strict=True)
        for here, there in zip(_crops(axis), _crops(other), strict=True)
    ]
    return sum(map(abs, differences)), sum(max(difference, 0) for difference in differences)


def _crops(axis: Axis) -> tuple[int, int]:
    return axis.crop_begin, axis.crop_end


def _like(axis: Axis, mode: Mode, extra: int | None = None) -> Axis:
    """The axis as a mode and an output padding crop it."""
    return window(mode is Mode.SAME, axis.size, axis.kernel, axis.stride, axis.dilation, extra)


def _shaped(same: bool, i: int, size: int, k: int, s: int, d: int, out: int) -> Axis:
    """The axis of a given output size, which a convolution has to map back to the input's."""
    pads = same_padding(out, k, s, d, upper=True) if same else (0, 0)
    axis = convolved(out, k, s, d, *pads)
    if axis.size != size:
        raise ShapeError(
            f"output_shape[{i}]",
            f"{out}, which a convolution maps to {axis.size} positions",
            f"a size that it maps to the input's {size}",
            "Those are the s sizes up to I*s with SAME, and from (I-1)*s + d*(k-1) + 1 with VALID.",
        )
    return axis
