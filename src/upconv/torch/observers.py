"""Who looks at a call: whether it may go past PyTorch's dispatcher, straight to a kernel.

The dispatcher serves compilers, tracers, modes, autocast, transforms and forward-mode derivatives.
It costs an operator written in Python about 15 microseconds, so calls that nobody looks at go round
it. The answer False is always safe.

What lives here: those questions. What never does: what follows from the answers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _C
from torch.autograd import forward_ad, profiler

from .tensors import Tensor

_PLAIN = (torch.Tensor, torch.nn.Parameter)
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
    return not (
        torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
        or forward_ad._current_level >= 0
        or _C._len_torch_dispatch_stack()
        or _C._are_functorch_transforms_active()
        or _C._get_tracing_state() is not None
        or profiler._is_profiler_enabled
    )


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


def recording(tensors: tuple[Any, ...]) -> bool:
    """Whether autograd records what is computed from these.

    >>> recording((torch.zeros(2, requires_grad=True), None))
    True
    """
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(each, torch.Tensor) and each.requires_grad for each in tensors)
