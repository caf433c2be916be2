"""The deconvolutions of a model: which they are, which upconv may compute, and how they then do.

What lives here: one layer. What never does: what follows it, and the model as a whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from .accelerate_recorded import recordable, recorded
from .accelerate_swaps import is_derived, kept_by, original_class, own_forward, swappable
from .fused import Fused, Module, own_method
from .fused_weights import source_of, weight_refusal
from .modules import OURS
from .observers import plain
from .tensors import DTYPES, Tensor

KINDS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def layers_of(model: Module) -> dict[Module, str]:
    """Every deconvolution of a model, once, and the first of its names.

    >>> list(layers_of(nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(1, 1, 2))).values())
    ['1']
    """
    return {module: name for name, module in model.named_modules() if isinstance(module, KINDS)}


def tensors_of(module: Module) -> list[Tensor]:
    """The tensors that a module itself has: parameters, buffers and plain attributes.

    >>> len(tensors_of(nn.BatchNorm1d(2, affine=False)))
    3
    """
    own = vars(module)
    registered = [own.get(name, {}).values() for name in ("_parameters", "_buffers")]
    held = (*registered[0], *registered[1], *own.values())
    return [value for value in held if isinstance(value, torch.Tensor)]


def kind_of(layer: Module) -> str:
    """The name of a layer's class without parametrizations."""
    own = original_class(layer)
    return own.__bases__[0].__name__ if "parametrizations" in layer._modules else own.__name__


def refusal(layer: Module, measured: bool) -> str | None:
    """Why a layer is left to PyTorch, in words; None if upconv may compute it.

    measured: whether its speed will be. Without that only those are taken whose speed is known.

    >>> refusal(nn.ConvTranspose2d(1, 1, 2), measured=False) is None
    True
    """
    if is_derived(layer):
        return "its class was made from an accelerated one"
    if isinstance(layer, OURS):
        return "it is upconv's own already"
    changed = "forward" if "forward" in vars(layer) else own_method(original_class(layer))
    if changed is not None:
        return f"{type(layer).__name__} has a {changed} of its own"
    if isinstance(layer, torch.jit.ScriptModule):
        return "it is compiled by TorchScript"
    if any(isinstance(p, UninitializedParameter) for p in layer.parameters()):
        return "it has no weight yet: call the model once before"
    unknown = weight_refusal(layer)
    if unknown:
        return unknown
    if not swappable(layer, deconvolution_forward):
        return "no class that does the same can be made from its own"
    source = source_of(layer)
    tensors = [] if source is None else [t for t in (*source.tensors, layer.bias) if t is not None]
    places = {str(t.device) for t in tensors} - {"cpu"}
    if places:
        return f"it is on {', '.join(sorted(places))}: left to PyTorch's own operator"
    if not plain(tuple(tensors)):
        return "its parameters are no plain dense tensors"
    kinds = {t.dtype for t in tensors}
    if len(kinds) > 1 or not kinds <= set(DTYPES):
        return f"its parameters are of {', '.join(sorted(map(str, kinds)))}"
    if not measured and kinds != {torch.float32}:
        return f"{kinds.pop()} is not always faster: pass example_inputs, so that it is measured"
    return None


def refusals(model: Module, measured: bool) -> dict[Module, str | None]:
    """Why each deconvolution of a model is left to PyTorch; None for those that upconv may compute.

    >>> list(refusals(nn.Sequential(nn.ConvTranspose1d(1, 1, 2)), measured=True).values())
    [None]
    """
    compiled = [each for each in model.modules() if getattr(each, "_compiled_call_impl", None)]
    within = {layer for module in compiled for layer in module.modules()}
    early = "it is compiled by Module.compile: accelerate before that"
    return {
        layer: early if layer in within else refusal(layer, measured) for layer in layers_of(model)
    }


def deconvolution_forward(self: Any, input: Tensor, output_size: Any = None) -> Tensor:  # noqa: A002
    """The forward of a swapped deconvolution: upconv's outside training, else PyTorch's."""
    fused: Fused | None = kept_by(self)
    # A replica or a shallow copy has what was kept by another module.
    if fused is not None and fused.deconvolution is self and not self.training:
        if torch.compiler.is_compiling():
            if fused.traceable(input):
                return fused.traced(input, None, output_size)
        elif fused.applies(input):
            return fused.compute(input, None, output_size)
        elif torch.is_grad_enabled() and recordable(self, input):
            return recorded(self, input, output_size)
    result: Tensor = own_forward(self)(self, input, output_size)
    return result
