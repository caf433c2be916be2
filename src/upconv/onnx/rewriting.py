"""`rewrite`: passes or a profile over a whole model, and what became of every node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ..dialects import values
from ..dialects.onnx import Rule
from ..errors import ArgumentError, brief
from .models import Source, from_model, to_proto
from .passes import PASSES, Pass, Step
from .passes.base import run
from .passes.profiles import apply_profile

DEFAULT_PASSES = ("replace_deconv", "sub_pixel")
"""What `rewrite` applies where nothing is asked for: convolutions in the place of every node."""


@dataclass(frozen=True, slots=True, eq=False)
class Rewritten:
    """A rewritten copy of a model, and one `Step` per pass and node: fired, or why not.

    left: the nodes that still break the profile, each with the reason, if one was asked for.
    """

    model: ir.Model
    steps: tuple[Step, ...]
    left: tuple[str, ...] = ()

    @property
    def fired(self) -> tuple[Step, ...]:
        """The steps that changed something."""
        return tuple(step for step in self.steps if step.fired)

    def proto(self) -> onnx.ModelProto:
        """The model as onnx's own message."""
        return to_proto(self.model)


def rewrite(
    model: Source,
    passes: Sequence[str | Pass] | None = None,
    *,
    profile: str | None = None,
    rule: object = None,
    only: Callable[[ir.Node], bool] | None = None,
) -> Rewritten:
    """A copy of `model` whose ConvTranspose nodes have been through passes, in order.

    model: a path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`; it is not
        changed.
    passes: names out of `upconv.onnx.PASSES`, or passes of your own; None: replace_deconv and
        sub_pixel.
    profile: in place of passes, the name of a runtime ("tflite", "coreml", "tensorrt", "webnn") or
        other limits (see `docs/onnx.md`), several parted by commas: rewrites what is beyond them.
    rule: "spec", "onnxruntime" or "openvino": by whose reading of auto_pad and output_shape. None
        takes ONNX's text and leaves nodes alone that a runtime reads otherwise.
    only: chooses among the nodes; not with a profile.

    Values stay the same up to rounding; nothing is measured here (see `optimize`).

    Raises `ModelError` and `FileError` for what cannot be read, `ArgumentError` for a name that is
    no pass or profile, or for both at once.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 1, L] x) => (float[N, 1, M] y)'
    >>> text += "<float[1, 1, 2] w = {1, 1}> { y = ConvTranspose<strides = [2]>(x, w) }"
    >>> rewritten = rewrite(onnx.parser.parse_model(text))
    >>> [node.op_type for node in rewritten.model.graph]
    ['Conv', 'Reshape', 'Transpose', 'Reshape']
    >>> [(step.by, step.refusal) for step in rewritten.steps]
    [('replace_deconv', 'its strides are [2], not all 1: see sub_pixel'), ('sub_pixel', None)]
    """
    reader = None if rule is None else values.member("rule", rule, Rule)
    if profile is not None:
        if passes is not None or only is not None:
            raise ArgumentError("profile", brief(profile), "given without passes and only")
        copy = from_model(model)
        return Rewritten(copy, *apply_profile(copy, profile, reader))
    wanted = DEFAULT_PASSES if passes is None else passes
    chosen = [named(one) if isinstance(one, str) else one for one in wanted]
    copy = from_model(model)
    return Rewritten(copy, tuple(run(copy, chosen, rule=reader, only=only)))


def named(name: str) -> Pass:
    """The pass called `name`; `ArgumentError` if there is none.

    >>> named("sub_pixel:folded").name
    'sub_pixel:folded'
    """
    if name not in PASSES:
        known = ", ".join(PASSES)
        raise ArgumentError("passes", brief(name), f"one of {known}")
    return PASSES[name]
