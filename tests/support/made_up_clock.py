"""A clock that only made-up work moves, for tests of measured choices."""

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from upconv import measuring, timing
from upconv.measuring import Way


class MadeUpClock:
    """Seconds that pass where `advance` says so, in `timing`, `measuring` and further modules."""

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
        """Let some seconds pass."""
        self.now += seconds

    def way(
        self,
        name: str,
        *seconds: float,
        result: Any = 1.0,
        prepare: Callable[[], object] | None = None,
    ) -> Way:
        """A way that takes these seconds in turn, the last of them for ever."""
        series: Iterator[float] = chain(seconds, repeat(seconds[-1]))

        def run() -> list[Any]:
            self.runs.append(name)
            self.advance(next(series))
            if isinstance(result, BaseException):
                raise result
            return [np.asarray(result)]

        return Way(name, run, prepare)
