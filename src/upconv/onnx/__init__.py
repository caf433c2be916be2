"""ONNX's face of upconv: models with deconvolutions, checked, rewritten and made faster, proven.

What lives here: the names, and the check that ONNX's libraries are there. `import upconv` never
comes here. The operator's own rules live in `upconv.dialects.onnx`, sizes in `upconv.geometry`.
"""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import EngineMissing

if find_spec("onnx") is None or find_spec("onnx_ir") is None:
    raise EngineMissing("upconv.onnx needs onnx and onnx-ir: pip install 'upconv[onnx]'")

__all__: list[str] = []
