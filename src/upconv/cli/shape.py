"""`upconv shape` and `upconv explain`: questions about shapes, answered without data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from typer import Option

from ..explanations import Explanation, output_shape
from ..explanations import explain as explanation_of
from ..problem import Direction, DType
from .endings import ERROR
from .options import Shape
from .report import Answer, answering


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
