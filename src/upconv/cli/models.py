"""`upconv optimize`, `rewrite` and `verify`: ONNX models made faster or other, and compared.

ONNX's libraries are loaded by these commands only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from typer import Argument, BadParameter, Option

from ..errors import brief
from . import npy, options
from .exits import FINDINGS
from .report import Answer, answering, table


@answering(
    "optimize",
    model=Argument(metavar="IN", help="The model to make faster: .onnx."),
    output=Argument(metavar="OUT", help="Where the result goes; or --dry-run."),
    dry_run=Option("--dry-run", help="Measure, and write no model."),
    runtime=Option(metavar="NAME", help=f"What will run it: {options.RUNTIMES}."),
    seconds=Option(metavar="S", help="Time per layer and shape; five times as much for the whole."),
    time_limit=Option(min=0.1, metavar="S", help="Time that one run may take."),
    no_float64=Option("--no-float64", help="Leave out the comparison with float64, which is slow."),
    report_file=Option("--report", metavar="FILE", help="Write a report: .html or .json."),
    decisions=Option(metavar="FILE", help="Apply decisions that --remeasure wrote: .json."),
    remeasure=Option("--remeasure", help="Write --decisions, measured here, if they are not."),
    session=Option(metavar="FILE", help="Measure upconv.onnx.Session; save its decisions: .json."),
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
    report_file: Path | None = None,
    decisions: Path | None = None,
    remeasure: bool = False,
    session: Path | None = None,
    force: bool = False,
) -> Answer:
    """Make an ONNX model faster, measured and verified.

    Every form of every transposed convolution is measured in the runtime that will run the model;
    what is faster beyond the noise is kept, and the whole model verified and measured. A model that
    nothing makes faster is written as it is. With an --input-shape given several times a form has
    to pay at all of its shapes.

    \b
    Examples:
      upconv optimize model.onnx faster.onnx --threads 2
      upconv optimize model.onnx faster.onnx --runtime openvino --report r.html
      upconv optimize model.onnx faster.onnx --decisions d.json --remeasure
      upconv optimize vocoder.onnx --dry-run --input-shape mel:1,80,200
    """
    if output is None and not dry_run:
        raise BadParameter("is missing: name a file, or give --dry-run", param_hint="OUT")
    output = None if dry_run else output
    sizes = options.shape_sets(input_shape)
    written: list[Path] = []  # complained about before minutes are spent on making them
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

    found = optimized(
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
        write_report(found, report_file, force=force)
    if session is not None and found.session is not None:
        found.session.save(session)
    fields = {name: value for name, value in found.as_json().items() if name != "schema"}
    talk = [] if found.written is None else [f"wrote {found.written}"]
    return Answer(fields, [as_text(found)], talk)


@answering(
    "rewrite",
    source=Argument(metavar="IN", help="The model to rewrite: .onnx."),
    out=Argument(metavar="OUT", help="Where the result goes."),
    passes=Option(
        parser=options.names,
        metavar="NAME,...",
        help="The passes, in order (default: replace_deconv,sub_pixel); docs/onnx.md lists them.",
    ),
    profile=Option(metavar="NAME", help="In place of passes: tflite, coreml, tensorrt or webnn."),
    rule=Option(help="By whose reading of auto_pad and output_shape; without, by ONNX's text."),
    dry_run=Option("--dry-run", help="Say what would be done; write nothing."),
)
def rewrite(
    source: Path,
    out: Path,
    *,
    passes: Any = None,
    profile: str | None = None,
    rule: Literal["spec", "onnxruntime", "openvino"] | None = None,
    dry_run: bool = False,
    force: bool = False,
) -> Answer:
    """Rewrite an ONNX model by passes, or within a runtime's limits.

    Values stay the same up to rounding. The exit code is 1 where nodes still break the profile:
    they are named with the reason, and nothing is written.

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
    from ..terminal import neutral

    found = rewriting.rewrite(source, passes, profile=profile, rule=rule)
    written = None if dry_run or found.left else str(out)
    if written:
        save(found.model, out, force=force)
    rows = [(neutral(s.node), s.by, neutral(s.refusal or "done")) for s in found.steps]
    unchanged = not found.fired and not found.left
    talk = ["nothing to rewrite: the model stays as it is"] if unchanged else []
    talk.append(f"wrote {written}" if written else "nothing written")
    fields = {
        "steps": [{"node": s.node, "pass": s.by, "refusal": s.refusal} for s in found.steps],
        "left": found.left,
        "written": written,
    }
    return Answer(
        fields,
        [
            *table(rows, ("node", "pass", "result"), left=3),
            *(f"breaks the profile: {neutral(words)}" for words in found.left),
        ],
        talk,
        FINDINGS if found.left else 0,
    )


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
    """Compare the outputs of two ONNX models on the same inputs.

    An output of B may differ from A in float64 by twice A's own error and a few roundings; integers
    must be equal, quantised outputs within one step. The exit code is 0 where everything is equal,
    1 where something differs; the first layer that differs is named. Open dimensions of inputs are
    1 for the first axis and 32 for the others, unless --input-shape says otherwise.

    \b
    Examples:
      upconv verify model.onnx optimised.onnx
      upconv verify a.onnx b.onnx --runtime openvino --input-shape x:1,80,100
      upconv verify a.onnx b.onnx --rtol 1e-3 --atol 1e-5 --output-format json
    """
    sizes = options.input_shapes(input_shape)
    from ..onnx.verifying import verify as compared
    from ..terminal import neutral

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
        for run in found.runs
        for one in run.outputs
    ]
    lines = [*found.findings, *(words for run in found.runs for words in run.told())]
    return Answer(
        {"a": str(a), "b": str(b), **found.as_json()},
        [*table(rows, _HEADINGS, left=5), *map(neutral, lines)],
        [f"{run.runtime}: {neutral(run.remark)}" for run in found.runs if run.remark],
        0 if found.equal else FINDINGS,
    )


_HEADINGS = ("runtime", "output", "made by", "shape", "against", "error", "allowed", "verdict")
