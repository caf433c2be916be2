"""upconv: transposed convolution, solved completely. See `conv_transpose` to begin.

The names listed in `__all__` are the library's interface, with `upconv.dialects` (the spellings of
every framework), `upconv.streaming` (input by chunks) and `upconv.testing` (for engine authors),
which are imported when first used.
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
    ModelError,
    ShapeError,
    TranslationError,
    UpconvError,
)
from .explanations import EngineStatus, Explanation, engines, explain, output_shape
from .forks import importing
from .gradients import Gradients
from .ops import conv, conv_backward, conv_transpose, conv_transpose_backward
from .plans import Plan, conv_plan, plan
from .primitives import CacheInfo, cache_clear, cache_info
from .threads import get_num_threads, set_num_threads
from .tuning import TuningInfo, tuning_clear, tuning_info

if TYPE_CHECKING:
    from . import dialects, streaming, testing
    from .normalization import (
        BatchNormGradients,
        BatchNormResult,
        FoldedWeights,
        batch_norm,
        batch_norm_backward,
        fold_batch_norm,
    )
    from .streaming import conv_stream, stream

__all__ = [
    "ArgumentError",
    "BatchNormGradients",
    "BatchNormResult",
    "CacheInfo",
    "DTypeError",
    "EngineError",
    "EngineMissing",
    "EngineRefusal",
    "EngineStatus",
    "Explanation",
    "FileError",
    "FoldedWeights",
    "Gradients",
    "MemoryLimitError",
    "ModelError",
    "Plan",
    "ShapeError",
    "TranslationError",
    "TuningInfo",
    "UpconvError",
    "__version__",
    "batch_norm",
    "batch_norm_backward",
    "cache_clear",
    "cache_info",
    "conv",
    "conv_backward",
    "conv_plan",
    "conv_stream",
    "conv_transpose",
    "conv_transpose_backward",
    "dialects",
    "engines",
    "explain",
    "fold_batch_norm",
    "get_num_threads",
    "output_shape",
    "plan",
    "set_num_threads",
    "stream",
    "streaming",
    "testing",
    "tuning_clear",
    "tuning_info",
]

_LAZY_MODULES = ("dialects", "streaming", "testing")
_LAZY_NAMES = {
    "BatchNormGradients": "normalization",
    "BatchNormResult": "normalization",
    "FoldedWeights": "normalization",
    "batch_norm": "normalization",
    "batch_norm_backward": "normalization",
    "conv_stream": "streaming",
    "fold_batch_norm": "normalization",
    "stream": "streaming",
}


def __getattr__(name: str) -> Any:
    """Modules, and names of modules, that are imported on first use: importing upconv is quick."""
    with importing:
        if name in _LAZY_MODULES:
            return import_module(f".{name}", __name__)
        if name in _LAZY_NAMES:
            value = getattr(import_module(f".{_LAZY_NAMES[name]}", __name__), name)
            globals()[name] = value  # found without this function from now on
            return value
    raise AttributeError(f"module 'upconv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_MODULES, *_LAZY_NAMES})
