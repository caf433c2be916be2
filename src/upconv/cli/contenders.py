"""upconv's own engines as contenders: every one that is here, each asked by its name."""

from __future__ import annotations

from ..engines import load
from ..gradients import Gradients
from ..ops import conv_transpose_backward
from ..plans import plan
from ..primitives import shared_cache
from .cases import Case, Contender, Way


def refusal(name: str, case: Case) -> str | None:
    """Why the engine does not do the case, None if it does."""
    return load(name).refuses(case.problem)


def contender(name: str, case: Case, threads: int) -> Contender:
    """The engine on the case, its weight packed beforehand and its result written into place."""
    if case.way is Way.FORWARD:
        return _forward(name, case, threads)
    return _backward(name, case, threads)


def _forward(name: str, case: Case, threads: int) -> Contender:
    layer, y = case.layer, case.new_result()
    ready = plan(
        layer.x_shape, case.w, case.b, engine=load(name), threads=threads, **layer.keywords
    )
    x = case.x
    return Contender(name, name, lambda: ready(x, out=y), lambda: y, ready.workspace_bytes)


def _backward(name: str, case: Case, threads: int) -> Contender:
    engine, need, result = load(name), case.way.need, case.new_result()
    out = Gradients(**{need: result})
    g, x, w, how = case.g, case.x, case.w, case.layer.keywords

    def run() -> None:
        conv_transpose_backward(g, x, w, needs=(need,), engine=engine, out=out, **how)

    with shared_cache().lease(case.problem, engine, threads) as primitive:
        workspace = primitive.workspace_bytes
    return Contender(name, name, run, lambda: result, workspace)
