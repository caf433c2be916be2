"""`upconv optimize`: a faster model, verified, and a report of how it came about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import brief
from ..files import published, reported
from . import npy, options, report
from .endings import say
from .options import Force, OutputFormat, Threads

if TYPE_CHECKING:
    from ..onnx.optimizing import Optimization

_Model = Annotated[Path, typer.Argument(metavar="IN", help="The model to make faster: .onnx.")]
_Output = Annotated[
    Path | None, typer.Argument(metavar="OUT", help="Where the result goes; or --dry-run.")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Measure, and write no model.")]
_Runtime = Annotated[
    str, typer.Option("--runtime", metavar="NAME", help=f"What will run it: {options.RUNTIMES}.")
]
_Seconds = Annotated[
    float,
    typer.Option(
        "--seconds",
        metavar="S",
        help="Time per different layer and shape; five times as much for the whole.",
    ),
]
_TimeLimit = Annotated[
    float, typer.Option("--time-limit", min=0.1, metavar="S", help="Time that one run may take.")
]
_NoFloat64 = Annotated[
    bool, typer.Option("--no-float64", help="Leave out the comparison with float64, which is slow.")
]
_Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Write a report: .html for a browser, or .json."),
]
_Session = Annotated[
    Path | None,
    typer.Option(
        "--session",
        metavar="FILE",
        help="Measure upconv.onnx.Session too; write its report, for decisions=: .json.",
    ),
]


def optimize(
    model: _Model,
    output: _Output = None,
    *,
    dry_run: _DryRun = False,
    runtime: _Runtime = "onnxruntime",
    threads: Threads = None,
    input_shape: options.InputShapes = None,
    inputs: options.Inputs = None,
    seed: options.Seed = 0,
    seconds: _Seconds = 1.0,
    time_limit: _TimeLimit = 300.0,
    no_float64: _NoFloat64 = False,
    report_file: _Report = None,
    session: _Session = None,
    force: Force = False,
    output_format: OutputFormat = "text",
) -> None:
    """Rewrite the transposed convolutions of an ONNX model where that makes it faster.

    Every form of every transposed convolution is measured in the runtime that will run the model;
    what is faster beyond the noise is kept, and the whole model verified and measured. A model that
    nothing makes faster is written as it is. With an --input-shape given several times a form has
    to pay at all of its shapes.

    \b
    Examples:
      upconv optimize model.onnx faster.onnx --threads 2
      upconv optimize model.onnx faster.onnx --runtime openvino --report report.html
      upconv optimize vocoder.onnx --dry-run --input-shape mel:1,80,200 --input-shape mel:1,80,50
    """
    if output is None and not dry_run:
        raise typer.BadParameter("is missing: name a file, or give --dry-run", param_hint="OUT")
    output = None if dry_run else output
    sizes = options.shape_sets(input_shape)
    places = {"OUT": output, "--report": report_file, "--session": session}
    _check(places, model, inputs, force)
    from ..onnx.optimizing import optimize as optimized  # ONNX's libraries are loaded only for this
    from ..onnx.report import write_report

    with report.progress(None) as step:
        found = optimized(
            model,
            output,
            runtime=runtime,
            sizes=sizes,
            inputs=npy.read_all(inputs),
            threads=threads,
            seed=seed,
            seconds=seconds,
            float64=not no_float64,
            session=session is not None,
            force=force,
            time_limit=time_limit,
            progress=lambda what, number, of: step(f"{what} ({number} of {of})"),
        )
    if report_file is not None:
        write_report(found, report_file, force=force)
    if session is not None:
        with reported(str(session)), published(session, force=force) as file:
            file.write(json.dumps(found.session, indent=1).encode())
    _print(found, output_format)


def _check(places: dict[str, Path | None], model: Path, given: Path | None, force: bool) -> None:
    """Complain about where results should go before minutes are spent on making them."""
    written: set[Path] = set()
    for option, name in places.items():
        if name is None:
            continue
        path = npy.place(
            name, _ENDINGS[option], force=force, inputs=[given], model=model, option=option
        )
        if path in written:
            raise typer.BadParameter(f"{brief(str(name))} would be written twice")
        written.add(path)


_ENDINGS = {"OUT": (), "--report": (".html", ".htm", ".json"), "--session": (".json",)}


def _print(found: Optimization, output_format: str) -> None:
    if output_format == "json":
        fields = found.as_json()
        report.document("optimize", **{k: v for k, v in fields.items() if k != "schema"})
        return
    from ..onnx.report import as_text

    report.text(as_text(found))
    if found.written is not None:
        say(f"wrote {found.written}")
