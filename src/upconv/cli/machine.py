"""Facts about this machine and what is installed: for `doctor`, and for the head of a `bench` file.

Packages are asked about by their metadata; nothing large is imported to learn its version.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np

from .. import memory
from ..tuning import processor_model

REQUIRED = ("numpy", "llvmlite", "platformdirs")
"""What upconv's own metadata calls its dependencies."""

_OPTIONAL = (
    "typer",
    "rich",
    "ml_dtypes",
    "onnx",
    "onnxruntime",
    "openvino",
    "torch",
    "onednn-cpu-gomp",
    "onednn",
    "nvidia-cudnn-frontend",
    "dask",
)

_NOTABLE = ("sse4", "avx", "fma", "f16c", "amx", "neon", "sve", "bf16", "fp16", "dotprod")
"""Beginnings and parts of the CPU features that decide how fast a convolution can be."""


def versions() -> dict[str, str]:
    """Installed packages and their versions, Python's first; absent ones are left out."""
    found = {"python": platform.python_version()}
    for package in (*REQUIRED, *_OPTIONAL):
        version = version_of(package)
        if version is not None:
            found[package] = version
    return found


def version_of(package: str) -> str | None:
    """The installed version of a package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def numpy_blas() -> str:
    """The BLAS that NumPy was built with.

    >>> isinstance(numpy_blas(), str)
    True
    """
    show: Callable[..., Any] = np.show_config
    blas = (show(mode="dicts") or {}).get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def processor() -> dict[str, Any]:
    """The CPU: its name to compilers, its model to people, and the features that decide speed."""
    model = processor_model()
    try:
        from llvmlite import binding
    except ImportError:
        return {"name": platform.machine() or "unknown", "model": model, "features": ()}
    features = (name for name, present in binding.get_host_cpu_features().items() if present)
    notable = sorted(name for name in features if any(part in name for part in _NOTABLE))
    return {"name": binding.get_host_cpu_name(), "model": model, "features": tuple(notable)}


def thread_source() -> str:
    """Where the number of threads comes from, in the order of `upconv.threads`."""
    for variable in ("UPCONV_NUM_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(variable, "").strip():
            return variable
    return "the processors this process may use"


def environment() -> dict[str, str]:
    """The environment variables in force that upconv or its BLAS reads."""
    also = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NO_COLOR")
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("UPCONV_") or name in also
    }


def facts(threads: int | None) -> dict[str, Any]:
    """What a measurement depends on, for JSON."""
    return {
        "system": platform.platform(),
        "cpu": processor(),
        "processors": os.cpu_count(),
        "threads": threads,
        "threads_from": thread_source(),
        "memory_available_bytes": memory.available_bytes(),
        "versions": versions(),
        "numpy_blas": numpy_blas(),
        "environment": environment(),
    }
