"""A model before layers are looked for in it: simplified, shapes written down, neighbours folded.

ONNX Runtime's own basic optimisations come first: they fold what is constant (shapes too, where the
inputs' are), and BatchNormalization into Conv.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ...dialects.onnx import Rule
from ...errors import ModelError
from ..constants import constant_value
from ..models import load, save, to_proto
from ..passes import PASSES
from ..passes.base import is_op, run
from ..shapes import inferred

_FOLDS = ("fold_batch_norm", "fold_slice", "fold_pad")


@contextmanager
def stored(model: ir.Model) -> Iterator[bytes | str]:
    """A model as ONNX Runtime takes it: bytes, or a file while the block lasts."""
    try:
        data = to_proto(model).SerializeToString()
    except ModelError:  # beyond protobuf's 2 GiB
        with TemporaryDirectory(prefix="upconv-", ignore_cleanup_errors=True) as folder:
            yield str(save(model, Path(folder) / "model.onnx")[0])
    else:
        yield data


def options(threads: int) -> Any:
    """ONNX Runtime's options for one session on so many threads, which logs nothing."""
    import onnxruntime

    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads, made.inter_op_num_threads = threads, 1
    made.log_severity_level = 4
    return made


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
        slope = _only_slope(node)
        if slope is not None:
            node.op_type = "LeakyRelu"
            node.resize_inputs(1)
            node.attributes["alpha"] = ir.AttrFloat32("alpha", slope)
            changed = True
    RemoveUnusedNodesPass()(copy)
    return copy, changed


def _simplified(model: ir.Model) -> ir.Model:
    import onnxruntime

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


def _only_slope(node: ir.Node) -> float | None:
    """The slope of a float32 PRelu that has only one."""
    if not is_op(node, "PRelu"):
        return None
    slope = constant_value(node.inputs[1]).array
    if slope is None or slope.size != 1 or slope.dtype != np.float32:
        return None
    return float(slope.reshape(()))
