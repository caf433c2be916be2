"""Choosing by measurement: contests between candidates, won by time."""

from pathlib import Path

import pytest

import upconv
from tests.support.counting_engine import BASE
from tests.support.timed_engines import (
    Timed,
    TimedPrimitive,
    clock,
    file,
    real_time,
    records,
    table,
)
from upconv import memory, tuning
from upconv.errors import EngineRefusal, MemoryLimitError
from upconv.problem import Direction, DType, Epilogue, Problem
from upconv.tuning import autotune

__all__ = ["clock", "file", "real_time", "table"]  # fixtures


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        ({"own": 4e-3}, {"own": 1e-3}, ("second", "")),
        ({"own": 1e-3}, {"own": 4e-3}, ("first", "")),
        ({"own": 4e-3, "a": 3e-3, "b": 1e-3}, {"own": 2e-3}, ("first", "b")),
        ({"own": 2e-3, "a": 3e-3}, {"own": 4e-3, "c": 1e-3}, ("second", "c")),
    ],
)
def test_the_fastest_wins(table, file: Path, first: dict, second: dict, winner: tuple) -> None:
    slow, fast = Timed("first", **first), Timed("second", **second)
    table(slow, fast)
    found = tuning.tuned(BASE, 1)
    assert (found.engine.name, found.variant) == winner
    assert found.seconds == pytest.approx(1e-3, rel=1e-3)
    expected = {"engine": winner[0], "variant": winner[1], "seconds": found.seconds}
    assert records(file) == [expected]
    for engine in (slow, fast):
        assert sorted(engine.closed) == sorted(engine.built)  # each once


def test_equals_go_by_preference(table) -> None:
    first, second = Timed("first", own=2e-3), Timed("second", own=1.99e-3)
    table(first, second)
    assert tuning.tuned(BASE, 1).engine is first


def test_a_hopeless_candidate_runs_no_more(table) -> None:
    quick, slow = Timed("quick", own=1e-3), Timed("slow", own=0.08)
    table(quick, slow)
    tuning.tuned(BASE, 1)
    assert len(slow.runs) == 1
    assert len(quick.runs) > 10


def test_a_slow_start_is_forgiven(table) -> None:
    """The first run of a short candidate is not counted: threads and pages are new in it."""

    class Waking(Timed):
        def build(self, problem, threads, variant=""):
            self.seconds[""] = 0.04
            primitive = super().build(problem, threads, variant)
            inner = primitive.run

            def run(*operands) -> None:
                inner(*operands)
                self.seconds[""] = 1e-3

            primitive.run = run
            return primitive

    waking, steady = Waking("waking", own=1e-3), Timed("steady", own=3e-3)
    table(steady, waking)
    assert tuning.tuned(BASE, 1).engine is waking


def test_candidates_take_turns(table) -> None:
    """Drift falls on all alike: nobody is measured only at the begin or only at the end."""
    both = Timed("both", own=2e-3, a=2e-3)
    table(both)
    tuning.tuned(BASE, 1)
    changes = sum(a != b for a, b in zip(both.runs, both.runs[1:], strict=False))
    assert changes >= 2 * autotune._FEWEST_ROUNDS - 1


def test_who_is_behind_after_a_round_sits_out(table) -> None:
    quick, behind, close = (Timed("e", own=s) for s in (1e-3, 1.5e-3, 1.1e-3))
    quick.name, behind.name, close.name = "quick", "behind", "close"
    table(quick, behind, close)
    tuning.tuned(BASE, 1)
    assert len(behind.runs) < 20 < 100 < len(close.runs) < len(quick.runs)


def test_long_builds_leave_time_for_rounds(table) -> None:
    """A winner is not found by single runs because compiling took the half second."""

    class Compiled(Timed):
        def build(self, problem, threads, variant=""):
            self.wait(0.4)
            return super().build(problem, threads, variant)

    both = Compiled("both", own=2e-3, a=2e-3)
    table(both)
    tuning.tuned(BASE, 1)
    changes = sum(a != b for a, b in zip(both.runs, both.runs[1:], strict=False))
    assert changes >= 2 * 3


@pytest.mark.parametrize(
    ("own", "others", "bound"), [(1e-3, 3, 0.6), (1e-2, 9, 1.5), (0.1, 50, 2.3), (9.0, 50, 9.1)]
)
def test_a_contest_is_bounded_in_time(table, clock, own: float, others: int, bound: float) -> None:
    """Half a second, or three rounds; two seconds, or one run."""
    many = Timed("many", own=own, **{f"v{i}": own for i in range(others)})
    table(many)
    tuning.tuned(BASE, 1)
    assert min(0.5, own) < clock.now < bound


def test_real_engines_on_the_real_clock(real_time) -> None:
    """The reference engine does a large problem and a small one; each is timed to the scale."""
    small = tuning.tuned(BASE, 1, "reference")
    large = tuning.tuned(BASE.replace(batch=20_000), 1, "reference")
    assert 1e-6 < small.seconds < large.seconds / 10


