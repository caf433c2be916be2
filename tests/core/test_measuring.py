"""The measured choice: right for given times, never a wrong result, within its bounds."""

from typing import Any

import numpy as np
import pytest

from tests.support.made_up_clock import MadeUpClock
from upconv.errors import ArgumentError, EngineError
from upconv.measuring import (
    GAIN,
    TOLERANCES,
    Ratio,
    Way,
    choose,
    decide,
    disagreement,
    required_gain,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MadeUpClock:
    """Made-up time in place of the real one."""
    return MadeUpClock(monkeypatch)


def test_the_fastest_right_way_is_chosen_and_the_others_say_why(clock: MadeUpClock) -> None:
    ways = [clock.way("plain", 1.0), clock.way("parts", 0.5), clock.way("layers", 0.8)]
    choice = choose([*ways, clock.way("slow", 1.5)], seconds=100.0)
    assert choice.name == choice.best.name == "parts"
    assert choice.best.why == ""
    assert choice["layers"].why == choice.baseline.why == "parts is faster"
    assert choice["slow"].why.startswith("it is not faster: 0.67 times as fast")
    assert choice.best.ratio == Ratio(2.0, 2.0, 2.0)
    assert (choice.baseline.seconds, choice.best.seconds) == (1.0, 0.5)
    assert choice.runs == len(clock.runs)


@pytest.mark.parametrize(("gain", "chosen"), [(GAIN + 0.005, "other"), (GAIN - 0.005, "plain")])
def test_a_way_must_gain_what_is_required(clock: MadeUpClock, gain: float, chosen: str) -> None:
    ways = [clock.way("plain", 0.2), clock.way("other", 0.2 / gain)]
    assert choose(ways, seconds=20.0).name == chosen


def test_noise_is_no_gain(clock: MadeUpClock) -> None:
    """The baseline's two series of a round differ more than the other way gains."""
    noisy = clock.way("plain", 1.0, *[1.0, 1.3] * 50)
    choice = choose([noisy, clock.way("other", 0.9)], seconds=60.0)
    assert choice.name == "plain"
    assert choice["other"].why.startswith("its times vary too much ")


@pytest.mark.parametrize("most_runs", [20, 44])
@pytest.mark.parametrize("sensitivity", [1.0, 3.0])
def test_the_interval_holds_the_truth_under_bursts_of_load(
    clock: MadeUpClock, most_runs: int, sensitivity: float
) -> None:
    """Other processes come and go, half of the time, and slow the baseline down 1 to 4 times."""
    estimates, held = [], 0
    for seed in range(100):
        rng, series, busy = np.random.default_rng(seed), [], False
        for _ in range(200):
            busy = rng.random() < 0.5 if rng.random() < 0.3 else busy
            series.append(np.exp(abs(rng.normal(0, 0.05))) * (1 + busy * rng.random()))
        ways = [
            clock.way("plain", *(1.3 + 1.3 * sensitivity * (t - 1) for t in series)),
            clock.way("other", *series[::-1]),
        ]
        ratio = choose(ways, seconds=1e4, most_runs=most_runs)["other"].ratio
        assert ratio is not None
        estimates.append(ratio.median)
        held += ratio.low <= 1.3 <= ratio.high
    assert held > 50  # quartiles of the bootstrap: 37 to 53
    assert np.median(estimates) == pytest.approx(1.3, rel=0.05)


@pytest.mark.parametrize(
    ("seconds", "chosen", "early"),
    [
        ((0.5, 0.5), "a", True),
        ((0.5, 0.3), "b", True),
        ((1.5, 2.0), "plain", True),
        ((0.99, 1.5), "plain", False),
    ],
)
def test_rounds_end_where_more_would_not_change_the_choice(
    clock: MadeUpClock, seconds: tuple[float, float], chosen: str, early: bool
) -> None:
    noisy = [1.0, 1.1, 1.0, 1.05] * 25  # without noise the first rounds would decide all
    ways = [clock.way(name, *(t * n for n in noisy)) for name, t in zip("ab", seconds, strict=True)]
    choice = choose([clock.way("plain", *noisy), *ways], seconds=60.0)
    assert choice.name == chosen
    assert (choice.runs < 30) == early


def test_few_rounds_need_a_larger_gain(clock: MadeUpClock) -> None:
    assert required_gain(3) > required_gain(4) > required_gain(50) == GAIN
    for runs, seconds, chosen in ((11, 0.975, "plain"), (11, 0.9, "other"), (10, 0.5, "plain")):
        ways = [clock.way("plain", 1.0), clock.way("other", seconds)]
        choice = choose(ways, seconds=60.0, most_runs=runs)
        assert choice.name == chosen
    assert choice["other"].why == choice.undecided == "there was time for 2 rounds; 3 are needed"
    assert choice.runs == 2 + 2 * 3  # no round is begun in vain


@pytest.mark.parametrize("most", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_bound_on_runs_holds(clock: MadeUpClock, most: int, count: int) -> None:
    ways = [clock.way(str(i), 1e-3 / (i + 1)) for i in range(count)]
    choice = choose(ways, seconds=60.0, most_runs=most)
    assert choice.runs == len(clock.runs) <= most
    if most < count:
        assert choice["4" if count == 5 else "1"].why == "no time was left"


def test_few_runs_of_a_short_call_are_spent_on_rounds(clock: MadeUpClock) -> None:
    ways = [clock.way("plain", 1e-3), clock.way("other", 5e-4)]
    assert choose(ways, seconds=60.0, most_runs=15).name == "other"  # 4 rounds of one call each


def test_first_runs_that_compile_take_no_time_of_samples(clock: MadeUpClock) -> None:
    ways = [clock.way("plain", 5.0, 1.0), clock.way("other", 40.0, 0.5)]
    choice = choose(ways, seconds=10.0, most_runs=20)
    assert (choice.name, choice.best.seconds) == ("other", 0.5)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 2.5, 5.5, 30.0])
