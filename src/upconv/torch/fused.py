"""A deconvolution and what follows it, computed in one go outside training.

    y = activation(norm(deconvolution(x)) + residual)

A batch normalisation of running statistics goes into the weight (`fused_weights`); bias, residual
and activation are done where the result is stored. Wherever that cannot be, in training, with
gradients, on other devices, under autocast, with hooks on what is fused, the modules run one after
the other, as they do without us.

What lives here: `Fused`. What never does: finding what may be fused, and changing models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as hooked

from ..choices import choose
from .compute import forward
from .fused_operator import FUSED
from .fused_weights import NORMS, Folded, Normalization, folded, source_of
from .layers import Geometry, module_geometry
from .operators import FORWARD
from .packing import kept
from .tensors import DTYPES, Tensor

Module = Any
"""A `torch.nn.Module`."""


class Ending(NamedTuple):
    """An activation in upconv's words, "" for none, and the slope of a leaky one."""

    name: str = ""
    slope: float = 0.0

    @property
    def spelled(self) -> str:
        """In one word.

        >>> Ending("leaky_relu", 0.2).spelled
        'leaky_relu:0.2'
        """
        return f"{self.name}:{self.slope!r}" if self.name == "leaky_relu" else self.name


def _named(name: str) -> Callable[[Module], Ending]:
    return lambda _: Ending(name)


def _parametric(module: Module) -> Ending | None:
    return Ending("leaky_relu", module.weight.item()) if module.num_parameters == 1 else None


_ENDINGS: dict[type[nn.Module], Callable[[Any], Ending | None]] = {
    nn.ReLU: _named("relu"),
    nn.LeakyReLU: lambda module: Ending("leaky_relu", float(module.negative_slope)),
    nn.PReLU: _parametric,
    nn.Tanh: _named("tanh"),
    nn.Sigmoid: _named("sigmoid"),
    nn.SiLU: _named("silu"),
    nn.GELU: lambda module: Ending("gelu") if module.approximate == "none" else None,
}

_GLOBAL_HOOKS = (hooked._global_forward_hooks, hooked._global_forward_pre_hooks)
"""Those of all modules, which one computed with another would not call."""

NOTHING_OUTSIDE_TRAINING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def ending_of(module: Module) -> Ending | None:
    """The activation that a module is; None for every other module.

    >>> ending_of(nn.LeakyReLU(0.2))
    Ending(name='leaky_relu', slope=0.2)
    """
    told = _ENDINGS.get(type(module))
    return told(module) if told else None


