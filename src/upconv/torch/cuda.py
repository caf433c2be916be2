"""The operators' kernels for CUDA tensors: they call upconv's cuDNN engine or PyTorch.

Both call cuDNN, but differently: upconv adds bias, residual and activation in the same kernel if
cuDNN can fuse them, and chooses among more plans. Only a measurement shows which is faster. So each
signature is measured once, as PyTorch measures its own algorithms: in the first call under
`torch.backends.cudnn.benchmark = True`, but never while a CUDA graph is being captured. PyTorch
computes all calls under autocast, and all signatures not measured as 3% faster in upconv.

Both obey PyTorch's settings: whether cuDNN is enabled, whether results must be deterministic, and
whether TF32 is allowed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..devices import DeviceArray, Library, device_array
from ..engines.cudnn.engine import Cudnn
from ..errors import EngineError, EngineMissing, MemoryLimitError
from ..execution import prepared_problem
from ..problem import Direction, DType
from . import compute
from .compute import Result
from .problems import axis_order
from .tensors import Tensor, new_result

Kernel = Callable[..., Tensor]

_GAIN = 1.03
_ROUNDS, _SECONDS = 3, 0.004
_MAX_CHOICES = 4096


_choices: dict[tuple[Any, ...], Kernel | None] = {}
"""Signature of a call -> the faster kernel: upconv's, or None for PyTorch's."""


def forget() -> None:
    """Forget the measurements, so that every signature is measured again."""
    _choices.clear()


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, arguments: Any, residual: Tensor = None,
    activation: str = "",
) -> Tensor:  # fmt: skip
    """Do what `compute.forward` does, on a CUDA device."""
    epilogue = residual, activation
    return _run(
        "forward",
        (x, weight, bias, residual),
        (*arguments, activation),
        lambda x, weight, bias, _: compute.forward_result(x, weight, bias, arguments, *epilogue),
        lambda x, weight, bias, _: compute.by_pytorch(x, weight, bias, arguments, *epilogue),
    )


def input_grad(g: Tensor, weight: Tensor, size: Any, *arguments: Any) -> Tensor:
    """Do what `compute.input_grad` does, on a CUDA device."""
    return _run(
        "input_grad",
        (g, weight),
        (size, *arguments),
        lambda g, weight: compute.input_result(g, weight, size, arguments),
        lambda g, weight: compute.input_grad_by_pytorch(g, weight, size, *arguments),
    )


def weight_grad(g: Tensor, x: Tensor, kernel: Any, *arguments: Any) -> Tensor:
    """Do what `compute.weight_grad` does, on a CUDA device."""
    return _run(
        "weight_grad",
        (g, x),
        (kernel, *arguments),
        lambda g, x: compute.weight_result(g, x, kernel, arguments),
        lambda g, x: compute.weight_grad_by_pytorch(g, x, kernel, *arguments),
    )


def _run(
    operator: str, operands: tuple[Any, ...], arguments: tuple[Any, ...],
    result_of: Callable[..., Result | None], by_pytorch: Kernel,
) -> Tensor:  # fmt: skip
    """Call upconv's kernel if it was measured as faster, else PyTorch's."""
    kernel = None
    settings = torch.backends.cudnn
    autocasts = torch.is_autocast_enabled("cuda")  # autocast serves PyTorch's operator only
    if settings.enabled and (settings.benchmark or _choices) and not autocasts:
        frozen = tuple(tuple(v) if isinstance(v, list | tuple) else v for v in arguments)
        described = tuple(map(_described, operands))
        signature = (operator, described, frozen, _deterministic(), _tf32())
        if signature in _choices:
            kernel = _choices[signature]
        elif settings.benchmark and not torch.cuda.is_current_stream_capturing():
            if len(_choices) >= _MAX_CHOICES:
                _choices.clear()
            _choices[signature] = kernel = _measured(operands, result_of, by_pytorch)
    return (kernel or by_pytorch)(*operands)


def _deterministic() -> bool:
    """Whether PyTorch's settings require the same results in every run."""
    asked = torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    return bool(asked)


def _tf32() -> bool:
    """Whether PyTorch's convolutions may multiply float32 as TF32."""
    settings = torch.backends.cudnn
    precision = getattr(getattr(settings, "conv", None), "fp32_precision", None)
    if precision in (None, "none"):
        return bool(settings.allow_tf32)
    return bool(precision == "tf32")  # once this is set, the older flag cannot be read


def _described(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _measured(
    operands: tuple[Any, ...], result_of: Callable[..., Result | None], by_pytorch: Kernel
) -> Kernel | None:
    """Return upconv's kernel if it is faster on these operands, else None."""
    if len({tensor.device for tensor in operands if tensor is not None}) > 1:
        return None
    try:
        result = result_of(*operands)
        if result is None:
            return None
        by_upconv = _kernel(result, operands)
        calls = [partial(call, *operands) for call in (by_upconv, by_pytorch)]
        if calls[0]().stride() != calls[1]().stride():
            return None  # compilers rely on PyTorch's strides
        best = [1e9, 1e9]
        library, device = _library(operands[0])
        for call in calls:
            call()
        for _ in range(_ROUNDS):
            for i, call in enumerate(calls):
                once = library.seconds(call, 1, device)
                count = min(max(int(_SECONDS / max(once, 1e-6)), 1), 100)
                best[i] = min(best[i], library.seconds(call, count, device))
    except (EngineError, MemoryLimitError) as error:  # EngineMissing is an EngineError
        if isinstance(error, EngineMissing):
            warnings.warn(f"PyTorch computes CUDA tensors: {error}", RuntimeWarning, stacklevel=5)
        return None
    return by_upconv if best[0] * _GAIN <= best[1] else None


def _library(tensor: Tensor) -> tuple[Library, int]:
    with torch.no_grad():
        array = _array(tensor)
    return array.library, array.device


def _array(tensor: Tensor, order: tuple[int, ...] | None = None) -> DeviceArray:
    native = tensor.detach()
    array = device_array("a tensor", native if order is None else native.permute(order))
    if array is None:
        raise TypeError("expected a CUDA tensor")
    return array


def _kernel(result: Result, operands: tuple[Any, ...]) -> Kernel:
    """Return a function that computes a result with cuDNN, from operands like these."""
    problem, order = result.problem, axis_order(result.problem)
    if problem.dtype is DType.FLOAT32 and _tf32():
        problem = problem.replace(tf32=True)
    asked = Cudnn(tune="limited_workspace", deterministic=_deterministic())
    call = prepared_problem(problem, asked.bound(*_library(operands[0])), 1)
    # The axis orders of the result and of the operands; weights and biases keep their order.
    makes_weight = problem.direction is Direction.WEIGHT_GRAD
    orders = (None, order, order) if makes_weight else (order, order, None, None, order)

    def by_upconv(*operands: Tensor | None) -> Tensor:
        y = new_result(result.shape, operands[0], result.last)
        tensors = (y, *(operands[::-1] if result.exchanged else operands))
        pairs = zip(tensors, orders, strict=False)
        arrays: list[Any] = [t if t is None else _array(t, axes) for t, axes in pairs]
        call.run(*arrays)
        return y

    return by_upconv
