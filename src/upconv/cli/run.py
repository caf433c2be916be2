"""`upconv run`: one transposed convolution on arrays in files."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..arrays import Array
from ..errors import FileError
from ..explanations import explain
from ..memory import readable
from ..ops import conv_transpose
from . import npy, options, report
from .endings import say
from .options import takes_geometry

_FILE = "A .npy file, or a .npz (file.npz:name where it holds several)"

_X = Annotated[str, typer.Argument(metavar="X", help=f"The input. {_FILE}; - reads stdin.")]
_Weight = Annotated[
    str, typer.Option("--weight", "-w", metavar="FILE", help=f"The weight. {_FILE}.")
]
_Output = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where the result goes: a .npy or .npz file, or - for stdout.",
    ),
]
_Bias = Annotated[str | None, typer.Option("--bias", "-b", metavar="FILE", help="The bias.")]
_Residual = Annotated[
    str | None, typer.Option(metavar="FILE", help="Added to the result before the activation.")
]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing when all is well.")]


@takes_geometry
def run(
    x: _X,
    *,
    weight: _Weight,
    output: _Output,
    bias: _Bias = None,
    residual: _Residual = None,
    activation: options.Activation = None,
    engine: options.Engine = None,
    threads: options.Threads = None,
    force: options.Force = False,
    quiet: _Quiet = False,
    output_format: options.OutputFormat = "text",
    **geometry: Any,
) -> None:
    """Compute a transposed convolution of arrays in files.

    All arrays are of one type: float16, float32 or float64. Nothing in a file is ever unpickled.

    \b
    Examples:
      upconv run x.npy --weight w.npy --stride 2 --padding 1 -o y.npy
      upconv run net.npz:x -w net.npz:w -b net.npz:b --stride 2 -o y.npy --force
      upconv run x.npy -w w.npy --padding 0:1,-2:3 --activation leaky_relu:0.2 -o y.npz
      cat x.npy | upconv run - -w w.npy --stride 2 -o - > y.npy
    """
    if output_format == "json" and output == "-":
        words = "both would write to stdout"
        raise typer.BadParameter(words, param_hint="--output-format json and -o -")
    files = [x, weight, bias, residual]
    given = [name for name in files if name is not None]
    if given.count("-") > 1:
        raise FileError("The standard input can be read once only; name a file for the others.")
    target = _target(output, force, given)
    options.use_threads(threads)
    arrays = [None if name is None else npy.read(name) for name in files]
    how = {**geometry, "activation": activation}
    with report.progress(None) as step:
        step("computing")
        y, facts = _computed(arrays, how, engine)
        step("writing")
        npy.write(target, {"y": y}, force=force)
    if output_format == "json":
        report.document("run", output=output, **facts)
    elif not quiet:
        say(_summary(output, facts))


def _target(output: str, force: bool, given: Sequence[str]) -> Path | None:
    if output != "-":
        inputs = [npy.split(name)[0] for name in given if name != "-"]
        return npy.place(output, (".npy", ".npz"), force=force, inputs=inputs)
    if sys.stdout is not None and sys.stdout.isatty():
        words = "binary data does not go to a terminal; name a file"
        raise typer.BadParameter(words, param_hint="--output")
    return None


def _computed(
    arrays: Sequence[Any], how: dict[str, Any], engine: str | None
) -> tuple[Array, dict[str, Any]]:
    """The result of (x, weight, bias, residual), and what there is to say about it."""
    x, weight, bias, residual = arrays
    start = time.perf_counter()
    y = conv_transpose(x, weight, bias, residual=residual, engine=engine, **how)
    seconds = time.perf_counter() - start
    answer = explain(x.shape, weight, bias, residual=residual is not None, engine=engine, **how)
    return y, {
        "output_shape": y.shape,
        "dtype": str(y.dtype),
        "nbytes": y.nbytes,
        "engine": answer.engine,
        "problem": str(answer.problem),
        "workspace_bytes": answer.workspace_bytes,
        "seconds": seconds,
    }


def _summary(output: str, facts: dict[str, Any]) -> str:
    place = "the standard output" if output == "-" else output
    shape = "x".join(map(str, facts["output_shape"]))
    return (
        f"wrote {place}: {shape} {facts['dtype']}, {readable(facts['nbytes'])},"
        f" engine {facts['engine']}, {facts['seconds'] * 1e3:.3g} ms"
    )
