"""Times made up: what candidates and whole models take is decided, nothing is measured."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from upconv.onnx.optimizing import candidates, select
from upconv.onnx.optimizing.results import Candidate
from upconv.timing import Rounds

Clock = Callable[[Mapping[str, float]], None]
"""Takes seconds by the name of a candidate; "whole" is the model with any rewriting."""


def decided_by(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock whose candidates take what it is told, and 1 second where it is told nothing."""

    def decide(seconds: Mapping[str, float]) -> None:
        names: list[str] = []
        real = candidates._Trial._timed

        def noted(self: object, found: Sequence[tuple[Candidate, object]]) -> object:
            names[:] = [one.passes for one, _ in found]
            return real(self, found)

        def rounds(all_of_them: Sequence[str]) -> Rounds:
            series = [[seconds.get(name, 1.0)] * 7 for name in all_of_them]
            return Rounds(tuple(series), series[0])

        monkeypatch.setattr(candidates._Trial, "_timed", noted)
        monkeypatch.setattr(candidates, "timed", lambda *_: rounds(names))
        monkeypatch.setattr(select, "timed", lambda *_: rounds(["original", "whole"]))

    return decide
