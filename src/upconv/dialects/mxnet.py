"""MXNet: the Deconvolution operator, with attributes as in Python or in a symbol file.

Per axis, ek = d*(k-1) + 1, full = s*(I-1) + ek:

    no target_shape    p = pad            q = pad - adj     O = full - 2*pad + adj
    target_shape t     p = ceil(T/2)      q = floor(T/2)    O = t,  T = full - t >= 0

so the odd position of an odd T is cut from the start. A target with any non-zero entry is active,
and then pad and adj are ignored. In all cases adj = p - q <= s - 1, regardless of dilation, so an
axis of stride 1 cannot have an odd T. Data is NCX, the weight (C, num_filter/num_group, *kernel);
with layout NHWC or NDHWC data is NXC and the weight (C, *kernel, num_filter/num_group).

Source: runs of the operator in MXNet 1.9.1 (tests/data/dialects holds its results). There are three
deliberate differences. A target that is zero on only some axes is refused; MXNet makes that axis
empty. A negative pad or adj is refused; MXNet infers shapes for it, but no engine of 1.x runs it. A
dilated layer of rank 3 is read although MXNet does not compute it; `to_mxnet` refuses it.
"""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError, ShapeError, TranslationError, brief
from ..geometry import Axis, centred, padded
from ..problem import DataLayout, WeightLayout
from . import arguments
from .layer import Layer, require_layer
from .limits import Limits
from .mxnet_attributes import Attributes, declared, parsed

LIMITS = Limits("MXNet", 3, True, "the stride")

WINDOW = "kernel:shape stride:shape=() dilate:shape=() pad:shape=()"
DEVICE = "cudnn_tune:off|limited_workspace|fastest?=None cudnn_off:bool=False"
DECONVOLUTION = (
    f"{WINDOW} adj:shape=() target_shape:shape=() num_filter:count num_group:count=1"
    f" workspace:size=512 no_bias:bool=True {DEVICE} layout:NCW|NCHW|NCDHW|NHWC|NDHWC?=None"
)
"""The attributes of Deconvolution, as `mxnet_attributes.declared` reads them."""

_ATTRIBUTES = declared(DECONVOLUTION)
_DEFAULT_LAYOUT = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_NXC_LAYOUT = {2: "NHWC", 3: "NDHWC"}


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
    """Return a Deconvolution's layer; attributes may be tuples, lists or strings like "(3, 3)".

    size: the spatial input size. A bare int is a shape with one axis, as in MXNet. `num_filter` is
    optional. `workspace`, `no_bias`, `cudnn_tune` and `cudnn_off` are checked but have no effect;
    `name` is ignored. Entries of `target_shape` beyond the kernel's rank are ignored, as in MXNet.

    Raises `ArgumentError` or `ShapeError` for arguments that MXNet refuses or does not know.

    >>> from_mxnet((4, 4), kernel="(4, 4)", stride=(2, 2), target_shape=(8, 8)).crops
    ((1, 1), (1, 1))
    """
    attributes = {
        "kernel": kernel, "stride": stride, "dilate": dilate, "pad": pad, "adj": adj,
        "target_shape": target_shape, "num_group": num_group, "workspace": workspace,
        "no_bias": no_bias, "cudnn_tune": cudnn_tune, "cudnn_off": cudnn_off, "layout": layout,
    }  # fmt: skip
    attributes["num_filter"] = num_group if num_filter is None else num_filter
    p = parsed(_ATTRIBUTES, attributes | unknown)
    check(p)
    if p.num_filter % p.num_group:
        expected = f"a divisor of num_filter = {p.num_filter}"
        raise ArgumentError("num_group", str(p.num_group), expected)
    return layer_of(arguments.sizes(size), p)


