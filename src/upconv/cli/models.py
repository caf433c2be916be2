"""What commands on ONNX models share: options, each declared once, and where a result may go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..files import reported, require_free
from . import spelling

OVERWRITE = "Overwrite it with --force."

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


def place(
    name: str | Path, *, force: bool, model: str | Path, others: Iterable[Path | None] = ()
) -> Path:
    """Where a result called `name` goes; `FileError` unless it may be written there.

    What the model is read from is never overwritten, files with its data included, nor `others`.
    """
    shown, inputs = str(name), [Path(model), *others]
    with reported(shown):
        path = Path(name).resolve()
        require_free(shown, path, force=force, inputs=inputs, overwrite=OVERWRITE)
        there = path.exists()
    if there:  # only then is the model worth reading twice
        from ..onnx.models import files

        given = files(model)
        with reported(shown):
            require_free(shown, path, force=force, inputs=given, overwrite=OVERWRITE)
    return path
