"""Rows of the table in `network_rules.py`: operators that move channels and positions."""

from __future__ import annotations

from itertools import starmap
from typing import Any

import numpy as np

from ...network.axes import narrowed
from .calls import Call


def concat(call: Call) -> Any:
    """Add a Concat along the channels."""
    xs = [call.x(i) for i in range(len(call.node.inputs))]
    axis = call.attribute("axis", 1)
    call.require(axis in (1, 1 - len(xs[0].shape)), f"It joins along axis {axis}, not 1.")
    return call.network.concat(*xs)


def slice_of(call: Call) -> Any:
    """Add a Slice of channels or positions, with steps of 1."""
    x = call.x()
    starts, ends = call.constant(1).tolist(), call.constant(2).tolist()
    axes, steps = (None if v is None else v.tolist() for v in map(call.optional, (3, 4)))
    slices = [slice(None)] * len(x.shape)
    parts = zip(axes or range(len(starts)), starts, ends, steps or [1] * len(starts), strict=True)
    for axis, *part in parts:
        slices[axis] = slice(*part)
    return narrowed(call.network, x, slices)


def split(call: Call) -> list[Any]:
    """Add a Split of the channels."""
    x, count = call.x(), len(call.node.outputs)
    axis = call.attribute("axis", 0)
    call.require(axis in (1, 1 - len(x.shape)), f"It splits axis {axis}, not 1.")
    sizes = call.optional(1)
    part = -(-x.channels // count)
    bounds = np.arange(1, count + 1) * part if sizes is None else np.cumsum(sizes)
    stops = [min(int(bound), x.channels) for bound in bounds]
    return [
        call.network.slice(x, start, stop) for start, stop in zip([0, *stops], stops, strict=False)
    ]


_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}


def pad(call: Call) -> Any:
    """Add a Pad of positions."""
    x, pads, mode = call.x(), call.constant(1).tolist(), call.attribute("mode", "constant")
    value, axes = call.optional(2), call.optional(3)
    call.require(mode in _MODES, f"A network has no Pad of mode {mode!r}.")
    call.require(mode == "constant" or min(pads) >= 0, "It cuts off, and pads by reflection.")
    rank = len(x.shape)
    numbers = [*range(rank)] if axes is None else [axis % rank for axis in axes.tolist()]
    ends = zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True)
    amounts = dict(zip(numbers, ends, strict=True))
    outer = any(amounts.get(axis, (0, 0)) != (0, 0) for axis in (0, 1))
    call.require(not outer, "It pads the batch or the channels.")
    spatial = tuple(amounts.get(axis, (0, 0)) for axis in range(2, rank))
    number = 0.0 if value is None or not value.size else float(value.item())
    return call.network.pad(x, spatial, _MODES[mode], number)


def _pool(call: Call) -> tuple[Any, dict[str, Any]]:
    automatic = call.attribute("auto_pad", "NOTSET")
    call.require(automatic in ("NOTSET", "VALID"), f"Its padding is automatic, {automatic}.")
    kernel = call.attribute("kernel_shape", ())
    pads = call.attribute("pads", ()) or [0] * 2 * len(kernel)
    ends = tuple(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True))
    stride = tuple(call.attribute("strides", ())) or (1,) * len(kernel)
    dilation = tuple(call.attribute("dilations", ())) or (1,) * len(kernel)
    ceil = bool(call.attribute("ceil_mode", 0))
    # Runtimes disagree about windows that begin in the padding at the end.
    inside = not any(pads) and all(s <= k for s, k in zip(stride, kernel, strict=True))
    call.require(inside or not ceil, "It rounds its size up (ceil_mode), and pads or skips.")
    words = {"kernel": tuple(kernel), "stride": stride, "padding": ends}
    return call.x(), {**words, "dilation": dilation, "ceil_mode": ceil}


def max_pool(call: Call) -> Any:
    """Add a MaxPool."""
    x, words = _pool(call)
    return call.network.max_pool(x, **words)


