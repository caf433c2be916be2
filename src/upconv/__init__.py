"""upconv: fast and exact transposed convolutions. Start with `conv_transpose`.

`dir(upconv)` lists the public names. A front end, such as `upconv.torch`, is imported on first use;
`dir(upconv)` lists it only if the library it needs is installed.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
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
    from . import dialects, network, streaming, testing

    # isort: off
    from . import dask as dask, linear as linear, mxnet as mxnet, onednn_graph as onednn_graph
    from . import onnx as onnx, torch as torch

    # isort: on
    from .engines.cudnn.engine import Cudnn
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
    "Cudnn",
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
    "network",
    "output_shape",
    "plan",
    "set_num_threads",
    "stream",
    "streaming",
    "testing",
    "tuning_clear",
    "tuning_info",
]

_LAZY_MODULES = {
    "dask": "dask",
    "dialects": "",
    "linear": "scipy",
    "mxnet": "",
    "network": "",
    "onednn_graph": "",
    "onnx": "onnx_ir",
    "streaming": "",
    "testing": "",
    "torch": "torch",
}
"""Lazily imported modules, each with the library it needs ("" for none)."""

_LAZY_NAMES = {
    "BatchNormGradients": "normalization",
    "BatchNormResult": "normalization",
    "Cudnn": "engines.cudnn.engine",
    "FoldedWeights": "normalization",
    "batch_norm": "normalization",
    "batch_norm_backward": "normalization",
    "conv_stream": "streaming",
    "fold_batch_norm": "normalization",
    "stream": "streaming",
}


def __getattr__(name: str) -> Any:
    """Import a module, or a name from one, on first use, so that `import upconv` stays fast."""
    module = name if name in _LAZY_MODULES else _LAZY_NAMES.get(name)
    if module is None:
        raise AttributeError(f"module 'upconv' has no attribute {name!r}")
    with importing:
        value = import_module(f".{module}", __name__)
        if module != name:
            value = getattr(value, name)
        globals()[name] = value  # later look-ups bypass this function
    return value


def __dir__() -> list[str]:
    """Return the public names. help() imports them, so modules without their library are absent."""
    usable = (name for name, needed in _LAZY_MODULES.items() if not needed or find_spec(needed))
    return [*{*__all__, "geometry", *usable}]
