"""`upconv shape` and `upconv explain`: questions about shapes, answered without data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from ..explanations import Explanation, output_shape
from ..explanations import explain as explanation_of
from ..problem import Direction, DType
from . import options, report
from .endings import Ending
from .options import takes_geometry


@takes_geometry
def shape(
    input_: options.InputShape,
    weight: options.WeightShape,
    *,
    output_format: options.OutputFormat = "text",
    **geometry: Any,
) -> None:
    """Print the shape a transposed convolution gives.

    \b
    Examples:
      upconv shape 1,64,32,32 64,16,4,4 --stride 2 --padding 1
      upconv shape 1x32x32x64 4x4x64x16 --stride 2 --layout NXC --weight-layout XIO
      upconv shape 64,10 64,16,3 --padding 0:1 --output-format json
    """
    out = output_shape(input_, weight, **geometry)
    if output_format == "json":
        report.document("shape", input=input_, weight=weight, output_shape=out)
    else:
        report.text(" ".join(map(str, out)))


@takes_geometry
def explain(
    input_: options.InputShape,
    weight: options.WeightShape,
    *,
    bias: Annotated[bool, typer.Option("--bias", help="With a bias.")] = False,
    residual: Annotated[bool, typer.Option("--residual", help="With a residual.")] = False,
    activation: options.Activation = None,
    direction: options.DirectionOption = Direction.FORWARD,
    dtype: options.ElementType = DType.FLOAT32,
    engine: options.Engine = None,
    threads: options.Threads = None,
    tune: options.Tune = False,
    output_format: options.OutputFormat = "text",
    **geometry: Any,
) -> None:
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
    channels = _channels(output_shape(input_, weight, **geometry), len(weight), geometry["layout"])
    answer = explanation_of(
        input_,
        weight,
        (channels,) if bias else None,
        residual=residual or None,
        activation=activation,
        direction=direction.value,
        engine=engine,
        dtype=dtype.value,
        threads=threads,
        tune=tune or None,
        roofline=True,
        **geometry,
    )
    if output_format == "json":
        report.document("explain", **as_fields(answer))
    else:
        report.text(str(answer))
    if answer.engine is None:
        raise typer.Exit(int(Ending.ERROR))


def as_fields(answer: Explanation) -> dict[str, Any]:
    """Every field of an explanation, for JSON."""
    problem = answer.problem
    return asdict(answer) | {
        "problem": {
            "text": str(problem),
            "direction": problem.direction.value,
            "batch": problem.batch,
            "in_channels": problem.in_channels,
            "out_channels": problem.out_channels,
            "groups": problem.groups,
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "weight_layout": problem.weight_layout.value,
            "bias": problem.bias,
            "activation": problem.epilogue.activation.value or None,
            "slope": problem.epilogue.slope,
            "residual": problem.epilogue.residual,
            "axes": [{**asdict(axis), "full": axis.full, "out": axis.out} for axis in problem.axes],
        }
    }


def _channels(shape: tuple[int, ...], weight_axes: int, layout: str) -> int:
    """The extent of the channel axis of a result, which may be without a batch."""
    rank = weight_axes - 2
    return shape[-1] if layout == "NXC" else shape[-rank - 1]
