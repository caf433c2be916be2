"""Ctrl-C at every point where Python may raise `KeyboardInterrupt` in the main thread."""

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

# CPython checks for signals at the beginning of functions and after each call.
POINTS = ("call", "return", "c_return")


def interrupted_everywhere(call: Callable[[], Any]) -> int:
    """Interrupt one call at its first point, the next at its second, until a call completes;
    return how many were interrupted."""
    for number in itertools.count():
        try:
            _interrupted_at(number, call)
        except KeyboardInterrupt:
            continue
        return number
    raise AssertionError


def _interrupted_at(number: int, call: Callable[[], Any]) -> None:
    left = number

    def profile(_frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        if event in POINTS:
            left -= 1
            if left == -1:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
