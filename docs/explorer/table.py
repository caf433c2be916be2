"""The explorer's table: the crops for every framework's arguments, read from `upconv.dialects`.

The page's script knows one equation, s*i + d*t = o + p, and no framework. The table has the rest:
for each mode of a framework (one way to write its padding) and each kernel, stride and dilation,
the crops (p, q) that follow from its arguments.

Crops do not depend on the input size (`upconv.dialects.translate` says why). `export` checks this
for every row, and checks that each padding moves the crops by the integers in `slopes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from upconv.dialects import from_jax, from_keras, from_mxnet, from_onnx, from_torch, to_keras
from upconv.dialects.layer import Layer
from upconv.dialects.mxnet import LIMITS as MXNET_LIMITS
from upconv.dialects.onnx import LIMITS as ONNX_LIMITS
from upconv.dialects.onnx import Rule
from upconv.dialects.torch import LIMITS as TORCH_LIMITS
from upconv.errors import ArgumentError, UpconvError
from upconv.geometry import Axis

SIZES, KERNELS, STRIDES, DILATIONS = range(1, 17), range(1, 10), range(1, 7), range(1, 5)
PADDINGS = range(-8, 13)
MAX_EXTRA = 8
_PROBED = (200, 177)
"""Sizes at which rows are computed, large enough for every probed crop."""

Reader = Callable[..., Layer]


@dataclass(frozen=True)
class Other:
    """A runtime that may read a mode's arguments differently."""

    read: Reader
    least_out: int


@dataclass(frozen=True)
class Mode:
    """One way of writing a padding.

    `read(size, k, s, d, **words)` returns the layer. Its words are "begin", "end", "extra" (an
    output padding) and "target" (an output size); `words` maps those that the mode has to their
    names in the framework. `call` is the call to type, without the numbers. `others` holds runtimes
    that do not always agree with the first reading, with their own lowest output sizes.
    """

    framework: str
    name: str
    words: dict[str, str]
    read: Reader
    call: str
    least_out: int = 0
    others: dict[str, Other] = field(default_factory=dict)


def _upconv(size: int, k: int, s: int, d: int, begin: int = 0, end: int = 0) -> Layer:
    return Layer((Axis(size, k, s, d, begin, end),))


def _torch(size: int, k: int, s: int, d: int, begin: int = 0, extra: int = 0) -> Layer:
    return from_torch(size, k, stride=s, dilation=d, padding=begin, output_padding=extra)


def _onnx(rule: str, auto_pad: str, size: int, k: int, s: int, d: int, **words: int) -> Layer:
    explicit = auto_pad == "NOTSET"
    return from_onnx(
        size,
        [k],
        strides=[s],
        dilations=[d],
        pads=[words.get("begin", 0), words.get("end", 0)] if explicit else None,
        output_padding=[words.get("extra", 0)],
        auto_pad=auto_pad,
        rule=rule,
    )


def _keras(padding: str, size: int, k: int, s: int, d: int, extra: int | None = None) -> Layer:
    layer = from_keras(size, k, strides=s, dilation_rate=d, padding=padding, output_padding=extra)
    to_keras(layer)  # raises where Keras' layers refuse, although its function computes the layer
    return layer


def _jax(padding: str, size: int, k: int, s: int, d: int, **words: int) -> Layer:
    pair = ((words.get("begin", 0), words.get("end", 0)),)
    return from_jax(
        (size,),
        (k,),
        strides=(s,),
        rhs_dilation=(d,),
        padding=pair if padding in ("crops", "zeros") else padding,
        use_consistent_padding=padding == "crops",
        transpose_kernel=True,
    )


def _mxnet(size: int, k: int, s: int, d: int, begin: int = 0, extra: int = 0) -> Layer:
    return from_mxnet(size, kernel=k, stride=s, dilate=d, pad=begin, adj=extra)


def _mxnet_target(size: int, k: int, s: int, d: int, target: int) -> Layer:
    return from_mxnet(size, kernel=k, stride=s, dilate=d, target_shape=target)


