"""Conversion of models to ONNX with the rules in `onnx_rules`, verified in ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..argument_checks import boolean
from ..errors import DTypeError, EngineMissing, brief
from ..files import path_text, published, reported, require_free
from ..installation import install_command
from .base import MXNetError, raised_by
from .model import Model
from .onnx_rules import Writer
from .operators import Array

_SYMBOL_SIZES = ((2, 3), (64, 96))
"""Two sizes for a symbol on the first axis, and on others; multiples of 32 fit most models."""


def to_onnx(
    model: Model, shapes: Mapping[str, Sequence[int | str]],
    path: str | os.PathLike[str] | None = None, *, opset: int = 17, verify: bool = True,
    force: bool = False,
) -> Any:  # fmt: skip
    """Return the model as an `onnx.ModelProto`, and write it to `path` unless that is None.

    shapes: the shapes of all inputs. A name in place of a number, as in ("N", 3, "H", "W"), is an
        open size. The model is then converted at two sizes, which must give the same nodes.
    opset: 17 or newer. force: overwrite the file if it exists.
    verify: run it in ONNX Runtime on random inputs. An output may differ from `Model.run` by 1e-5
        of its largest magnitude; a float16 output, by 8 times its precision.

    Raises `MXNetError` for an operator without a rule, naming its node, for nodes that depend on an
    open size, and for outputs that differ; `EngineMissing` without the extra `onnx`; `FileError`.

    >>> import upconv.mxnet as mx
    >>> model = Model(mx.sym.Activation(mx.sym.var("x"), act_type="relu"), {})
    >>> [node.op_type for node in to_onnx(model, {"x": ("N", 3)}).graph.node]
    ['Relu']
    """
    try:
        import onnx
        import onnx_ir  # noqa: F401

        runtime = import_module("onnxruntime") if boolean("verify", verify) else None
    except ImportError:
        packages = f"onnx and, to verify, onnxruntime: {install_command('onnx')}"
        raise EngineMissing(f"to_onnx needs {packages}") from None
    newest = onnx.defs.onnx_opset_version()
    if not isinstance(model, Model):
        raise DTypeError("model", brief(model), "a Model, as upconv.mxnet.load returns it")
    if not (isinstance(opset, int) and 17 <= opset <= newest):
        raise MXNetError(f"opset is {brief(opset)}; expected 17 to {newest}.")
    target = None if path is None else Path(path_text("path", path)).resolve()
    if target is not None:
        with reported(str(path)):
            require_free(str(path), target, force=force, inputs=())
    if not isinstance(shapes, Mapping):
        names = ", ".join(model.inputs)
        raise MXNetError(f"shapes is {brief(shapes)}; expected a dict of shapes by name: {names}.")
    symbols = _symbols(shapes)
    sizes = [{name: pair[i] for name, pair in symbols.items()} for i in range(2 if symbols else 1)]
    written = [_written(model, shapes, size, opset) for size in sizes]
    proto = written[0].proto
    if symbols:
        _open_sizes(proto, written[1].proto, shapes, symbols)
    try:
        onnx.checker.check_model(proto, full_check=True)
        data = proto.SerializeToString()
        if runtime is not None:
            session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
            for conversion in written:
                results = session.run([*conversion.outputs], conversion.inputs)
                for (name, y), z in zip(conversion.outputs.items(), results, strict=True):
                    _require_equal(name, y, z)
    except MXNetError:
        raise
    except Exception as error:  # ONNX and ONNX Runtime have no common base class
        raise MXNetError(f"ONNX refuses the model: {' '.join(str(error).split())[:300]}") from error
    if target is not None:
        with reported(str(path)), published(target, force=force) as file:
            file.write(data)
    return proto


class _Written(NamedTuple):
    """A model converted at known sizes, and one computation's inputs and outputs."""

    proto: Any
    inputs: dict[str, Array]
    outputs: dict[str, Array]


def _written(
    model: Model, shapes: Mapping[str, Sequence[int | str]], size: Mapping[str, int], opset: int
) -> _Written:
    draw = np.random.default_rng(0).uniform
    known = {k: [size.get(d, d) for d in shape] for k, shape in shapes.items()}  # type: ignore[arg-type]
    with raised_by("shapes"):
        drawn = {name: draw(-1, 1, shape).astype(model.dtype) for name, shape in known.items()}
    inputs = {name: drawn[name] for name in model.inputs if name in drawn}
    writer = Writer(inputs, model.arrays, opset)
    outputs = dict(zip(model.outputs, model.computed(drawn, writer.write), strict=True))
    if {*outputs} & {*inputs, *model.arrays}:
        raise MXNetError(f"One of the outputs {model.outputs} is a variable, not computed.")
    return _Written(writer.proto(model.graph.entries, outputs), inputs, outputs)


def _symbols(shapes: Mapping[str, Sequence[int | str]]) -> dict[str, tuple[int, int]]:
    """Return two sizes for each name that replaces a number."""
    symbols: dict[str, tuple[int, int]] = {}
    for name, shape in shapes.items():
        if not isinstance(shape, Iterable) or isinstance(shape, str):
            raise MXNetError(
                f"The shape of {name} is {brief(shape)}; expected a size for each axis."
            )
        for axis, size in enumerate(shape):
            if isinstance(size, str):
                symbols.setdefault(size, _SYMBOL_SIZES[min(axis, 1)])
    return symbols


def _open_sizes(
    proto: Any, other: Any, shapes: Mapping[str, Any], symbols: Mapping[str, tuple[int, int]]
) -> None:
    """Leave the symbols open in `proto`, which must have the same nodes as `other`."""
    for kind in ("node", "initializer"):
        for mine, its in zip(getattr(proto.graph, kind), getattr(other.graph, kind), strict=True):
            if mine != its:
                readers = (n.name for n in proto.graph.node if mine.name in (n.name, *n.input))
                raise MXNetError(
                    f"{next(readers, mine.name)} depends on {', '.join(symbols)}: in ONNX it holds"
                    " a number that depends on the sizes. Pass numbers."
                )
    for value in proto.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
            if isinstance(size, str):
                dim.dim_param = size
    symbol_of = {pair: symbol for symbol, pair in symbols.items()}
    for mine, its in zip(proto.graph.output, other.graph.output, strict=True):
        axes = (value.type.tensor_type.shape.dim for value in (mine, its))
        for axis, (dim, larger) in enumerate(zip(*axes, strict=True)):
            if dim.dim_value != larger.dim_value:
                pair = dim.dim_value, larger.dim_value
                dim.dim_param = symbol_of.get(pair, f"{mine.name}_{axis}")


def _require_equal(name: str, y: Array, z: Array) -> None:
    with np.errstate(all="ignore"):
        same = (y == z) | (np.isnan(y) & np.isnan(z))
        difference = np.where(same, 0, np.abs(np.subtract(z, y, dtype=np.float64))).max(initial=0)
    part = max(1e-5, 8 * float(np.finfo(y.dtype).eps)) if y.dtype.kind == "f" else 0
    allowed = part * np.abs(y[np.isfinite(y)]).max(initial=0)
    if not difference <= allowed:
        raise MXNetError(
            f"{name} differs by {difference:.2g} in ONNX Runtime; {allowed:.2g} is allowed."
        )
