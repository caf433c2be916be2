"""The ONNX front end: check, rewrite, run and speed up models with transposed convolutions.

    import upconv.onnx
    rewritten = upconv.onnx.rewrite("model.onnx", ["fold_batch_norm", "replace_deconv"])
    upconv.onnx.save(rewritten, "rewritten.onnx")

Requires onnx, onnx-ir and ONNX Runtime: `pip install '.[onnx]'` in a checkout of upconv. OpenVINO
is used if it is installed.
"""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import EngineMissing
from ..installation import install_command

if find_spec("onnx") is None or find_spec("onnx_ir") is None:
    raise EngineMissing(f"upconv.onnx needs onnx and onnx-ir: {install_command('onnx')}")

from .linting import Finding, Findings, Severity, lint
from .models import Source, load, save, to_proto
from .nodes import ConvTransposeNode, Unreadable, conv_transpose_nodes
from .operators import conv_transpose
from .optimizing import Optimization, optimize
from .passes import PASSES, Pass, Step
from .report import as_html, as_text, write_report
from .rewriting import Rewritten, rewrite
from .session import Session
from .streams import FileStream, stream
from .verifying import Comparison, verify

__all__ = [
    "PASSES",
    "Comparison",
    "ConvTransposeNode",
    "FileStream",
    "Finding",
    "Findings",
    "Optimization",
    "Pass",
    "Rewritten",
    "Session",
    "Severity",
    "Source",
    "Step",
    "Unreadable",
    "as_html",
    "as_text",
    "conv_transpose",
    "conv_transpose_nodes",
    "lint",
    "load",
    "optimize",
    "rewrite",
    "save",
    "stream",
    "to_proto",
    "verify",
    "write_report",
]


def __dir__() -> list[str]:
    return __all__
