"""`upconv mxnet`: models saved by MXNet, looked at, run, and written as ONNX, without MXNet."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .. import memory
from . import npy, options, report
from .endings import say
from .options import Force, OutputFormat

_Graph = Annotated[Path, typer.Argument(metavar="SYMBOL", help="The graph: -symbol.json.")]
_Params = Annotated[Path | None, typer.Argument(metavar="PARAMS", help="Parameters: .params.")]
_Inputs = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE", help="Inputs by name, .npz; a single one also .npy."),
]
_Output = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="Where the result goes.")
]
_Opset = Annotated[int, typer.Option(min=17, metavar="N", help="Version of ONNX's operators.")]
_NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="Leave out the check in ONNX Runtime.")
]
_SHOWN = ("kernel", "stride", "pad", "adj", "dilate", "target_shape", "num_filter", "num_group")

mxnet = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at a model saved by MXNet, run it, or write it as ONNX. MXNet is not needed.",
)


@mxnet.command()
def info(symbol: _Graph, params: _Params = None, *, output_format: OutputFormat = "text") -> None:
    """Tell what a model takes and gives, its operators, and its transposed convolutions."""
    model = _load(symbol, params)
    rows = [node for node in model.graph.nodes() if node.row is not None]
    layers = [
        {"name": node.name} | {key: getattr(node.p, key) for key in _SHOWN}
        for node in rows
        if node.row.name == "Deconvolution"
    ]
    counts = dict(Counter(node.row.name for node in rows).most_common())
    size = sum(array.size for array in model.arrays.values())
    if output_format == "json":
        found = {"inputs": model.inputs, "outputs": model.outputs, "parameters": size}
        report.document("mxnet info", **found, operators=counts, transposed=layers)
        return
    report.text(f"inputs      {', '.join(model.inputs)}\noutputs     {', '.join(model.outputs)}")
    report.text(f"parameters  {size} in {len(model.arrays)} arrays")
    report.text(f"operators   {', '.join(f'{name} {n}' for name, n in counts.items())}")
    if layers:
        rows = [tuple(map(_cell, layer.values())) for layer in layers]
        report.table([("Deconvolution", *_SHOWN), *rows], left=1)


@mxnet.command()
def run(
    symbol: _Graph, params: _Params = None, *, inputs: _Inputs = None, output: _Output = None,
    input_shape: options.InputShapes = None, seed: options.Seed = 0, force: Force = False,
    output_format: OutputFormat = "text",
) -> None:  # fmt: skip
    """Run a model on arrays in files, or on random ones of the sizes given; outputs are a .npz.

    \b
    Examples:
      upconv mxnet run net-symbol.json net-0000.params --inputs x.npz -o y.npz
      upconv mxnet run net-symbol.json net-0000.params --input-shape data:1,3,64,64
    """
    target = _target(output, ".npz", force, [symbol, params, inputs])
    sizes, model = options.input_shapes(input_shape), _load(symbol, params)
    memory.require(sum(8 * prod(shape) for shape in sizes.values()), "the array of inputs")
    draw = np.random.default_rng(seed).standard_normal
    arrays: dict[str, Any] = {name: draw(shape) for name, shape in sizes.items()}
    if inputs is not None:
        single = inputs.suffix.lower() == ".npy"
        found = {name: npy.read(str(inputs)) for name in model.inputs[:1]} if single else {}
        found = found or npy.read_all(inputs) or {}
        arrays |= {name: found[name] for name in model.inputs if name in found}
    start = time.perf_counter()
    results = dict(zip(model.outputs, model.run(**arrays), strict=True))
    seconds = time.perf_counter() - start
    if target is not None:
        npy.write(target, results, force=force)
    shapes = {name: y.shape for name, y in results.items()}
    if output_format == "json":
        report.document("mxnet run", output=output, outputs=shapes, seconds=seconds)
        return
    report.text("\n".join(f"{name} {_cell(shape)}" for name, shape in shapes.items()))
    say(f"{'' if output is None else f'wrote {output}, '}{seconds * 1e3:.3g} ms")


@mxnet.command("to-onnx")
def to_onnx(
    symbol: _Graph, params: _Params = None, *, output: _Output = None,
    input_shape: options.InputShapes = None, opset: _Opset = 17, no_verify: _NoVerify = False,
    force: Force = False, output_format: OutputFormat = "text",
) -> None:  # fmt: skip
    """Write a model as ONNX for inputs of these sizes, and verify it in ONNX Runtime.

    \b
    Example:
      upconv mxnet to-onnx net-symbol.json net-0000.params --input-shape data:1,3,64,64 -o net.onnx
    """
    target = _target(output, ".onnx", force, [symbol, params])
    from ..mxnet.to_onnx import to_onnx as written

    sizes = options.input_shapes(input_shape)
    memory.require(sum(8 * prod(shape) for shape in sizes.values()), "the array of inputs")
    model = _load(symbol, params)
    proto = written(model, sizes, target, opset=opset, verify=not no_verify, force=force)
    counts = dict(Counter(node.op_type for node in proto.graph.node).most_common())
    if output_format == "json":
        report.document("mxnet to-onnx", output=output, operators=counts, verified=not no_verify)
        return
    report.text(", ".join(f"{name} {n}" for name, n in counts.items()))
    if output is not None:
        say(f"wrote {output}")


def _load(symbol: Path, params: Path | None) -> Any:
    from ..mxnet.model import load

    return load(symbol, params)


def _cell(value: Any) -> str:
    return ("x".join(map(str, value)) or "-") if isinstance(value, tuple) else str(value)


def _target(
    output: str | None, suffix: str, force: bool, inputs: Sequence[Path | None]
) -> Path | None:
    """Where a result goes, checked before any work is done."""
    if output is None:
        return None
    return npy.place(output, (suffix,), force=force, inputs=inputs)