class Fused:
    """A deconvolution and its followers: at most one batch normalisation, then one activation.

    Modules that do nothing outside training may stand among them. Called with x of (N, C, *size)
    or (C, *size), and a residual of the result's shape that is added before the activation, it
    computes what the modules would one after the other. `adds` says that a residual is meant to be
    given. It keeps nothing but the modules.

    >>> up = Fused(nn.ConvTranspose1d(2, 3, 4, stride=2), (nn.BatchNorm1d(3), nn.ReLU()))
    >>> for module in up.modules:
    ...     _ = module.eval()
    >>> with torch.no_grad():
    ...     tuple(up(torch.ones(1, 2, 5)).shape)
    (1, 3, 12)
    """

    def __init__(
        self, deconvolution: Module, followers: Sequence[Module] = (), adds: bool = False
    ) -> None:
        self.deconvolution, self.followers = deconvolution, tuple(followers)
        self.adds = adds

    @property
    def names(self) -> list[str]:
        """What is fused into the deconvolution, in the order in which it is done."""
        found = [type(module).__name__ for module in self.followers]
        if self.adds:
            found.insert(len(found) - bool(self.ending.name), "residual")
        return found

    @property
    def modules(self) -> tuple[Module, ...]:
        """All that it stands for, in the order in which they run."""
        return (self.deconvolution, *self.followers)

    @property
    def norm(self) -> Module | None:
        """The batch normalisation among the followers."""
        return next((module for module in self.followers if type(module) in NORMS), None)

    @property
    def ending(self) -> Ending:
        """The activation at the end, as it is set now."""
        last = self.followers[-1] if self.followers else None
        return (last is not None and ending_of(last)) or Ending()

    def __call__(self, x: Tensor, residual: Tensor = None, output_size: Any = None) -> Tensor:
        """In one go where that is possible, else one by one."""
        if torch.compiler.is_compiling():
            if self.followers and self.traceable(x, residual):
                return self.traced(x, residual, output_size)
        elif self.applies(x, residual):
            return self.compute(x, residual, output_size)
        return self.one_by_one(x, residual, output_size)

    def one_by_one(self, x: Tensor, residual: Tensor = None, output_size: Any = None) -> Tensor:
        """What the modules compute, one after the other."""
        y = self.deconvolution(x) if output_size is None else self.deconvolution(x, output_size)
        ends = bool(self.followers) and type(self.followers[-1]) in _ENDINGS
        for module in self.followers[:-1] if ends else self.followers:
            y = module(y)
        if residual is not None:
            y = y + residual
        return self.followers[-1](y) if ends else y

    def compute(self, x: Tensor, residual: Tensor = None, output_size: Any = None) -> Tensor:
        """The same in one go, for arguments to which `applies` has said yes."""
        layer = self.deconvolution
        how = geometry_of(layer, x, output_size)
        weight, bias = self.folded()
        batched = x.dim() == len(how.stride) + 2
        if not batched:
            x = x.unsqueeze(0)
            residual = None if residual is None else residual.unsqueeze(0)
        y = forward(x, weight, bias, how, residual, self.ending.spelled, reuse_weight=True)
        return y if batched else y.squeeze(0)

    def folded(self) -> Folded:
        """The weight and the bias that one call uses."""
        layer, norm = self.deconvolution, self.norm
        numbers = None if norm is None else Normalization.of(norm)
        return folded(source_of(layer), layer.bias, numbers, layer.groups)

    def applies(self, x: Tensor, residual: Tensor = None) -> bool:
        """Whether this call may be computed in one go."""
        layer = self.deconvolution
        if not (self._at_rest() and _plain(x) and self._batched(x)):
            return False
        if x.dim() - len(layer.kernel_size) not in (1, 2):
            return False
        if residual is not None and not self._fits(x, residual):
            return False
        source = source_of(layer)
        tensors = (*source.tensors, layer.bias, residual)
        if not all(t is None or (t.dtype is x.dtype and t.device == x.device) for t in tensors):
            return False
        if torch.is_grad_enabled() and self._learns(x, tensors):
            return False
        if any(hook is not source.hook for hook in layer._forward_pre_hooks.values()):
            return not self.followers and not observed()  # alone, it has run already
        return not observed()

    def traceable(self, x: Tensor, residual: Tensor = None) -> bool:
        """Whether a compiler may be shown one operator for this call."""
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return False
        layer = self.deconvolution
        if not (self._at_rest() and self._batched(x)):
            return False
        if x.dim() - len(layer.kernel_size) not in (1, 2):
            return False
        if self.followers and (layer._forward_pre_hooks or "parametrizations" in layer._modules):
            return False
        if any(isinstance(module, nn.PReLU) for module in self.followers):
            return False  # its slope is a number that a graph would freeze
        weight = layer.weight
        if residual is not None and residual.dtype != x.dtype:
            return False
        return x.device.type == "cpu" and x.dtype == weight.dtype and x.dtype in DTYPES

    def traced(self, x: Tensor, residual: Tensor = None, output_size: Any = None) -> Tensor:
        """The call as one operator, where `traceable` has said yes."""
        layer, norm = self.deconvolution, self.norm
        how = geometry_of(layer, x, output_size)
        batched = x.dim() == len(how.stride) + 2
        if not batched:
            x = x.unsqueeze(0)
            residual = None if residual is None else residual.unsqueeze(0)
        ending, plain = self.ending.spelled, "parametrizations" not in layer._modules
        if norm is None:
            reuse = plain and not layer._forward_pre_hooks
            y = FORWARD(x, layer.weight, layer.bias, *how, residual, ending, reuse)
        else:
            numbers = Normalization.of(norm)
            y = FUSED(x, layer.weight, layer.bias, *numbers, *how, residual, ending)
        return y if batched else y.squeeze(0)

    @property
    def known(self) -> bool:
        """Whether every follower is still one that is computed in one go, by its own forward."""
        last = self.followers[-1:]
        usual = (*NORMS, *NOTHING_OUTSIDE_TRAINING)
        return all("forward" not in vars(module) for module in self.modules) and all(
            type(module) in usual or (module in last and ending_of(module) is not None)
            for module in self.followers
        )

    def _at_rest(self) -> bool:
        """Whether nobody trains, and no hook waits for what would not be there."""
        layer = self.deconvolution
        if self.followers and (any(_GLOBAL_HOOKS) or not self.known):
            return False
        if layer.training or (self.followers and layer._forward_hooks):
            return False
        for module in self.followers:
            if module.training and type(module) in (*NORMS, *NOTHING_OUTSIDE_TRAINING):
                return False
            if module._forward_hooks or module._forward_pre_hooks:
                return False
        return True

    def _fits(self, x: Tensor, residual: Tensor) -> bool:
        """Whether a residual has the shape of the result, and is not spread over it."""
        layer = self.deconvolution
        if type(residual) is not torch.Tensor or x.dim() != len(layer.kernel_size) + 2:
            return False
        size = geometry_of(layer, x, None).out_size(x.shape[2:], layer.kernel_size)
        return tuple(residual.shape) == (x.shape[0], layer.out_channels, *size)

    def _batched(self, x: Tensor) -> bool:
        """Whether x has a batch axis, where a normalisation would take another one for it."""
        return self.norm is None or x.dim() == len(self.deconvolution.kernel_size) + 2

    def _learns(self, x: Tensor, tensors: tuple[Tensor, ...]) -> bool:
        if x.requires_grad or any(t is not None and t.requires_grad for t in tensors):
            return True
        return any(p.requires_grad for module in self.followers for p in module.parameters())

    @property
    def engine(self) -> str:
        """The engines that the calls of these weights so far were run by; "" before the first."""
        found = kept(self.folded().weight)
        problems = [made.problem for made in found.calls.values()] if found else []
        engines = {choose(problem).engine for problem in problems}
        return "+".join(sorted(engine.name for engine in engines if engine is not None))


