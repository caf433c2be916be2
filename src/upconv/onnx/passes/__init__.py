"""The passes: rewritings of ConvTranspose nodes, each by its name.

`PASSES` is the table; a new pass is a file here, a line below and its tests. `upconv.onnx.rewrite`
runs them over a model.
"""

from __future__ import annotations

from .base import Pass, Step
from .sub_pixel import Form, ReplaceDeconv, SubPixelPass

_ALL: tuple[Pass, ...] = (
    ReplaceDeconv(),
    SubPixelPass(),
    SubPixelPass(Form.UNFOLDED),
    SubPixelPass(Form.FOLDED),
    SubPixelPass(Form.POLYPHASE),
)

PASSES: dict[str, Pass] = {each.name: each for each in _ALL}
"""Name -> the pass, in the order of the documentation."""

__all__ = ["PASSES", "Form", "Pass", "ReplaceDeconv", "Step", "SubPixelPass"]
