"""Choosing by measurement: winners by time, remembered, and only for who asks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import upconv
from upconv import choices, memory, tuning
from upconv.errors import ArgumentError, DTypeError, EngineRefusal, MemoryLimitError
from upconv.geometry import Axis
from upconv.problem import Direction, DType, Epilogue, Problem
from upconv.tuning import contests

BASE = Problem(Direction.FORWARD, (Axis(5, 3, 2, 1, 1, 0), Axis(7, 4, 3)), 2, 6, 12, 3)
X, W = np.ones((1, 1, 4), np.float32), np.ones((1, 1, 3), np.float32)


class Clock:
    """Time that passes only where an engine says so: contests end the same on a busy machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds + 1e-7


class Timed:
    """An engine whose every variant takes as long as it is told: seconds by variant, "" first."""

    wait = staticmethod(time.sleep)

    def __init__(self, name: str, refusal: str | None = None, **seconds: float) -> None:
        self.name, self.refusal = name, refusal
        self.seconds = {variant.replace("own", ""): s for variant, s in seconds.items()}
        self.version = "1"
        self.built: list[str] = []
        self.runs: list[str] = []
        self.closed: list[str] = []

    def fingerprint(self) -> str:
        return self.version

    def refuses(self, problem: Problem) -> str | None:
        return self.refusal

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        return tuple(self.seconds)

    def build(self, problem: Problem, threads: int, variant: str = ""):
        self.built.append(variant)
        return TimedPrimitive(self, variant)


class TimedPrimitive:
    workspace_bytes = resident_bytes = 0
    description, predicted_cycles = "it sleeps", 4000.0

    def __init__(self, engine: Timed, variant: str) -> None:
        self.engine, self.variant = engine, variant

    def pack(self, weight):
        return weight

    def run(self, out, a, b, bias=None, residual=None) -> None:
        self.engine.runs.append(self.variant)
        self.engine.wait(self.engine.seconds[self.variant])
        out[...] = 1

    def close(self) -> None:
        self.engine.closed.append(self.variant)


class Old(Timed):
    """An engine from before there were variants."""

    variants = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__("old", own=1e-4)
        del self.seconds
        self.seconds = {"": 1e-4}

    def __getattribute__(self, name: str):
        if name == "variants":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def build(self, problem: Problem, threads: int):
        primitive = TimedPrimitive(self, "")
        primitive.__class__ = OldPrimitive
        return primitive


class OldPrimitive(TimedPrimitive):
    def __getattribute__(self, name: str):
        if name in ("description", "predicted_cycles"):
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store and a clock of this test's own, and a cache without another test's primitives."""
    clock = Clock()
    monkeypatch.setattr(contests, "time", clock)
    monkeypatch.setattr(Timed, "wait", staticmethod(clock.pass_by))
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("UPCONV_TUNING_FILE", str(path))
    monkeypatch.delenv("UPCONV_TUNE", raising=False)
    monkeypatch.delenv("UPCONV_ENGINE", raising=False)
    upconv.cache_clear()
    yield path
    upconv.cache_clear()


@pytest.fixture
def real_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines really sleep: for what happens meanwhile."""
    monkeypatch.setattr(contests, "time", time)
    monkeypatch.setattr(Timed, "wait", staticmethod(time.sleep))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch):
    """Put engines into the table, in the place of all others."""

    def put(*known: Timed) -> None:
        monkeypatch.setattr(choices, "ENGINES", {e.name: e.name for e in known})
        by_name = {e.name: e for e in known}
        monkeypatch.setattr(choices, "load", lambda name, argument="engine": by_name[name])
        upconv.cache_clear()

    return put


def records(file: Path) -> list[dict]:
    return list(json.loads(file.read_text())["winners"].values())


def forget_in_memory() -> None:
    """As if the process had just begun."""
    tuning._tuner.cache_clear()


