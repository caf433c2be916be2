"""Options that several commands share, each declared once, and how their values are written.

The parsers turn text into what the library takes and know nothing of its meaning: whether a stride
of 0 makes sense is for the library to say. Text that cannot be read is a usage error.

A command that takes the geometry of a transposed convolution ends in `**geometry` and is wrapped in
`takes_geometry`, which puts the options of `_GEOMETRY` in that place.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import brief
from ..problem import Direction, DType, WeightLayout
from ..threads import get_num_threads, set_num_threads

Command = Callable[..., None]
Ends = int | tuple[int, int]

_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")


class Shape(tuple[int, ...]):
    """A tuple with a name, for `--help` to show."""


def shape(text: str) -> Shape:
    """A shape.

    >>> shape("1,64,32,32"), shape("1x64x32x32")
    ((1, 64, 32, 32), (1, 64, 32, 32))
    """
    return Shape(_integer(part, text) for part in re.split(r"[,x]", text.strip()))


def sizes(text: str) -> int | tuple[int, ...]:
    """One integer for all axes, or one per axis.

    >>> sizes("2"), sizes("2,3")
    (2, (2, 3))
    """
    values = shape(text)
    return values[0] if len(values) == 1 else tuple(values)


def padding(text: str) -> int | str | tuple[Ends, ...]:
    """One integer, one per axis, a begin:end pair per axis, or the name of a rule.

    >>> padding("1"), padding("1,2"), padding("0:1,-2:3"), padding("same_upper")
    (1, (1, 2), ((0, 1), (-2, 3)), 'same_upper')
    """
    if text[:1].isalpha() and "," not in text and ":" not in text:
        return text
    ends = tuple(_ends(part, text) for part in re.split(r"[,x]", text.strip()))
    return ends[0] if len(ends) == 1 and isinstance(ends[0], int) else ends


def names(text: str) -> tuple[str, ...]:
    """Names between commas, each once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def shape_sets(given: Sequence[str] | None) -> list[dict[str, Shape]]:
    """Shapes by name, per set: a name given n times makes n sets, and one given once is in all.

    A name may hold colons itself.

    >>> shape_sets(["x:0:1,80,100", "x:0:1,80,400", "N:2"])
    [{'x:0': (1, 80, 100), 'N': (2,)}, {'x:0': (1, 80, 400), 'N': (2,)}]
    """
    found: dict[str, list[Shape]] = {}
    for text in given or ():
        name, colon, size = text.rpartition(":")
        if not (name and colon):
            raise typer.BadParameter(f"{text!r} is not NAME:SIZES", param_hint="--input-shape")
        found.setdefault(name, []).append(shape(size))
    many = max(map(len, found.values()), default=1)
    for name, sizes in found.items():
        if len(sizes) not in (1, many):
            words = f"{name!r} is given {len(sizes)} times, and another name {many} times"
            raise typer.BadParameter(words, param_hint="--input-shape")
    return [{name: s[i if s[1:] else 0] for name, s in found.items()} for i in range(many)]


def input_shapes(given: Sequence[str] | None) -> dict[str, Shape]:
    """Shapes by name, each name once.

    >>> input_shapes(["x:1,80,100", "N:2"])
    {'x': (1, 80, 100), 'N': (2,)}
    """
    found, *others = shape_sets(given)
    if others:
        raise typer.BadParameter("a name is given twice", param_hint="--input-shape")
    return found


def require_known(option: str, wanted: Sequence[str], known: Collection[str]) -> None:
    """A usage error for an option that names nothing, or what is not there."""
    listed = ", ".join(known)
    if not wanted:
        words = f"it names nothing; expected one or more of {listed}"
        raise typer.BadParameter(words, param_hint=option)
    for name in wanted:
        if name not in known:
            words = f"{brief(name)} is not one of {listed}"
            raise typer.BadParameter(words, param_hint=option)


