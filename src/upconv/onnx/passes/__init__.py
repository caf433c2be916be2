"""The passes: rewritings of ConvTranspose nodes, each by its name.

`PASSES` is the table; a new pass is a file here, a line below and its tests. `upconv.onnx.rewrite`
runs them over a model.
"""

from __future__ import annotations

from ...dialects.onnx import Rule
from .base import Pass, Step
from .fold_batch_norm import FoldBatchNorm
from .fold_pad import FoldPad
from .fold_slice import FoldSlice
from .no_dilation import NoDilation
from .no_output_padding import NoOutputPadding
from .normalise import Normalise
from .split_groups import SplitGroups
from .sub_pixel import Form, ReplaceDeconv, SubPixelPass
from .symmetric_pads import SymmetricPads
from .to_rank import ToRank

_ALL: tuple[Pass, ...] = (
    ReplaceDeconv(),
    SubPixelPass(),
    SubPixelPass(Form.UNFOLDED),
    SubPixelPass(Form.FOLDED),
    SubPixelPass(Form.POLYPHASE),
    FoldBatchNorm(),
    FoldPad(),
    FoldSlice(),
    Normalise(),
    *(Normalise(rule) for rule in Rule),
    SplitGroups(),
    ToRank(),
    SymmetricPads(),
    NoOutputPadding(),
    NoDilation(),
)

PASSES: dict[str, Pass] = {each.name: each for each in _ALL}
"""Name -> the pass, in the order of the documentation."""

__all__ = [
    "PASSES",
    "FoldBatchNorm",
    "FoldPad",
    "FoldSlice",
    "Form",
    "NoDilation",
    "NoOutputPadding",
    "Normalise",
    "Pass",
    "ReplaceDeconv",
    "SplitGroups",
    "Step",
    "SubPixelPass",
    "SymmetricPads",
    "ToRank",
]
