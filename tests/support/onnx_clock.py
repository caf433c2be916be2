"""Made-up times of candidates and whole models, instead of measurements."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from upconv.onnx.optimizing import candidates, select
from upconv.onnx.optimizing.results import Candidate
from upconv.timing import Rounds

Clock = Callable[[Mapping[str, float]], None]
"""Sets the seconds of candidates by name; "whole" is the model with any rewriting."""


def decided_by(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a function that sets the candidates' times; the others take 1 second."""

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
