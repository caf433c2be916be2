"""The options that commands on ONNX models share, each declared once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from . import spelling

Size = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="NAME=SIZES",
        help="The shape of an input, as x=1,80,100, or the size of a symbolic dimension, as N=2;"
        " for each one again.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the random inputs.")]


def named(text: str) -> tuple[str, str]:
    """The name and the sizes of one `--size`; a name may hold an equals sign itself.

    >>> named("a=b=1,2")
    ('a=b', '1,2')
    """
    name, equals, size = text.rpartition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{text!r} is not NAME=SIZES", param_hint="--size")
    return name, size


def sizes(given: Sequence[str]) -> dict[str, spelling.Shape]:
    """Shapes by name, as `--size` spells them.

    >>> sizes(["x=1,80,100", "N=2"])
    {'x': (1, 80, 100), 'N': (2,)}
    """
    found: dict[str, spelling.Shape] = {}
    for text in given:
        name, size = named(text)
        if name in found:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint="--size")
        found[name] = spelling.shape(size)
    return found
