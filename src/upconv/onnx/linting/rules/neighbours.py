"""Rules about neighbours that belong into the node: whether one fits is for the passes to say."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ...passes import PASSES
from ..places import Place
from ..wording import quoted
from .base import Check, Observation


def foldable(kinds: tuple[str, ...], by: str, *, before: bool = False) -> Check:
    """A rule that fires where the pass `by` folds a neighbour of one of these operators."""

    def check(place: Place) -> Iterator[Observation]:
        site = place.site
        if site is None or site.departures or by not in PASSES:
            return
        found = _neighbour(place.node, kinds, before=before)
        if found is None or PASSES[by].refuses(site) is not None:
            return
        node, where = found
        yield Observation(
            f"{node.op_type} {quoted(node.name)} {where} it can be part of it.",
            {"neighbour": node.name, "operator": node.op_type, "pass": by},
        )

    return check


def _neighbour(
    node: ir.Node, kinds: tuple[str, ...], *, before: bool
) -> tuple[ir.Node, str] | None:
    """The node after this one, or before it where that is asked for and there is none after."""
    y = next(iter(node.outputs), None)
    uses = [] if y is None else list(y.uses())
    alone = len(uses) == 1 and y is not None and not y.is_graph_output()
    if alone and uses[0].node.op_type in kinds:
        return uses[0].node, "after"
    made_by = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    if before and made_by is not None and made_by.op_type in kinds:
        return made_by, "before"
    return None
