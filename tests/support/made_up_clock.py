"""A clock that only made-up work advances, for tests of measured choices."""

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from upconv import measuring, timing
from upconv.measuring import Way


class MadeUpClock:
    """Seconds that pass only by `advance`, in `timing`, `measuring` and further modules."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        self.now = 0.0
        self.runs = list[str]()
        time = SimpleNamespace(
            perf_counter=lambda: self.now, process_time=lambda: 0.0, sleep=lambda _: None
        )
        for module in (timing, measuring, *modules):
            monkeypatch.setattr(module, "time", time)
        monkeypatch.setattr(timing, "rest", lambda: None)

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds

    def way(
        self,
        name: str,
        *seconds: float,
        result: Any = 1.0,
        prepare: Callable[[], object] | None = None,
    ) -> Way:
        """Return a way whose runs take these seconds in turn, and then always the last."""
        series: Iterator[float] = chain(seconds, repeat(seconds[-1]))

        def run() -> list[Any]:
            self.runs.append(name)
            self.advance(next(series))
            if isinstance(result, BaseException):
                raise result
            return [np.asarray(result)]

        return Way(name, run, prepare)
