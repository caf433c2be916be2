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

from ..choices import choose
from .accelerate_swaps import calls_as_torch_does, is_as_swapped
from .compute import forward
from .fused_operator import FUSED
from .fused_weights import NORMS, Folded, Normalization, Source, foldable, folded, source_of
from .layers import Geometry, module_geometry
from .observers import SHOWS_MODES, dense, hooks_everywhere, observed, plain, plain_of, watched
from .operators import FORWARD
from .packing import kept
from .tensors import DTYPES, Tensor, dense_strides, in_order, result_last

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


_LARGEST = torch.finfo(torch.float32).max
"""PyTorch refuses slopes beyond it, as it does the infinite."""


def leaky(slope: float) -> Ending | None:
    """A leaky ReLU; None where the slope is no number that upconv multiplies by.

    >>> leaky(0.2), leaky(float("inf"))
    (Ending(name='leaky_relu', slope=0.2), None)
    """
    return Ending("leaky_relu", slope) if abs(slope) <= _LARGEST else None


def _parametric(module: Module) -> Ending | None:
    return leaky(module.weight.item()) if module.weight.numel() == 1 else None


_ENDINGS: dict[type[nn.Module], Callable[[Any], Ending | None]] = {
    nn.ReLU: _named("relu"),
    nn.LeakyReLU: lambda module: leaky(float(module.negative_slope)),
    nn.PReLU: _parametric,
    nn.Tanh: _named("tanh"),
    nn.Sigmoid: _named("sigmoid"),
    nn.SiLU: _named("silu"),
    nn.GELU: lambda module: Ending("gelu") if module.approximate == "none" else None,
}

_FORWARDS = tuple(
    kind.forward for kind in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
)


def own_method(kind: Any) -> str | None:
    """A method of a deconvolution's class that may compute something else than torch's; or None.

    >>> own_method(nn.ConvTranspose1d) is None, own_method(nn.Conv1d)
    (True, 'forward')
    """
    if kind.forward not in _FORWARDS:
        return "forward"
    if not calls_as_torch_does(kind):
        return "__call__"
    same = kind._output_padding is nn.ConvTranspose1d._output_padding
    return None if same else "_output_padding"


def hooked(layer: Module) -> bool:
    """Whether others' hooks see a layer's calls, so that what follows is not done with them.

    >>> hooked(nn.ConvTranspose1d(1, 1, 2))
    False
    """
    source = source_of(layer)
    known = None if source is None else source.hook
    others = any(hook is not known for hook in layer._forward_pre_hooks.values())
    return others or bool(layer._forward_hooks)


