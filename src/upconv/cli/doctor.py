"""`upconv doctor`: what is here, what is not and why, and whether what is here works."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from .. import memory, testing
from ..choices import tuning_asked
from ..engines import load
from ..engines.onednn import selftest
from ..engines.onednn.library import runtime
from ..errors import ArgumentError, EngineMissing, UpconvError
from ..explanations import EngineStatus, engines
from ..geometry import Axis
from ..primitives import PrimitiveCache
from ..problem import Direction, Problem
from ..roofline import roofline
from ..threads import get_num_threads
from ..tuning import tuning_info
from ..tuning.store import cache_directory
from . import machine, report
from .endings import Ending
from .options import OutputFormat

if TYPE_CHECKING:
    from ..engines.jit.limits import Limits


def doctor(*, output_format: OutputFormat = "text") -> None:
    """Report versions, engines, processor, threads, memory, cache, roofline, and look for faults.

    Every engine that is present computes a small layer. The machine's roofline, how fast it can
    multiply and copy, is measured once, in a second, and remembered. The exit code is 1 when
    something is wrong.

    \b
    Examples:
      upconv doctor
      upconv doctor --output-format json > machine.json
    """
    statuses, findings, threads, limits = engines(), [], None, None
    try:
        threads = get_num_threads()
    except ArgumentError as error:
        findings.append(str(error))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if threads is not None:
            limits = roofline(threads, measure=True)
        kept = tuning_info()
    findings += [*_missing(), *_variables(), *_cache(), *(str(each.message) for each in said)]
    if threads is not None:  # without a number of threads nothing can compute
        findings += _checked(statuses, threads)
    facts = machine.facts(threads) | {
        "engines": [asdict(status) for status in statuses],
        "libdnnl": _libdnnl(),
        "roofline": limits and asdict(limits),
        "cache_directory": str(cache_directory()),
        "tuning": asdict(kept),
        "findings": findings,
    }
    if output_format == "json":
        report.document("doctor", **facts)
    else:
        report.table(_rows(facts, limits, statuses))
    if findings:
        raise typer.Exit(int(Ending.FINDINGS))


def _rows(
    facts: dict[str, Any], limits: Limits | None, statuses: tuple[EngineStatus, ...]
) -> list[tuple[str, str]]:
    rates = "unknown: llvmlite is not installed"
    if limits is not None:
        rates = f"{limits.flops / 1e9:.0f} GFLOP/s float32, {limits.bandwidth / 1e9:.1f} GB/s"
        rates += f" on {limits.threads} threads"
    directory, tuning, cpu = cache_directory(), facts["tuning"], facts["cpu"]
    return [
        *facts["versions"].items(),
        ("NumPy's BLAS", facts["numpy_blas"]),
        *((f"engine {status.name}", _told(status)) for status in statuses),
        ("libdnnl", facts["libdnnl"]),
        ("processor", f"{cpu['model']} ({cpu['name']})"),
        ("features", " ".join(cpu["features"]) or "unknown: llvmlite is not installed"),
        ("threads", f"{facts['threads'] or 'unknown'}, from {facts['threads_from']}"),
        ("memory available", memory.readable(facts["memory_available_bytes"])),
        ("roofline", rates),
        ("cache directory", f"{directory}{'' if directory.exists() else ' (not there yet)'}"),
        ("tuning file", f"{tuning['file']}: {tuning['winners']} winners"),
        *facts["environment"].items(),
        *(("FINDING", finding) for finding in facts["findings"]),
    ]


def _told(status: EngineStatus) -> str:
    if status.available:
        return f"available: {status.fingerprint}"
    return f"not available: {' '.join(status.reason.split())}"


def _libdnnl() -> str:
    """Which copy of oneDNN was found, or how to get one."""
    try:
        found = runtime()
    except EngineMissing as missing:
        return " ".join(str(missing).split())
    for direction in Direction:
        selftest.ensure(found, direction)
    return str(found)


def _missing() -> list[str]:
    return [
        f"{package} is not installed; upconv depends on it: pip install {package}"
        for package in machine.REQUIRED
        if machine.version_of(package) is None
    ]


def _variables() -> Iterator[str]:
    """What upconv says of environment variables where it reads them."""
    for read in (_asked_engine, tuning_asked, PrimitiveCache):
        try:
            read()
        except EngineMissing:
            pass  # the list of engines says why
        except ArgumentError as error:
            yield str(error)


def _asked_engine() -> None:
    if engine := os.environ.get("UPCONV_ENGINE", "").strip():
        load(engine, "UPCONV_ENGINE")


def _cache() -> list[str]:
    """A cache directory that is there but is of no use."""
    place = cache_directory()
    if not place.exists():
        return []
    if not place.is_dir():
        return [f"the cache directory {place} is not a directory; set UPCONV_CACHE_DIR"]
    usable = os.access(place, os.R_OK | os.W_OK | os.X_OK)
    return [] if usable else [f"the cache directory {place} cannot be written; fix its owner"]


def _checked(statuses: tuple[EngineStatus, ...], threads: int) -> Iterator[str]:
    """A small layer by every engine that is here, against its definition."""
    axes = (Axis(4, 3, stride=2, crop_begin=1), Axis(5, 4, stride=2, crop_end=1))
    problem = Problem(Direction.FORWARD, axes, 2, 6, 4, groups=2, bias=True)
    for status in statuses:
        engine = load(status.name) if status.available else None
        if engine is None or engine.refuses(problem):
            continue
        try:
            testing.check(engine, problem, threads=threads)
        except AssertionError as error:  # how `testing` says that numbers are wrong
            yield f"engine {status.name} is wrong: {error}"
        except UpconvError as error:
            yield f"engine {status.name} fails: {error}"