_MODULE = "torch.nn.ConvTranspose1d(C, F, {k}, stride={s}, "
_NODE = (
    'onnx.helper.make_node("ConvTranspose", ["x", "w"], ["y"], kernel_shape=[{k}], strides=[{s}], '
)
_KERAS = "keras.layers.Conv1DTranspose(F, {k}, strides={s}, "
_JAX = "jax.lax.conv_transpose(x, w, strides=({s},), "
_MXNET = "mx.nd.Deconvolution(x, w, kernel=({k},), stride=({s},), dilate=({d},), "


def _onnx_mode(auto_pad: str) -> Mode:
    explicit = auto_pad == "NOTSET"
    ends = {"begin": "pads, begin", "end": "pads, end"} if explicit else {}
    words = "pads=[{begin}, {end}]" if explicit else f'auto_pad="{auto_pad}"'
    return Mode(
        "ONNX",
        "pads" if explicit else f"auto_pad {auto_pad}",
        {**ends, "extra": "output_padding"},
        partial(_onnx, "spec", auto_pad),
        _NODE + words + ", output_padding=[{extra}], dilations=[{d}])",
        ONNX_LIMITS[Rule.SPEC].least_out,
        {
            ONNX_LIMITS[rule].dialect: Other(
                partial(_onnx, rule.value, auto_pad), ONNX_LIMITS[rule].least_out
            )
            for rule in (Rule.ONNXRUNTIME, Rule.OPENVINO)
        },
    )


def _keras_mode(padding: str, extended: bool) -> Mode:
    return Mode(
        "Keras, TensorFlow",
        f'padding "{padding}"' + (" and output_padding" if extended else ""),
        {"extra": "output_padding"} if extended else {},
        partial(_keras, padding),
        f'{_KERAS}padding="{padding}"'
        + (", output_padding={extra}" if extended else "")
        + ", dilation_rate={d})",
    )


def _jax_mode(padding: str, name: str, words: dict[str, str]) -> Mode:
    pair = "(({begin}, {end}),)" if words else f'"{padding}"'
    last = ", use_consistent_padding=True" if padding == "crops" else ""
    return Mode(
        "JAX",
        name,
        words,
        partial(_jax, padding),
        _JAX + f"padding={pair}, rhs_dilation=({{d}},), transpose_kernel=True{last})",
    )


