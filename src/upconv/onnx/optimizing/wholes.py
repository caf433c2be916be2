"""Whole models against each other, in one runtime, in turns.

What lives here: sessions and the clock for two models. What never does: deciding.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from ...arrays import Array
from ..runtimes import Runtime
from .results import Ratio, Timing, WholeResult
from .rounds import timed


def compared(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    runtime: Runtime,
    feeds: Mapping[str, Array],
    *,
    threads: int,
    seconds: float,
) -> WholeResult:
    """The times of two models on the same inputs."""
    with (
        runtime.session(before, threads=threads) as one,
        runtime.session(after, threads=threads) as other,
    ):
        rounds = timed([one.bind(feeds), other.bind(feeds)], seconds)
    return WholeResult(Timing.of(rounds.first), Timing.of(rounds.samples[1]), Ratio.of(rounds, 1))
