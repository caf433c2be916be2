"""upconv: transposed convolution, solved completely. See `conv_transpose` to begin.

The names listed in `__all__` are the library's interface, with `upconv.dialects` (the spellings of
every framework) and `upconv.testing` (for engine authors), which are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import (
    ArgumentError,
    DTypeError,
    EngineError,
    EngineMissing,
    EngineRefusal,
    FileError,
    MemoryLimitError,
    ShapeError,
    TranslationError,
    UpconvError,
)
from .execution import Gradients
from .explanations import EngineStatus, Explanation, engines, explain, output_shape
from .ops import conv, conv_backward, conv_transpose, conv_transpose_backward
from .plans import Plan, plan
from .primitives import CacheInfo, cache_clear, cache_info
from .threads import get_num_threads, set_num_threads
from .tuning import TuningInfo, tuning_clear, tuning_info

if TYPE_CHECKING:
    from . import dialects, testing

__all__ = [
    "ArgumentError",
    "CacheInfo",
    "DTypeError",
    "EngineError",
    "EngineMissing",
    "EngineRefusal",
    "EngineStatus",
    "Explanation",
    "FileError",
    "Gradients",
    "MemoryLimitError",
    "Plan",
    "ShapeError",
    "TranslationError",
    "TuningInfo",
    "UpconvError",
    "__version__",
    "cache_clear",
    "cache_info",
    "conv",
    "conv_backward",
    "conv_transpose",
    "conv_transpose_backward",
    "dialects",
    "engines",
    "explain",
    "get_num_threads",
    "output_shape",
    "plan",
    "set_num_threads",
    "testing",
    "tuning_clear",
    "tuning_info",
]

_LAZY = ("dialects", "testing")


def __getattr__(name: str) -> Any:
    """`upconv.dialects` and `upconv.testing` on first use: importing upconv stays quick."""
    if name in _LAZY:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module 'upconv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
