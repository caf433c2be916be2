"""`upconv optimize`, `rewrite` and `verify`: make ONNX models faster, rewrite and compare them.

Only these commands load ONNX's libraries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, BadParameter, Option

from ..errors import brief
from ..terminal import aligned, neutral
from . import npy, options
from .exits import FINDINGS
from .report import finish


def optimize(
    model: Annotated[Path, Argument(metavar="IN", help="The model to make faster: .onnx.")],
    output: Annotated[
        Path | None, Argument(metavar="OUT", help="The model to write; omit it with --dry-run.")
    ] = None,
    *,
    dry_run: Annotated[bool, Option("--dry-run", help="Measure, but write no model.")] = False,
    runtime: Annotated[
        str, Option(metavar="NAME", help=f"The model's runtime: {options.RUNTIMES}.")
    ] = "onnxruntime",
    threads: options.Threads = None,
    input_shape: options.InputShapes = None,
    inputs: options.Inputs = None,
    seed: options.Seed = 0,
    seconds: Annotated[
        float,
        Option(metavar="S", help="Time per layer and shape; five times as much for the model."),
    ] = 1.0,
    time_limit: Annotated[
        float, Option(min=0.1, metavar="S", help="Time limit of one run.")
    ] = 300.0,
    no_float64: Annotated[
        bool,
        Option("--no-float64", help="Skip the comparison with float64, which is slow."),
    ] = False,
    report_file: Annotated[
        Path | None,
        Option("--report", metavar="FILE", help="Write a report: .html or .json."),
    ] = None,
    decisions: Annotated[
        Path | None,
        Option(metavar="FILE", help="Apply the decisions in this file: .json."),
    ] = None,
    remeasure: Annotated[
        bool,
        Option("--remeasure", help="Measure and write --decisions if they do not apply here."),
    ] = False,
    session: Annotated[
        Path | None,
        Option(metavar="FILE", help="Measure upconv.onnx.Session; save its decisions: .json."),
    ] = None,
    force: options.Force = False,
    output_format: options.OutputFormat = "text",
) -> None:
    """Make an ONNX model faster; every change is measured and verified.

    Every equivalent form of every transposed convolution is measured in the runtime that will run
    the model. Forms that are faster by more than the noise are kept, and the new model is verified
    and measured. A model that no form makes faster is written unchanged. If --input-shape gives
    several shapes of an input, a form must be faster at all of them.

    \b
    Examples:
      upconv optimize model.onnx faster.onnx --threads 2
      upconv optimize model.onnx faster.onnx --runtime openvino --report r.html
      upconv optimize model.onnx faster.onnx --decisions d.json --remeasure
      upconv optimize vocoder.onnx --dry-run --input-shape mel:1,80,200
    """
    if output is None and not dry_run:
        raise BadParameter("no output file is given; name one, or add --dry-run", param_hint="OUT")
    output = None if dry_run else output
    sizes = options.shape_sets(input_shape)
    written: list[Path] = []  # refuse wrong names before minutes of measuring
    for option, (name, ends) in {
        "OUT": (output, ()),
        "--report": (report_file, (".html", ".htm", ".json")),
        "--session": (session, (".json",)),
    }.items():
        path = npy.place(name, ends, force=force, inputs=[inputs], model=model, option=option)
        if path in written:
            raise BadParameter(f"{brief(str(name))} would be written twice")
        if path is not None:
            written.append(path)
    from ..onnx.optimizing import optimize as optimized
    from ..onnx.report import as_text, write_report

    result = optimized(
        model,
        output,
        runtime=runtime,
        input_shapes=sizes,
        feeds=npy.read_all(inputs),
        threads=threads,
        seed=seed,
        seconds=seconds,
        float64=not no_float64,
        session=session is not None,
        decisions=decisions,
        remeasure=remeasure,
        force=force,
        time_limit=time_limit,
    )
    if report_file is not None:
        write_report(result, report_file, force=force)
    if session is not None and result.session is not None:
        result.session.save(session)
    fields = {name: value for name, value in result.as_json().items() if name != "schema"}
    talk = [] if result.written is None else [f"wrote {result.written}"]
    finish("optimize", output_format, fields, [as_text(result)], talk)


def rewrite(
    source: Annotated[Path, Argument(metavar="IN", help="The model to rewrite: .onnx.")],
    out: Annotated[Path, Argument(metavar="OUT", help="The model to write.")],
    *,
    passes: Annotated[
        Any,
        Option(
            parser=options.names,
            metavar="NAME,...",
            help="The passes, in order (default: replace_deconv,sub_pixel);"
            " docs/onnx-rewrite.md lists them.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        Option(metavar="NAME", help="Instead of passes: tflite, coreml, tensorrt or webnn."),
    ] = None,
    rule: Annotated[
        Literal["spec", "onnxruntime", "openvino"] | None,
        Option(help="How to read auto_pad and output_shape (default: as ONNX specifies)."),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print the steps and write nothing.")
    ] = False,
    force: options.Force = False,
    output_format: options.OutputFormat = "text",
) -> None:
    """Rewrite an ONNX model with passes, or within a runtime's limits.

    Values stay the same up to rounding. The exit code is 1 if nodes still break the profile. The
    command then names these nodes and the reasons, and writes nothing.

    \b
    Examples:
      upconv rewrite model.onnx convolutions.onnx
      upconv rewrite model.onnx folded.onnx --passes fold_batch_norm,fold_pad
      upconv rewrite model.onnx mobile.onnx --profile tflite
      upconv rewrite model.onnx x.onnx --passes split_groups --dry-run
    """
    if passes is not None and profile is not None:
        raise BadParameter("both were given", param_hint="--passes and --profile")
    if not dry_run:
        npy.place(out, (), force=force, model=source)
    from ..onnx import rewriting, save

    result = rewriting.rewrite(source, passes, profile=profile, rule=rule)
    written = None if dry_run or result.left else str(out)
    if written:
        save(result.model, out, force=force)
    rows = [(neutral(s.node), s.by, neutral(s.refusal or "done")) for s in result.steps]
    unchanged = not result.fired and not result.left
    talk = ["nothing to rewrite: the model stays as it is"] if unchanged else []
    talk.append(f"wrote {written}" if written else "nothing written")
    fields = {
        "steps": [{"node": s.node, "pass": s.by, "refusal": s.refusal} for s in result.steps],
        "left": result.left,
        "written": written,
    }
    lines = [
        *aligned(rows, ("node", "pass", "result"), left=3),
        *(f"breaks the profile: {neutral(words)}" for words in result.left),
    ]
    finish("rewrite", output_format, fields, lines, talk, FINDINGS if result.left else 0)


def verify(
    a: Annotated[Path, Argument(metavar="A", help="The reference model: .onnx.")],
    b: Annotated[Path, Argument(metavar="B", help="The model to compare with A.")],
    *,
    runtime: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help=f"A runtime, may be repeated: {options.RUNTIMES} (default: onnxruntime).",
        ),
    ] = None,
    input_shape: options.InputShapes = None,
    inputs: options.Inputs = None,
    seed: options.Seed = 0,
    atol: Annotated[
        float | None,
        Option(
            min=0.0,
            metavar="E",
            help="Require |b - a| <= atol + rtol * |a| instead of twice a's own error.",
        ),
    ] = None,
    rtol: Annotated[float | None, Option(min=0.0, metavar="E", help="See --atol.")] = None,
    threads: options.Threads = None,
    output_format: options.OutputFormat = "text",
) -> None:
    """Compare the outputs of two ONNX models on the same inputs.

    An output of B may differ from A in float64 by twice A's own error and a few roundings. Integers
    must be equal, and quantized outputs must agree within one step. The exit code is 1 if an output
    differs; the command names the first layer that differs. A dynamic input dimension is 1 on the
    first axis and 32 on the others, unless --input-shape sets it.

    \b
    Examples:
      upconv verify model.onnx optimized.onnx
      upconv verify a.onnx b.onnx --runtime openvino --input-shape x:1,80,100
      upconv verify a.onnx b.onnx --rtol 1e-3 --atol 1e-5 --output-format json
    """
    sizes = options.input_shapes(input_shape)
    from ..onnx.verifying import verify as compared

    result = compared(
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
    rows = [
        (
            run.runtime,
            neutral(one.name),
            neutral(f"{one.op} {one.node}").strip() or "-",
            "x".join(map(str, one.shape)) or "scalar",
            one.rule,
            f"{one.error:.2g}",
            f"{one.allowed:.2g}",
            "equal" if one.equal else "DIFFERENT",
        )
        for run in result.runs
        for one in run.outputs
    ]
    lines = [*result.findings, *(words for run in result.runs for words in run.sentences())]
    finish(
        "verify",
        output_format,
        {"a": str(a), "b": str(b), **result.as_json()},
        [*aligned(rows, _HEADINGS, left=5), *map(neutral, lines)],
        [f"{run.runtime}: {neutral(run.remark)}" for run in result.runs if run.remark],
        0 if result.equal else FINDINGS,
    )


_HEADINGS = ("runtime", "output", "made by", "shape", "against", "error", "allowed", "verdict")
