"""Sessions: ONNX models run by ONNX Runtime and upconv together.

There is one session of ONNX Runtime for the whole model. The nodes that upconv computes are custom
operators in it (`operators`), written into the model in place of layers (`layers`), so that nothing
is cut apart, copied or run beside ONNX Runtime's threads. `choosing` measures which layers.
"""

from __future__ import annotations

from .reports import LayerReport, Report
from .session import NodeArg, Session

__all__ = ["LayerReport", "NodeArg", "Report", "Session"]
