"""Dialects: the transposed convolutions of frameworks, converted to and from one `Layer`.

In every framework, padding, output padding, target size and "same" are two signed crops per axis
(see `upconv.geometry`). `from_<dialect>` reads a framework's keywords with its defaults.
`to_<dialect>` returns these keywords for a layer, or raises `TranslationError`. `translate` does
both.
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
    "DIALECTS", "Layer", "Translation", "Verdict", "from_jax", "from_keras", "from_mxnet",
    "from_onednn_graph", "from_onnx", "from_torch", "to_jax", "to_keras", "to_mxnet",
    "to_onednn_graph", "to_onnx", "to_torch", "translate",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