def average_pool(call: Call) -> Any:
    """Add an AveragePool."""
    x, words = _pool(call)
    count = bool(call.attribute("count_include_pad", 0))
    return call.network.avg_pool(x, **words, count_padding=count)


def global_pool(mode: str, call: Call) -> Any:
    """Add the maximum or average of all positions."""
    return call.network.adaptive_pool(call.x(), 1, mode)


def softmax(call: Call) -> Any:
    """Add a Softmax over the channels."""
    axis, x = call.attribute("axis", -1), call.x()
    call.require(axis in (1, 1 - len(x.shape)), f"It is Softmax along axis {axis}, not 1.")
    return call.network.softmax(x)


def resize(call: Call) -> Any:
    """Add a Resize by integer factors or to a known size, if networks map positions alike."""
    x, mode = call.x(), call.attribute("mode", "nearest")
    where = call.attribute("coordinate_transformation_mode", "half_pixel")
    rounding = call.attribute("nearest_mode", "round_prefer_floor")
    centred = where in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
    aligned, floor = where == "align_corners", where == "asymmetric" and rounding == "floor"
    nearest = mode == "nearest" and (floor or (centred and rounding[:5] == "round"))
    linear = mode == "linear" and (centred or aligned)
    call.require(nearest or linear, f"It is a Resize of {mode}, {where}.")
    call.require(not call.attribute("antialias", 0), "It smooths before it resizes (antialias).")
    call.require(call.has(2) or call.has(3), "It has neither scales nor sizes.")
    call.require("axes" not in call.node.attributes, "It resizes only some axes (axes).")
    policy = call.attribute("keep_aspect_ratio_policy", "stretch")
    call.require(policy == "stretch", f"It keeps the ratio of the sizes ({policy}).")
    scales = _scales(call, x.shape)
    fits = len(scales) == len(x.shape) and list(scales[:2]) == [1, 1] and min(scales) > 0
    if fits and all(float(scale).is_integer() for scale in scales):
        return call.network.upsample(x, [*map(int, scales[2:])], mode, align_corners=aligned)
    extents: Any = x.shape if fits and None not in x.shape else (0,) * len(scales)
    sizes: Any = np.float32(scales) * np.float32(extents)  # ONNX Runtime's arithmetic
    pairs = [(n, int(size)) for n, size in zip(extents, sizes, strict=True)]
    fits = all(extents) and bool(np.allclose(sizes, [n for _, n in pairs], atol=1e-5, rtol=0))
    exact = linear or (floor and all(starmap(_is_nearest_exact, pairs)))
    one = where == "pytorch_half_pixel" and any(after == 1 < before for before, after in pairs)
    factors = [*map(float, scales)]
    call.require(fits and exact and not one, f"No network can resize by its factors, {factors}.")
    return call.network.resize(x, [after for _, after in pairs[2:]], mode, align_corners=aligned)


def _scales(call: Call, shape: tuple[int | None, ...]) -> Any:
    """Return a Resize's factors, from its scales or its sizes."""
    scales = call.optional(2)
    if scales is not None and scales.size:
        return scales
    sizes = call.constant(3).tolist()
    call.require(len(sizes) == len(shape) and None not in shape, "Its factors vary.")
    return np.array([after / (before or 1) for after, before in zip(sizes, shape, strict=True)])


def _is_nearest_exact(before: int, after: int) -> bool:
    """Return whether ONNX Runtime's float32 positions, rounded down, equal the exact ones."""
    out = np.arange(after)
    scaled = np.floor(out.astype(np.float32) / np.float32(after / before))
    return bool(np.array_equal(np.minimum(scaled, before - 1), out * before // after))


def depth_to_space(call: Call) -> Any:
    """Add a DepthToSpace in either order."""
    order = call.attribute("mode", "DCR")
    return call.network.pixel_shuffle(call.x(), call.attribute("blocksize", 1), order)
