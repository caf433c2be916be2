"""Whole models with some of their layers rewritten.

What lives here: applying the chosen forms to a copy. What never does: choosing, measuring.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ...dialects.onnx import Rule
from ...errors import ModelError
from ..models import from_model
from .layers import mark, marked
from .results import ORIGINAL
from .trials import apply


def assembled(model: ir.Model, forms: Mapping[int, str], rule: Rule) -> ir.Model:
    """A copy of `model` whose ConvTranspose nodes, by their number, have these forms."""
    copy = from_model(model)
    mark(copy)
    for index, form in forms.items():
        if form != ORIGINAL:
            refusal = apply(copy, form, rule, marked(index))
            if refusal is not None:  # it fired on the layer alone
                raise ModelError(f"ConvTranspose number {index} cannot be rewritten: {refusal}.")
    return copy
