"""`upconv rewrite`: passes or a profile over an ONNX model, by rule and without measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from typer import Argument, BadParameter, Option

from . import npy, options
from .endings import FINDINGS
from .report import Answer, answering, table


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
        raise BadParameter("both were given", param_hint="--passes and --profile")
    if not dry_run:
        npy.place(out, (), force=force, model=source)
    from ..onnx import rewriting, save  # ONNX's libraries are loaded only for this
    from ..onnx.names import neutral

    found = rewriting.rewrite(source, passes, profile=profile, rule=rule)
    written = None if dry_run or found.left else str(out)
    if written:
        save(found.model, out, force=force)
    rows = [(neutral(s.node), s.by, neutral(s.refusal or "done")) for s in found.steps]
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
        [f"wrote {written}" if written else "nothing written"],
        FINDINGS if found.left else 0,
    )
