"""`upconv explain`: one layer by its shapes: its result's shape, engine, memory and times."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from typer import Option

from ..explanations import Explanation, output_shape
from ..explanations import explain as explanation_of
from ..problem import Direction, DType
from .exits import ERROR
from .options import Shape
from .report import Answer, answering


@answering(
    "explain",
    bias=Option("--bias", help="With a bias."),
    residual=Option("--residual", help="With a residual."),
    algorithm=Option(help="How to multiply; auto takes the one that is predicted to be faster."),
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
    algorithm: Literal["auto", "direct", "winograd"] = "auto",
    tune: bool = False,
    **geometry: Any,
) -> Answer:
    """Show the output shape, engine, memory and time of a layer.

    "direct roofline" is the time of a direct algorithm at the peak FLOP/s and the bandwidth of this
    machine, which are measured once, in a second, and remembered. "predicted" is by the model of
    the engine; Winograd's algorithm multiplies less, and may be faster than the direct roofline.
    The exit code is 2 when no engine, or not the one asked for, takes the layer.

    \b
    Examples:
      upconv explain 1,64,32,32 64,16,4,4 --stride 2 --padding 1
      upconv explain 1x32x32x64 4x4x64x16 --layout NXC --weight-layout XIO
      upconv explain 1,512,100 512,256,16 --stride 8 --output-format json
      upconv explain 1,512,100 512,256,16 --stride 8 --padding 4 --tune
      upconv explain 1,64,32,32 64,16,4,4 --direction weight_grad
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
        algorithm=algorithm,
        tune=tune or None,
        roofline=True,
        **geometry,
    )
    return Answer(_fields(answer), [str(answer)], code=0 if answer.engine else ERROR)


def _fields(answer: Explanation) -> dict[str, Any]:
    """Every field of an explanation and its problem, for JSON."""
    fields, axes = asdict(answer), answer.problem.axes
    problem = {k: v for k, v in fields["problem"].items() if k not in ("_hash", "accumulate")}
    epilogue = answer.problem.epilogue  # which has no slopes and no second result here
    problem |= {"text": str(answer.problem), "residual": epilogue.residual}
    problem |= {"activation": epilogue.activation.value or None, "slope": epilogue.slope}
    del problem["epilogue"]
    problem["axes"] = [{**asdict(axis), "full": axis.full, "out": axis.out} for axis in axes]
    return fields | {"problem": problem}
