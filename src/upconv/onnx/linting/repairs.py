"""Repairs that keep what the model computes, up to rounding: what `upconv lint --fix` does."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ..passes import PASSES
from ..passes.base import run
from .context import Context, output_shape

Repair = Callable[[ir.Model, Context], bool]
"""Repairs a node of a model in place; says whether it did."""


def by_pass(*names: str) -> Repair:
    """A repair by the first of these passes that fires; `normalise` keeps the runtime's reading."""

    def repair(model: ir.Model, context: Context) -> bool:
        reading = "" if context.runtime is None else f":{context.runtime.value}"
        passes = [PASSES[n + reading if n == "normalise" else n] for n in names]
        steps = run(model, passes, only=lambda node: node is context.node)
        return any(step.fired for step in steps)

    return repair


def drop_bias(model: ir.Model, context: Context) -> bool:
    """Remove a third input that is an empty name."""
    context.node.resize_inputs(2)
    return True


def correct_shape(model: ir.Model, context: Context) -> bool:
    """Declare the output's true shape, where all readings of the node agree on it."""
    true = {output_shape(conv) for conv in context.readings().values()}
    if len(true) != 1:
        return False
    context.node.outputs[0].shape = ir.Shape(list(true.pop()))
    return True
