"""`upconv doctor`: what is here, what is not and why, and whether what is here works.

Packages are asked about by their metadata; nothing large is imported to learn its version.
"""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

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
from ..tuning import processor_model, tuning_info
from ..tuning.store import cache_directory
from .exits import FINDINGS
from .report import Answer, answering, table

if TYPE_CHECKING:
    from ..engines.jit.roofline import Limits

REQUIRED = ("numpy", "llvmlite", "platformdirs")
"""What upconv's own metadata calls its dependencies."""

_OPTIONAL = ("typer", "rich", "ml_dtypes", "onnx", "onnxruntime", "openvino", "torch",
             "onednn-cpu-gomp", "onednn", "nvidia-cudnn-frontend", "dask")  # fmt: skip

_THREADS = ("UPCONV_NUM_THREADS", "OMP_NUM_THREADS")
"""Where the number of threads comes from, the first first, as in `upconv.threads`."""

_ALSO_READ = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NO_COLOR")


@answering("doctor")
def doctor() -> Answer:
    """Show what is installed, which engines work, and what is wrong.

    Every engine that is present computes a small layer. The machine's roofline (peak FLOP/s and
    bandwidth) is measured once, in a second, and remembered. The exit code is 1 when something is
    wrong.

    \b
    Examples:
      upconv doctor
      upconv doctor --output-format json > doctor.json
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
    findings += [*_faults(), *(str(each.message) for each in said)]
    if threads is not None:  # without a number of threads nothing can compute
        findings += _checked(statuses, threads)
    told = facts(threads) | {
        "engines": statuses,
        "libdnnl": _libdnnl(),
        "roofline": limits,
        "cache_directory": str(cache_directory()),
        "tuning": kept,
        "findings": findings,
    }
    return Answer(told, table(_rows(told, limits)), code=FINDINGS if findings else 0)


def _rows(told: dict[str, Any], limits: Limits | None) -> list[tuple[str, str]]:
    unknown = "unknown: llvmlite is not installed"
    rates = limits and (
        f"{limits.flops / 1e9:.0f} GFLOP/s float32, {limits.bandwidth / 1e9:.1f} GB/s"
        f" on {limits.threads} threads"
    )
    directory, tuning, cpu = cache_directory(), told["tuning"], told["cpu"]
    return [
        *told["versions"].items(),
        ("NumPy's BLAS", told["numpy_blas"]),
        *((f"engine {status.name}", _available(status)) for status in told["engines"]),
        ("libdnnl", told["libdnnl"]),
        ("processor", f"{cpu['model']} ({cpu['name']})"),
        ("threads", f"{told['threads'] or 'unknown'}, from {told['threads_from']}"),
        ("memory available", memory.readable(told["memory_available_bytes"])),
        ("roofline", rates or unknown),
        ("cache directory", f"{directory}{'' if directory.exists() else ' (not there yet)'}"),
        ("tuning file", f"{tuning.file}: {tuning.winners} winners"),
        *told["environment"].items(),
        *(("FINDING", finding) for finding in told["findings"]),
    ]


def _available(status: EngineStatus) -> str:
    lacks = " ".join(status.reason.split())
    return f"available: {status.fingerprint}" if status.available else f"not available: {lacks}"


def _libdnnl() -> str:
    """Which copy of oneDNN was found, or how to get one."""
    try:
        found = runtime()
    except EngineMissing as missing:
        return " ".join(str(missing).split())
    for direction in Direction:
        selftest.ensure(found, direction)
    return str(found)


def _faults() -> Iterator[str]:
    """Dependencies, environment variables and a cache directory that are of no use."""
    for package in REQUIRED:
        if version_of(package) is None:
            yield f"{package} is not installed; upconv depends on it: pip install {package}"
    asked = os.environ.get("UPCONV_ENGINE", "").strip() or "reference"
    for read in (lambda: load(asked, "UPCONV_ENGINE"), tuning_asked, PrimitiveCache):
        try:
            read()
        except EngineMissing:
            pass  # the list of engines says why
        except ArgumentError as error:
            yield str(error)
    place = cache_directory()
    if place.exists() and not place.is_dir():
        yield f"the cache directory {place} is not a directory; set UPCONV_CACHE_DIR"
    elif place.exists() and not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        yield f"the cache directory {place} cannot be written; fix its owner"


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


def version_of(package: str) -> str | None:
    """The installed version of a package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def facts(threads: int | None) -> dict[str, Any]:
    """What a measurement depends on, for the head of a `bench` file too; only what is installed."""
    versions = {package: version_of(package) for package in (*REQUIRED, *_OPTIONAL)}
    show: Callable[..., Any] = np.show_config
    blas = show(mode="dicts")["Build Dependencies"]["blas"]
    variables = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("UPCONV_") or name in _ALSO_READ
    }
    asked = (name for name in _THREADS if variables.get(name, "").strip())
    return {
        "system": platform.platform(),
        "cpu": _processor(),
        "processors": os.cpu_count(),
        "threads": threads,
        "threads_from": next(asked, "the processors this process may use"),
        "memory_available_bytes": memory.available_bytes(),
        "versions": {"python": platform.python_version()}
        | {package: version for package, version in versions.items() if version is not None},
        "numpy_blas": f"{blas['name']} {blas.get('version', '')}".strip(),
        "environment": variables,
    }


def _processor() -> dict[str, str]:
    """The CPU: its name to compilers, its model to people."""
    try:
        from llvmlite import binding
    except ImportError:
        return {"name": platform.machine(), "model": processor_model()}
    return {"name": binding.get_host_cpu_name(), "model": processor_model()}
