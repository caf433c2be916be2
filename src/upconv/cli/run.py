"""`upconv run`: one transposed convolution on arrays in files."""

from __future__ import annotations

import sys
import time
from typing import Any

from typer import Argument, BadParameter, Context, Option

from ..errors import FileError
from ..explanations import explain
from ..memory import readable
from ..ops import conv_transpose
from . import npy, options
from .report import Answer, answering

_FILE = "A .npy file, or a .npz (file.npz:name where it holds several)"


@answering(
    "run",
    x=Argument(metavar="X", help=f"The input. {_FILE}; - reads stdin."),
    weight=Option("--weight", "-w", metavar="FILE", help=f"The weight. {_FILE}."),
    output=Option(
        "--output", "-o", metavar="FILE", help="A .npy or .npz file for the result, or - (stdout)."
    ),
    bias=Option("--bias", "-b", metavar="FILE", help="The bias."),
    residual=Option(metavar="FILE", help="Added to the result before the activation."),
    quiet=Option("--quiet", "-q", help="Say nothing when all is well."),
)
def run(
    context: Context,
    x: str,
    *,
    weight: str,
    output: str,
    bias: str | None = None,
    residual: str | None = None,
    activation: str | None = None,
    engine: str | None = None,
    threads: int | None = None,
    force: bool = False,
    quiet: bool = False,
    **geometry: Any,
) -> Answer:
    """Compute a transposed convolution of arrays in files.

    All arrays are of one type: float16, float32 or float64. Nothing in a file is ever unpickled.

    \b
    Examples:
      upconv run x.npy --weight w.npy --stride 2 --padding 1 -o y.npy
      upconv run net.npz:x -w net.npz:w -b net.npz:b --stride 2 -o y.npy --force
      upconv run x.npy -w w.npy --padding 0:1,-2:3 --activation leaky_relu:0.2 -o y.npz
      cat x.npy | upconv run - -w w.npy --stride 2 -o - > y.npy
    """
    if output == "-" and context.params["output_format"] == "json":
        words = "both would write to stdout"
        raise BadParameter(words, param_hint="--output-format json and -o -")
    files = [name for name in (x, weight, bias, residual) if name]
    if files.count("-") > 1:
        raise FileError("The standard input can be read once only; name a file for the others.")
    target = None
    if output != "-":
        inputs = [npy.split(name)[0] for name in files if name != "-"]
        target = npy.place(output, (".npy", ".npz"), force=force, inputs=inputs)
    elif sys.stdout is not None and sys.stdout.isatty():
        words = "binary data does not go to a terminal; name a file"
        raise BadParameter(words, param_hint="--output")
    options.use_threads(threads)
    a, w = npy.read(x), npy.read(weight)
    b, r = (name and npy.read(name) for name in (bias, residual))
    how = {**geometry, "activation": activation, "engine": engine}
    start = time.perf_counter()
    y = conv_transpose(a, w, b, residual=r, **how)
    seconds = time.perf_counter() - start
    npy.write(target, {"y": y}, force=force)
    did = explain(a.shape, w, b, residual=r is not None, **how)
    fields = {
        "output": output,
        "output_shape": y.shape,
        "dtype": str(y.dtype),
        "nbytes": y.nbytes,
        "engine": did.engine,
        "problem": str(did.problem),
        "workspace_bytes": did.workspace_bytes,
        "seconds": seconds,
    }
    wrote = f"wrote {'the standard output' if output == '-' else output}"
    array = f"{'x'.join(map(str, y.shape))} {y.dtype}, {readable(y.nbytes)}"
    told = f"{wrote}: {array}, engine {did.engine}, {seconds * 1e3:.3g} ms"
    return Answer(fields, [], [] if quiet else [told])
