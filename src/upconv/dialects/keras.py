"""Keras: the Conv1DTranspose to Conv3DTranspose layers, and TensorFlow's rule for output_shape.

Per axis, ek = d*(k-1) + 1, full = (I-1)*s + ek, output padding a < s, T = full - O split so that
p = floor(T/2) and a negative T extends the end:

    padding   output_padding    p, q                     O
    valid     None              0, -max(s - ek, 0)       max(I*s, full)
    valid     a                 0, -a                    full + a
    same      None              T split                  I*s
    same      a                 T split                  (I-1)*s + ek mod 2 + a

Hence output_padding 0 differs from None. With TensorFlow's `output_shape` O is given: VALID has
p = 0, and SAME splits the padding that a convolution of O would have. That convolution must map O
to I. Data is NXC ("channels_last") or NCX, the weight (*k, C_out, C_in); there are no groups.

Sources: `keras.ops.conv_transpose` and the layers of Keras 3.15 run on its JAX backend;
TensorFlow's page of conv2d_transpose. The layers refuse stride and dilation above 1 together,
although the function computes this: `from_keras` reads it, and `to_keras` refuses it. Keras' torch
backend shifts some "same" layers by one position (keras-team/keras#20949); the table above
describes the JAX backend.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from ..errors import ArgumentError, ShapeError, TranslationError, brief
from ..geometry import Axis, centred, convolved, same_padding, scaled
from ..problem import DataLayout, WeightLayout
from . import arguments
from .layer import Layer, require_layer
from .limits import Limits

LIMITS = Limits("Keras", 3, False, "the stride")


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
    """Return the layer that Keras computes, or with `output_shape` TensorFlow.

    size: the spatial input size. An int applies to every axis. padding: "valid" or "same", in upper
    or lower case. output_shape: the spatial output sizes without N and C; it excludes
    `output_padding`. groups: only 1, for configurations of Keras 2. The arguments from `filters` on
    have no effect. They let `from_keras(size, **layer.get_config())` read a Keras layer.

    Raises `ArgumentError` or `ShapeError` for arguments that the frameworks refuse.

    >>> from_keras((5,), 3, strides=2, padding="same").crops
    ((0, 1),)
    >>> from_keras((5,), 3, strides=2, padding="same", output_padding=0).crops
    ((1, 1),)
    """
    size = arguments.sizes(size)
    rank = len(size)
    LIMITS.check_size(size)
    mode = arguments.member("padding", arguments.text("padding", padding).lower(), Mode)
    k = arguments.per_axis("kernel_size", kernel_size, rank, low=1, repeated=True)
    s = arguments.per_axis("strides", strides, rank, low=1, repeated=True)
    d = arguments.per_axis("dilation_rate", dilation_rate, rank, low=1, repeated=True)
    word = arguments.text("data_format", data_format)
    if word not in LAYOUTS:
        raise ArgumentError("data_format", brief(word), "one of " + ", ".join(map(repr, LAYOUTS)))
    if arguments.integer("groups", groups, low=1) > 1:
        raise ArgumentError("groups", str(groups), "1", "These Keras layers do not support groups.")
    same = mode is Mode.SAME
    if output_shape is not None:
        if output_padding is not None:
            raise ArgumentError("output_padding", "given", "None when output_shape is given")
        outs = arguments.per_axis("output_shape", output_shape, rank, low=0)
        axes = arguments.axes(partial(_shaped, same), range(rank), size, k, s, d, outs)
    elif output_padding is not None:
        extra = arguments.per_axis("output_padding", output_padding, rank, low=0, repeated=True)
        axes = arguments.axes(partial(window, same), size, k, s, d, extra)
        LIMITS.check_output_padding(axes, extra)
    else:
        axes = arguments.axes(partial(window, same), size, k, s, d)
    return Layer(axes, 1, LAYOUTS[word], WeightLayout.XOI)


def to_keras(layer: Layer) -> dict[str, Any]:
    """Return the arguments of a Keras layer except `filters`; raises `TranslationError`.

    `from_keras(size, **to_keras(layer))` has the same axes.

    >>> to_keras(from_keras((5,), 4, strides=2, padding="same"))["padding"]
    'same'
    """
    require_layer(layer)
    closest = _closest(layer)
    for i, (axis, near) in enumerate(zip(layer.axes, closest.axes, strict=True)):
        if axis != near:
            raise TranslationError(
                f"axis {i} is cropped by {axis.crop_begin} at its start and {axis.crop_end} at its"
                ' end, and Keras has only "valid", "same" and an output_padding below the stride,'
                f" one mode for all axes; the nearest of those crops {near.crop_begin} and"
                f" {near.crop_end}."
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
    """Return the layer with the closest crops and no groups; raises errors as `to_keras` does."""
    return replace(layer, axes=_closest(layer).axes, groups=1)


class _Candidate(NamedTuple):
    """A mode, an output padding, and the axes that result."""

    mode: Mode
    output_padding: tuple[int, ...] | None
    axes: tuple[Axis, ...]


def _closest(layer: Layer) -> _Candidate:
    """Return the candidate with the closest crops; of equally close ones, the smaller crops.

    A candidate without output padding is preferred to one with it.
    """
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
    """Return the output padding, from 0 to s - 1, with the closest crops.

    Each position of output padding lowers the total crop by one. The best total is therefore near
    this axis's total, or near twice one of its crops.
    """
    like = _like(axis, mode, 0)
    total, begin, end = like.crop_begin + like.crop_end, axis.crop_begin, axis.crop_end
    totals = product((begin + end, 2 * begin, 2 * end), (-1, 0, 1))
    extras = {min(max(total - goal + step, 0), axis.stride - 1) for goal, step in totals}
    return min(
        sorted(extras),
        key=lambda extra: _distance((axis,), (_like(axis, mode, extra),)),
    )


def _distance(axes: tuple[Axis, ...], others: tuple[Axis, ...]) -> tuple[int, int]:
    differences = []
    for axis, other in zip(axes, others, strict=True):
        differences += [other.crop_begin - axis.crop_begin, other.crop_end - axis.crop_end]
    return sum(map(abs, differences)), sum(max(difference, 0) for difference in differences)


def window(same: bool, size: int, k: int, s: int, d: int, extra: int | None = None) -> Axis:
    """Return one axis by the module's table, with the SAME or VALID of TensorFlow and JAX.

    extra: the output padding. Without it, a VALID result is followed by zeros if the kernel is
    shorter than the stride.
    """
    axis = Axis(size, k, s, d)
    if extra is None:
        out = scaled(size, s) if same else max(scaled(size, s), axis.full)
    else:
        out = axis.full + extra - (axis.extent - axis.extent % 2 if same else 0)
    return centred(size, k, s, d, out, upper=True)


def _like(axis: Axis, mode: Mode, extra: int | None = None) -> Axis:
    """Return the axis with the crops that a mode and an output padding give."""
    return window(mode is Mode.SAME, axis.size, axis.kernel, axis.stride, axis.dilation, extra)


def _shaped(same: bool, i: int, size: int, k: int, s: int, d: int, out: int) -> Axis:
    """Return the axis with an output size that a convolution must map to the input size."""
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
