"""Times as text."""

import pytest

from upconv.timing import format_seconds

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
