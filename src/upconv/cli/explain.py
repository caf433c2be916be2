"""`upconv explain`: show a layer's output shape, engine, memory and times."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from typer import Argument, Option

from ..documents import document
from ..explanations import Explanation, output_shape
from ..explanations import explain as explanation_of
from ..problem import Direction, DType, WeightLayout
from . import options
from .exits import ERROR
from .report import finish

_PADDING = (
    "Positions to cut off the full result: 1, or 1,2 (per axis), or 0:1,2:3 (begin:end per axis;"
    " negative values add), or valid, same_upper, same_lower."
)


def _per_axis(letter: str, words: str) -> Any:
    words += ": an integer, or one per axis: 2 or 2,3."
    return Option(parser=options.sizes, metavar=letter, help=words)


def explain(
    input_: Annotated[
        Any,
        Argument(
            metavar="INPUT",
            parser=options.shape,
            help="Shape of the input, such as 1,64,32,32 or 1x64x32x32; the batch is optional.",
        ),
    ],
    weight: Annotated[
        Any,
        Argument(
            metavar="WEIGHT", parser=options.shape, help="Shape of the weight, such as 64,16,4,4."
        ),
    ],
    *,
    bias: Annotated[bool, Option("--bias", help="Add a bias.")] = False,
    residual: Annotated[bool, Option("--residual", help="Add a residual.")] = False,
    activation: options.Activation = None,
    direction: options.LayerDirection = Direction.FORWARD,
    dtype: options.ElementType = DType.FLOAT32,
    engine: Annotated[
        str | None,
        Option(metavar="NAME", help="Use this engine instead of letting upconv choose."),
    ] = None,
    threads: options.Threads = None,
    algorithm: Annotated[
        Literal["auto", "direct", "winograd"],
        Option(help="Algorithm; auto picks the one predicted to be faster."),
    ] = "auto",
    precision: Annotated[
        Literal["float32", "bfloat16"] | None,
        Option(help="Type in which float32 arrays are multiplied; bfloat16 rounds them."),
    ] = None,
    tune: Annotated[
        bool,
        Option("--tune", help="Measure engines and their variants, and store the fastest."),
    ] = False,
    stride: Annotated[Any, _per_axis("S", "Stride")] = "1",
    padding: Annotated[Any, Option(parser=options.padding, metavar="P", help=_PADDING)] = "0",
    output_padding: Annotated[
        Any, _per_axis("P", "Positions to add at the end of the result")
    ] = "0",
    dilation: Annotated[Any, _per_axis("D", "Dilation")] = "1",
    groups: Annotated[int, Option(metavar="G", help="Number of groups.")] = 1,
    output_size: Annotated[Any, _per_axis("SIZE", "Spatial size of the result")] = None,
    layout: Annotated[
        Literal["NCX", "NXC"],
        Option(case_sensitive=False, help="Axis order of the input and the result."),
    ] = "NCX",
    weight_layout: Annotated[
        WeightLayout, Option(case_sensitive=False, help="Axis order of the weight.")
    ] = WeightLayout.IOX,
    output_format: options.OutputFormat = "text",
) -> None:
    """Show the output shape, engine, memory and time of a layer.

    "direct roofline" is the time of a direct algorithm at this machine's peak FLOP/s and bandwidth.
    Both are measured once, which takes a second, and stored. "predicted" is the estimate
    of the engine's cost model. Winograd's algorithm needs fewer multiplications, and may be faster
    than the direct roofline. The exit code is 2 if no engine can compute the layer, or the
    one chosen with --engine cannot.

    \b
    Examples:
      upconv explain 1,64,32,32 64,16,4,4 --stride 2 --padding 1
      upconv explain 1x32x32x64 4x4x64x16 --layout NXC --weight-layout XIO
      upconv explain 1,512,100 512,256,16 --stride 8 --output-format json
      upconv explain 1,512,100 512,256,16 --stride 8 --padding 4 --tune
      upconv explain 1,64,32,32 64,16,4,4 --direction weight_grad
      upconv explain 1,64,32,32 64,16,4,4 --precision bfloat16
    """
    geometry: dict[str, Any] = {
        "stride": stride, "padding": padding, "output_padding": output_padding,
        "dilation": dilation, "groups": groups, "output_size": output_size, "layout": layout,
        "weight_layout": weight_layout.value,
    }  # fmt: skip
    out = output_shape(input_, weight, **geometry)
    channels = out[-1] if layout == "NXC" else out[1 - len(weight)]
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
        precision=precision,
        tune=tune or None,
        roofline=True,
        **geometry,
    )
    code = 0 if answer.engine else ERROR
    finish("explain", output_format, _fields(answer), [str(answer)], code=code)


_LEFT_OUT = ("accumulate", "rounded", "epilogue")
"""Fields of a problem that the document replaces with the precision and the parts of the epilogue.

The command offers neither slopes per channel nor a second result.
"""


def _fields(answer: Explanation) -> dict[str, Any]:
    """Return every field of an explanation and its problem, for JSON."""
    fields: dict[str, Any] = document(answer)
    epilogue = answer.problem.epilogue
    problem = {k: v for k, v in fields["problem"].items() if k not in _LEFT_OUT}
    problem["precision"] = answer.problem.precision
    problem |= {"text": str(answer.problem), "residual": epilogue.residual}
    problem |= {"activation": epilogue.activation.value or None, "slope": epilogue.slope}
    problem["axes"] = [
        document(axis) | {"full": axis.full, "out": axis.out} for axis in answer.problem.axes
    ]
    return fields | {"problem": problem}
