"""`upconv verify`: whether two ONNX models compute the same, and where they begin not to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import brief
from . import models, report, spelling
from .endings import Ending, say
from .options import Json

if TYPE_CHECKING:
    from ..onnx.verifying import Comparison, Difference, Run

_ENGINES = ("onnxruntime", "openvino", "reference")

_A = Annotated[Path, typer.Argument(metavar="A", help="The model that counts as right: .onnx.")]
_B = Annotated[Path, typer.Argument(metavar="B", help="The model to hold against it.")]
_Engines = Annotated[
    Any,
    typer.Option(
        "--engines",
        parser=spelling.names,
        metavar="NAME,...",
        help=f"What to run them in: {', '.join(_ENGINES)}.",
    ),
]
_Tolerance = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="E",
        help="Error allowed, as a part of a value's largest magnitude (default: what rounding in"
        " these models explains).",
    ),
]


def verify(
    a: _A,
    b: _B,
    *,
    engines: _Engines = "onnxruntime",
    size: models.Size = None,
    seed: models.Seed = 0,
    tolerance: _Tolerance = None,
    json: Json = False,
) -> None:
    """Run two ONNX models on the same random inputs and compare outputs, and layers by name.

    The exit code is 0 where everything is equal but for rounding, 1 where something differs. Open
    dimensions of inputs are 1 for the first axis and 32 for the others, unless --size tells them.

    \b
    Examples:
      upconv verify model.onnx optimised.onnx
      upconv verify a.onnx b.onnx --engines onnxruntime,openvino,reference --size x=1,80,100
      upconv verify a.onnx b.onnx --tolerance 1e-3 --json > comparison.json
    """
    spelling.require_named("--engines", engines, _ENGINES)
    for name in engines:
        if name not in _ENGINES:
            words = f"{brief(name)} is not one of {', '.join(_ENGINES)}"
            raise typer.BadParameter(words, param_hint="--engines")
    sizes = models.sizes(size or [])
    from ..onnx.verifying import verify as compared  # ONNX's libraries are loaded only for this

    with report.progress(None) as bar:
        bar.step("running both models")
        found = compared(a, b, runtimes=engines, sizes=sizes, seed=seed, tolerance=tolerance)
    if json:
        report.document("verify", a=str(a), b=str(b), **found.as_json())
    else:
        _print(found)
    if not found.equal:
        raise typer.Exit(int(Ending.FINDINGS))


# What is printed ----------------------------------------------------------------------------------

_HEADINGS = ("engine", "output", "made by", "shape", "error", "relative", "allowed", "verdict")


def _print(found: Comparison) -> None:
    from ..onnx.names import on_terminal

    rows = [(run, output) for run in found.runs for output in run.outputs]
    if rows:
        cells = tuple(tuple(map(on_terminal, _cells(run, output))) for run, output in rows)
        sections = tuple(run.runtime for run, _ in rows)
        report.table(report.Table(_HEADINGS, cells, sections, left=4))
    for words in (*found.findings, *_findings(found.runs)):
        report.text(on_terminal(words))
    for run in found.runs:
        if run.remark:
            say(f"{run.runtime}: not compared: {on_terminal(run.remark)}")


def _cells(run: Run, output: Difference) -> tuple[str, ...]:
    return (
        run.runtime,
        output.name,
        f"{output.op} {output.node}".strip() or "-",
        "x".join(map(str, output.shape)) or "scalar",
        f"{output.error:.2g}",
        f"{output.relative:.2g}",
        f"{output.allowed:.2g}",
        "equal" if output.equal else "DIFFERENT",
    )


def _findings(runs: Sequence[Run]) -> Iterator[str]:
    from ..onnx.verifying.comparison import line

    for run in runs:
        yield from (f"{run.runtime}: {finding}" for finding in run.findings)
        told = [output for output in run.outputs if output.words]
        yield from (f"{run.runtime}: {output.name}: {output.words}" for output in told)
        if run.first_layer is not None:
            yield f"{run.runtime}: first layer that differs: {line(run.first_layer)}"
