"""What commands on ONNX models share: where a result may go, and several shapes per input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..files import reported, require_free
from . import npy, options

RUNTIMES = "onnxruntime, onnxruntime:CUDA, openvino, openvino:f32, openvino:GPU, reference"

Inputs = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE", help="Inputs by name, .npz, in place of random ones."),
]


def shape_sets(given: Sequence[str] | None) -> list[dict[str, options.Shape]]:
    """Shapes by name, per set: a name given n times makes n sets, and one given once is in all.

    >>> shape_sets(["x:1,80,100", "x:1,80,400", "N:2"])
    [{'x': (1, 80, 100), 'N': (2,)}, {'x': (1, 80, 400), 'N': (2,)}]
    """
    found: dict[str, list[options.Shape]] = {}
    for text in given or ():
        name, size = options.named_shape(text)
        found.setdefault(name, []).append(size)
    many = max(map(len, found.values()), default=1)
    for name, sizes in found.items():
        if len(sizes) not in (1, many):
            words = f"{name!r} is given {len(sizes)} times, and another name {many} times"
            raise typer.BadParameter(words, param_hint="--input-shape")
    return [{name: s[i if s[1:] else 0] for name, s in found.items()} for i in range(many)]


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
        require_free(shown, path, force=force, inputs=inputs, overwrite=npy.OVERWRITE)
        there = path.exists()
    if there:  # only then is the model worth reading twice
        from ..onnx.models import files

        given = files(model)
        with reported(shown):
            require_free(shown, path, force=force, inputs=given, overwrite=npy.OVERWRITE)
    return path
