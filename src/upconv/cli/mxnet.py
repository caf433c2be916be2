"""`upconv mxnet`: describe models saved by MXNet, run them, and convert them to ONNX."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Argument, BadParameter, Option, Typer

from .. import memory
from ..terminal import aligned
from ..timing import format_seconds
from . import npy, options
from .options import Command
from .report import finish

Symbol = Annotated[Path, Argument(metavar="SYMBOL", help="The graph: -symbol.json.")]
Params = Annotated[Path | None, Argument(metavar="PARAMS", help="Parameters: .params.")]
Output = Annotated[str | None, Option("--output", "-o", metavar="FILE", help="The file to write.")]
_SHOWN = ("kernel", "stride", "pad", "adj", "dilate", "target_shape", "num_filter", "num_group")

mxnet = Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Describe a model saved by MXNet, run it, or convert it to ONNX. MXNet is not needed.",
)


@mxnet.command(cls=Command)
def info(
    symbol: Symbol, params: Params = None, *, output_format: options.OutputFormat = "text"
) -> None:
    """Show the inputs, outputs, operators and transposed convolutions."""
    model = _load(symbol, params)
    nodes = [node for node in model.graph.nodes() if node.operator is not None]
    transposed = (node for node in nodes if node.op == "Deconvolution")
    layers = [{"name": n.name} | {key: getattr(n.p, key) for key in _SHOWN} for n in transposed]
    counts = dict(Counter(node.op for node in nodes).most_common())
    size = sum(array.size for array in model.arrays.values())
    rows = [tuple(map(_cell, layer.values())) for layer in layers]
    finish(
        "mxnet info",
        output_format,
        {"inputs": model.inputs, "input_shapes": model.input_shapes()}
        | {"outputs": model.outputs, "parameters": size}
        | {"operators": counts, "transposed": layers},
        [
            f"inputs      {model.described_inputs()}",
            f"outputs     {', '.join(model.outputs)}",
            f"parameters  {size} in {model.described_arrays()}",
            f"operators   {_listed(counts)}",
            *aligned(rows, ("Deconvolution", *_SHOWN), left=1),
        ],
    )


@mxnet.command(cls=Command)
def run(
    symbol: Symbol,
    params: Params = None,
    *,
    inputs: Annotated[
        Path | None, Option(metavar="FILE", help="Inputs by name (.npz), or a single one (.npy).")
    ] = None,
    output: Output = None,
    input_shape: options.InputShapes = None,
    seed: options.Seed = 0,
    force: options.Force = False,
    output_format: options.OutputFormat = "text",
) -> None:
    """Run a model on arrays in files, or on random arrays.

    \b
    Examples:
      upconv mxnet run net-symbol.json net-0000.params --inputs x.npz -o y.npz
      upconv mxnet run net-symbol.json net-0000.params --input-shape data:1,3,8,8
    """
    target = npy.place(output, (".npz",), force=force, inputs=[symbol, params, inputs])
    sizes, model = options.input_shapes(input_shape), _load(symbol, params)
    memory.require(sum(8 * prod(shape) for shape in sizes.values()), "the input data")
    draw = np.random.default_rng(seed).standard_normal
    arrays: dict[str, Any] = {name: draw(shape) for name, shape in sizes.items()}
    read = npy.read_all(inputs) or {}
    if "" in read:  # a .npy file holds the first input
        read = dict.fromkeys(model.inputs[:1], read[""])
    arrays |= {name: read[name] for name in model.inputs if name in read}
    _require_all(model, arrays)
    start = time.perf_counter()
    results = dict(zip(model.outputs, model.run(**arrays), strict=True))
    seconds = time.perf_counter() - start
    if target is not None:
        npy.write(target, results, force=force)
    shapes = {name: y.shape for name, y in results.items()}
    finish(
        "mxnet run",
        output_format,
        {"output": output, "outputs": shapes, "seconds": seconds},
        [f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in shapes.items()],
        [f"{'' if output is None else f'wrote {output}, '}{format_seconds(seconds)}"],
    )


@mxnet.command("to-onnx", cls=Command)
def to_onnx(
    symbol: Symbol,
    params: Params = None,
    *,
    output: Output = None,
    input_shape: Annotated[
        list[str] | None,
        Option(
            metavar="NAME:SIZES",
            help="Shape of an input, such as data:1,3,64,64; may be repeated. A name makes a size"
            " dynamic: data:N,3,64,64.",
        ),
    ] = None,
    opset: Annotated[int, Option(min=17, metavar="N", help="Version of ONNX's operator set.")] = 17,
    no_verify: Annotated[
        bool, Option("--no-verify", help="Skip the check in ONNX Runtime.")
    ] = False,
    force: options.Force = False,
    output_format: options.OutputFormat = "text",
) -> None:
    """Convert a model to ONNX, and verify it in ONNX Runtime.

    \b
    Example:
      upconv mxnet to-onnx net.json net.params --input-shape x:1,3,8,8 -o a.onnx
    """
    target = npy.place(output, (".onnx",), force=force, inputs=[symbol, params])
    from ..mxnet.to_onnx import to_onnx as written

    sizes, model = options.input_shapes(input_shape, options.dimensions), _load(symbol, params)
    _require_all(model, sizes)
    numbers = ([n for n in shape if isinstance(n, int)] for shape in sizes.values())
    memory.require(sum(8 * prod(shape) for shape in numbers), "the input data")
    proto = written(model, sizes, target, opset=opset, verify=not no_verify, force=force)
    counts = dict(Counter(node.op_type for node in proto.graph.node).most_common())
    fields = {"output": output, "operators": counts, "verified": not no_verify}
    talk = [] if output is None else [f"wrote {output}"]
    finish("mxnet to-onnx", output_format, fields, [_listed(counts)], talk)


def _load(symbol: Path, params: Path | None) -> Any:
    from ..mxnet.model import load

    return load(symbol, params)


def _require_all(model: Any, names: Container[str]) -> None:
    """Raise a usage error for an input that has neither an array nor a shape."""
    missing = [name for name in model.inputs if name not in names]
    if missing:
        inputs = model.described_inputs()[:400]
        words = f"no array or shape for {', '.join(missing[:9])}; the inputs are {inputs}"
        if not model.arrays:
            words += "; without PARAMS, parameters are inputs too"
        raise BadParameter(words, param_hint="--input-shape")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items())


def _cell(value: Any) -> str:
    return ("x".join(map(str, value)) or "-") if isinstance(value, tuple) else str(value)
