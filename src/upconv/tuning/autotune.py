"""Interleaved timing of a problem's candidates, all variants of its engines, on random data.

The package's docstring states the rules; the package also stores the winner. A candidate that
needs more memory than is free, or that its engine refuses, drops out; all other errors propagate.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf, prod, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng  # imported early, so that no fork finds it half imported

from .. import memory, timing
from ..engine_choice import Algorithm, Selection, variants
from ..engines.base import Array, Engine, PackedWeight, Primitive, on_device
from ..errors import EngineRefusal, MemoryLimitError
from ..problem import Direction, Problem

_SECONDS = 0.5  # in total ...
_FEWEST_ROUNDS = 3  # ... unless building took most of it
_LAST_START = 2.0  # after this, no new candidate is tried, and no round begins
_HOPELESS = 5.0  # multiple of the best, after the first run
_BEHIND = 1.25  # multiple of the best, after a round
_EQUAL = 1.02
_ROUND_SECONDS = 0.015
_SHORT = 0.05  # a shorter first run is repeated, since its pages and threads are new
_DRAWN = 65521  # random numbers, which are repeated: drawing 10**8 would take a second


class _Data(NamedTuple):
    """Random operands in the form of `Primitive.run`; b is not packed."""

    out: Array
    a: Array
    b: Array
    bias: Array | None
    residual: Array | None
    slopes: Array | None
    second: Array | None

    def placed(self, engine: Engine) -> _Data:
        """Return the data on the engine's device, if the engine has one."""
        to_device = getattr(engine, "placed", None)
        if to_device is None:
            return self
        copies: Any = (None if array is None else to_device(array) for array in self)
        return _Data(*copies)

    @property
    def ends(self) -> tuple[Array | None, ...]:
        """The arguments of `Primitive.run` after the weight, without trailing None."""
        more = self.slopes, self.second
        return (self.bias, self.residual, *(more if more != (None, None) else ()))

    @classmethod
    def of(cls, problem: Problem) -> _Data:
        dtype, a_and_b = problem.dtype.numpy, problem.operand_shapes
        result, epilogue = problem.result_shape, problem.epilogue
        extra = (epilogue.residual + epilogue.has_second) * prod(result) * dtype.itemsize
        memory.require(problem.nbytes + extra, "the random data to tune with")
        numbers = default_rng(0).standard_normal(_DRAWN)
        some = numbers.astype(dtype)
        # Results are of order 1, since overflow can change a processor's speed.
        scaled = (numbers / sqrt(problem.longest_sum)).astype(dtype)
        return cls(
            np.zeros(result, dtype),
            np.resize(some, a_and_b[0]),
            np.resize(scaled, a_and_b[1]),
            np.resize(some, (problem.result_channels,)) if problem.bias else None,
            np.resize(some, result) if epilogue.residual else None,
            np.resize(some, (problem.result_channels,)) if epilogue.slopes else None,
            np.zeros(result, dtype) if epilogue.has_second else None,
        )


@dataclass(slots=True, eq=False)
class _Candidate:
    """A built primitive with its data, closed when it drops out; `seconds` is its best time."""

    engine: Engine
    variant: str
    primitive: Primitive
    data: _Data
    packs: bool
    seconds: float = inf
    b: PackedWeight = field(init=False)

    def __post_init__(self) -> None:
        data, primitive = self.data, self.primitive
        if not on_device(self.engine):
            memory.require(primitive.workspace_bytes + data.b.nbytes, "the scratch memory")
        self.b = primitive.pack(data.b) if self.packs else data.b

    def __del__(self) -> None:
        self.primitive.close()

    def sample(self, length: float = 0.0) -> float:
        """Return the time of the fastest run within `length` seconds (at least one run)."""
        data = self.data
        run = partial(self.primitive.run, data.out, data.a, self.b, *data.ends)
        measured = getattr(self.engine, "sample", None)  # by the device's own clock
        seconds = measured(run, length) if measured else timing.sample(run, length, fewest=0)[0]
        self.seconds = min(self.seconds, seconds)
        return seconds

    def first(self) -> None:
        """Run once; if that was short, run again and count only the second time."""
        if self.sample() < _SHORT:
            self.seconds = inf
            self.sample()

    def round(self) -> None:
        """Take samples; the first run seldom wins, since the caches hold other candidates' data."""
        timing.rest()
        self.sample(_ROUND_SECONDS)


def autotune(
    problem: Problem,
    threads: int,
    engines: Sequence[Engine],
    algorithm: Algorithm = Algorithm.DIRECT,
) -> Selection:
    """Return the engines' fastest variant; `MemoryLimitError` if none fits in memory."""
    start, data = time.perf_counter(), _Data.of(problem).placed(engines[0])
    # A device has its own clock and runs nothing else: the fewest rounds are enough.
    enough = 0.0 if on_device(engines[0]) else _SECONDS
    packs = problem.direction is not Direction.WEIGHT_GRAD
    staying: list[_Candidate] = []
    pairs = [(e, variant) for e in engines for variant in variants(e, problem, threads, algorithm)]
    for engine, variant in pairs:
        try:
            primitive = engine.build(problem, threads, variant)
            candidate = _Candidate(engine, variant, primitive, data, packs)
            candidate.first()
        except (MemoryError, EngineRefusal):  # also MemoryLimitError: the candidate drops out
            continue
        staying = _within(_HOPELESS, [*staying, candidate])
        if time.perf_counter() - start > _LAST_START:
            break
    if not staying:
        raise MemoryLimitError("no engine's scratch memory fits in addition to the random data")
    for rounds in count():
        seconds = time.perf_counter() - start
        if seconds >= (_LAST_START if rounds < _FEWEST_ROUNDS else enough):
            break
        for candidate in staying:
            candidate.round()
        staying = _within(_BEHIND, staying)
        if len(staying) == 1:
            break
    winner = _within(_EQUAL, staying)[0]
    return Selection(winner.engine, winner.variant, winner.seconds)


def _within(factor: float, candidates: list[_Candidate]) -> list[_Candidate]:
    """Return the candidates whose best time is within a factor of the overall best."""
    bound = factor * min(candidate.seconds for candidate in candidates)
    return [candidate for candidate in candidates if candidate.seconds <= bound]
