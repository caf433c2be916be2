"""`rewrite`: apply passes or a profile to a whole model, and report the outcome for every node.

A profile is a list of limits. A limit has a test for nodes that break it, and names the pass that
rewrites such nodes. `docs/onnx-rewrite.md` gives the source of every limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from ..dialects import arguments
from ..dialects.onnx import AutoPad, Rule
from ..errors import ArgumentError, brief
from .models import Source, from_model, to_proto
from .nodes import ConvTransposeNode, Unreadable, conv_transpose_nodes
from .passes import PASSES, Pass, Step
from .passes.base import Refusal, run
from .passes.quantised import bias, weight


@dataclass(frozen=True, slots=True, eq=False)
class Rewritten:
    """A rewritten copy of a model, and for each pass and node a `Step`: it fired, or why not.

    left: the nodes that still break the requested profile, each with the reason.
    """

    model: ir.Model
    steps: tuple[Step, ...]
    left: tuple[str, ...] = ()

    @property
    def fired(self) -> tuple[Step, ...]:
        """The steps that changed something."""
        return tuple(step for step in self.steps if step.fired)

    def proto(self) -> onnx.ModelProto:
        """Return the model as an `onnx.ModelProto`."""
        return to_proto(self.model)


def rewrite(
    model: Source,
    passes: str | Sequence[str | Pass] | None = None,
    *,
    profile: str | None = None,
    rule: object = None,
    only: Callable[[ir.Node], bool] | None = None,
) -> Rewritten:
    """Return a copy of `model` with passes applied to its ConvTranspose nodes, in order.

    model: a path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`; it is not
        changed.
    passes: a name from `upconv.onnx.PASSES`, or a list of such names and of your own passes; None
        means replace_deconv and sub_pixel.
    profile: instead of passes, the name of a runtime ("tflite", "coreml", "tensorrt", "webnn"):
        rewrites nodes beyond its limits (see `docs/onnx-rewrite.md`).
    rule: how to read auto_pad and output_shape: as "spec", "onnxruntime" or "openvino". None
        follows the ONNX specification, but does not rewrite nodes that a runtime reads differently.
    only: a function that selects nodes; not allowed with a profile.

    Values stay the same up to rounding; nothing is measured here (see `optimize`).

    Raises `ModelError` and `FileError` for a model that cannot be read, and `ArgumentError` for an
    unknown pass or profile, or if both are given.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[1, 1, L] x) => (float[1, 1, M] y)'
    >>> text += "<float[1, 1, 2] w = {1, 1}> { y = ConvTranspose<strides = [2]>(x, w) }"
    >>> rewritten = rewrite(onnx.parser.parse_model(text))
    >>> [node.op_type for node in rewritten.model.graph]
    ['Conv', 'Reshape', 'Transpose', 'Reshape']
    >>> [(step.by, step.refusal) for step in rewritten.steps]
    [('replace_deconv', 'its strides are [2], not all 1: see sub_pixel'), ('sub_pixel', None)]
    """
    reader = None if rule is None else arguments.member("rule", rule, Rule)
    if profile is not None:
        if passes is not None or only is not None:
            raise ArgumentError("profile", brief(profile), "no passes and no `only` with it")
        copy = from_model(model)
        return Rewritten(copy, *_apply_profile(copy, profile, reader))
    wanted: Any = ("replace_deconv", "sub_pixel") if passes is None else passes
    wanted = wanted if isinstance(wanted, list | tuple | set | frozenset) else [wanted]
    for one in wanted:
        if not (one in PASSES if isinstance(one, str) else isinstance(one, Pass)):
            raise ArgumentError("passes", brief(one), f"one of {', '.join(PASSES)}")
    chosen = [PASSES[one] if isinstance(one, str) else one for one in wanted]
    copy = from_model(model)
    return Rewritten(copy, tuple(run(copy, chosen, rule=reader, only=only)))


@dataclass(frozen=True, slots=True)
class Limit:
    """A runtime's limit: a test for nodes that break it, its description, and a pass that helps."""

    broken_by: Callable[[ConvTransposeNode], bool]
    words: str
    by: str = ""


def _neither_valid_nor_same(conv: ConvTransposeNode) -> bool:
    """Return whether pads are neither VALID (none) nor SAME (s results per input, odd pad last)."""
    same = [
        ((a.kernel - a.stride) // 2, (a.kernel - a.stride + 1) // 2) if a.kernel >= a.stride else ()
        for a in conv.axes
    ]
    stated = [int(entry) for entry in conv.node.attributes.get_ints("pads", ())]
    pads = list(zip(stated[: conv.rank], stated[conv.rank :], strict=True))
    return any(map(any, pads)) and pads != same


def _is_computed(conv: ConvTransposeNode) -> bool:
    try:
        weight(conv), bias(conv)
    except Refusal:
        return True
    return False


LIMITS: dict[str, Limit] = {
    "no auto_pad": Limit(
        lambda conv: conv.auto_pad is not AutoPad.NOTSET or conv.has_output_shape,
        "it has auto_pad or output_shape",
        "normalise",
    ),
    "2-D at least": Limit(lambda conv: conv.rank == 1, "it has one spatial axis", "to_rank"),
    "2-D at most": Limit(lambda conv: conv.rank > 2, "it has more than two spatial axes"),
    "3-D at most": Limit(lambda conv: conv.rank > 3, "it has more than three spatial axes"),
    "no groups": Limit(lambda conv: conv.groups > 1, "it has groups", "split_groups"),
    "no dilation": Limit(
        lambda conv: any(a.dilation > 1 and a.kernel > 1 for a in conv.axes),
        "it has dilation",
        "no_dilation",
    ),
    "no output padding": Limit(
        lambda conv: any(conv.node.attributes.get_ints("output_padding", ())),
        "it has output padding",
        "no_output_padding",
    ),
    "VALID or SAME": Limit(
        _neither_valid_nor_same, "its pads are neither zero nor those of SAME", "no_pads"
    ),
    "constant": Limit(_is_computed, "its weight or bias is computed"),
}
"""Name -> the limit, in the order in which the passes run."""

PROFILES: dict[str, tuple[str, ...]] = {
    "tflite": (
        *("no auto_pad", "2-D at least", "2-D at most", "no groups", "no dilation"),
        *("no output padding", "VALID or SAME"),
    ),
    "coreml": ("no auto_pad", "2-D at most", "no output padding", "constant"),
    "tensorrt": ("no auto_pad", "2-D at least", "3-D at most", "no output padding", "constant"),
    "webnn": (
        *("no auto_pad", "2-D at least", "2-D at most", "no groups", "no dilation", "constant"),
    ),
}


def _apply_profile(
    model: ir.Model, profile: str, rule: Rule | None
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Rewrite `model` in place; return the steps, and why some nodes still break a limit."""
    if not isinstance(profile, str) or profile not in PROFILES:
        raise ArgumentError("profile", brief(profile), f"one of {', '.join(PROFILES)}")
    limits = [LIMITS[name] for name in PROFILES[profile]]
    steps: list[Step] = []
    for limit in limits:
        breaking = {
            conv.node
            for conv in conv_transpose_nodes(model, rule)
            if isinstance(conv, Unreadable) or limit.broken_by(conv)
        }
        if limit.by:
            steps += run(model, [PASSES[limit.by]], rule=rule, only=breaking.__contains__)
    left: list[str] = []
    for conv in conv_transpose_nodes(model, rule):
        if isinstance(conv, Unreadable):
            left.append(f"{conv.node.name}: {conv.reason}")
            continue
        for limit in (limit for limit in limits if limit.broken_by(conv)):
            refusals = [s.refusal for s in steps if (s.node, s.by) == (conv.name, limit.by)]
            left.append(": ".join((conv.name, limit.words, *filter(None, refusals))))
    return tuple(steps), tuple(left)
