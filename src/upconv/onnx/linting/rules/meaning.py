"""Rules about what a node says: not ONNX, not the same to all readers, or not what follows from it.

Facts: ONNX's text as in `upconv.dialects.onnx`; what runtimes do was found by running ONNX Runtime
1.31.1 and OpenVINO 2026.4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx
import onnx_ir as ir

from ....dialects.onnx import AutoPad, Rule
from ...constants import DEFAULT_DOMAINS
from ...inference import infer_shapes
from ...nodes import ConvTransposeNode
from ..places import Place, Shape, shape_of
from ..wording import along, listed, quoted
from .attributes import integer, integers, text
from .base import Observation

READERS = {Rule.SPEC: "ONNX's text", Rule.ONNXRUNTIME: "ONNX Runtime", Rule.OPENVINO: "OpenVINO"}
"""Whose reading it is, in words."""

_TRAINING_MODE = 14  # the opset that gave BatchNormalization the attribute
_EXAMPLE = 8  # a size to ask shape inference about where a model leaves it open


def runtimes_disagree(place: Place) -> Iterator[Observation]:
    """auto_pad or output_shape is read differently."""
    if not _sized_by_others(place):
        return
    readings = place.readings()
    ways: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for rule, site in readings.items():
        ways.setdefault(site.layer.crops, []).append(READERS[rule])
    if len(ways) < 2:
        return
    said = "; ".join(f"{listed(who)} {_crops(crops)}" for crops, who in ways.items())
    word = "output_shape" if "output_shape" in place.node.attributes else "auto_pad"
    yield Observation(
        f"Its {word} is read in {len(ways)} ways; cut off (begin, end) each axis: {said}.",
        {
            "attribute": word,
            "opset": place.opset,
            "readings": {
                rule.value: {"crops": [list(c) for c in site.layer.crops], "sizes": _outs(site)}
                for rule, site in readings.items()
            },
        },
    )


def same_of_open_size(place: Place) -> Iterator[Observation]:
    """OpenVINO forgets auto_pad where it does not know the input's size."""
    site = place.site
    if site is None or site.has_output_shape or not place.aims(Rule.OPENVINO):
        return
    open_axes = [i for i, size in enumerate(site.sizes) if size is None]
    if site.auto_pad.same and open_axes and any(any(crop) for crop in site.layer.crops):
        yield Observation(
            f"Its input's size is open {along(open_axes)}; there OpenVINO ignores auto_pad and cuts"
            f" nothing off, where {_crops(site.layer.crops)} is meant.",
            {"axes": open_axes, "auto_pad": site.auto_pad.value, "crops": _pairs(site)},
        )


def pads_with_auto_pad(place: Place) -> Iterator[Observation]:
    """Both are stated."""
    mode, pads = text(place.node, "auto_pad"), integers(place.node, "pads")
    if pads is not None and mode not in (None, AutoPad.NOTSET.value):
        yield Observation(
            f"It states pads {list(pads)} and auto_pad {quoted(mode)} together, which ONNX forbids:"
            " ONNX Runtime does not load it, OpenVINO goes by auto_pad.",
            {"pads": list(pads), "auto_pad": mode},
        )


def kernel_shape(place: Place) -> Iterator[Observation]:
    """kernel_shape and weight do not agree."""
    stated = integers(place.node, "kernel_shape")
    shape = shape_of(place.node.inputs[1]) if len(place.node.inputs) > 1 else None
    if stated is None or shape is None:
        return
    true = shape[2:]
    if len(stated) != len(true) or any(
        k is not None and k != said for said, k in zip(stated, true, strict=True)
    ):
        yield Observation(
            f"Its kernel_shape is {list(stated)} and its weight's kernel {_sizes(true)}: ONNX"
            " Runtime refuses it, OpenVINO goes by the weight.",
            {"kernel_shape": list(stated), "weight": list(shape)},
        )


def declared_shape(place: Place) -> Iterator[Observation]:
    """The model states a shape for the output that it does not have."""
    site, declared = place.site, place.declared
    if site is None or declared is None:
        return
    readings = place.readings().values() if _sized_by_others(place) else [site]
    true = [_shape(one) for one in readings]
    if any(_agree(declared, shape) for shape in true):
        return
    yield Observation(
        f"The model states the shape {_sizes(declared)} for its output; it is {_sizes(true[0])}.",
        {"declared": list(declared), "true": list(true[0])},
    )


