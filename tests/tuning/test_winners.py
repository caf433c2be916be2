"""Winners are remembered, measured once by whoever asks, and told of."""

import json
import os
import sqlite3
import threading
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import upconv
from tests.support.counting_engine import BASE
from tests.support.processes import printed
from tests.support.racing import in_threads
from tests.support.timed_engines import (
    Timed,
    W,
    X,
    clock,
    file,
    forget_in_memory,
    real_time,
    records,
    table,
)
from upconv import roofline, tuning
from upconv.errors import ArgumentError, DTypeError

__all__ = ["clock", "file", "real_time", "table"]  # fixtures


def test_a_winner_is_measured_once_and_remembered(table) -> None:
    engine = Timed("engine", own=2e-3, a=1e-3)
    table(engine)
    found = tuning.tuned(BASE, 1)
    runs = len(engine.runs)
    assert tuning.tuned(BASE.replace(), 1) == found
    assert upconv.tuning_info().measured == 1
    forget_in_memory()
    again = tuning.tuned(BASE, 1)
    assert (again.variant, again.seconds) == (found.variant, found.seconds)
    assert len(engine.runs) == runs
    assert upconv.tuning_info().measured == 0
    assert upconv.tuning_info().winners == 1


@pytest.mark.parametrize(
    "change", ["problem", "threads", "fingerprint", "company", "processor", "version"]
)
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
    if change == "version":
        forget_in_memory()
        monkeypatch.setattr(tuning, "__version__", "99")
    tuning.tuned(problem, threads)
    assert len(engine.runs) > runs
    assert upconv.tuning_info().winners == 2


@pytest.mark.parametrize("field", ["engine", "variant"])
def test_a_name_that_is_not_there_is_measured_anew(table, file: Path, field: str) -> None:
    engine = Timed("engine", own=2e-3, a=1e-3)
    table(engine)
    tuning.tuned(BASE, 1)
    (record,) = records(file)
    changed = json.dumps({**record, field: "../../steam"})
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE records SET record = ?", (changed,))
    forget_in_memory()
    with pytest.warns(RuntimeWarning, match="measured again") as said:
        found = tuning.tuned(BASE, 1)
    assert len(said) == 1
    assert tuning.tuned(BASE, 1) == found
    assert (found.engine, found.variant) == (engine, "a")
    assert "../../steam" not in engine.built
    assert records(file)[0][field] == {"engine": "engine", "variant": "a"}[field]


def test_a_damaged_file_costs_a_warning_and_a_measurement(table, file: Path) -> None:
    engine = Timed("engine", own=1e-3)
    table(engine)
    file.write_text('{"upconv tuning": 1, "winners": {"')
    with pytest.warns(RuntimeWarning, match="file is not a database"):
        assert upconv.plan(X.shape, W, tune=True)(X).tolist() == np.ones((1, 1, 6)).tolist()
    assert upconv.tuning_info().winners == 1
    runs = len(engine.runs)
    upconv.cache_clear()
    upconv.plan(X.shape, W, tune=True)
    assert len(engine.runs) == runs  # this process remembers the winner


def test_threads_that_want_one_winner_measure_once(table, real_time) -> None:
    engine = Timed("engine", own=2e-3, a=1e-3)
    table(engine)
    assert len(set(map(id, in_threads(8, lambda: tuning.tuned(BASE, 1).engine)))) == 1
    assert sorted(engine.built) == ["", "a"]


def test_the_cache_is_free_while_something_is_measured(table) -> None:
    slow, measuring, go_on = Timed("slow", own=0.0), threading.Event(), threading.Event()
    slow.wait = lambda seconds: (measuring.set(), go_on.wait(120), Timed.wait(1e-3))
    table(slow)
    thread = threading.Thread(target=lambda: tuning.tuned(BASE, 1))
    thread.start()
    assert measuring.wait(120)
    upconv.conv_transpose(X, W, engine=Timed("other", own=0.0))
    assert len(slow.runs) == 1, "the call waited for the measurement"
    go_on.set()
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_in_the_middle_of_a_measurement_can_tune() -> None:
    code = """
import os, signal, threading, time
from tests.support.counting_engine import BASE
from tests.support.timed_engines import Timed
from upconv import tuning
slow = Timed("slow", own=0.3)
thread = threading.Thread(target=lambda: tuning.tuned(BASE, 1, slow))
thread.start()
while not slow.runs: time.sleep(0.001)
child = os.fork()
if child == 0:
    signal.alarm(120)
    tuning.tuned(BASE, 1, Timed("quick", own=1e-3))
    os._exit(0)
print(os.waitpid(child, 0)[1])
thread.join()
"""
    assert printed(code) == "0"


