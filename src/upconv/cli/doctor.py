"""`upconv doctor`: show installed packages, available engines, and faults.

Versions come from package metadata, so no large package is imported.
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
from ..engine_choice import tuning_asked
from ..engines import ON_DEVICES, code_files, load
from ..engines.onednn import selftest
from ..engines.onednn.library import runtime
from ..errors import ArgumentError, EngineMissing, UpconvError
from ..explanations import EngineStatus, engines
from ..files import cache_directory
from ..geometry import Axis
from ..primitives import PrimitiveCache
from ..problem import Direction, Problem
from ..roofline import roofline
from ..terminal import aligned
from ..threads import get_num_threads
from ..tuning import processor_model, tuning_info
from .exits import FINDINGS
from .options import OutputFormat
from .report import finish

if TYPE_CHECKING:
    from ..engines.jit.roofline import Limits

REQUIRED = ("numpy", "llvmlite", "platformdirs")
"""The dependencies in upconv's metadata."""

_OPTIONAL = ("typer", "ml_dtypes", "onnx", "onnxruntime", "openvino", "torch",
             "onednn-cpu-gomp", "onednn", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12",
             "cupy-cuda13x", "dask")  # fmt: skip

_THREADS = ("UPCONV_NUM_THREADS", "OMP_NUM_THREADS")
"""Variables that set the number of threads, in the order in which `upconv.threads` reads them."""

_OURS = (*_THREADS[:1], "UPCONV_CACHE_BYTES", "UPCONV_CACHE_DIR", "UPCONV_CACHE_ENTRIES",
         "UPCONV_CODE_CACHE", "UPCONV_ENGINE", "UPCONV_JIT_CPU", "UPCONV_ONEDNN_PATH",
         "UPCONV_TRACEBACK", "UPCONV_TUNE", "UPCONV_TUNING_FILE")  # fmt: skip
"""All environment variables of upconv."""

_ALSO_READ = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NO_COLOR")


def doctor(*, output_format: OutputFormat = "text") -> None:
    """Show what is installed, which engines work, and what is wrong.

    Every installed engine computes a small layer. The machine's roofline (peak FLOP/s and
    bandwidth) is measured once, which takes a second, and stored. The exit code is 1 if anything is
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
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        if threads is not None:
            limits = roofline(threads, measure=True)
        kept = tuning_info()
    findings += [*_faults(), *(str(message.message) for message in messages)]
    if threads is not None:  # no engine can compute without a number of threads
        findings += _checked(statuses, threads)
    fields = facts(threads) | {
        "engines": statuses,
        "libdnnl": _libdnnl(),
        "roofline": limits,
        "cache_directory": str(cache_directory()),
        "compiled_code": code_files.description(),
        "tuning": kept,
        "findings": findings,
    }
    code = FINDINGS if findings else 0
    finish("doctor", output_format, fields, aligned(_rows(fields, limits)), code=code)


def _rows(fields: dict[str, Any], limits: Limits | None) -> list[tuple[str, str]]:
    unknown = "unknown: llvmlite is not installed"
    rates = limits and (
        f"{limits.flops / 1e9:.0f} GFLOP/s float32, {limits.bandwidth / 1e9:.1f} GB/s"
        f" on {limits.threads} threads"
    )
    directory, tuning, cpu = cache_directory(), fields["tuning"], fields["cpu"]
    return [
        *fields["versions"].items(),
        ("NumPy's BLAS", fields["numpy_blas"]),
        *((f"engine {status.name}", _available(status)) for status in fields["engines"]),
        ("libdnnl", fields["libdnnl"]),
        ("processor", f"{cpu['model']} ({cpu['name']})"),
        ("tiles", cpu["tiles"]),
        ("threads", f"{fields['threads'] or 'unknown'}, from {fields['threads_from']}"),
        ("memory available", memory.readable(fields["memory_available_bytes"])),
        ("roofline", rates or unknown),
        ("cache directory", f"{directory}{'' if directory.exists() else ' (does not exist yet)'}"),
        ("compiled code", fields["compiled_code"]),
        ("tuning file", f"{tuning.file}: {tuning.winners} winners"),
        *fields["environment"].items(),
        *(("FINDING", finding) for finding in fields["findings"]),
    ]


def _available(status: EngineStatus) -> str:
    lacks = " ".join(status.reason.split())
    return f"available: {status.fingerprint}" if status.available else f"not available: {lacks}"


def _libdnnl() -> str:
    """Describe the oneDNN library that upconv uses, or say how to install one."""
    try:
        library = runtime()
    except EngineMissing as missing:
        return " ".join(str(missing).split())
    for direction in Direction:
        selftest.ensure(library, direction)
    return str(library)


def _faults() -> Iterator[str]:
    """Yield faults of dependencies, environment variables and the cache directory."""
    for package in REQUIRED:
        if version_of(package) is None:
            yield f"{package} is not installed; upconv depends on it: pip install {package}"
    for name in sorted(os.environ):
        if name.startswith("UPCONV_") and name not in _OURS:
            yield f"{name} has no effect; upconv reads {', '.join(_OURS)}"
    asked = os.environ.get("UPCONV_ENGINE", "").strip() or "reference"
    for read in (lambda: load(asked, "UPCONV_ENGINE"), tuning_asked, PrimitiveCache):
        try:
            read()
        except EngineMissing:
            pass  # the list of engines gives the reason
        except ArgumentError as error:
            yield str(error)
    directory = cache_directory()
    if directory.exists() and not directory.is_dir():
        yield f"the cache directory {directory} is not a directory; set UPCONV_CACHE_DIR"
    elif directory.exists() and not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        yield f"the cache directory {directory} cannot be read and written; fix its permissions"
    if fault := code_files.fault():
        yield fault


def _checked(statuses: tuple[EngineStatus, ...], threads: int) -> Iterator[str]:
    """Yield a finding for each engine that fails on a small layer or computes it wrongly."""
    axes = (Axis(4, 3, stride=2, crop_begin=1), Axis(5, 4, stride=2, crop_end=1))
    problem = Problem(Direction.FORWARD, axes, 2, 6, 4, groups=2, bias=True)
    for status in statuses:
        here = status.available and status.name != ON_DEVICES  # cuDNN needs arrays on a GPU
        engine = load(status.name) if here else None
        if engine is None or engine.refuses(problem):
            continue
        try:
            testing.check(engine, problem, threads=threads)
        except AssertionError as error:  # `testing` raises it for wrong numbers
            yield f"engine {status.name} is wrong: {error}"
        except UpconvError as error:
            yield f"engine {status.name} fails: {error}"


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def facts(threads: int | None) -> dict[str, Any]:
    """Return the facts that a measurement depends on; the document of `bench` contains them too."""
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
    """Return the CPU's compiler name, its model, and the tile registers it may use here."""
    model = processor_model()
    try:
        from llvmlite import binding
    except ImportError:
        return {"name": platform.machine(), "model": model, "tiles": "unknown"}
    from ..engines.jit.cpu import permitted

    tiles = "none"
    if binding.get_host_cpu_features().get("amx-bf16"):
        tiles = "AMX" if permitted() else "AMX, refused by the system"
    return {"name": binding.get_host_cpu_name(), "model": model, "tiles": tiles}
