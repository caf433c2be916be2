"""Times as text."""

import pytest

from upconv import timing
from upconv.timing import Others, format_seconds

TEXTS = {
    0.0: "0 us", 3e-8: "0.03 us", 1e-6: "1.00 us", 9.996e-6: "10.0 us", 9.99e-4: "999 us",
    9.996e-4: "1.00 ms", 0.01234: "12.3 ms", 0.1: "100 ms", 0.9994: "999 ms", 0.9996: "1.00 s",
    1.0123: "1.01 s", 99.96: "100 s", 1234.5: "1230 s",
}  # fmt: skip


@pytest.mark.parametrize("seconds", TEXTS)
def test_times_have_three_digits_and_the_unit_of_people(seconds: float) -> None:
    assert format_seconds(seconds) == TEXTS[seconds]


@pytest.mark.parametrize("exponent", range(-6, 4))
def test_every_time_is_told_within_its_third_digit(exponent: int) -> None:
    factors = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    for digits in range(1000, 10000, 7):
        seconds = digits * 10.0 ** (exponent - 3)
        value, unit = format_seconds(seconds).split()
        assert float(value) * factors[unit] == pytest.approx(seconds, rel=0.00501)
        assert unit == "s" or float(value) < 1000
        assert len(value.replace(".", "")) == 3 or float(value) >= 1000


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ((12.0, 23.6, 7.0), "other processes used 0.8 of 2 processors"),
        ((12.0, 30.0, 7.0), "other processes used 2.0 of 2 processors"),  # counted in steps
        ((12.0, 22.3, 7.0), ""),
        ((12.0, 0.0, 7.0), ""),
        ((10.0, 20.0, 5.0), ""),
    ],
)
def test_the_work_of_others_is_what_is_not_our_own(
    after: tuple[float, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = [(10.0, 20.0 if after[1] else 0.0, 5.0), after]
    monkeypatch.setattr(timing, "_clocks", lambda: clocks.pop(0))
    monkeypatch.setattr(timing.os, "sched_getaffinity", lambda _: {0, 3})
    assert Others().words() == words


def test_our_own_work_is_not_that_of_others() -> None:
    """On a machine that is idle but for this process, all work is its own."""
    before, total = timing._clocks(), sum(range(3_000_000))
    after = timing._clocks()
    assert total
    assert after[2] > before[2]
    if before[1]:  # Linux
        assert after[1] - before[1] > after[2] - before[2] - 0.1
