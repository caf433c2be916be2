"""Who looks at a call: whether it may go past PyTorch's dispatcher, straight to a kernel.

The dispatcher serves compilers, tracers, modes, autocast, transforms and forward-mode derivatives.
It costs an operator written in Python about 15 microseconds, so calls that nobody looks at go round
it. The answer False is always safe.

Hooks look at calls of modules.

What lives here: those questions. What never does: what follows from the answers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _C, overrides
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad, profiler
from torch.nn.modules import module as hooked
from torch.utils._device import DeviceContext

from .tensors import Tensor

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_STRIDED = torch.strided
# Tensors as compilers and `torch.export` show them to a model.
_KNOWN = (*_PLAIN, FakeTensor, FunctionalTensor)
# What `autograd.grad(..., is_grads_batched=True)` runs a backward pass on.
_is_batched = _C._functorch.is_legacy_batchedtensor


def unobserved() -> bool:
    """Whether no compiler, tracer, profiler, mode, transform or autocast looks at operators now.

    Reverse-mode derivatives are another question: `recording`.

    >>> unobserved()
    True
    >>> with torch.autocast("cpu"):
    ...     unobserved()
    False
    """
    return not (torch.compiler.is_compiling() or profiler._is_profiler_enabled or observed())


def observed() -> bool:
    """Whether a tracer, a mode, a transform or autocast looks at the operators of this thread.

    >>> observed()
    False
    """
    return bool(
        torch.is_autocast_enabled("cpu")
        or forward_ad._current_level >= 0
        or _C._len_torch_dispatch_stack()
        or _C._are_functorch_transforms_active()
        or _C._get_tracing_state() is not None
        or (_C._len_torch_function_stack() and function_modes())
    )


def function_modes() -> bool:
    """Whether a `TorchFunctionMode` looks at functions; a default device is none of them.

    >>> with torch.device("cpu"):
    ...     function_modes()
    False
    """
    modes = overrides._get_current_function_mode_stack()
    return any(type(mode) is not DeviceContext for mode in modes)


def plain(tensors: tuple[Tensor, ...]) -> bool:
    """Whether all (None aside) are PyTorch's own dense tensors in main memory.

    >>> plain((torch.zeros(2), None)), plain((torch.zeros(2, device="meta"),))
    (True, False)
    """
    for tensor in tensors:
        if tensor is not None and (
            type(tensor) not in _PLAIN
            or not tensor.is_cpu
            or tensor.layout is not torch.strided
            or _is_batched(tensor)
        ):
            return False
    return True


def plain_of(tensors: tuple[Tensor, ...], dtype: Any) -> bool:
    """Whether all, None aside, are plain dense tensors in main memory, and of one dtype.

    >>> plain_of((torch.zeros(2), None), torch.float64)
    False
    """
    for tensor in tensors:
        if tensor is not None and (
            tensor.dtype is not dtype
            or type(tensor) not in _PLAIN
            or not tensor.is_cpu
            or tensor.layout is not _STRIDED
        ):
            return False
    return True


def dense(tensors: tuple[Tensor, ...]) -> bool:
    """Whether all, None aside, are PyTorch's own and dense, as far as a compiler knows.

    >>> dense((torch.zeros(2), None)), dense((torch.zeros(2).to_sparse(),))
    (True, False)
    """
    for tensor in tensors:
        if tensor is not None and (type(tensor) not in _KNOWN or tensor.layout != torch.strided):
            return False
    return True


def recording(tensors: tuple[Any, ...]) -> bool:
    """Whether autograd records what is computed from these.

    >>> recording((torch.zeros(2, requires_grad=True), None))
    True
    """
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(each, torch.Tensor) and each.requires_grad for each in tensors)


SHOWS_MODES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)
"""Whether this PyTorch's compiler can be asked for `TorchFunctionMode`s."""

_HOOKS_EVERYWHERE = (
    hooked._global_forward_hooks,
    hooked._global_forward_pre_hooks,
    hooked._global_backward_hooks,
    hooked._global_backward_pre_hooks,
)


def hooks_everywhere() -> bool:
    """Whether there are hooks of all modules, which one computed with another would not call.

    >>> hooks_everywhere()
    False
    """
    return any(_HOOKS_EVERYWHERE)


def watched(module: Any) -> bool:
    """Whether a module has hooks of its own.

    >>> watched(torch.nn.ReLU())
    False
    """
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
