"""Random weights for PyTorch models, with which every layer affects the result.

In an untrained network values vanish within a few layers, and a wrong layer would not show in the
output. `enliven` scales the weights layer by layer so that each layer's result has unit variance.
Batch norms have statistics, and biases values, that folding must preserve.
"""

from __future__ import annotations

import torch
from torch import nn

_WEIGHED = (nn.modules.conv._ConvNd, nn.Linear)
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


def unsettle(model: nn.Module) -> None:
    """Randomize the biases and norms, which PyTorch initializes to constants."""
    for layer in model.modules():
        for name in ("bias", "weight") if isinstance(layer, _NORMS) else ("bias",):
            if isinstance(tensor := getattr(layer, name, None), torch.Tensor):
                tensor.add_(0.1 * torch.randn_like(tensor))
        if getattr(layer, "running_var", None) is not None:
            layer.running_mean.normal_(std=0.1)
            layer.running_var.uniform_(0.5, 1.5)


def enliven(model: nn.Module, inputs: list[torch.Tensor]) -> None:
    """Scale the weights of each layer, in the order they run, to a result of unit variance."""
    unsettle(model)
    done: set[nn.Module] = set()

    def scale(layer: nn.Module, _: object, result: torch.Tensor) -> torch.Tensor | None:
        if layer in done or result.numel() < 2:
            return None
        done.add(layer)
        factor = 1 / result.std().clamp_min(1e-6)
        # Assigned, not changed in place: a weight may be a parametrization's result.
        layer.weight = _like(layer.weight, factor * layer.weight)
        if layer.bias is not None:
            layer.bias.mul_(factor)
        return factor * result

    layers = [layer for layer in model.modules() if isinstance(layer, _WEIGHED)]
    hooks = [layer.register_forward_hook(scale) for layer in layers]
    model(*inputs)
    for hook in hooks:
        hook.remove()


def _like(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return nn.Parameter(new) if isinstance(old, nn.Parameter) else new
