"""The options that several commands share, each declared once.

A command that takes the geometry of a transposed convolution ends in `**geometry` and is wrapped in
`takes_geometry`, which puts the options of `GEOMETRY` in that place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ..problem import DataLayout, DType, WeightLayout
from . import spelling

Command = Callable[..., None]

InputShape = Annotated[
    spelling.Shape,
    typer.Argument(
        metavar="INPUT",
        parser=spelling.shape,
        help="Shape of the input, such as 1,64,32,32 or 1x64x32x32; the batch may be left out.",
    ),
]
WeightShape = Annotated[
    spelling.Shape,
    typer.Argument(
        metavar="WEIGHT",
        parser=spelling.shape,
        help="Shape of the weight, such as 64,16,4,4.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Engine = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Use this engine instead of letting upconv choose."),
]
Activation = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="relu, leaky_relu (or leaky_relu:0.2), tanh, sigmoid, silu or gelu.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, max=4096, metavar="N", help="Threads to compute with (default: see `upconv doctor`)."
    ),
]
Tune = Annotated[
    bool,
    typer.Option("--tune", help="Measure engines and their variants, and remember the fastest."),
]
ElementType = Annotated[DType, typer.Option("--dtype", help="Element type to work in.")]

_AXES = "an integer, or one per axis: 2 or 2,3"

_GEOMETRY: dict[str, tuple[Any, Any]] = {
    "stride": (
        Annotated[Any, typer.Option(parser=spelling.sizes, metavar="S", help=f"Stride: {_AXES}.")],
        "1",
    ),
    "padding": (
        Annotated[
            Any,
            typer.Option(
                parser=spelling.padding,
                metavar="P",
                help="What is cut off the full result: 1, or 1,2 (per axis), or 0:1,2:3"
                " (begin:end per axis; negative values add), or valid, same_upper, same_lower.",
            ),
        ],
        "0",
    ),
    "output_padding": (
        Annotated[
            Any,
            typer.Option(
                parser=spelling.sizes, metavar="P", help=f"Added at the end of the result: {_AXES}."
            ),
        ],
        "0",
    ),
    "dilation": (
        Annotated[
            Any, typer.Option(parser=spelling.sizes, metavar="D", help=f"Dilation: {_AXES}.")
        ],
        "1",
    ),
    "groups": (Annotated[int, typer.Option(metavar="G", help="Number of groups.")], 1),
    "output_size": (
        Annotated[
            Any,
            typer.Option(
                parser=spelling.sizes, metavar="SIZE", help=f"Spatial size of the result: {_AXES}."
            ),
        ],
        None,
    ),
    "layout": (
        Annotated[
            DataLayout,
            typer.Option(case_sensitive=False, help="Order of the axes of input and result."),
        ],
        DataLayout.NCX,
    ),
    "weight_layout": (
        Annotated[
            WeightLayout,
            typer.Option(case_sensitive=False, help="Order of the axes of the weight."),
        ],
        WeightLayout.IOX,
    ),
}
"""Keyword of `upconv.conv_transpose` -> (its declaration, its default as written)."""


def takes_geometry(command: Command) -> Command:
    """`command` with its `**geometry` spelled out as options, for typer to read and for `--help`.

    The arguments come first, then the geometry, then the command's own keyword-only options.
    """
    signature = inspect.signature(command, eval_str=True)
    shared = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=declaration
        )
        for name, (declaration, default) in _GEOMETRY.items()
    ]
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    arguments = [p for p in own if p.kind is not p.KEYWORD_ONLY]
    options = [p for p in own if p.kind is p.KEYWORD_ONLY]
    spelled = signature.replace(parameters=[*arguments, *shared, *options])
    command.__signature__ = spelled  # type: ignore[attr-defined]  # inspect's own protocol
    return command


def keywords(geometry: dict[str, Any]) -> dict[str, Any]:
    """The options as `upconv.conv_transpose` takes them: its layouts are plain words.

    >>> keywords({"stride": 2, "layout": DataLayout.NXC})
    {'stride': 2, 'layout': 'NXC'}
    """
    return {
        name: value.value if isinstance(value, DataLayout | WeightLayout) else value
        for name, value in geometry.items()
    }
