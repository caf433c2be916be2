"""MXNet: the Deconvolution operator, its attributes as they stand in Python or in a symbol file.

Per axis, ek = d*(k-1) + 1, full = s*(I-1) + ek:

    no target_shape    p = pad            q = pad - adj     O = full - 2*pad + adj
    target_shape t     p = ceil(T/2)      q = floor(T/2)    O = t,  T = full - t >= 0

so an odd T cuts the odd position from the begin. A target with any non-zero entry is active, and
then pad and adj are ignored. Everywhere adj = p - q <= s - 1 (the dilation does not help), which
forbids an odd T on an axis of stride 1. Data is NCX, the weight (C, num_filter/num_group, *kernel);
with layout NHWC or NDHWC data is NXC and the weight (C, *kernel, num_filter/num_group).

Source: the running operator, MXNet 1.9.1 (tests/data/dialects holds its answers). Departures, on
purpose: a target that is zero on some axes only is refused (MXNet makes that axis empty), a
negative pad or adj is refused (MXNet infers shapes for it and no engine of 1.x runs it), and a
dilated layer of rank 3 is read although MXNet does not compute it; `to_mxnet` refuses it.
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import ArgumentError, ShapeError, TranslationError, brief
from ..geometry import Axis, centred, padded
from ..problem import DataLayout, WeightLayout
from . import values
from .layer import Layer, require_layer
from .limits import Limits

LIMITS = Limits(
    dialect="MXNet",
    most_axes=3,
    one_padding=True,
    bound=lambda axis: axis.stride,
    bound_text="the stride",
)

LAYOUTS = {
    "NCW": (1, DataLayout.NCX),
    "NCHW": (2, DataLayout.NCX),
    "NCDHW": (3, DataLayout.NCX),
    "NHWC": (2, DataLayout.NXC),
    "NDHWC": (3, DataLayout.NXC),
}
_DEFAULT_LAYOUT = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_NXC_LAYOUT = {2: "NHWC", 3: "NDHWC"}
_WEIGHTS = {DataLayout.NCX: WeightLayout.IOX, DataLayout.NXC: WeightLayout.IXO}
_TUNINGS = ("None", "off", "limited_workspace", "fastest")
_BOOLS = {"true": True, "1": True, "false": False, "0": False}
_SHAPE_TEXT = re.compile(r"[(\[]\s*(?:-?\d+L?\s*(?:,\s*-?\d+L?\s*)*,?)?\s*[)\]]|-?\d+")


def from_mxnet(
    size: object,
    *,
    kernel: object,
    stride: object = (),
    dilate: object = (),
    pad: object = (),
    adj: object = (),
    target_shape: object = (),
    num_filter: object = None,
    num_group: object = 1,
    workspace: object = 512,
    no_bias: object = True,
    cudnn_tune: object = None,
    cudnn_off: object = False,
    layout: object = None,
    name: object = None,
    **unknown: object,
) -> Layer:
    """The layer of a Deconvolution; attributes may be tuples, lists or MXNet's text "(3, 3)".

    size: the spatial input size. A bare int is a shape of one axis, as in MXNet. `num_filter` may
    be left out; of the rest `workspace`, `no_bias`, the cuDNN ones and `name` are checked and have
    no effect. Entries of `target_shape` beyond the kernel's rank are ignored, as MXNet does.

    Raises `ArgumentError` or `ShapeError` for what MXNet refuses and for a name it does not know.

    >>> from_mxnet((4, 4), kernel="(4, 4)", stride=(2, 2), target_shape=(8, 8)).crops
    ((1, 1), (1, 1))
    """
    if unknown:
        raise ArgumentError(
            "an attribute of Deconvolution",
            brief(sorted(unknown)[0]),
            "one of " + ", ".join(_NAMES),
        )
    size = values.sizes(size)
    k = _kernel(kernel, size)
    rank = len(k)
    s, d = _each("stride", stride, rank, 1), _each("dilate", dilate, rank, 1)
    target = _shape("target_shape", target_shape, low=0)
    if any(target):
        axes = values.axes(_targeted, range(rank), size, k, s, d, _target(target, rank))
    else:
        pads, adjs = _each("pad", pad, rank, 0), _each("adj", adj, rank, 0)
        axes = values.axes(_padded, range(rank), size, k, s, d, pads, adjs)
    groups = _count("num_group", num_group)
    _check_passengers(num_filter, groups, workspace, no_bias, cudnn_tune, cudnn_off)
    data = _layout(layout, rank)
    return Layer(axes, groups, data, _WEIGHTS[data])


_NAMES = ("kernel", *(from_mxnet.__kwdefaults__ or {}))


def to_mxnet(layer: Layer) -> dict[str, Any]:
    """The attributes of Deconvolution but `num_filter`; raises `TranslationError` if none fit.

    `from_mxnet(size, **to_mxnet(layer))` has the same axes. Channels last is said by `layout` where
    MXNet has a name for it (rank 2 and 3).

    >>> to_mxnet(from_mxnet(5, kernel=3, stride=2, pad=1, adj=1))["adj"]
    (1,)
    """
    require_layer(layer)
    rank = len(layer.axes)
    paddings = LIMITS.paddings(layer)
    if rank == 3 and any(axis.dilation > 1 for axis in layer.axes):
        raise TranslationError(
            "the layer is dilated, and MXNet has no dilation with 3 spatial axes."
        )
    names = _NXC_LAYOUT if layer.layout is DataLayout.NXC else _DEFAULT_LAYOUT
    return {
        "kernel": layer.kernel,
        "stride": layer.strides,
        "dilate": layer.dilations,
        "pad": tuple(padding.begin for padding in paddings),
        "adj": tuple(padding.output_padding for padding in paddings),
        "num_group": layer.groups,
        "layout": names.get(rank, _DEFAULT_LAYOUT[rank]),
    }


def has_target(target_shape: object) -> bool:
    """Whether this target_shape is active: it has an entry that is not zero.

    >>> has_target("(0, 0)"), has_target((8, 8))
    (False, True)
    """
    return any(_shape("target_shape", target_shape, low=0))


def kernel_rank(kernel: object) -> int:
    """How many spatial axes a kernel attribute has."""
    return len(_shape("kernel", kernel, low=1))


def _padded(i: int, size: int, k: int, s: int, d: int, pad: int, adj: int) -> Axis:
    return _checked(i, padded(size, k, s, d, pad, pad, adj), f"adj[{i}]")


def _targeted(i: int, size: int, k: int, s: int, d: int, target: int) -> Axis:
    axis = centred(size, k, s, d, target, upper=False)
    if axis.crop_end < 0:
        raise ShapeError(
            f"target_shape[{i}]", str(target), f"at most {axis.full}", "MXNet's target only crops."
        )
    return _checked(i, axis, f"the adj that target_shape[{i}] = {target} derives")


def _checked(i: int, axis: Axis, name: str) -> Axis:
    adj = axis.crop_begin - axis.crop_end
    if adj >= axis.stride:
        raise ArgumentError(
            name,
            str(adj),
            f"at most stride[{i}] - 1 = {axis.stride - 1}",
            "MXNet refuses more; negative padding in upconv.conv_transpose has no such limit.",
        )
    return axis


def _kernel(kernel: object, size: tuple[int, ...]) -> tuple[int, ...]:
    entries = _shape("kernel", kernel, low=1)
    if not 1 <= len(entries) <= LIMITS.most_axes:
        raise ArgumentError("kernel", brief(kernel), "a shape of 1, 2 or 3 axes")
    if len(size) != len(entries):
        raise ShapeError(
            "size", str(size), f"{len(entries)} spatial sizes, as kernel has", "Leave out N and C."
        )
    return entries


def _target(target: tuple[int, ...], rank: int) -> tuple[int, ...]:
    if len(target) < rank:
        raise ArgumentError("target_shape", str(target), f"one size per kernel axis, {rank} here")
    for i, entry in enumerate(target[:rank]):
        if entry == 0:
            raise ArgumentError(
                f"target_shape[{i}]",
                f"0 in {target}",
                "a size on every axis, or none at all",
                "MXNet would make this axis empty, not leave it alone: write the size you want.",
            )
    return target[:rank]


def _each(name: str, value: object, rank: int, low: int) -> tuple[int, ...]:
    entries = _shape(name, value, low)
    return values.per_axis(name, entries, rank, low) if entries else (low,) * rank


def _shape(name: str, value: object, low: int) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)):
        word = values.text(name, value).strip()
        if not _SHAPE_TEXT.fullmatch(word):
            raise ArgumentError(name, brief(value), 'a shape such as "(3, 3)"')
        value = tuple(values.digits(name, found) for found in re.findall(r"-?\d+", word))
    if values.is_sequence(value):
        return values.integers(name, value, low)
    return (values.integer(name, value, low),)


def _count(name: str, value: object) -> int:
    if isinstance(value, (str, bytes)) and values.text(name, value).strip().isdecimal():
        value = values.digits(name, values.text(name, value).strip())
    return values.integer(name, value, low=1)


def _layout(layout: object, rank: int) -> DataLayout:
    word = "None" if layout is None else values.text("layout", layout)
    if word == "None":
        return DataLayout.NCX
    if word not in LAYOUTS:
        raise ArgumentError("layout", brief(word), "None or one of " + ", ".join(LAYOUTS))
    if LAYOUTS[word][0] != rank:
        raise ArgumentError(
            "layout", brief(word), f"a layout of {rank} spatial axes, as kernel has"
        )
    return LAYOUTS[word][1]


def _check_passengers(
    num_filter: object,
    groups: int,
    workspace: object,
    no_bias: object,
    cudnn_tune: object,
    cudnn_off: object,
) -> None:
    """Attributes that change nothing here are checked all the same: a typo should not pass."""
    if num_filter is not None and _count("num_filter", num_filter) % groups:
        raise ArgumentError("num_group", str(groups), f"a divisor of num_filter = {num_filter}")
    if isinstance(workspace, (str, bytes)):
        workspace = _count("workspace", workspace)
    values.integer("workspace", workspace, low=0)
    for name, value in (("no_bias", no_bias), ("cudnn_off", cudnn_off)):
        word = str(value) if isinstance(value, int) else values.text(name, value)
        if word.lower() not in _BOOLS:
            raise ArgumentError(name, brief(value), "True, False, 1, 0 or the text of one")
    tuning = "None" if cudnn_tune is None else values.text("cudnn_tune", cudnn_tune)
    if tuning not in _TUNINGS:
        raise ArgumentError("cudnn_tune", brief(tuning), "one of " + ", ".join(_TUNINGS))
