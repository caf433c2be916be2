"""`upconv verify`: whether two ONNX models compute the same, and where they begin not to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import npy, options, report
from .endings import Ending, say
from .options import OutputFormat, Threads

if TYPE_CHECKING:
    from ..onnx.verifying import Comparison, Difference, Run

_A = Annotated[Path, typer.Argument(metavar="A", help="The model that counts as right: .onnx.")]
_B = Annotated[Path, typer.Argument(metavar="B", help="The model to hold against it.")]
_Runtimes = Annotated[
    list[str] | None,
    typer.Option(
        "--runtime",
        metavar="NAME",
        help=f"What to run them in, may be repeated: {options.RUNTIMES} (default: onnxruntime).",
    ),
]
_Atol = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="E",
        help="|b - a| <= atol + rtol * |a| is the rule, in place of twice a's own error.",
    ),
]
_Rtol = Annotated[float | None, typer.Option(min=0.0, metavar="E", help="See --atol.")]


def verify(
    a: _A,
    b: _B,
    *,
    runtime: _Runtimes = None,
    input_shape: options.InputShapes = None,
    inputs: options.Inputs = None,
    seed: options.Seed = 0,
    atol: _Atol = None,
    rtol: _Rtol = None,
    threads: Threads = None,
    output_format: OutputFormat = "text",
) -> None:
    """Run two ONNX models on the same random inputs and compare what comes out.

    An output is equal if it is off from A in float64 by at most twice what A is, and a few
    roundings; integers must be the same, quantised outputs within one step. The exit code is 0
    where everything is equal, 1 where something differs; then the first layer that does is named.
    Open dimensions of inputs are 1 for the first axis and 32 for the others, unless --input-shape
    tells them.

    \b
    Examples:
      upconv verify model.onnx optimised.onnx
      upconv verify a.onnx b.onnx --runtime onnxruntime --runtime openvino --input-shape x:1,80,100
      upconv verify a.onnx b.onnx --rtol 1e-3 --atol 1e-5 --output-format json > comparison.json
    """
    sizes = options.input_shapes(input_shape)
    from ..onnx.verifying import verify as compared  # ONNX's libraries are loaded only for this

    with report.progress(None) as step:
        step("running both models")
        found = compared(
            a,
            b,
            runtimes=runtime or ["onnxruntime"],
            sizes=sizes,
            feeds=npy.read_all(inputs),
            seed=seed,
            atol=atol,
            rtol=rtol,
            threads=threads,
        )
    if output_format == "json":
        report.document("verify", a=str(a), b=str(b), **found.as_json())
    else:
        _print(found)
    if not found.equal:
        raise typer.Exit(int(Ending.FINDINGS))


# What is printed ----------------------------------------------------------------------------------

_HEADINGS = ("runtime", "output", "made by", "shape", "against", "error", "allowed", "verdict")


def _print(found: Comparison) -> None:
    from ..onnx.names import neutral

    rows = [(run, output) for run in found.runs for output in run.outputs]
    if rows:
        cells = [tuple(map(neutral, _cells(run, output))) for run, output in rows]
        report.table([_HEADINGS, *cells], left=5)
    for words in (*found.findings, *(words for run in found.runs for words in run.told())):
        report.text(neutral(words))
    for run in found.runs:
        if run.remark:
            say(f"{run.runtime}: {neutral(run.remark)}")


def _cells(run: Run, output: Difference) -> tuple[str, ...]:
    return (
        run.runtime,
        output.name,
        f"{output.op} {output.node}".strip() or "-",
        "x".join(map(str, output.shape)) or "scalar",
        output.rule,
        f"{output.error:.2g}",
        f"{output.allowed:.2g}",
        "equal" if output.equal else "DIFFERENT",
    )
