"""An engine that expects another to be faster: passed over, told, and taken where it is alone."""

from __future__ import annotations

import pytest

from upconv import choices
from upconv.engines import load
from upconv.engines.jit.cpu import host
from upconv.errors import EngineMissing
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, Problem

PLANE = (Axis(20, 3, 1, 1, 1, 1),) * 2
CONVOLUTION = Problem(Direction.INPUT_GRAD, PLANE, 1, 64, 64)
LAST = CONVOLUTION.replace(layout=DataLayout.NXC)
STEPPED = CONVOLUTION.replace(axes=(Axis(20, 3, 2, 1, 1, 1),) * 2)
DEFERRED = (
    LAST,
    STEPPED.replace(out_channels=3),
    STEPPED.replace(groups=8),
    STEPPED.replace(in_channels=12),
)


class Named:
    """An engine that does everything, and defers or refuses when told to."""

    def __init__(self, defers: str | None = None, refuses: str | None = None) -> None:
        self.defers, self.refuses = (lambda _: defers), (lambda _: refuses)


def chosen(table: dict[str, Named]) -> tuple[str, list[str]]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(choices, "ENGINES", table)
        patched.setattr(choices, "load", lambda name, _: table[name])
        made = choices._first_able(CONVOLUTION)
    names = {id(engine): name for name, engine in table.items()}
    return names[id(made.engine)], [str(refusal) for refusal in made.refusals]


def test_is_passed_over_for_another_but_not_for_the_last() -> None:
    slow, able, never = Named("it is slow"), Named(), Named(refuses="it cannot")
    assert chosen({"a": slow, "b": able, "z": Named()}) == ("b", ["a: it is slow"])
    assert chosen({"a": slow, "b": never, "z": Named()}) == ("a", [])
    assert chosen({"a": never, "b": slow, "z": Named()}) == ("b", ["a: it cannot"])
    assert chosen({"a": slow, "b": Named("too"), "z": Named()}) == ("a", [])
    assert chosen({"a": never, "b": never, "z": Named()}) == ("z", ["a: it cannot", "b: it cannot"])


def test_is_taken_where_the_variable_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "_asked_variable", lambda: "a")
    assert chosen({"a": Named("it is slow"), "b": Named(), "z": Named()}) == ("a", [])


@pytest.mark.parametrize("problem", DEFERRED, ids=str)
def test_the_jit_leaves_some_convolutions_to_libdnnl(problem: Problem) -> None:
    jit = load("jit")
    assert jit.defers(problem)
    assert jit.refuses(problem) is None
    assert jit.defers(problem.replace(direction=Direction.FORWARD)) is None
    try:
        load("onednn")
    except EngineMissing:
        assert choices.choose(problem).engine is jit
    else:
        assert choices.choose(problem).engine is load("onednn")


def test_the_jit_keeps_the_others() -> None:
    few = LAST.replace(axes=(Axis(8, 3, 1, 1, 1, 1),) * 2)
    basis = CONVOLUTION.replace(axes=(Axis(40, 512, 128),), in_channels=514, out_channels=1)
    depthwise = CONVOLUTION.replace(groups=64)
    narrow = CONVOLUTION.replace(groups=8)
    volume = LAST.replace(axes=PLANE[:1] * 3, groups=64)
    kept = CONVOLUTION, few, CONVOLUTION.replace(in_channels=1), basis, depthwise, narrow, volume
    if host().vector_bytes == 64:  # for which the planes kernel is
        kept += (LAST.replace(groups=64),)
    for problem in kept:
        assert load("jit").defers(problem) is None
        assert choices.choose(problem).engine is load("jit")


def test_without_libdnnl_the_jit_does_them(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: place for name, place in choices.ENGINES.items() if name != "onednn"}
    monkeypatch.setattr(choices, "ENGINES", others)
    choices.forget_choices()
    assert choices.choose(LAST).engine is load("jit")
    choices.forget_choices()
