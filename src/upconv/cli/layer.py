"""`upconv run`, `shape` and `explain`: one layer, on arrays in files or by its shapes alone."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Any

from typer import Argument, BadParameter, Context, Option

from ..errors import FileError
from ..explanations import Explanation, output_shape
from ..explanations import explain as explanation_of
from ..memory import readable
from ..ops import conv_transpose
from ..problem import Direction, DType
from . import npy, options
from .exits import ERROR
from .options import Shape
from .report import Answer, answering

_FILE = "A .npy file, or a .npz (file.npz:name where it holds several)"


@answering(
    "run",
    x=Argument(metavar="X", help=f"The input. {_FILE}; - reads stdin."),
    weight=Option("--weight", "-w", metavar="FILE", help=f"The weight. {_FILE}."),
    output=Option("--output", "-o", metavar="FILE", help="A .npy or .npz file, or - for stdout."),
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
    did = explanation_of(a.shape, w, b, residual=r is not None, **how)
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


@answering("shape")
def shape(input_: Shape, weight: Shape, **geometry: Any) -> Answer:
    """Print the shape a transposed convolution gives.

    \b
    Examples:
      upconv shape 1,64,32,32 64,16,4,4 --stride 2 --padding 1
      upconv shape 1x32x32x64 4x4x64x16 --stride 2 --layout NXC --weight-layout XIO
      upconv shape 64,10 64,16,3 --padding 0:1 --output-format json
    """
    out = output_shape(input_, weight, **geometry)
    fields = {"input": input_, "weight": weight, "output_shape": out}
    return Answer(fields, [" ".join(map(str, out))])


@answering(
    "explain",
    bias=Option("--bias", help="With a bias."),
    residual=Option("--residual", help="With a residual."),
    tune=Option("--tune", help="Measure engines and their variants, and remember the fastest."),
)
def explain(
    input_: Shape,
    weight: Shape,
    *,
    bias: bool = False,
    residual: bool = False,
    activation: str | None = None,
    direction: Direction = Direction.FORWARD,
    dtype: DType = DType.FLOAT32,
    engine: str | None = None,
    threads: int | None = None,
    tune: bool = False,
    **geometry: Any,
) -> Answer:
    """Tell what upconv would do and why: problem, engine, refusals, sizes, memory, schedule, times.

    The roofline is the least time that this machine allows; it is measured once, in a second, and
    remembered. The exit code is 2 when no engine, or not the one asked for, does it.

    \b
    Examples:
      upconv explain 1,64,32,32 64,16,4,4 --stride 2 --padding 1
      upconv explain 1,512,100 512,256,16 --stride 8 --padding 4 --bias --output-format json
      upconv explain 1,512,100 512,256,16 --stride 8 --padding 4 --tune
      upconv explain 1,64,32,32 64,16,4,4 --stride 2 --padding 1 --direction weight_grad
    """
    out = output_shape(input_, weight, **geometry)
    channels = out[-1] if geometry["layout"] == "NXC" else out[1 - len(weight)]
    answer = explanation_of(
        input_,
        weight,
        (channels,) if bias else None,
        residual=residual,
        activation=activation,
        direction=direction.value,
        engine=engine,
        dtype=dtype.value,
        threads=threads,
        tune=tune or None,
        roofline=True,
        **geometry,
    )
    return Answer(_fields(answer), [str(answer)], code=0 if answer.engine else ERROR)


def _fields(answer: Explanation) -> dict[str, Any]:
    """Every field of an explanation and its problem, for JSON."""
    fields, axes = asdict(answer), answer.problem.axes
    problem = {k: v for k, v in fields["problem"].items() if k not in ("_hash", "accumulate")}
    problem |= {"text": str(answer.problem), **problem.pop("epilogue")}
    problem["activation"] = problem["activation"].value or None
    problem["axes"] = [{**asdict(axis), "full": axis.full, "out": axis.out} for axis in axes]
    return fields | {"problem": problem}