def check(p: Attributes) -> None:
    """Raise `ArgumentError` for attributes that MXNet refuses for any arrays."""
    rank = len(p.kernel)
    if not 1 <= rank <= LIMITS.most_axes:
        raise ArgumentError("kernel", brief(p.kernel), "a shape of 1, 2 or 3 axes")
    for name, low in {"kernel": 1, "stride": 1, "dilate": 1, "pad": 0, "adj": 0}.items():
        value = getattr(p, name, ())
        if value and len(value) != rank:
            raise ArgumentError(name, brief(value), f"{rank} entries, like kernel")
        if min(value, default=low) < low:
            raise ArgumentError(name, brief(value), f"integers >= {low}")
    if p.layout is not None and len(p.layout) != rank + 2:
        raise ArgumentError("layout", p.layout, f"a layout of {rank} spatial axes")


def layer_of(size: tuple[int, ...], p: Attributes) -> Layer:
    """Return the layer of checked attributes; raise `ArgumentError` or `ShapeError`."""
    rank = len(p.kernel)
    if len(size) != rank:
        expected = f"{rank} spatial sizes, like kernel"
        raise ShapeError("size", str(size), expected, "Leave out N and C.")
    ones, zeros = (1,) * rank, (0,) * rank
    window = range(rank), size, p.kernel, p.stride or ones, p.dilate or ones
    if any(p.target_shape):
        axes = arguments.axes(_targeted, *window, _target(p.target_shape, rank))
    else:
        axes = arguments.axes(_padded, *window, p.pad or zeros, p.adj or zeros)
    if p.layout is not None and p.layout.endswith("C"):
        return Layer(axes, p.num_group, DataLayout.NXC, WeightLayout.IXO)
    return Layer(axes, p.num_group)


def to_mxnet(layer: Layer) -> dict[str, Any]:
    """Return the attributes of Deconvolution except `num_filter`; raises `TranslationError`.

    `from_mxnet(size, **to_mxnet(layer))` has the same axes. `layout` says whether channels are last
    if MXNet has a name for that (rank 2 and 3).

    >>> to_mxnet(from_mxnet(5, kernel=3, stride=2, pad=1, adj=1))["adj"]
    (1,)
    """
    require_layer(layer)
    rank = len(layer.axes)
    padding = LIMITS.padding(layer)
    if rank == 3 and any(axis.dilation > 1 for axis in layer.axes):
        raise TranslationError(
            "the layer is dilated, and MXNet has no dilation with 3 spatial axes."
        )
    names = _NXC_LAYOUT if layer.layout is DataLayout.NXC else _DEFAULT_LAYOUT
    return {
        "kernel": layer.kernel,
        "stride": layer.strides,
        "dilate": layer.dilations,
        "pad": padding.begins,
        "adj": padding.extra,
        "num_group": layer.groups,
        "layout": names.get(rank, _DEFAULT_LAYOUT[rank]),
    }


def _padded(i: int, size: int, k: int, s: int, d: int, pad: int, adj: int) -> Axis:
    return _checked(i, padded(size, k, s, d, pad, pad, adj), f"adj[{i}]")


def _targeted(i: int, size: int, k: int, s: int, d: int, target: int) -> Axis:
    axis = centred(size, k, s, d, target, upper=False)
    if axis.crop_end < 0:
        raise ShapeError(
            f"target_shape[{i}]",
            str(target),
            f"at most {axis.full}",
            "MXNet's target only crops.",
        )
    return _checked(i, axis, f"the adj derived from target_shape[{i}] = {target}")


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


def _target(target: tuple[int, ...], rank: int) -> tuple[int, ...]:
    if len(target) < rank:
        raise ArgumentError("target_shape", brief(target), f"one size per kernel axis, {rank} here")
    for i, entry in enumerate(target[:rank]):
        if entry <= 0:
            raise ArgumentError(
                f"target_shape[{i}]",
                f"{brief(entry)} in {brief(target)}",
                "a size on every axis, or none at all",
                "MXNet would make this axis empty, not ignore the entry: write the intended size.",
            )
    return target[:rank]
