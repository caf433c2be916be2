"""The stored roofline of this machine: peak FLOP/s and memory bandwidth.

Other work on the machine can only lower a measurement, so the highest values ever measured are
kept. Compiled code does the measurement (`engines.jit.roofline`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import tuning
from .forks import importing
from .tuning import ROOFLINES, processor_model, shared_store

if TYPE_CHECKING:
    from .engines.jit.roofline import Limits


def roofline(threads: int, *, measure: bool) -> Limits | None:
    """Return the stored roofline, or one measured now if `measure`; None without llvmlite."""
    if not measure and not shared_store().count(ROOFLINES):
        return None  # without loading the compiler
    known = _remembered(threads)
    return measured(threads) if known is None and measure else known


def measured(threads: int) -> Limits | None:
    """Measure the roofline and merge it with the stored values; None without llvmlite."""
    limits = _limits()
    if limits is None:
        return None
    with tuning.measuring:
        measurement = limits.measure(threads)
    known = _remembered(threads) or measurement
    flops = max(measurement.flops, known.flops)
    bandwidth = max(measurement.bandwidth, known.bandwidth)
    record = {"flops": flops, "bandwidth": bandwidth}
    shared_store().remember(ROOFLINES, _key(limits.key(), threads), record)
    return limits.Limits(threads, flops, bandwidth)  # type: ignore[no-any-return]


def _remembered(threads: int) -> Limits | None:
    limits = _limits()
    record = limits and shared_store().find(ROOFLINES, _key(limits.key(), threads))
    figures = [record.get(name) for name in ("flops", "bandwidth")] if record else []
    if not figures or not all(isinstance(figure, float) and figure > 0 for figure in figures):
        return None
    return limits.Limits(threads, *figures)  # type: ignore[no-any-return]


def _limits() -> Any:
    """Return the measuring module; None without llvmlite."""
    try:
        with importing:
            from .engines.jit import roofline as limits
    except ImportError:
        return None
    return limits


def _key(target: str, threads: int) -> str:
    return f"{processor_model()} | {target} | threads {threads}"