def test_an_engine_that_refuses_is_no_candidate(table) -> None:
    refusing, slow = Timed("refusing", refusal="no", own=1e-4), Timed("slow", own=1e-3)
    table(refusing, slow)
    assert tuning.tuned(BASE, 1).engine is slow
    assert not refusing.built
    table(refusing)
    with pytest.raises(EngineRefusal, match="refusing: no"):
        tuning.tuned(BASE, 1)


def test_only_the_engine_asked_for_is_a_candidate(table, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, quick = Timed("asked", own=2e-3, a=1e-3), Timed("quick", own=1e-4)
    table(asked, quick)
    for engine in ("asked", asked):
        found = tuning.tuned(BASE, 1, engine)
        assert (found.engine, found.variant) == (asked, "a")
    monkeypatch.setenv("UPCONV_ENGINE", "asked")
    upconv.cache_clear()
    assert tuning.tuned(BASE, 1).engine is asked
    assert not quick.built
    asked.refusal = "no"
    upconv.cache_clear()
    with pytest.warns(RuntimeWarning, match="engine 'quick', though .* asked: no"):
        assert tuning.tuned(BASE, 1).engine is quick


@pytest.mark.parametrize(
    "problem",
    [
        BASE.replace(direction=Direction.INPUT_GRAD, bias=True),
        BASE.replace(direction=Direction.WEIGHT_GRAD, accumulate=True),
        BASE.replace(dtype=DType.FLOAT16, epilogue=Epilogue(residual=True), bias=True),
        BASE.replace(dtype=DType.FLOAT64),
    ],
    ids=str,
)
def test_every_kind_of_problem_gets_fitting_data(problem: Problem, real_time) -> None:
    """The real engines would raise, or warn, for operands of another shape or type."""
    data = autotune._Data.of(problem)
    assert (data.a.shape, data.b.shape) == problem.operand_shapes
    assert data.out.shape == problem.result_shape
    assert (data.bias is not None, data.residual is not None) == (
        problem.bias, problem.epilogue.residual,
    )  # fmt: skip
    for array in (data.out, data.a, data.b, data.bias, data.residual):
        assert array is None or array.dtype == problem.dtype.numpy
    assert tuning.tuned(problem, 1, "reference").seconds > 0


def test_a_problem_without_work_is_not_measured(table, file: Path) -> None:
    engine = Timed("engine", own=1e-3, a=1e-4)
    table(engine)
    found = tuning.tuned(BASE.replace(batch=0), 1)
    assert (found.engine, found.variant, found.seconds) == (engine, "", 0.0)
    assert not engine.built
    assert not file.exists()


def test_an_error_of_an_engine_is_raised_and_nothing_is_remembered(table, file: Path) -> None:
    broken = Timed("broken", own=1e-3)
    broken.build = lambda *_: 1 / 0
    table(broken)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            tuning.tuned(BASE, 1)
    assert not file.exists()


class TestMemory:
    def test_a_problem_too_large_to_measure_goes_to_the_preferred(self, table, file: Path) -> None:
        engine = Timed("engine", own=1e-3, a=1e-4)
        table(engine)
        large = BASE.replace(batch=1 << 50)
        with pytest.warns(RuntimeWarning, match="random data to tune with needs"):
            found = tuning.tuned(large, 1)
        assert (found.engine, found.variant, found.seconds) == (engine, "", 0.0)
        assert not engine.built
        assert not file.exists()

    def test_a_candidate_that_does_not_fit_drops_out(
        self, table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        greedy, modest = Timed("greedy", own=1e-5), Timed("modest", own=1e-3)
        table(greedy, modest)
        monkeypatch.setattr(TimedPrimitive, "workspace_bytes", property(
            lambda self: 1 << 60 if self.engine is greedy else 0
        ))  # fmt: skip
        assert tuning.tuned(BASE, 1).engine is modest
        assert greedy.closed == [""]
        table(greedy)
        with pytest.warns(RuntimeWarning, match="no engine's scratch memory fits"):
            assert tuning.tuned(BASE, 1).engine is greedy

    def test_a_candidate_that_runs_out_of_memory_drops_out(self, table) -> None:
        greedy, modest = Timed("greedy", own=1e-5), Timed("modest", own=1e-3)

        class Full(TimedPrimitive):
            def run(self, *operands) -> None:
                raise MemoryLimitError("it does not fit")

        greedy.build = lambda problem, threads, variant: Full(greedy, "")
        table(greedy, modest)
        assert tuning.tuned(BASE, 1).engine is modest
        assert greedy.closed == [""]

    def test_random_data_is_asked_for_in_full(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []
        monkeypatch.setattr(memory, "require", lambda nbytes, purpose: asked.append(nbytes))
        problem = BASE.replace(bias=True, epilogue=Epilogue(residual=True))
        data = autotune._Data.of(problem)
        assert asked[0] >= sum(a.nbytes for a in (data.out, data.a, data.b, data.residual))
