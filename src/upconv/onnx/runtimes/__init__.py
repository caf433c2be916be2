"""Runtimes: what runs ONNX models here, by name, and random inputs for them.

    with ready("onnxruntime").session(model, threads=2) as session:
        outputs = session.run(feeds(session))

The table is all there is: a new runtime is one file and one line. What a runtime and a session are
is in `base`. A runtime's own package is imported when it is first asked for.
"""

from __future__ import annotations

from ...errors import ArgumentError, EngineMissing, brief
from .base import Runtime, Session
from .feeds import feeds
from .onnxruntime import OnnxRuntime, Optimisation
from .openvino import OpenVino
from .reference import Reference
from .values import Interface, Value

__all__ = [
    "RUNTIMES",
    "Interface",
    "OnnxRuntime",
    "OpenVino",
    "Optimisation",
    "Reference",
    "Runtime",
    "Session",
    "Value",
    "feeds",
    "ready",
]

RUNTIMES: dict[str, Runtime] = {
    "onnxruntime": OnnxRuntime(),
    "openvino": OpenVino(),
    "reference": Reference(),
}
"""Name -> runtime, with its usual settings."""


def ready(name: str, argument: str = "runtime") -> Runtime:
    """The runtime called `name`, which can be used; `argument` is what an error calls it.

    Raises `ArgumentError` for an unknown name, `EngineMissing` where it is not installed.

    >>> ready("reference").name
    'reference'
    """
    if name not in RUNTIMES:
        raise ArgumentError(argument, brief(name), f"one of {', '.join(RUNTIMES)}")
    missing = RUNTIMES[name].missing()
    if missing is not None:
        raise EngineMissing(missing)
    return RUNTIMES[name]
