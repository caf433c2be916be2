"""Times made up: what forms and whole models take is decided, nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from upconv.onnx.optimizing import trials, wholes
from upconv.onnx.optimizing.results import ORIGINAL
from upconv.onnx.optimizing.rounds import Rounds

Clock = Callable[[Mapping[str, float]], None]
"""Takes seconds by the name of a form; "whole" is the model with any rewriting."""


def decided_by(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock whose forms take what it is told, and 1 second where it is told nothing."""

    def decide(seconds: Mapping[str, float]) -> None:
        def contest(calls: list[object], budget: float) -> Rounds:
            names = contest.names if len(calls) != 2 else [ORIGINAL, "whole"]
            first = [[seconds.get(name, 1.0)] * 7 for name in names[: len(calls)]]
            return Rounds(tuple(first), first[0])

        real = trials._entrants

        def entrants(*args: object) -> object:
            found = real(*args)
            contest.names = [entrant.form.name for entrant in found[0]]
            return found

        monkeypatch.setattr(trials, "_entrants", entrants)
        monkeypatch.setattr(trials, "timed", contest)
        monkeypatch.setattr(wholes, "timed", contest)

    return decide
