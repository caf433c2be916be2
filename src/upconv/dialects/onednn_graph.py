"""oneDNN Graph: the operations ConvTranspose and ConvolutionBackwardData as a forward layer.

Per axis, ek = d*(k-1) + 1, full = s*(I-1) + ek, pads (P, Q), output padding a < s:

    no dst_shape        p = P    q = Q - a    O = full - P - Q + a
    dst_shape           p = P    O given, with  floor((O + P + Q - ek)/s) + 1 = I

auto_pad VALID means pads 0. For SAME the document and the library differ in the total T and in the
side with its odd position:

    rule       T                                              SAME_UPPER p    SAME_LOWER p
    library    padding of a convolution of O to ceil(O/s)     floor(T/2)      ceil(T/2)
    document   full - O + a                                   ceil(T/2)       floor(T/2)

Without dst_shape O = min(I*s, full) + a, as the library infers it. Dilations count from 1.
Weights: IOX and OIX are (C_in, C_out/groups, *k), XOI and XIO are (*k, C_out/groups, C_in);
ConvTranspose names its own channels, ConvolutionBackwardData the convolution's.

Sources: the oneDNN Graph operation pages; runs of libdnnl 3.2 and 3.13. In the library a dst_shape
overrides output_padding, which is therefore ignored here too. The library refuses negative pads. It
cannot compile groups of ConvolutionBackwardData, which are read here nevertheless.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Any

from ..errors import ArgumentError, ShapeError, brief
from ..geometry import Axis, centred, convolved, padded, same_padding, scaled, strided
from ..problem import DataLayout, WeightLayout
from . import arguments
from .layer import Layer, require_layer
from .limits import Limits


class AutoPad(Enum):
    """The values of auto_pad as the library spells them; it refuses any other spelling."""

    NONE = "None"
    VALID = "VALID"
    SAME_UPPER = "SAME_UPPER"
    SAME_LOWER = "SAME_LOWER"

    @property
    def same(self) -> bool:
        """Whether pads follow from the sizes."""
        return self in (AutoPad.SAME_UPPER, AutoPad.SAME_LOWER)


class Rule(Enum):
    """The interpretation of auto_pad."""

    LIBRARY = "library"
    DOCUMENT = "document"


class Operation(Enum):
    """The two operations that compute a transposed convolution's forward result."""

    CONV_TRANSPOSE = "ConvTranspose"
    CONVOLUTION_BACKWARD_DATA = "ConvolutionBackwardData"


LIMITS = Limits("oneDNN Graph", 3, False, "the stride", least_out=1)

WEIGHTS = {
    Operation.CONV_TRANSPOSE: {"XOI": WeightLayout.XOI, "IOX": WeightLayout.IOX},
    Operation.CONVOLUTION_BACKWARD_DATA: {"XIO": WeightLayout.XOI, "OIX": WeightLayout.IOX},
}
"""Weight orders by operation and by name; the first is the default."""


def from_onednn_graph(
    size: object,
    kernel: object,
    *,
    strides: object,
    pads_begin: object = None,
    pads_end: object = None,
    dilations: object = None,
    auto_pad: object = "None",
    output_padding: object = None,
    dst_shape: object = None,
    groups: object = 1,
    data_format: object = "NXC",
    weights_format: object = None,
    operation: object = "ConvTranspose",
    rule: object = "library",
) -> Layer:
    """Return the layer that either operation computes.

    size: the spatial input size. kernel: the spatial sizes of the weight. dst_shape: the output
    shape in the order of `data_format`. weights_format: None is the operation's default, XOI or
    XIO. rule: "library" or "document", which differ in SAME_UPPER and SAME_LOWER.

    Raises `ArgumentError` or `ShapeError` for attributes on which the library fails or aborts.

    >>> same = {"strides": (2,), "auto_pad": "SAME_UPPER"}
    >>> from_onednn_graph((5,), (3,), **same).crops
    ((0, 1),)
    >>> from_onednn_graph((5,), (3,), **same, rule="document").crops
    ((1, 0),)
    """
    size = arguments.sizes(size)
    rank = len(size)
    LIMITS.check_size(size)
    mode = arguments.member("auto_pad", auto_pad, AutoPad, _SPELLINGS)
    reader = arguments.member("rule", rule, Rule)
    window = window_of(mode, rank, kernel, strides, pads_begin, pads_end, dilations)
    extra = arguments.per_axis("output_padding", output_padding, rank, low=0, absent=0)
    layout = arguments.member("data_format", data_format, DataLayout)
    weights = weight_order(weights_format, arguments.member("operation", operation, Operation))
    axes = axes_of(size, window, mode, reader, extra, dst_shape, layout)
    return Layer(axes, arguments.integer("groups", groups, low=1), layout, weights)


_SPELLINGS = "The library refuses other spellings."
Window = tuple[tuple[int, ...], ...]
"""Kernel, strides, dilations, pads at the start and pads at the end, each per axis."""


