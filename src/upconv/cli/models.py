"""What commands on ONNX models share: options, each declared once, and where a result may go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..files import reported, require_free
from . import npy, spelling

OVERWRITE = "Overwrite it with --force."

RUNTIMES = "onnxruntime, onnxruntime:CUDA, openvino, openvino:f32, openvino:GPU, reference"

InputShape = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME:SIZES",
        help="The shape of an input, as x:1,80,100, or the size of a symbolic dimension, as N:2;"
        " for each one again.",
    ),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME:SIZES",
        help="The shape of an input, as x:1,80,100, or the size of a symbolic dimension, as N:2;"
        " for each one again. A name given several times: decide for all of its shapes.",
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE", help="Inputs by name, .npz, in place of random ones."),
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the random inputs.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite files that exist.")]


class Format(StrEnum):
    """How a command prints its result."""

    TEXT = "text"
    JSON = "json"


OutputFormat = Annotated[
    Format, typer.Option("--output-format", help="Text to read, or one JSON document.")
]


def shape_sets(given: Sequence[str]) -> list[dict[str, spelling.Shape]]:
    """Shapes by name, per set: a name given n times makes n sets, and one given once is in all.

    >>> shape_sets(["x:1,80,100", "x:1,80,400", "N:2"])
    [{'x': (1, 80, 100), 'N': (2,)}, {'x': (1, 80, 400), 'N': (2,)}]
    """
    found: dict[str, list[spelling.Shape]] = {}
    for text in given:
        name, colon, size = text.rpartition(":")  # a name may hold a colon itself
        if not (name and colon):
            raise typer.BadParameter(f"{text!r} is not NAME:SIZES", param_hint="--input-shape")
        found.setdefault(name, []).append(spelling.shape(size))
    many = max(map(len, found.values()), default=1)
    for name, sizes in found.items():
        if len(sizes) not in (1, many):
            words = f"{name!r} is given {len(sizes)} times, and another name {many} times"
            raise typer.BadParameter(words, param_hint="--input-shape")
    return [{name: s[i if s[1:] else 0] for name, s in found.items()} for i in range(many)]


def named(text: str) -> tuple[str, str]:
    """The name and the sizes of one `--size` of `lint`.

    >>> named("a=b=1,2")
    ('a=b', '1,2')
    """
    name, equals, size = text.rpartition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{text!r} is not NAME=SIZES", param_hint="--size")
    return name, size


def shapes(given: Sequence[str]) -> dict[str, spelling.Shape]:
    """Shapes by name, of a command that takes one set of them.

    >>> shapes(["x:1,80,100", "input:0:2"])
    {'x': (1, 80, 100), 'input:0': (2,)}
    """
    sets = shape_sets(given)
    if len(sets) > 1:
        raise typer.BadParameter("a name is given twice", param_hint="--input-shape")
    return sets[0]


def arrays(path: Path | None) -> Mapping[str, Any] | None:
    """The arrays of `--inputs`."""
    return None if path is None else npy.read_all(path)


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
