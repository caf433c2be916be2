"""`upconv optimize`: a faster model, proven equal, and a report of how it came about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import brief
from . import models, npy, report
from .endings import Ending, say
from .options import Json, Threads

if TYPE_CHECKING:
    from ..onnx.optimizing.results import Optimization

_Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The model to make faster: .onnx.")]
_Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Where the result goes (default: nowhere)."
    ),
]
_Target = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="What will run it: onnxruntime or openvino; or none, to obey a --profile unmeasured.",
    ),
]
_Profile = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help="Rewrite by rule, at any cost: npu (no ConvTranspose), plain (2D ones alone), or some"
        " of no-1d, no-auto-pad, no-asymmetric, no-output-padding, no-dilation, no-groups.",
    ),
]
_Inputs = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE", help="Inputs by name, .npz, in place of random ones."),
]
_Seconds = Annotated[
    float,
    typer.Option(
        "--seconds",
        metavar="S",
        help="Time per different layer; five times as much for the whole.",
    ),
]
_Fresh = Annotated[bool, typer.Option("--fresh", help="Measure again what is remembered.")]
_NoFloat64 = Annotated[
    bool, typer.Option("--no-float64", help="Leave out the proof in float64, which is slow.")
]
_Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Write a report to read in a browser: .html."),
]
_Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]


def optimize(
    model: _Model,
    *,
    output: _Output = None,
    target: _Target = "onnxruntime",
    profile: _Profile = None,
    threads: Threads = None,
    size: models.Size = None,
    inputs: _Inputs = None,
    seed: models.Seed = 0,
    seconds: _Seconds = 1.0,
    no_float64: _NoFloat64 = False,
    fresh: _Fresh = False,
    report_file: _Report = None,
    force: _Force = False,
    json: Json = False,
) -> None:
    """Rewrite the deconvolutions of an ONNX model where that makes it faster, and prove it.

    Every form of every deconvolution is measured in the runtime that will run the model; what is
    faster beyond the noise is kept, and the whole model proven equal and measured. A model that
    nothing makes faster is written as it is. The exit code is 1 where nodes still break a profile.

    \b
    Examples:
      upconv optimize model.onnx -o faster.onnx --threads 2
      upconv optimize model.onnx -o faster.onnx --target openvino --report report.html
      upconv optimize model.onnx -o plain.onnx --target none --profile no-groups,no-dilation
      upconv optimize vocoder.onnx --size mel=1,80,200 --json
    """
    _check(model, inputs, report_file, output, force=force)
    sizes = models.sizes(size or [])
    from ..onnx.optimizing import optimize as optimized  # ONNX's libraries are loaded only for this

    with report.progress(None) as bar:
        found = optimized(
            model,
            output,
            target=target,
            profile=profile,
            threads=threads,
            sizes=sizes,
            inputs=_arrays(inputs),
            seed=seed,
            seconds=seconds,
            float64=not no_float64,
            fresh=fresh,
            force=force,
            progress=lambda what, done, of: bar.step(f"{what} ({done + 1} of {of})"),
        )
    if report_file is not None:
        from ..onnx.report import write_report

        write_report(found, report_file, force=force)
    _print(found, json=json)
    if found.broken:
        raise typer.Exit(int(Ending.FINDINGS))


def _check(
    model: Path, inputs: Path | None, report_file: Path | None, output: Path | None, *, force: bool
) -> None:
    """Complain about where results should go before minutes are spent on making them."""
    if report_file is not None:
        if report_file.suffix.lower() not in (".html", ".htm"):
            words = f"{brief(str(report_file))} does not end in .html"
            raise typer.BadParameter(words, param_hint="--report")
        if output is not None and report_file.resolve() == output.resolve():
            raise typer.BadParameter("is the output too", param_hint="--report")
    for name in (output, report_file):
        if name is not None:
            models.place(name, force=force, model=model, others=[inputs])


def _arrays(path: Path | None) -> Mapping[str, Any] | None:
    return None if path is None else npy.read_all(path)


def _print(found: Optimization, *, json: bool) -> None:
    if json:
        report.document("optimize", **{k: v for k, v in found.as_json().items() if k != "schema"})
        return
    from ..onnx.report import as_text

    report.text(as_text(found, report.width()))
    if found.written is not None:
        say(f"wrote {found.written}")
