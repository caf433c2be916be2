"""`upconv rewrite`: passes or a profile over an ONNX model, by rule and without measuring."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import npy, options, report
from .endings import Ending, say
from .options import Force, OutputFormat

if TYPE_CHECKING:
    from ..onnx.rewriting import Rewritten


class Rule(StrEnum):
    """Whose reading of auto_pad and output_shape."""

    SPEC = "spec"
    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"


_In = Annotated[Path, typer.Argument(metavar="IN", help="The model to rewrite: .onnx.")]
_Out = Annotated[Path, typer.Argument(metavar="OUT", help="Where the result goes.")]
_Passes = Annotated[
    Any,
    typer.Option(
        "--passes",
        parser=options.names,
        metavar="NAME,...",
        help="The passes, in order (default: replace_deconv,sub_pixel); docs/onnx.md lists them.",
    ),
]
_Profile = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="In place of passes: tflite, coreml, tensorrt or webnn."),
]
_Rule = Annotated[
    Rule | None,
    typer.Option(help="By whose reading of auto_pad and output_shape; without, by ONNX's text."),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")]


def rewrite(
    source: _In,
    out: _Out,
    *,
    passes: _Passes = None,
    profile: _Profile = None,
    rule: _Rule = None,
    dry_run: _DryRun = False,
    force: Force = False,
    output_format: OutputFormat = "text",
) -> None:
    """Rewrite the transposed convolutions of an ONNX model by passes, or for a runtime's limits.

    Values stay the same up to rounding. The exit code is 1 where nodes still break the profile:
    they are named with the reason, and nothing is written.

    \b
    Examples:
      upconv rewrite model.onnx convolutions.onnx
      upconv rewrite model.onnx folded.onnx --passes fold_batch_norm,fold_pad,fold_slice
      upconv rewrite model.onnx mobile.onnx --profile tflite
      upconv rewrite model.onnx plain.onnx --passes split_groups,no_dilation --dry-run
    """
    if passes is not None and profile is not None:
        raise typer.BadParameter("both were given", param_hint="--passes and --profile")
    if not dry_run:
        npy.place(out, (), force=force, inputs=(), model=source)
    from ..onnx import rewriting, save  # ONNX's libraries are loaded only for this

    found = rewriting.rewrite(source, passes, profile=profile, rule=rule and rule.value)
    written = not dry_run and not found.left
    if written:
        save(found.model, out, force=force)
    _print(found, output_format, out if written else None)
    if found.left:
        raise typer.Exit(int(Ending.FINDINGS))


def _print(found: Rewritten, output_format: str, written: Path | None) -> None:
    if output_format == "json":
        steps = [{"node": s.node, "pass": s.by, "refusal": s.refusal} for s in found.steps]
        left, path = list(found.left), None if written is None else str(written)
        report.document("rewrite", steps=steps, left=left, written=path)
        return
    from ..onnx.names import neutral

    rows = [(neutral(s.node), s.by, neutral(s.refusal or "done")) for s in found.steps]
    if rows:
        report.table([("node", "pass", "result"), *rows], left=3)
    for words in found.left:
        report.text(f"breaks the profile: {neutral(words)}")
    say("nothing written" if written is None else f"wrote {written}")
