"""`upconv verify`: whether two ONNX models compute the same, and where they begin not to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from . import npy, options, report
from .endings import FINDINGS
from .report import Answer, answering

if TYPE_CHECKING:
    from ..onnx.verifying import Difference, Run


@answering(
    "verify",
    a=Argument(metavar="A", help="The model that counts as right: .onnx."),
    b=Argument(metavar="B", help="The model to hold against it."),
    runtime=Option(
        metavar="NAME",
        help=f"What to run them in, may be repeated: {options.RUNTIMES} (default: onnxruntime).",
    ),
    atol=Option(
        min=0.0,
        metavar="E",
        help="|b - a| <= atol + rtol * |a| is the rule, in place of twice a's own error.",
    ),
    rtol=Option(min=0.0, metavar="E", help="See --atol."),
)
def verify(
    a: Path,
    b: Path,
    *,
    runtime: list[str] | None = None,
    input_shape: list[str] | None = None,
    inputs: Path | None = None,
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    threads: int | None = None,
) -> Answer:
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
    from ..onnx.names import neutral
    from ..onnx.verifying import verify as compared  # ONNX's libraries are loaded only for this

    with report.progress() as step:
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
    rows = [[*map(neutral, _cells(run, one))] for run in found.runs for one in run.outputs]
    lines = [*found.findings, *(words for run in found.runs for words in run.told())]
    return Answer(
        {"a": str(a), "b": str(b), **found.as_json()},
        [*report.table(rows, _HEADINGS, left=5), *map(neutral, lines)],
        [f"{run.runtime}: {neutral(run.remark)}" for run in found.runs if run.remark],
        0 if found.equal else FINDINGS,
    )


_HEADINGS = ("runtime", "output", "made by", "shape", "against", "error", "allowed", "verdict")


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