def test_no_run_begins_when_time_is_over(clock: MadeUpClock, seconds: float) -> None:
    ways = [clock.way("plain", 1.0), clock.way("other", 0.5)]
    choice = choose(ways, seconds=seconds, most_runs=30)
    checks = 1.5
    assert clock.now <= seconds + checks + 1.0
    assert choice.name == ("other" if seconds > 9 else "plain")
    words = "" if seconds > 9 else "no time was left" if seconds < 1 else "there was time for"
    assert choice["other"].why.startswith(words)
    assert choose(ways, seconds=seconds).name == "other"  # without a bound on runs it goes on


@pytest.mark.parametrize("result", [
    1.0 + 2 * TOLERANCES["float64"], np.float32(1.0), [1.0], np.nan, np.inf,
    EngineError("it broke"),
])  # fmt: skip
def test_a_wrong_or_failing_way_never_wins(clock: MadeUpClock, result: object) -> None:
    ways = [clock.way("plain", 1.0), clock.way("wrong", 0.1, result=result)]
    choice = choose(ways, seconds=60.0)
    assert choice.name == "plain"
    assert clock.runs == ["plain", "wrong"]
    assert choice["wrong"].why in ("it broke", choice["wrong"].why)
    assert ("it broke" if isinstance(result, Exception) else "result 1") in choice["wrong"].why


def test_the_baselines_error_and_foreign_ones_are_raised(clock: MadeUpClock) -> None:
    with pytest.raises(EngineError, match="no model"):
        choose([clock.way("plain", 1.0, result=EngineError("no model"))])
    stopped: Any = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        choose([clock.way("plain", 1.0), clock.way("other", 1.0, result=stopped)])
    with pytest.raises(ArgumentError, match="different names"):
        choose([clock.way("plain", 1.0), clock.way("plain", 1.0)])


def test_a_way_is_prepared_where_another_ran_before(clock: MadeUpClock) -> None:
    ways = [
        clock.way(name, 1.0, prepare=lambda name=name: clock.runs.append(f"prepare {name}"))
        for name in ("plain", "other")
    ]
    choose(ways, seconds=60.0, most_runs=8)
    runs = [one for one in clock.runs if not one.startswith("prepare")]
    assert runs == ["plain", "other", *["plain", "other", "plain"] * 2]
    for before, one in zip(["", *clock.runs], clock.runs, strict=False):
        if not one.startswith("prepare"):
            assert before == f"prepare {one}" or before == one


