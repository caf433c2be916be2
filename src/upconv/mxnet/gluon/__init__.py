"""Blocks, parameters and layers: `mx.gluon`."""

from ..base import DeferredInitializationError, absent
from . import block, nn, parameter
from .block import Block, HybridBlock, SymbolBlock
from .parameter import Parameter, ParameterDict

__getattr__ = absent("gluon.")
__all__ = [
    "Block", "DeferredInitializationError", "HybridBlock", "Parameter", "ParameterDict",
    "SymbolBlock", "block", "nn", "parameter",
]  # fmt: skip
