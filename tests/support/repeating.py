"""The line that repeats a failing test, with one seed alone where the failure belongs to a seed.

A random test draws its seeds by `seeds`. `conftest.py` prints the line below every failure.
"""

import os
import re
import shlex
from collections.abc import Iterator

VARIABLE = "UPCONV_SEED"
_SETTINGS = {
    name: os.environ[name]
    for name in ("UPCONV_JIT_CPU", "ONEDNN_MAX_CPU_ISA")
    if os.environ.get(name)
}
_current: int | None = None


def only(numbers: range) -> range:
    """The numbers, or of them the one that `UPCONV_SEED` names."""
    name = os.environ.get(VARIABLE)
    if not name:
        return numbers
    return range(int(name), int(name) + 1) if int(name) in numbers else range(0)


def single() -> bool:
    """Whether one seed runs alone, of which a count of cases says nothing."""
    return bool(os.environ.get(VARIABLE))


def seeds(*bounds: int) -> Iterator[int]:
    """The seeds of `range(*bounds)`; the one at hand goes into the line of a failing test."""
    global _current
    for seed in only(range(*bounds)):
        _current = seed
        yield seed
    _current = None


def forget() -> None:
    """Forget the seed of the test before."""
    global _current
    _current = None


def line(nodeid: str, message: str, *, long: bool = False) -> str:
    """The command for a test that failed with a message, which may name "seed 17"."""
    named = re.search(r"\bseed (\d+)\b", message)
    seed = _current if _current is not None or named is None else int(named[1])
    settings = _SETTINGS if seed is None else {**_SETTINGS, VARIABLE: str(seed)}
    words = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    return " ".join([*words, "python -m pytest", *["-m long"] * long, shlex.quote(nodeid)])
