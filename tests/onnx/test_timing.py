"""What measured times mean: which form a layer keeps, and when a model is faster."""

from collections.abc import Callable

import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")

from tests.support.made_up_clock import MadeUpClock
from upconv.measuring import GAIN, Ratio
from upconv.onnx.optimizing import select
from upconv.onnx.optimizing.results import ORIGINAL, Candidate, WholeResult
from upconv.onnx.optimizing.select import choose
from upconv.timing import Rounds, interleaved

FAST_AT, SLOW_AT = Ratio(1.5, 1.4, 1.6), Ratio(0.9, 0.8, 1.0)


@pytest.mark.parametrize(("forms", "chosen"), [
    ({"form": [Ratio(1.2, GAIN - 0.01, 1.4)]}, ORIGINAL),
    ({"form": [Ratio(1.2, GAIN + 0.01, 1.4)]}, "form"),
    ({"wild": [Ratio(1.5, 1.1, 1.9)], "sure": [Ratio(1.3, 1.25, 1.35)]}, "sure"),
    ({"form": [FAST_AT, SLOW_AT]}, ORIGINAL),
    ({"form": [FAST_AT, FAST_AT]}, "form"),
])  # fmt: skip
def test_the_surest_gain_at_all_shapes_wins(forms: dict[str, list[Ratio]], chosen: str) -> None:
    found = [
        Candidate(name, seconds=(1.0,) * len(ratios), ratios=tuple(ratios))
        for name, ratios in forms.items()
    ]
    assert choose([Candidate(ORIGINAL, seconds=(1.0,)), *found])[0] == chosen


def test_a_whole_is_faster_that_gains_somewhere_and_loses_nowhere() -> None:
    ratios = {"gain": FAST_AT, "even": Ratio(1.0, 0.9, 1.1), "loss": Ratio(0.8, 0.7, 0.9)}
    for names, answer in (("gain even", True), ("gain loss", False), ("even even", False)):
        whole = [WholeResult(1.0, 1.0, ratios[name]) for name in names.split()]
        assert select.faster(whole) is answer


def test_noise_between_two_series_of_one_call_widens_every_ratio() -> None:
    calm = Rounds(([2.0] * 7, [1.0] * 7), [2.0] * 7)
    noisy = Rounds(([2.0] * 7, [1.0] * 7), [8.0] * 7)
    assert Ratio.of(calm, 1) == Ratio(2.0, 2.0, 2.0)
    assert Ratio.of(noisy, 1).low == pytest.approx(1.0)
    assert Ratio.of(noisy, 1).high >= 4.0


def test_rounds_take_turns_and_leave_the_hopeless_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MadeUpClock(monkeypatch)
    order: list[str] = []

    def call(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            order.append(name)
            clock.now += seconds

        return run

    rounds = interleaved([call("a", 0.001), call("b", 0.001), call("slow", 0.02)], 0.001)
    assert len(rounds.samples[0]) == len(rounds.samples[1]) == len(rounds.again) == 5
    assert len(rounds.samples[2]) == 3
    assert rounds.again is not rounds.samples[0]
    assert rounds.samples[0] == pytest.approx([0.001] * 5)
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert turns[3:9] == ["a", "b", "slow", "a", "b", "slow"]