def use_threads(threads: int | None) -> None:
    """Compute on so many threads, NumPy's BLAS included; None leaves the number as it is."""
    from threadpoolctl import threadpool_limits

    if threads is not None:
        set_num_threads(threads)
    threadpool_limits(get_num_threads(), user_api="blas")


def _ends(part: str, text: str) -> Ends:
    begin, colon, end = part.partition(":")
    return (_integer(begin, text), _integer(end, text)) if colon else _integer(part, text)


def _integer(part: str, text: str) -> int:
    if not _NUMBER.fullmatch(part.strip()):
        raise typer.BadParameter(f"{text!r}; expected integers, such as 2 or 2,3")
    return int(part)


def _option(kind: Any, *flags: str, **how: Any) -> Any:
    return Annotated[kind, typer.Option(*flags, **how)]


InputShape = Annotated[
    Shape,
    typer.Argument(
        metavar="INPUT",
        parser=shape,
        help="Shape of the input, such as 1,64,32,32 or 1x64x32x32; the batch may be left out.",
    ),
]
WeightShape = Annotated[
    Shape,
    typer.Argument(metavar="WEIGHT", parser=shape, help="Shape of the weight, such as 64,16,4,4."),
]
OutputFormat = Annotated[
    Literal["text", "json"], typer.Option(help="What to print on stdout: text, or a document.")
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite the output if it exists.")]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME:SIZES",
        help="The shape of an input, as x:1,80,100, or the size of a symbolic dimension, as N:2;"
        " may be repeated.",
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE", help="Inputs by name, .npz, in place of random ones."),
]
RUNTIMES = "onnxruntime, onnxruntime:CUDA, openvino, openvino:f32, openvino:GPU, reference"
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the random inputs.")]
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
DirectionOption = Annotated[
    Direction, typer.Option("--direction", help="The result, or which gradient of the layer.")
]

_AXES = "an integer, or one per axis: 2 or 2,3"
_PADDING = (
    "What is cut off the full result: 1, or 1,2 (per axis), or 0:1,2:3 (begin:end per axis;"
    " negative values add), or valid, same_upper, same_lower."
)


def _per_axis(letter: str, words: str) -> Any:
    return _option(Any, parser=sizes, metavar=letter, help=f"{words}: {_AXES}.")


def _one_of(words: str, *values: str) -> Any:
    return _option(Literal[values], case_sensitive=False, help=words)


_GEOMETRY: dict[str, tuple[Any, Any]] = {
    "stride": (_per_axis("S", "Stride"), "1"),
    "padding": (_option(Any, parser=padding, metavar="P", help=_PADDING), "0"),
    "output_padding": (_per_axis("P", "Added at the end of the result"), "0"),
    "dilation": (_per_axis("D", "Dilation"), "1"),
    "groups": (_option(int, metavar="G", help="Number of groups."), 1),
    "output_size": (_per_axis("SIZE", "Spatial size of the result"), None),
    "layout": (_one_of("Order of the axes of input and result.", "NCX", "NXC"), "NCX"),
    "weight_layout": (
        _one_of("Order of the axes of the weight.", *(order.value for order in WeightLayout)),
        "IOX",
    ),
}
"""Keyword of `upconv.conv_transpose` -> (its declaration, its default as written)."""


def takes_geometry(command: Command) -> Command:
    """`command` with its `**geometry` spelled out as options, for typer to read and for `--help`.

    The arguments come first, then the geometry, then the command's own keyword-only options.
    """
    signature = inspect.signature(command, eval_str=True)
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _GEOMETRY.items()
    ]
    given = list(signature.parameters.values())
    at = next(i for i, p in enumerate(given) if p.kind is p.KEYWORD_ONLY)
    spelled = signature.replace(parameters=[*given[:at], *shared, *given[at:-1]])
    command.__signature__ = spelled  # type: ignore[attr-defined]  # inspect's own protocol
    return command
