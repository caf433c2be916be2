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

_THREADS = ("UPCONV_NUM_THREADS", "OMP_NUM_THREADS")
"""Where the number of threads comes from, the first first, as in `upconv.threads`."""

_ALSO_READ = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NO_COLOR")


def version_of(package: str) -> str | None:
    """The installed version of a package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numpy_blas() -> str:
    """The BLAS that NumPy was built with."""
    show: Callable[..., Any] = np.show_config
    blas = (show(mode="dicts") or {}).get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def _processor() -> dict[str, Any]:
    """The CPU: its name to compilers, its model to people, and the features that decide speed."""
    model = processor_model()
    try:
        from llvmlite import binding
    except ImportError:
        return {"name": platform.machine() or "unknown", "model": model, "features": ()}
    features = (name for name, present in binding.get_host_cpu_features().items() if present)
    notable = sorted(name for name in features if any(part in name for part in _NOTABLE))
    return {"name": binding.get_host_cpu_name(), "model": model, "features": tuple(notable)}


def facts(threads: int | None) -> dict[str, Any]:
    """What a measurement depends on, for JSON; packages that are not installed are left out."""
    versions = {package: version_of(package) for package in (*REQUIRED, *_OPTIONAL)}
    installed = {package: version for package, version in versions.items() if version is not None}
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
        "versions": {"python": platform.python_version(), **installed},
        "numpy_blas": _numpy_blas(),
        "environment": variables,
    }
