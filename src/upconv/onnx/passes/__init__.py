"""The table of passes: a new pass is a function, a line in the table and its tests."""

from __future__ import annotations

from functools import partial

from ...dialects.onnx import Rule
from . import legalise
from .base import Pass, Refusal, Rewriting, Step
from .fold_batch_norm import fold_batch_norm
from .fold_windows import fold_window
from .sub_pixel import Form, replace_deconv, sub_pixel

_ALL: tuple[Pass, ...] = (
    Pass("replace_deconv", replace_deconv),
    Pass("sub_pixel", sub_pixel),
    Pass("sub_pixel:unfolded", partial(sub_pixel, form=Form.UNFOLDED)),
    Pass("sub_pixel:folded", partial(sub_pixel, form=Form.FOLDED)),
    Pass("sub_pixel:polyphase", partial(sub_pixel, form=Form.POLYPHASE)),
    Pass("fold_batch_norm", fold_batch_norm),
    Pass("fold_pad", partial(fold_window, kind="Pad")),
    Pass("fold_slice", partial(fold_window, kind="Slice")),
    Pass("normalise", legalise.normalise),
    *(Pass(f"normalise:{rule.value}", legalise.normalise, rule) for rule in Rule),
    Pass("split_groups", legalise.split_groups),
    Pass("to_rank", legalise.to_rank),
    Pass("symmetric_pads", legalise.symmetric_pads),
    Pass("no_pads", legalise.no_pads),
    Pass("no_output_padding", legalise.no_output_padding),
    Pass("no_dilation", legalise.no_dilation),
)

PASSES: dict[str, Pass] = {pass_.name: pass_ for pass_ in _ALL}
"""Name -> the pass, in the order of the documentation."""

__all__ = ["PASSES", "Pass", "Refusal", "Rewriting", "Step"]
