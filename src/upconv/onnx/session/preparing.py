"""A model before layers are looked for in it: simplified, shapes written down, neighbours folded.

ONNX Runtime's own basic optimisations come first: they fold what is constant (shapes too, where the
inputs' are), and BatchNormalization into Conv.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ...dialects.onnx import Rule
from ..constants import constant_value
from ..graphs import is_op
from ..models import load, stored
from ..passes import PASSES
from ..passes.base import run
from ..shapes import inferred

_FOLDS = ("fold_batch_norm", "fold_slice", "fold_pad")


def prepared(model: ir.Model) -> tuple[ir.Model, bool]:
    """A copy with what stands around ConvTranspose folded into it, and whether anything was.

    A PRelu of one slope becomes the LeakyRelu that it is, which ONNX Runtime computes on all
    threads and together with a Conv.
    """
    copy = _simplified(model)
    _write_shapes(copy)
    steps = run(copy, [PASSES[name] for name in _FOLDS], rule=Rule.ONNXRUNTIME)
    changed = any(step.fired for step in steps)
    for node in list(copy.graph):
        slope = constant_value(node.inputs[1]).array if is_op(node, "PRelu") else None
        if slope is not None and slope.size == 1 and slope.dtype == np.float32:
            node.op_type = "LeakyRelu"
            node.resize_inputs(1)
            node.attributes["alpha"] = ir.AttrFloat32("alpha", float(slope.item()))
            changed = True
    RemoveUnusedNodesPass()(copy)
    return copy, changed


def _simplified(model: ir.Model) -> ir.Model:
    import onnxruntime

    from ..runtimes.onnxruntime import options

    settings = options(1)
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with TemporaryDirectory(prefix="upconv-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "simplified.onnx"
        settings.optimized_model_filepath = str(path)
        try:
            with stored(model) as file:
                onnxruntime.InferenceSession(file, settings)
            return load(path).clone()
        except Exception:  # it refuses the model, or cannot write it: as it was given, then
            return model.clone()


def _write_shapes(model: ir.Model) -> None:
    """Have values tell the shapes that follow from those of the inputs, where they do not yet."""
    table = inferred(model)
    for node in model.graph:
        for y in node.outputs:
            told = table.get(str(y.name))
            if told is not None and told.shape is not None and told.type is not None:
                y.shape, y.type = y.shape or ir.Shape(told.shape), y.type or told.type