def geometry_of(layer: Module, x: Tensor, output_size: Any) -> Geometry:
    """How a module combines x and its weight, in a call with `output_size`.

    >>> geometry_of(nn.ConvTranspose1d(1, 1, 3, stride=2), torch.ones(1, 1, 4), None).stride
    (2,)
    """
    output_padding = layer.output_padding
    if output_size is not None:
        rank = len(layer.kernel_size)
        output_padding = layer._output_padding(
            x, output_size, layer.stride, layer.padding, layer.kernel_size, rank, layer.dilation
        )
    return module_geometry(len(layer.kernel_size), layer, tuple(output_padding))


def _plain(x: Tensor) -> bool:
    return type(x) is torch.Tensor and x.is_cpu and x.dtype in DTYPES


def observed() -> bool:
    """Whether somebody looks at the operators of this thread: tracers, modes, autocast, vmap.

    >>> observed()
    False
    """
    return bool(
        torch.is_autocast_enabled("cpu")
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
    )


class _Recorded(torch.autograd.Function):  # type: ignore[misc]  # PyTorch is untyped here
    """A deconvolution forward by upconv, backward by PyTorch's own operator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, how: Geometry) -> Tensor:
        """Of plain batched tensors; the weight is at rest."""
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.bias = how, None if bias is None else list(bias.shape)
        return forward(x, weight, bias, how, reuse_weight=True)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        """Gradients of x, weight and bias; they can be differentiated again."""
        x, weight = ctx.saved_tensors
        stride, padding, output_padding, dilation, groups = ctx.how
        wanted = list(ctx.needs_input_grad[:3])
        geometry = (stride, padding, dilation, True, output_padding, groups, wanted)
        dx, dw, db = torch.ops.aten.convolution_backward(g, x, weight, ctx.bias, *geometry)
        return dx, dw, db, None


def recordable(layer: Module, x: Tensor) -> bool:
    """Whether a call that gradients may be asked of can be computed by `recorded`."""
    if not _plain(x) or x.dim() != len(layer.kernel_size) + 2:
        return False
    weight, bias = layer.weight, layer.bias
    if "parametrizations" in layer._modules or type(weight) is not nn.Parameter:
        return False
    if weight.dtype is not x.dtype or not weight.is_cpu or observed():
        return False
    return bias is None or (bias.dtype is x.dtype and bias.is_cpu)


def recorded(layer: Module, x: Tensor, output_size: Any) -> Tensor:
    """A layer in eval mode whose gradients are recorded: forward by upconv, backward by PyTorch."""
    how = geometry_of(layer, x, output_size)
    return _Recorded.apply(x, layer.weight, layer.bias, how)
