"""Dialects: how frameworks spell a transposed convolution, read into and said from one `Layer`.

Every framework's padding, output padding, target size and "same" is two signed crops per axis (see
`upconv.geometry`). `from_<dialect>` reads a framework's own keywords with its own defaults,
`to_<dialect>` says a layer in them or raises `TranslationError`, `translate` does both.
"""

from __future__ import annotations

from .jax import from_jax, to_jax
from .keras import from_keras, to_keras
from .layer import Layer
from .mxnet import from_mxnet, to_mxnet
from .onednn_graph import from_onednn_graph, to_onednn_graph
from .onnx import from_onnx, to_onnx
from .torch import from_torch, to_torch
from .translate import DIALECTS, Translation, Verdict, translate

__all__ = [
    "DIALECTS",
    "Layer",
    "Translation",
    "Verdict",
    "from_jax",
    "from_keras",
    "from_mxnet",
    "from_onednn_graph",
    "from_onnx",
    "from_torch",
    "to_jax",
    "to_keras",
    "to_mxnet",
    "to_onednn_graph",
    "to_onnx",
    "to_torch",
    "translate",
]


def __dir__() -> list[str]:
    return __all__
