"""Models as ONNX, written by `onnx_rules` and proven by ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import EngineMissing
from ..files import published, reported, require_free
from ..installation import install_command
from .base import MXNetError, raised_by
from .model import Model
from .onnx_rules import Writer
from .operators import Array, Shape


def to_onnx(
    model: Model, shapes: Mapping[str, Shape], path: str | os.PathLike[str] | None = None, *,
    opset: int = 17, verify: bool = True, force: bool = False,
) -> Any:  # fmt: skip
    """The model as an `onnx.ModelProto`, which is written to `path` if that is given.

    shapes: those of all inputs. opset: 17 or newer. verify: run it in ONNX Runtime on random
        inputs; an output may differ from `Model.run` by 1e-5 of its largest magnitude, of float16
        by 8 times its precision. force: overwrite what exists.

    Raises `MXNetError` for an operator without a rule, naming its node, and for outputs that
    differ; `EngineMissing` without the extra `onnx`; `FileError`.

    >>> import upconv.mxnet as mx
    >>> model = Model(mx.sym.Activation(mx.sym.var("x"), act_type="relu"), {})
    >>> [node.op_type for node in to_onnx(model, {"x": (1, 3)}).graph.node]
    ['Relu']
    """
    try:
        import onnx
        import onnx_ir  # noqa: F401

        runtime = import_module("onnxruntime") if verify else None
    except ImportError:
        needed = f"onnx and, to verify, onnxruntime: {install_command('onnx')}"
        raise EngineMissing(f"to_onnx needs {needed}") from None
    newest = onnx.defs.onnx_opset_version()
    if not 17 <= opset <= newest:
        raise MXNetError(f"opset is {opset}; expected 17 to {newest}.")
    target = None if path is None else Path(path).resolve()
    if target is not None:
        with reported(str(path)):
            require_free(str(path), target, force=force, inputs=())
    draw = np.random.default_rng(0).uniform
    with raised_by("shapes"):
        drawn = {name: draw(-1, 1, shape).astype(model.dtype) for name, shape in shapes.items()}
    inputs = {name: drawn[name] for name in model.inputs if name in drawn}
    writer = Writer(inputs, model.arrays, opset)
    expected = dict(zip(model.outputs, model.computed(drawn, writer.write), strict=True))
    if {*expected} & {*inputs, *model.arrays}:
        raise MXNetError(f"One of the outputs {model.outputs} is a variable, not computed.")
    proto = writer.proto(model.graph.entries, expected)
    try:
        onnx.checker.check_model(proto, full_check=True)
        data = proto.SerializeToString()
        if runtime is not None:
            session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
            for (name, y), z in zip(
                expected.items(), session.run([*expected], inputs), strict=True
            ):
                _require_equal(name, y, z)
    except MXNetError:
        raise
    except Exception as error:  # those of ONNX and of ONNX Runtime have no base in common
        raise MXNetError(f"The result is refused: {' '.join(str(error).split())[:300]}") from error
    if target is not None:
        with reported(str(path)), published(target, force=force) as file:
            file.write(data)
    return proto


def _require_equal(name: str, y: Array, z: Array) -> None:
    with np.errstate(all="ignore"):
        same = (y == z) | (np.isnan(y) & np.isnan(z))
        apart = np.where(same, 0, np.abs(np.subtract(z, y, dtype=np.float64))).max(initial=0)
    part = max(1e-5, 8 * float(np.finfo(y.dtype).eps)) if y.dtype.kind == "f" else 0
    allowed = part * np.abs(y[np.isfinite(y)]).max(initial=0)
    if not apart <= allowed:
        raise MXNetError(
            f"{name} differs by {apart:.2g} in ONNX Runtime; {allowed:.2g} is allowed."
        )