def inferred_shape(place: Place) -> Iterator[Observation]:
    """ONNX's own shape inference is mistaken about it."""
    site = place.site
    if site is None or not _sized_by_others(place) or len(place.readings()) < 1:
        return
    sizes = tuple(_EXAMPLE if size is None else size for size in site.sizes)
    inferred = _inferred(place, site, sizes)
    true = [
        tuple(replace(a, size=n).out for a, n in zip(one.axes, sizes, strict=True))
        for one in place.readings().values()
    ]
    if inferred is None or any(_agree(inferred, outs) for outs in true):
        return
    yield Observation(
        f"ONNX's shape inference gives the spatial sizes {_sizes(inferred)} for an input of"
        f" {_sizes(sizes)}; they are {_sizes(true[0])}. What trusts it is wrong.",
        {"input": list(sizes), "inferred": list(inferred), "true": list(true[0])},
    )


def quantised_axis(place: Place) -> Iterator[Observation]:
    """A weight with scales along another axis than the output channels'."""
    w = place.node.inputs[1] if len(place.node.inputs) > 1 else None
    node = None if w is None else w.producer()
    if node is None or node.op_type != "DequantizeLinear" or node.domain not in DEFAULT_DOMAINS:
        return
    scale = shape_of(node.inputs[1]) if len(node.inputs) > 1 else None
    axis, block = integer(node, "axis", 1), integer(node, "block_size", 0)
    rank = len(shape_of(w) or shape_of(next(iter(node.inputs), None)) or ())
    if scale is None or len(scale) != 1 or block or axis is None:
        return
    axis += rank if axis < 0 else 0
    if axis == 1:
        return
    meant = "input channel" if axis == 0 else f"index of axis {axis}"
    yield Observation(
        f"Its weight is dequantised with one scale per {meant} (axis {axis}); its output channels"
        " are along axis 1.",
        {"axis": axis, "scales": scale[0], "expected_axis": 1},
    )


def training_batch_norm(place: Place) -> Iterator[Observation]:
    """A normalisation after it by the statistics of the batch."""
    for output in place.node.outputs:
        for use in output.uses():
            node = use.node
            if node.op_type != "BatchNormalization" or node.domain not in DEFAULT_DOMAINS:
                continue
            if _trains(node, place.opset):
                yield Observation(
                    f"The BatchNormalization {quoted(node.name)} after it is in training mode: it"
                    " normalises by the batch it is given, and cannot be folded.",
                    {"normalisation": node.name, "opset": place.opset},
                )


def _trains(node: ir.Node, opset: int) -> bool:
    if opset >= _TRAINING_MODE:
        return bool(integer(node, "training_mode", 0))
    return any(value.name for value in node.outputs[1:])


def _sized_by_others(place: Place) -> bool:
    """Whether sizes follow from something else than pads: all readers agree about pads."""
    if "output_shape" in place.node.attributes:
        return True
    return text(place.node, "auto_pad") in ("SAME_UPPER", "SAME_LOWER")


def _inferred(place: Place, site: ConvTransposeNode, sizes: Sequence[int]) -> Shape | None:
    """The spatial sizes that ONNX's inference gives for a node alone, None if it gives none."""
    w = _weight(site)
    if w is None or None in w:
        return None
    node = ir.serde.serialize_node(site.node)
    del node.input[:], node.output[:]
    node.input.extend(["x", "w"])
    node.output.append("y")
    kind = onnx.TensorProto.FLOAT
    inputs = [
        onnx.helper.make_tensor_value_info("x", kind, [1, w[0], *sizes]),
        onnx.helper.make_tensor_value_info("w", kind, w),
    ]
    output = onnx.helper.make_tensor_value_info("y", kind, None)
    graph = onnx.helper.make_graph([node], "one", inputs, [output])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", place.opset)])
    try:
        inferred = infer_shapes(model)
    except Exception:  # foreign code; a node it cannot take is no mistake of its answer
        return None
    dims = inferred.graph.output[0].type.tensor_type.shape.dim
    found = tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)
    return found[2:] or None


def _shape(site: ConvTransposeNode) -> Shape:
    x, w = shape_of(site.x), _weight(site)
    channels = None if w is None or w[1] is None else w[1] * site.groups
    return (None if x is None else x[0], channels, *_outs(site))


def _weight(site: ConvTransposeNode) -> Shape | None:
    """The weight's shape: its value's, else what is declared if it has as many axes as are read."""
    if site.weight.array is not None:
        return site.weight.array.shape
    w = shape_of(site.w)
    return w if w is not None and len(w) == site.rank + 2 else None


def _outs(site: ConvTransposeNode) -> list[int | None]:
    return [None if n is None else a.out for a, n in zip(site.axes, site.sizes, strict=True)]


def _agree(one: Sequence[int | None], other: Sequence[int | None]) -> bool:
    return len(one) == len(other) and all(
        a is None or b is None or a == b for a, b in zip(one, other, strict=True)
    )


def _pairs(site: ConvTransposeNode) -> list[list[int]]:
    return [list(crop) for crop in site.layer.crops]


def _crops(crops: Sequence[tuple[int, int]]) -> str:
    return ", ".join(map(str, crops))


def _sizes(shape: Sequence[int | None]) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in shape)})"