MODES = (
    Mode(
        "upconv",
        "padding",
        {"begin": "padding, begin", "end": "padding, end"},
        _upconv,
        "upconv.conv_transpose(x, w, stride={s}, padding=(({begin}, {end}),), dilation={d})",
    ),
    Mode(
        "PyTorch",
        "padding",
        {"begin": "padding", "extra": "output_padding"},
        _torch,
        _MODULE + "padding={begin}, output_padding={extra}, dilation={d})",
        TORCH_LIMITS.least_out,
    ),
    *map(_onnx_mode, ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")),
    *(_keras_mode(padding, more) for more in (False, True) for padding in ("valid", "same")),
    _jax_mode("crops", "pairs, use_consistent_padding", {"begin": "low", "end": "high"}),
    _jax_mode("zeros", "pairs", {"begin": "low", "end": "high"}),
    _jax_mode("SAME", 'padding "SAME"', {}),
    _jax_mode("VALID", 'padding "VALID"', {}),
    Mode(
        "MXNet",
        "pad and adj",
        {"begin": "pad", "extra": "adj"},
        _mxnet,
        _MXNET + "pad=({begin},), adj=({extra},), num_filter=F)",
        MXNET_LIMITS.least_out,
    ),
    Mode(
        "MXNet",
        "target_shape",
        {"target": "target_shape"},
        _mxnet_target,
        _MXNET + "target_shape=({target},), num_filter=F)",
        MXNET_LIMITS.least_out,
    ),
)


def export() -> dict[str, Any]:
    """Return the table as plain values.

    A row lists the crops [p, q] with paddings 0 for output padding 0, 1, ... (with a target: for 0,
    1, ... cut positions). Refused entries are null, and the row has the reason as a sentence. Equal
    rows are stored once; each mode lists the numbers of its rows by kernel, stride and dilation.
    """
    rows: dict[str, int] = {}
    kept: list[dict[str, Any]] = []

    def number(row: dict[str, Any]) -> int:
        key = repr(row)
        if key not in rows:
            rows[key] = len(kept)
            kept.append(row)
        return rows[key]

    def numbers(mode: Mode, read: Reader) -> list[int]:
        return [
            number(_row(mode, read, k, s, d)) for k in KERNELS for s in STRIDES for d in DILATIONS
        ]

    modes = [
        {
            "framework": mode.framework,
            "name": mode.name,
            "words": mode.words,
            "call": mode.call,
            "least_out": mode.least_out,
            "slopes": _slopes(mode),
            "low": _low(mode),
            "rows": numbers(mode, mode.read),
            "others": {
                name: {"least_out": other.least_out, "rows": numbers(mode, other.read)}
                for name, other in mode.others.items()
            },
        }
        for mode in MODES
    ]
    ranges = {"size": SIZES, "kernel": KERNELS, "stride": STRIDES, "dilation": DILATIONS}
    return {
        "ranges": {name: [values[0], values[-1]] for name, values in ranges.items()},
        "paddings": [PADDINGS[0], PADDINGS[-1]],
        "most_extra": MAX_EXTRA,
        "modes": modes,
        "rows": kept,
    }


def _row(mode: Mode, read: Reader, k: int, s: int, d: int) -> dict[str, Any]:
    if "target" in mode.words:
        cuts = range(Axis(SIZES[-1], KERNELS[-1], STRIDES[-1], DILATIONS[-1]).full)
        tried = [_crops(read, k, s, d, cut=cut) for cut in cuts]
    elif "extra" in mode.words:
        tried = [_crops(read, k, s, d, extra=extra) for extra in range(MAX_EXTRA + 1)]
    else:
        tried = [_crops(read, k, s, d)]
    refusals = [found for found in tried if isinstance(found, str)]
    crops = [None if isinstance(found, str) else found for found in tried]
    while crops and crops[-1] is None:
        crops.pop()
    return {"crops": crops, "refusal": refusals[0] if refusals else ""}


def _crops(
    read: Reader, k: int, s: int, d: int, cut: int | None = None, **words: int
) -> list[int] | str:
    """Return the crops, which are equal at every probed size, or the reason for a refusal."""
    found = []
    for size in _PROBED:
        if cut is not None:
            words["target"] = Axis(size, k, s, d).full - cut
        try:
            found.append([*read(size, k, s, d, **words).crops[0]])
        except UpconvError as error:
            found.append(_reason(error))
    assert all(crops == found[0] for crops in found), (k, s, d, words, found)
    return found[0]


def _reason(error: UpconvError) -> str:
    """Return the expected value without the given one, so that a row has one text."""
    if not isinstance(error, ArgumentError):
        return str(error)
    name = re.sub(r"\[0\]( = \d+)?", "", error.argument)
    return f"{name} must be {error.expected}.".replace("[0]", "")


def _slopes(mode: Mode) -> dict[str, list[int]]:
    """Return the change of (p, q) for each unit of padding, and check that it is constant."""
    slopes = {}
    for word in ("begin", "end"):
        if word not in mode.words:
            continue
        moved = [mode.read(_PROBED[0], 5, 2, 3, **{word: by}).crops[0] for by in range(5)]
        slope = [after - before for before, after in zip(*moved[:2], strict=True)]
        for by, crops in enumerate(moved):
            line = tuple(start + by * rise for start, rise in zip(moved[0], slope, strict=True))
            assert crops == line, (mode, by)
        slopes[word] = slope
    return slopes


def _low(mode: Mode) -> int | None:
    """Return the lowest padding, 0, or None if negative padding is allowed."""
    if "begin" not in mode.words:
        return 0
    try:
        mode.read(_PROBED[0], 3, 1, 1, begin=-1)
    except UpconvError:
        return 0
    return None