def test_ctrl_c_in_a_measurement_leaves_it_to_be_done_again(table, file: Path) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    engine = Timed("engine", own=1e-3)
    table(engine)
    engine.wait = interrupted
    with pytest.raises(KeyboardInterrupt):
        tuning.tuned(BASE, 1)
    assert not file.exists()
    assert engine.closed == [""]
    del engine.wait
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
        assert records(file) == []
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


# explain ------------------------------------------------------------------------------------------


class TestExplain:
    @pytest.fixture
    def ceilings(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Two threads that make 64 lanes a cycle at 2 GHz, and 16 GB/s; who measures is counted."""
        from upconv.engines.jit import roofline as limits

        measured: list[int] = []

        def measure(threads: int):
            measured.append(threads)
            lanes = limits.host().lanes(4)
            return limits.Limits(threads, 2e9 * 4 * lanes * threads, 16e9)

        monkeypatch.setattr(limits, "measure", measure)
        return measured

    def test_nothing_is_measured_unless_asked(self, ceilings: list[int], file: Path) -> None:
        told = upconv.explain(X.shape, W)
        assert told.roofline_seconds is told.measured_seconds is None
        assert not ceilings
        assert not file.exists()

    def test_the_roofline_is_measured_once(self, ceilings: list[int]) -> None:
        for _ in range(2):
            told = upconv.explain(X.shape, W, threads=2, roofline=True)
        assert ceilings == [2]
        forget_in_memory()
        told = upconv.explain(X.shape, W, threads=2)
        assert ceilings == [2]
        assert told.roofline_seconds == pytest.approx(told.nbytes / 16e9)
        assert "roofline" in str(told)
        assert upconv.explain(X.shape, W, threads=3).roofline_seconds is None
        with pytest.raises(DTypeError, match="roofline is 'yes'"):
            upconv.explain(X.shape, W, roofline="yes")

    def test_the_highest_ceilings_stand(
        self, ceilings: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from upconv.engines.jit import roofline as limits

        first = roofline.measured(2)
        busy = limits.Limits(2, first.flops / 3, first.bandwidth * 2)
        monkeypatch.setattr(limits, "measure", lambda threads: busy)
        expected = limits.Limits(2, first.flops, first.bandwidth * 2)
        assert roofline.measured(2) == expected
        forget_in_memory()
        assert roofline.roofline(2, measure=False) == expected
        assert roofline.roofline(1, measure=False) is None

    def test_schedule_prediction_and_measurement(self, ceilings: list[int], table) -> None:
        table(Timed("engine", own=3e-3, a=1e-3))
        told = upconv.explain(X.shape, W, threads=2, roofline=True, tune=True)
        assert (told.engine, told.variant, told.schedule) == ("engine", "a", "it sleeps")
        assert told.predicted_seconds == pytest.approx(4000 / 2e9)
        assert told.measured_seconds == pytest.approx(1e-3, rel=1e-3)
        rows = dict(line.split("  ", 1) for line in str(told).splitlines())
        rows = {name: value.strip() for name, value in rows.items()}
        assert rows["engine"] == "engine a"
        assert rows["schedule"] == "it sleeps"
        assert rows["predicted"] == "2.00 us"
        assert rows["measured"].endswith(" ms by engine a")
        plain = upconv.explain(X.shape, W, threads=2)  # what plan would do untuned
        assert (plain.variant, plain.measured_by) == ("", "engine a")
        assert plain.measured_seconds == told.measured_seconds

    def test_the_reference_engine_tells_its_blocks(self) -> None:
        told = upconv.explain((2, 6, 5, 7), (6, 4, 3, 2), engine="reference")
        assert told.schedule == (
            "matrix products on blocks of 2 batch items x 1 groups x 4 output channels"
        )
        assert told.predicted_seconds is None

    def test_an_engine_that_refuses_still_has_a_roofline(self, ceilings: list[int], table) -> None:
        table(Timed("engine", refusal="no", own=0))
        told = upconv.explain(X.shape, W, roofline=True)
        assert (told.engine, told.schedule) == (None, "")
        assert told.roofline_seconds > 0
