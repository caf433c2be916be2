"""The table of engines, in order of preference, and a loader that finds an engine by name.

A new engine is one file or folder and one line here. Loading is lazy: an engine's third-party
library is imported when the engine is first queried, never by `import upconv`.

The public function `upconv.engines()` shadows this package, so write
`from upconv.engines.base import Engine`: `import upconv.engines.base as base` would fail.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import ArgumentError, brief
from ..forks import importing
from .base import Engine

ENGINES: dict[str, str] = {
    "jit": "upconv.engines.jit:JitEngine",
    "onednn": "upconv.engines.onednn.engine:OnednnEngine",
    "cudnn": "upconv.engines.cudnn.engine:Cudnn",
    "reference": "upconv.engines.reference:ReferenceEngine",
}
"""Name -> "module:Class", in order of preference."""

ON_DEVICES = "cudnn"
"""The engine for arrays on GPUs; the others compute in main memory."""


def load(name: str, argument: str = "engine") -> Engine:
    """Return the engine called `name`, created once per process.

    Errors refer to the name as `argument`. Raises `ArgumentError` for an unknown name and
    `EngineMissing` when the engine's third-party library is not installed.

    >>> load("reference").name
    'reference'
    """
    if name not in ENGINES:
        remedy = "Leave it out to let upconv choose."
        raise ArgumentError(argument, brief(name), f"one of {', '.join(ENGINES)}", remedy)
    engine: Engine = instance(ENGINES[name])
    return engine


_instances: dict[str, Any] = {}


def instance(target: str) -> Any:
    """Return the process's single instance of the class named by "module:Class"."""
    with importing:
        if target not in _instances:
            module, _, attribute = target.partition(":")
            _instances[target] = getattr(import_module(module), attribute)()
        return _instances[target]