# Contests -----------------------------------------------------------------------------------------


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
    assert changes >= 2 * contests._FEWEST_ROUNDS - 1


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
def test_a_contest_is_bounded_in_time(table, own: float, others: int, bound: float) -> None:
    """Half a second, or three rounds; two seconds, or one run."""
    many = Timed("many", own=own, **{f"v{i}": own for i in range(others)})
    table(many)
    tuning.tuned(BASE, 1)
    assert contests.time.now < bound
    assert contests.time.now > min(0.5, own)


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
    data = contests._Data.of(problem)
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

        greedy.build = lambda problem, threads: Full(greedy, "")
        table(greedy, modest)
        assert tuning.tuned(BASE, 1).engine is modest
        assert greedy.closed == [""]

    def test_random_data_is_asked_for_in_full(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []
        monkeypatch.setattr(memory, "require", lambda nbytes, purpose: asked.append(nbytes))
        problem = BASE.replace(bias=True, epilogue=Epilogue(residual=True))
        data = contests._Data.of(problem)
        assert asked[0] >= sum(a.nbytes for a in (data.out, data.a, data.b, data.residual))


# Remembering --------------------------------------------------------------------------------------


def test_a_winner_is_measured_once_and_remembered(table) -> None:
    engine = Timed("engine", own=2e-3, a=1e-3)
    table(engine)
    found = tuning.tuned(BASE, 1)
    runs = len(engine.runs)
    assert tuning.tuned(BASE.replace(), 1) is found
    assert upconv.tuning_info().measured == 1
    forget_in_memory()
    again = tuning.tuned(BASE, 1)
    assert (again.variant, again.seconds) == (found.variant, found.seconds)
    assert len(engine.runs) == runs
    assert upconv.tuning_info().measured == 0
    assert upconv.tuning_info().winners == 1


@pytest.mark.parametrize("change", ["problem", "threads", "fingerprint", "company", "processor"])
def test_whatever_a_winner_depends_on_is_in_the_key(
    table, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, other = Timed("engine", own=2e-3, a=1e-3), Timed("other", own=5e-3)
    table(engine)
    tuning.tuned(BASE, 1)
    runs, problem, threads = len(engine.runs), BASE, 1
    if change == "problem":
        problem = BASE.replace(batch=3)
    if change == "threads":
        threads = 2
    if change == "fingerprint":
        engine.version = "2"
    if change == "company":
        table(engine, other)
    if change == "processor":
        forget_in_memory()
        monkeypatch.setattr(tuning, "processor_model", lambda: "another")
    tuning.tuned(problem, threads)
    assert len(engine.runs) > runs
    assert upconv.tuning_info().winners == 2


@pytest.mark.parametrize("field", ["engine", "variant"])
def test_a_name_that_is_not_there_is_measured_anew(table, file: Path, field: str) -> None:
    engine = Timed("engine", own=2e-3, a=1e-3)
    table(engine)
    tuning.tuned(BASE, 1)
    document = json.loads(file.read_text())
    (record,) = document["winners"].values()
    record[field] = "../../steam"
    file.write_text(json.dumps(document))
    forget_in_memory()
    with pytest.warns(RuntimeWarning, match="measured anew") as said:
        found = tuning.tuned(BASE, 1)
    assert len(said) == 1
    assert tuning.tuned(BASE, 1) is found
    assert (found.engine, found.variant) == (engine, "a")
    assert "../../steam" not in engine.built
    assert records(file)[0][field] == {"engine": "engine", "variant": "a"}[field]


def test_a_damaged_file_costs_a_warning_and_a_measurement(table, file: Path) -> None:
    engine = Timed("engine", own=1e-3)
    table(engine)
    file.write_text('{"upconv tuning": 1, "winners": {"')
    with pytest.warns(RuntimeWarning, match="started anew"):
        assert upconv.plan(X.shape, W, tune=True)(X).tolist() == np.ones((1, 1, 6)).tolist()
    assert len(records(file)) == 1


def test_a_store_that_cannot_be_written_costs_a_warning(
    table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Timed("engine", own=1e-3)
    table(engine)
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("UPCONV_TUNING_FILE", str(tmp_path / "taken" / "tuning.json"))
    with pytest.warns(RuntimeWarning) as said:
        tuning.tuned(BASE, 1)
    assert "end with this process" in str(said[-1].message)
    runs = len(engine.runs)
    tuning.tuned(BASE, 1)
    assert len(engine.runs) == runs


def test_threads_that_want_one_winner_measure_once(table, real_time) -> None:
    engine = Timed("engine", own=2e-3, a=1e-3)
    table(engine)
    found: list = []
    group = [threading.Thread(target=lambda: found.append(tuning.tuned(BASE, 1))) for _ in range(8)]
    for thread in group:
        thread.start()
    for thread in group:
        thread.join()
    assert len(found) == 8
    assert sorted(engine.built) == ["", "a"]


def test_the_cache_is_free_while_something_is_measured(table, real_time) -> None:
    slow = Timed("slow", own=0.4)
    table(slow)
    thread = threading.Thread(target=lambda: tuning.tuned(BASE, 1))
    thread.start()
    while not slow.runs:
        time.sleep(0.001)
    upconv.conv_transpose(X, W, engine=Timed("other", own=0.0))
    assert len(slow.runs) == 1, "the call waited for the measurement"
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_in_the_middle_of_a_measurement_can_tune() -> None:
    code = """
import os, signal, threading, time
import sys; sys.path.insert(0, %r)
from test_tuning import BASE, Timed
from upconv import tuning
slow = Timed("slow", own=0.3)
thread = threading.Thread(target=lambda: tuning.tuned(BASE, 1, slow))
thread.start()
while not slow.runs: time.sleep(0.001)
child = os.fork()
if child == 0:
    signal.alarm(10)
    tuning.tuned(BASE, 1, Timed("quick", own=1e-3))
    os._exit(0)
print(os.waitpid(child, 0)[1])
thread.join()
""" % str(Path(__file__).parent)  # noqa: UP031
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")
def test_ctrl_c_in_a_measurement_leaves_it_to_be_done_again(table, file: Path, real_time) -> None:
    engine = Timed("engine", own=0.3)
    table(engine)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            tuning.tuned(BASE, 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not file.exists()
    assert engine.closed == [""]
    engine.seconds[""] = 1e-3
    assert tuning.tuned(BASE, 1).seconds > 0


# Who asks -----------------------------------------------------------------------------------------


class TestWhoAsks:
    @pytest.fixture
    def two(self, table) -> tuple[Timed, Timed]:
        pair = Timed("preferred", own=3e-3, a=3e-3), Timed("quick", own=3e-3, b=1e-3)
        table(*pair)
        return pair

    def test_a_plan_tunes_when_told(self, two: tuple[Timed, Timed]) -> None:
        plan = upconv.plan(X.shape, W, tune=True)
        assert plan.engine == "quick"
        two[1].runs.clear()
        plan(X)
        assert two[1].runs == ["b"]

    def test_nobody_else_measures_or_looks_at_the_file(
        self, two: tuple[Timed, Timed], file: Path
    ) -> None:
        upconv.plan(X.shape, W, tune=True)
        file.write_text("damage that would be warned about")
        forget_in_memory()
        for tune in (None, False):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert upconv.plan(X.shape, W, tune=tune).engine == "preferred"
        two[0].runs.clear()
        upconv.conv_transpose(X, W)
        assert two[0].runs == [""]

    @pytest.mark.parametrize("value", ["1", " 1 "])
    def test_the_variable_turns_it_on(
        self, two: tuple[Timed, Timed], value: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("UPCONV_TUNE", value)
        upconv.cache_clear()
        upconv.conv_transpose(X, W)
        two[1].runs.clear()
        upconv.conv_transpose(X, W)
        assert two[1].runs == ["b"]
        assert upconv.plan(X.shape, W).engine == "quick"
        assert upconv.plan(X.shape, W, tune=False).engine == "preferred"
        assert upconv.tuning_info().measured == 1

    def test_gradients_are_tuned_too(
        self, two: tuple[Timed, Timed], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("UPCONV_TUNE", "1")
        upconv.cache_clear()
        grad = np.ones((1, 1, 6), np.float32)
        upconv.conv_transpose_backward(grad, X, W, needs=("x", "weight"))
        assert upconv.tuning_info().measured == 2

    @pytest.mark.parametrize("value", ["", "0", " "])
    def test_the_variable_may_say_no(
        self, two: tuple[Timed, Timed], value: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("UPCONV_TUNE", value)
        upconv.cache_clear()
        assert upconv.plan(X.shape, W).engine == "preferred"

    @pytest.mark.parametrize("value", ["maybe", "2", "true"])
    def test_anything_else_is_an_error(self, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("UPCONV_TUNE", value)
        upconv.cache_clear()
        expected = f"UPCONV_TUNE is '{value}'; expected 1, 0 or nothing"
        for call in (lambda: upconv.conv_transpose(X, W), lambda: upconv.plan(X.shape, W)):
            with pytest.raises(ArgumentError, match=expected):
                call()
        upconv.plan(X.shape, W, tune=False)

    @pytest.mark.parametrize("value", ["yes", 1, [0]])
    def test_the_keyword_is_a_bool(self, value: object) -> None:
        with pytest.raises(DTypeError, match=r"tune is .*; expected a bool"):
            upconv.plan(X.shape, W, tune=value)

    def test_clearing_measures_anew(self, two: tuple[Timed, Timed], file: Path) -> None:
        upconv.plan(X.shape, W, tune=True)
        upconv.tuning_clear()
        assert not file.exists()
        assert upconv.tuning_info() == upconv.TuningInfo(str(file), 0, 0, 0)
        two[1].runs.clear()
        upconv.plan(X.shape, W, tune=True)
        assert len(two[1].runs) > 2

    def test_a_copied_plan_is_tuned_as_well(self, real_time) -> None:
        import pickle

        plan = upconv.plan(X.shape, W, engine="reference", tune=True)
        copy = pickle.loads(pickle.dumps(plan))
        np.testing.assert_array_equal(copy(X), plan(X))
        assert copy._tune is True


def test_variants_are_primitives_of_their_own() -> None:
    engine = Timed("engine", own=0.0, a=0.0)
    cache = upconv.primitives.PrimitiveCache()
    for variant in ("", "a", "", "a"):
        with cache.lease(BASE, engine, 1, variant) as primitive:
            assert primitive.variant == variant
    assert engine.built == ["", "a"]


def test_an_engine_from_before_there_were_variants_still_works() -> None:
    old = Old()
    upconv.conv_transpose(X, W, engine=old)
    plan = upconv.plan(X.shape, W, engine=old, tune=True)
    assert plan.engine == "old"
    told = upconv.explain(X.shape, W, engine=old)
    assert (told.schedule, told.predicted_seconds) == ("", None)


# explain ------------------------------------------------------------------------------------------


class TestExplain:
    @pytest.fixture
    def ceilings(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Two threads that make 64 lanes a cycle at 2 GHz, and 16 GB/s; who measures is counted."""
        limits = pytest.importorskip("upconv.engines.jit.limits", reason="needs llvmlite")
        measured: list[int] = []

        def measure(threads: int):
            measured.append(threads)
            lanes = limits.host().lanes(4)
            return limits.Limits(threads, 2e9 * 4 * lanes * threads, 16e9)

        monkeypatch.setattr(limits, "measure", measure)
        return measured

    def test_nothing_is_measured_unless_asked(self, ceilings: list[int], file: Path) -> None:
        told = upconv.explain(X.shape, W)
        assert told.floor_seconds is told.measured_seconds is None
        assert not ceilings
        assert not file.exists()

    def test_the_floor_is_measured_once(self, ceilings: list[int]) -> None:
        for _ in range(2):
            told = upconv.explain(X.shape, W, threads=2, floor=True)
        assert ceilings == [2]
        forget_in_memory()
        told = upconv.explain(X.shape, W, threads=2)
        assert ceilings == [2]
        assert told.floor_seconds == pytest.approx(told.nbytes / 16e9)
        assert "floor" in str(told)
        assert upconv.explain(X.shape, W, threads=3).floor_seconds is None
        with pytest.raises(DTypeError, match="floor is 'yes'"):
            upconv.explain(X.shape, W, floor="yes")

    def test_the_highest_ceilings_stand(
        self, ceilings: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from upconv.engines.jit import limits

        first = tuning.fresh_ceilings(2)
        busy = limits.Limits(2, first.flops / 3, first.bandwidth * 2)
        monkeypatch.setattr(limits, "measure", lambda threads: busy)
        expected = limits.Limits(2, first.flops, first.bandwidth * 2)
        assert tuning.fresh_ceilings(2) == expected
        forget_in_memory()
        assert tuning.ceilings(2, measure=False) == expected
        assert tuning.ceilings(1, measure=False) is None

    def test_schedule_prediction_and_measurement(self, ceilings: list[int], table) -> None:
        table(Timed("engine", own=3e-3, a=1e-3))
        told = upconv.explain(X.shape, W, threads=2, floor=True, tune=True)
        assert (told.engine, told.variant, told.schedule) == ("engine", "a", "it sleeps")
        assert told.predicted_seconds == pytest.approx(4000 / 2e9)
        assert told.measured_seconds == pytest.approx(1e-3, rel=1e-3)
        rows = dict(line.split("  ", 1) for line in str(told).splitlines())
        rows = {name: value.strip() for name, value in rows.items()}
        assert rows["engine"] == "engine a"
        assert rows["schedule"] == "it sleeps"
        assert rows["predicted"] == "0.002 ms"
        assert rows["measured"].endswith(" ms by engine a")
        plain = upconv.explain(X.shape, W, threads=2)  # what plan would do untuned
        assert (plain.variant, plain.measured_by) == ("", "engine a")
        assert plain.measured_seconds == told.measured_seconds

    def test_the_reference_engine_tells_its_blocks(self) -> None:
        told = upconv.explain((2, 6, 5, 7), (6, 4, 3, 2), engine="reference")
        assert told.schedule == (
            "matrix products on blocks of 2 batch items x 1 groups x 4 output channels,"
            " boxes of 5x7 inputs"
        )
        assert told.predicted_seconds is None

    def test_an_engine_that_refuses_still_has_a_floor(self, ceilings: list[int], table) -> None:
        table(Timed("engine", refusal="no", own=0))
        told = upconv.explain(X.shape, W, floor=True)
        assert (told.engine, told.schedule) == (None, "")
        assert told.floor_seconds > 0


def test_importing_upconv_and_untuned_calls_load_no_platformdirs() -> None:
    code = (
        "import sys, numpy as np, upconv;"
        "upconv.conv_transpose(np.ones((1, 1, 3)), np.ones((1, 1, 2)), engine='reference');"
        "print('platformdirs' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
