"""`upconv optimize`: a faster model, verified, and a report of how it came about."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from shutil import get_terminal_size

from typer import Argument, BadParameter, Option

from ..errors import brief
from ..files import published, reported
from . import npy, options, report
from .report import Answer, answering


@answering(
    "optimize",
    model=Argument(metavar="IN", help="The model to make faster: .onnx."),
    output=Argument(metavar="OUT", help="Where the result goes; or --dry-run."),
    dry_run=Option("--dry-run", help="Measure, and write no model."),
    runtime=Option(metavar="NAME", help=f"What will run it: {options.RUNTIMES}."),
    seconds=Option(
        metavar="S", help="Time per different layer and shape; five times as much for the whole."
    ),
    time_limit=Option(min=0.1, metavar="S", help="Time that one run may take."),
    no_float64=Option("--no-float64", help="Leave out the comparison with float64, which is slow."),
    fresh=Option("--fresh", help="Measure again what is remembered."),
    report_file=Option(
        "--report", metavar="FILE", help="Write a report: .html for a browser, or .json."
    ),
    session=Option(
        metavar="FILE",
        help="Measure upconv.onnx.Session too; write its report, for decisions=: .json.",
    ),
)
def optimize(
    model: Path,
    output: Path | None = None,
    *,
    dry_run: bool = False,
    runtime: str = "onnxruntime",
    threads: int | None = None,
    input_shape: list[str] | None = None,
    inputs: Path | None = None,
    seed: int = 0,
    seconds: float = 1.0,
    time_limit: float = 300.0,
    no_float64: bool = False,
    fresh: bool = False,
    report_file: Path | None = None,
    session: Path | None = None,
    force: bool = False,
) -> Answer:
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
        raise BadParameter("is missing: name a file, or give --dry-run", param_hint="OUT")
    output = None if dry_run else output
    sizes = options.shape_sets(input_shape)
    places = {"OUT": output, "--report": report_file, "--session": session}
    _check(places, model, inputs, force)
    from ..onnx.optimizing import optimize as optimized  # ONNX's libraries are loaded only for this
    from ..onnx.report import as_text, write_report

    with report.progress() as step:
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
            fresh=fresh,
            session=session is not None,
            force=force,
            time_limit=time_limit,
            progress=lambda what, number, of: step(f"{what} ({number} of {of})"),
        )
    if report_file is not None:
        write_report(found, report_file, force=force)
    if session is not None:  # what `upconv.onnx.Session(decisions=...)` takes, or why there is none
        told = found.session.report or {"why": found.session.why} if found.session else {"why": ""}
        with reported(str(session)), published(session, force=force) as file:
            file.write(json.dumps(told, indent=1).encode())
    columns = get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else 80
    fields = {name: value for name, value in found.as_json().items() if name != "schema"}
    talk = [] if found.written is None else [f"wrote {found.written}"]
    return Answer(fields, [as_text(found, columns)], talk)


_ENDINGS = {"OUT": (), "--report": (".html", ".htm", ".json"), "--session": (".json",)}


def _check(places: dict[str, Path | None], model: Path, given: Path | None, force: bool) -> None:
    """Complain about where results should go before minutes are spent on making them."""
    written: set[Path] = set()
    for option, name in places.items():
        if name is None:
            continue
        ends = _ENDINGS[option]
        path = npy.place(name, ends, force=force, inputs=[given], model=model, option=option)
        if path in written:
            raise BadParameter(f"{brief(str(name))} would be written twice")
        written.add(path)