def window_of(
    mode: AutoPad, rank: int, kernel: object, strides: object, pads_begin: object,
    pads_end: object, dilations: object,
) -> Window:  # fmt: skip
    """Return an operation's window; raise errors as `from_onednn_graph` does."""
    begins = arguments.per_axis("pads_begin", pads_begin, rank, low=0, absent=0)
    ends = arguments.per_axis("pads_end", pads_end, rank, low=0, absent=0)
    explicit = mode is AutoPad.NONE
    return (
        arguments.per_axis("kernel", kernel, rank, low=1),
        arguments.per_axis("strides", strides, rank, low=1),
        arguments.per_axis("dilations", dilations, rank, low=1, absent=1),
        begins if explicit else (0,) * rank,
        ends if explicit else (0,) * rank,
    )


def convolved_size(size: tuple[int, ...], window: Window, mode: AutoPad) -> tuple[int, ...]:
    """Return the spatial size of a convolution's result with this window.

    It is the input size of the transposed convolution whose dst_shape is `size`. In SAME modes it
    is ceil(size / stride) by both rules. Raises errors as `from_onednn_graph` does.
    """
    if mode.same:
        return tuple(map(strided, size, window[1]))
    return tuple(axis.size for axis in arguments.axes(convolved, size, *window))


def axes_of(
    size: tuple[int, ...], window: Window, mode: AutoPad, rule: Rule, extra: tuple[int, ...],
    dst_shape: object, layout: DataLayout,
) -> tuple[Axis, ...]:  # fmt: skip
    """Return an operation's axes; `extra` is the output padding."""
    rank = len(size)
    outs = (None,) * rank if dst_shape is None else _spatial(dst_shape, rank, layout)
    axes = arguments.axes(partial(_axis, mode, rule), size, *window, extra, outs)
    if dst_shape is None or (mode.same and rule is Rule.DOCUMENT):  # else `extra` is ignored
        LIMITS.check_output_padding(axes, extra)
    return axes


def to_onednn_graph(layer: Layer) -> dict[str, Any]:
    """Return the attributes of ConvTranspose, and `kernel`; raises `TranslationError`.

    `from_onednn_graph(size, **to_onednn_graph(layer))` has the same axes. The weight keeps its
    order if the operation has a name for it; else it is IOX, the order of PyTorch.

    >>> layer = from_onednn_graph((5,), (3,), strides=(2,), auto_pad="SAME_UPPER")
    >>> to_onednn_graph(layer)["pads_end"]
    (1,)
    """
    require_layer(layer)
    padding = LIMITS.padding(layer)
    known = layer.weight_layout in WEIGHTS[Operation.CONV_TRANSPOSE].values()
    return {
        "kernel": layer.kernel,
        "strides": layer.strides,
        "pads_begin": padding.begins,
        "pads_end": padding.ends,
        "dilations": layer.dilations,
        "output_padding": padding.extra,
        "groups": layer.groups,
        "data_format": layer.layout.value,
        "weights_format": (layer.weight_layout if known else WeightLayout.IOX).value,
    }


def _axis(
    mode: AutoPad, rule: Rule, size: int, k: int, s: int, d: int, begin: int, end: int, extra: int,
    out: int | None,
) -> Axis:  # fmt: skip
    """Return one axis by the module's tables; `out` is the size in dst_shape, or None."""
    upper = (mode is AutoPad.SAME_UPPER) == (rule is Rule.LIBRARY)
    if out is None:
        if not mode.same:
            return padded(size, k, s, d, begin, end, extra)
        out = min(Axis(size, k, s, d).full, scaled(size, s)) + extra
        return centred(size, k, s, d, out, upper=upper, output_padding=extra)
    if mode.same and rule is Rule.LIBRARY:
        begin, end = same_padding(out, k, s, d, upper=upper)
    elif mode.same:
        shared = centred(size, k, s, d, out, upper=upper, output_padding=extra)
        begin, end = shared.crop_begin, max(shared.crop_end, 0)
    axis = convolved(out, k, s, d, begin, end)
    if axis.size != size:
        raise ShapeError(
            "dst_shape",
            f"{out}, which a convolution with these pads maps to {axis.size} positions",
            f"a size that it maps to the input's {size}",
            "See the formulas in the docstring of upconv.dialects.onednn_graph.",
        )
    return axis


def _spatial(dst_shape: object, rank: int, layout: DataLayout) -> tuple[int, ...]:
    expected = f"{rank + 2} sizes, N and C included, in the order {layout.value}"
    sizes = arguments.integers("dst_shape", dst_shape, 0, (rank + 2,), expected)
    return tuple(sizes[axis] for axis in layout.to_ncx(rank)[2:])


def weight_order(weights_format: object, operation: Operation) -> WeightLayout:
    """Return the order that weights_format names; None means the operation's default."""
    names = WEIGHTS[operation]
    default, *_ = names
    word = default if weights_format is None else arguments.text("weights_format", weights_format)
    if word not in names:
        raise ArgumentError(
            "weights_format",
            brief(word),
            f"one of {', '.join(names)} for {operation.value}",
            "The two operations name the same orders differently: see operation=.",
        )
    return names[word]
