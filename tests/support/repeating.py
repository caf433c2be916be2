"""The command line that repeats a failing test, with only the failing seed if there is one.

A random test takes its seeds from `seeds`. `conftest.py` prints the line below every failure.
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
    """Return the numbers, or only the one that `UPCONV_SEED` names."""
    name = os.environ.get(VARIABLE)
    if not name:
        return numbers
    return range(int(name), int(name) + 1) if int(name) in numbers else range(0)


def single() -> bool:
    """Return whether only one seed runs, so that counts of cases mean nothing."""
    return bool(os.environ.get(VARIABLE))


def seeds(*bounds: int) -> Iterator[int]:
    """Yield the seeds of `range(*bounds)`, and record the current one for `line`."""
    global _current
    for seed in only(range(*bounds)):
        _current = seed
        yield seed
    _current = None


def forget() -> None:
    """Forget the seed of the previous test."""
    global _current
    _current = None


def line(nodeid: str, message: str, *, long: bool = False) -> str:
    """Return the command that repeats a failed test, whose message may name "seed 17"."""
    named = re.search(r"\bseed (\d+)\b", message)
    seed = _current if _current is not None or named is None else int(named[1])
    settings = _SETTINGS if seed is None else {**_SETTINGS, VARIABLE: str(seed)}
    words = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    return " ".join([*words, "python -m pytest", *["-m long"] * long, shlex.quote(nodeid)])