_DROPOUTS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def idle(module: Module, layer: Module) -> bool:
    """Whether a module does nothing to a layer's results outside training.

    >>> layer = nn.ConvTranspose2d(1, 1, 2)
    >>> idle(nn.Dropout2d(), layer), idle(nn.Dropout1d(), layer)  # which refuses two axes
    (True, False)
    """
    return type(module) in (nn.Identity, nn.Dropout, _DROPOUTS[len(layer.kernel_size) - 1])


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
        for module in self.followers:
            if type(module) in NORMS:
                return module
        return None

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
        ends = len(self.followers) > 0 and type(self.followers[-1]) in _ENDINGS
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
        source = source_of(layer) or Source((layer.weight,))  # the first is for a report alone
        return folded(source, layer.bias, numbers, layer.groups)

    def applies(self, x: Tensor, residual: Tensor = None) -> bool:
        """Whether this call may be computed in one go."""
        layer = self.deconvolution
        if not (self._at_rest() and _plain(x) and self._batched(x)):
            return False
        if residual is not None and not self._fits(x, residual):
            return False
        source = source_of(layer)
        if source is None:
            return False
        tensors = (*source.tensors, layer.bias, residual)
        if not (plain_of(tensors, x.dtype) and (not self.followers or self._followers_fit(x))):
            return False
        if torch.is_grad_enabled() and self._learns(x, tensors):
            return False
        hooks = layer._forward_pre_hooks
        if hooks and any(hook is not source.hook for hook in hooks.values()):
            return not (self.followers or self.adds or observed())  # alone, it has run already
        return not observed()

    def _followers_fit(self, x: Tensor) -> bool:
        """Whether what the followers hold is such that PyTorch would compute with it too."""
        kind, last = x.dtype, self.followers[-1]
        if type(last) is nn.PReLU and not plain_of((last.weight,), kind):
            return False
        norm = self.norm
        if norm is None:
            return True
        numbers = Normalization.of(norm)[:4]
        if numbers[1].dtype is torch.float32 and kind is not torch.float64:
            kind = torch.float32  # PyTorch normalises halves by float32 as well
        return plain_of(numbers, kind)

    def traceable(self, x: Tensor, residual: Tensor = None) -> bool:
        """Whether a compiler may be shown one operator for this call."""
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return False
        # Other tracers, as `torch.export`, have modes of their own.
        asked = SHOWS_MODES and torch.compiler.is_dynamo_compiling()
        if asked and torch._C._len_torch_function_stack():
            return False
        if torch.onnx.is_in_onnx_export():
            return False  # ONNX knows PyTorch's own operators
        for module in self.followers:
            if type(module) is nn.PReLU:
                return False  # its slope is a number that a graph would freeze
        if not (self._at_rest() and self._batched(x)):
            return False
        layer = self.deconvolution
        if self.followers and (layer._forward_pre_hooks or "parametrizations" in layer._modules):
            return False
        norm = self.norm
        if norm is not None:
            # One by one, as PyTorch 2.6 compiles no slices of named tuples.
            held = Normalization.of(norm)
            if not dense((held.mean, held.var, held.gamma, held.beta)):
                return False
        tensors = (x, layer.weight, layer.bias, residual)
        for tensor in tensors:
            if tensor is not None and (tensor.dtype != x.dtype or tensor.device.type != "cpu"):
                return False
        return dense(tensors) and x.dtype in DTYPES

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

    def _at_rest(self) -> bool:
        """Whether nobody trains or watches, and each module is still of a kind that is known."""
        layer, followers = self.deconvolution, self.followers
        if layer.training or not (is_as_swapped(layer) or own_method(type(layer)) is None):
            return False
        if not (followers or self.adds):
            return True
        if layer._forward_hooks or "forward" in layer.__dict__:
            return False
        for module in followers:
            if watched(module) or "forward" in module.__dict__:
                return False
            kind = type(module)
            if kind in _ENDINGS:
                if module is not followers[-1] or ending_of(module) is None:
                    return False
            elif module.training or not (idle(module, layer) or foldable(module, layer)):
                return False
        return not hooks_everywhere()

    def _fits(self, x: Tensor, residual: Tensor) -> bool:
        """Whether a residual is as the result is, in shape and in order: the sum has its order."""
        layer = self.deconvolution
        if type(residual) is not torch.Tensor or x.dim() != len(layer.kernel_size) + 2:
            return False
        size = geometry_of(layer, x, None).out_size(x.shape[2:], layer.kernel_size)
        shape = (x.shape[0], layer.out_channels, *size)
        if tuple(residual.shape) != shape:
            return False
        weight = self.folded().weight
        last = result_last("g", x.shape, x.stride(), weight.shape, weight.stride())
        return in_order(shape, residual.stride(), dense_strides(shape, last))

    def _batched(self, x: Tensor) -> bool:
        """Whether x has a batch axis; without one a normalisation would take another for it."""
        beside = x.dim() - len(self.deconvolution.kernel_size)
        return beside == 2 or (beside == 1 and self.norm is None)

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
    output_padding, rank = layer.output_padding, len(layer.kernel_size)
    if output_size is not None:
        output_padding = layer._output_padding(
            x, output_size, layer.stride, layer.padding, layer.kernel_size, rank, layer.dilation
        )
        output_padding = tuple(output_padding)
    return module_geometry(rank, layer, output_padding)


def _plain(x: Tensor) -> bool:
    return type(x) is torch.Tensor and x.dtype in DTYPES and plain((x,))