def test_progress_tells_the_rounds(clock: MadeUpClock) -> None:
    steps = list[tuple[str, int, int]]()
    ways = [clock.way("plain", 1.0), clock.way("other", 0.9)]
    choose(ways, seconds=60.0, most_runs=8, progress=lambda *step: steps.append(step), what="so")
    assert [(what, number) for what, number, _ in steps] == [("so", 1), ("so", 2)]
    assert all(number <= of for _, number, of in steps)


def test_a_way_must_be_faster_on_all_inputs() -> None:
    fast, slow = Ratio(1.5, 1.4, 1.6), Ratio(0.9, 0.8, 1.0)
    assert decide("plain", {"a": [fast, slow]})[0] == "plain"
    assert decide("plain", {"a": [fast, fast], "b": [Ratio(2.0, 1.2, 3.0)]})[0] == "a"
    assert decide("plain", {}) == ("plain", {})


ARRAYS = {
    "equal": ([1.0, 2.0], [1.0, 2.0], "float32", True),
    "rounded": ([1.0, 2.001], [1.0, 2.0], "float32", True),
    "off": ([1.0, 2.01], [1.0, 2.0], "float32", False),
    "off in half": ([1.0, 2.01], [1.0, 2.0], "float16", True),
    "same NaN": ([np.nan, 2.0], [np.nan, 2.0], "float32", True),
    "other NaN": ([1.0, np.nan], [np.nan, 2.0], "float32", False),
    "other infinity": ([np.inf, 2.0], [-np.inf, 2.0], "float32", False),
    "small beside the largest": ([1e-5, 2.0], [2e-5, 2.0], "float32", True),
    "zeros": ([0.0, 0.0], [0.0, 0.0], "float32", True),
    "not zeros": ([0.0, 0.1], [0.0, 0.0], "float32", False),
    "empty": ([], [], "float32", True),
    "complex": ([1j, 2.0], [1j, 2.0], "complex64", True),
    "other phase": ([1j, 2.0], [-1j, 2.0], "complex64", False),
    "integers": ([1, 2], [1, 3], "int64", False),
    "few integers": ([*range(200)], [*range(199), 0], "int64", True),
    "text": (["a", "b"], ["a", "b"], "U1", True),
    "other text": (["a", "b"], ["a", "c"], "U1", False),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_results_agree_up_to_rounding(name: str) -> None:
    result, expected, dtype, same = ARRAYS[name]
    words = disagreement([np.array(result, dtype)], [np.array(expected, dtype)])
    assert (words == "") is same


def test_a_less_precise_computation_is_judged_by_its_type() -> None:
    y, z = [np.array([1.05, 2.0], "float32")], [np.array([1.0, 2.0], "float32")]
    assert disagreement(y, z)
    assert not disagreement(y, z, "bfloat16")
    assert disagreement(y, []) == "it returns 1 results instead of 0"


def test_a_way_as_close_to_the_truth_as_the_baseline_is_right(clock: MadeUpClock) -> None:
    """In 16 bits the baseline's own errors may be larger than what is accepted."""
    asked = []

    def truth() -> list[Any]:
        asked.append(1)
        return [np.array([1.0])]

    def way(name: str, seconds: float, value: float) -> Way:
        return clock.way(name, seconds, result=np.array([value]))

    ways = [way("rough", 2.0, 1.5), way("close", 1.0, 1.1), way("wrong", 0.5, 1.6)]
    choice = choose(ways, seconds=60, truth=truth)
    assert choice.name == "close"
    assert "differs by" in choice["wrong"].why
    assert "differs by" in choose(ways, seconds=60)["close"].why
    assert choose([ways[0], way("nan", 1.0, np.nan)], seconds=60, truth=truth).name == "rough"
    asked.clear()
    assert choose([ways[0], way("the same", 1.0, 1.5)], seconds=60, truth=truth).name == "the same"
    assert not asked
