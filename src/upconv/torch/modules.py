"""`ConvTranspose1d/2d/3d`: PyTorch's modules, computed by upconv.

They derive from PyTorch's, so constructors, parameters, `state_dict`, printing and `isinstance` are
theirs. In eval mode a module's weight is packed once (`packing`), in training for every call.

What lives here: the modules and `from_torch`. What never does: packed weights, which belong to
weights, so that a module is pickled and copied as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.overrides import has_torch_function

from ..errors import brief
from .accelerate_swaps import is_swapped
from .functional import convolved
from .layers import module_geometry
from .refusals import TensorArgumentError, TensorTypeError
from .tensors import Tensor, require


def _no_script(self: nn.Module) -> None:
    got, expected = f"an upconv.torch.{type(self).__name__}", "a module that torch.jit.script reads"
    raise TensorArgumentError("obj", got, expected, "Trace it, or use the module of torch.nn.")


class ConvTranspose1d(nn.ConvTranspose1d):  # type: ignore[misc]  # PyTorch is untyped here
    """`torch.nn.ConvTranspose1d`, computed by upconv.

    >>> layer = ConvTranspose1d(1, 1, 2, stride=2, bias=False).eval()
    >>> _ = nn.init.ones_(layer.weight)
    >>> with torch.no_grad():
    ...     layer(torch.tensor([[[1.0, 2.0]]]))
    tensor([[[1., 1., 2., 2.]]])
    """

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:  # noqa: A002
        """(N, C, L) or (C, L) to (N, F, L') or (F, L'), L' being `output_size` where given."""
        return _forward(self, 1, input, output_size)

    __prepare_scriptable__ = _no_script


class ConvTranspose2d(nn.ConvTranspose2d):  # type: ignore[misc]
    """`torch.nn.ConvTranspose2d`, computed by upconv.

    >>> layer = ConvTranspose2d(3, 8, 4, stride=2, padding=1)
    >>> layer(torch.zeros(2, 3, 5, 7)).shape
    torch.Size([2, 8, 10, 14])
    """

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:  # noqa: A002
        """(N, C, H, W) or (C, H, W) to (N, F, H', W') or (F, H', W')."""
        return _forward(self, 2, input, output_size)

    __prepare_scriptable__ = _no_script


class ConvTranspose3d(nn.ConvTranspose3d):  # type: ignore[misc]
    """`torch.nn.ConvTranspose3d`, computed by upconv.

    >>> layer = ConvTranspose3d(3, 8, 3, stride=2)
    >>> layer(torch.zeros(3, 4, 4, 4), output_size=(10, 9, 9)).shape
    torch.Size([8, 10, 9, 9])
    """

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:  # noqa: A002
        """(N, C, D, H, W) or (C, D, H, W) to the same with F channels and the output's size."""
        return _forward(self, 3, input, output_size)

    __prepare_scriptable__ = _no_script


def _forward(
    module: Any,
    rank: int,
    x: Tensor,
    output_size: Any,
) -> Tensor:
    """A module's result; sizes and their checks are PyTorch's own method's."""
    extra = module.output_padding
    if output_size is not None:
        require("input", x)
        sizes = (module.stride, module.padding, module.kernel_size, rank, module.dilation)
        extra = tuple(module._output_padding(x, output_size, *sizes))
    how = module_geometry(rank, module, extra)
    if not isinstance(x, torch.Tensor) and not has_torch_function((x,)):
        require("input", x)
    # What is a plain parameter is there at once; a parametrization computes it.
    own = module._parameters
    weight = own["weight"] if "weight" in own else module.weight  # noqa: SIM401  # not evaluated
    bias = own["bias"] if "bias" in own else module.bias  # noqa: SIM401  # before it is needed
    return convolved(rank, x, weight, bias, how, reuse_weight=not module.training)


OURS = (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
_MODULES: dict[type, type] = {
    nn.ConvTranspose1d: ConvTranspose1d,
    nn.ConvTranspose2d: ConvTranspose2d,
    nn.ConvTranspose3d: ConvTranspose3d,
}


def from_torch(module: Any) -> Any:
    """The same layer computed by upconv: a new module with the parameters of a PyTorch one.

    module: a `torch.nn.ConvTranspose1d/2d/3d`, with `weight_norm`, `spectral_norm` or any other
    parametrization if it has one. Parameters, buffers and hooks are shared with it, so an optimiser
    that has them still trains them. A module that already is upconv's comes back as it is.

    Raises `TensorTypeError` for other modules; a subclass may compute something else.

    >>> layer = nn.ConvTranspose2d(4, 2, 3)
    >>> fast = from_torch(layer)
    >>> type(fast).__module__.split(".")[0], fast.weight is layer.weight
    ('upconv', True)
    """
    kind = type(module)
    parametrized = isinstance(module, nn.Module) and parametrize.is_parametrized(module)
    original = parametrize.type_before_parametrizations(module) if parametrized else kind
    if original in _MODULES.values():
        return module
    if original not in _MODULES:
        got = f"of class {original.__name__}" if isinstance(module, nn.Module) else brief(module)
        expected = "a torch.nn.ConvTranspose1d, ConvTranspose2d or ConvTranspose3d"
        remedy = "Subclasses may compute something else: make an upconv.torch module for them."
        if is_swapped(module):
            remedy = "It is accelerated: upconv.torch.restore(module) makes it that again."
        raise TensorTypeError("module", got, expected, remedy)
    if "forward" in vars(module):
        got, expected = "one with a forward of its own", "a layer that computes as its class does"
        remedy = "What was put there (by hooks of other libraries, say) would compute, not upconv."
        raise TensorTypeError("module", got, expected, remedy)
    target = _MODULES[original]
    if parametrized:  # PyTorch gave the module a class of its own, whose properties it needs
        own = {k: v for k, v in vars(kind).items() if k not in ("__dict__", "__weakref__")}
        target = type(kind.__name__, (target,), own)
    made = _shared(module, target)
    if parametrized:  # to remove one of them, PyTorch takes it out of the container
        container = module.parametrizations
        made._modules["parametrizations"] = _shared(container, type(container))
    return made


def _shared(module: Any, kind: type) -> Any:
    """A module of a kind that has the parameters, buffers, modules and hooks of another."""
    made: Any = object.__new__(kind)
    for name, value in vars(module).items():
        made.__dict__[name] = value.copy() if isinstance(value, dict | set) else value
    return made
