"""The kernels of the operators on CUDA tensors: PyTorch's own, or cuDNN by upconv.

Both call cuDNN, but differently: upconv adds bias, residual and activation in the same kernel where
the library fuses them, and chooses among more plans. Only a measurement shows which is faster. So a
signature is measured once, as PyTorch measures its own algorithms: in the first call under
`torch.backends.cudnn.benchmark = True`, and never while a CUDA graph is captured. PyTorch computes
signatures that were not measured or not faster by 3%, and all calls under autocast.

PyTorch's settings hold for both: whether cuDNN is enabled, whether results must be equal in every
run, and whether TF32 is allowed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from ..devices import DeviceArray, Library, device_array
from ..engines.base import Engine
from ..engines.cudnn.engine import Cudnn
from ..errors import EngineError, EngineMissing, MemoryLimitError
from ..execution import PreparedCall, prepared_problem
from ..problem import Direction, DType, Problem
from . import compute
from .problems import Geometry, Operands, axis_order, forward_problem, result_shape
from .tensors import DTYPES, Tensor, channels_last, dense_strides

_GAIN = 1.03
_ROUNDS, _SECONDS = 3, 0.004
_MOST_CHOICES = 4096


class _Signature(NamedTuple):
    """Everything that a choice depends on."""

    operator: str
    operands: tuple[Any, ...]
    arguments: Any
    activation: str
    device: int
    deterministic: bool
    tf32: bool


_choices: dict[_Signature, Callable[..., Tensor] | None] = {}
"""The faster one as measured: upconv's kernel, or None for PyTorch's."""


def forget() -> None:
    """Measure every signature anew."""
    _choices.clear()


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, arguments: Any, residual: Tensor = None,
    activation: str = "",
) -> Tensor:  # fmt: skip
    """`compute.forward` on a CUDA device."""
    operands = x, weight, bias, residual
    make = lambda: _forward(operands, arguments, activation)  # noqa: E731
    call = _chosen("forward", operands, arguments, activation, make)
    if call is None:
        return compute.by_pytorch(x, weight, bias, arguments, residual, activation)
    return call(x, weight, bias, residual)


def input_grad(g: Tensor, weight: Tensor, size: Any, *arguments: Any) -> Tensor:
    """`compute.input_grad` on a CUDA device."""
    make = lambda: _input_grad(g, weight, size, arguments)  # noqa: E731
    call = _chosen("input_grad", (g, weight), (tuple(size), *arguments), "", make)
    if call is None:
        return compute.input_grad_by_pytorch(g, weight, size, *arguments)
    return call(g, weight)


def weight_grad(g: Tensor, x: Tensor, kernel: Any, *arguments: Any) -> Tensor:
    """`compute.weight_grad` on a CUDA device."""
    make = lambda: _weight_grad(g, x, kernel, arguments)  # noqa: E731
    call = _chosen("weight_grad", (g, x), (tuple(kernel), *arguments), "", make)
    if call is None:
        return compute.weight_grad_by_pytorch(g, x, kernel, *arguments)
    return call(g, x)


def _deterministic() -> bool:
    """Whether PyTorch asks for results that are the same in every run."""
    asked = torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    return bool(asked)


def _tf32() -> bool:
    """Whether PyTorch's convolutions may multiply float32 as TF32."""
    settings = torch.backends.cudnn
    precision = getattr(getattr(settings, "conv", None), "fp32_precision", None)
    if precision in (None, "none"):
        return bool(settings.allow_tf32)
    return bool(precision == "tf32")  # where this was set, the older flag cannot be read


def _described(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _chosen(
    operator: str, operands: tuple[Any, ...], arguments: Any, activation: str,
    make: Callable[[], tuple[Callable[..., Tensor], Callable[..., Tensor]] | None],
) -> Callable[..., Tensor] | None:  # fmt: skip
    """Return upconv's kernel if it was faster in the first call, None for PyTorch's."""
    settings = torch.backends.cudnn
    if not settings.enabled or not (settings.benchmark or _choices):
        return None
    if torch.is_autocast_enabled("cuda"):  # which casts for PyTorch's operator
        return None
    frozen = tuple(tuple(v) if isinstance(v, list | tuple) else v for v in arguments)
    described = tuple(map(_described, operands))
    flags = _deterministic(), _tf32()
    device = operands[0].device.index
    signature = _Signature(operator, described, frozen, activation, device, *flags)
    if signature in _choices:
        return _choices[signature]
    if not settings.benchmark or torch.cuda.is_current_stream_capturing():
        return None
    if len(_choices) >= _MOST_CHOICES:
        _choices.clear()
    _choices[signature] = chosen = _measured(operands, make)
    return chosen


def _measured(
    operands: tuple[Any, ...],
    make: Callable[[], tuple[Callable[..., Tensor], Callable[..., Tensor]] | None],
) -> Callable[..., Tensor] | None:
    """Return upconv's kernel if it is faster on these operands, None for PyTorch's."""
    if len({tensor.device for tensor in operands if tensor is not None}) > 1:
        return None
    try:
        candidates = make()
        if candidates is None:
            return None
        calls = [partial(call, *operands) for call in candidates]
        if calls[0]().stride() != calls[1]().stride():
            return None  # compilers rely on PyTorch's
        best = [1e9, 1e9]
        library, device = _library(operands[0])
        for call in calls:
            call()
        for _ in range(_ROUNDS):
            for i, call in enumerate(calls):
                once = library.seconds(call, 1, device)
                count = min(max(int(_SECONDS / max(once, 1e-6)), 1), 100)
                best[i] = min(best[i], library.seconds(call, count, device))
    except (EngineError, MemoryLimitError) as error:  # EngineMissing is the first
        if isinstance(error, EngineMissing):
            warnings.warn(f"PyTorch computes CUDA tensors: {error}", RuntimeWarning, stacklevel=5)
        return None
    return candidates[0] if best[0] * _GAIN <= best[1] else None


def _library(tensor: Tensor) -> tuple[Library, int]:
    with torch.no_grad():
        array = _array(tensor)
    return array.library, array.device


def _array(tensor: Tensor, order: tuple[int, ...] | None = None) -> DeviceArray:
    native = tensor.detach()
    array = device_array("a tensor", native if order is None else native.permute(order))
    if array is None:
        raise TypeError("a CUDA tensor is expected")
    return array


def _call(problem: Problem, tensor: Tensor) -> PreparedCall:
    """Return the prepared call of a problem under PyTorch's settings, with a measured plan."""
    library, device = _library(tensor)
    if problem.dtype is DType.FLOAT32 and _tf32():
        problem = problem.replace(tf32=True)
    asked = Cudnn(tune="limited_workspace", deterministic=_deterministic())
    engine: Engine = asked.bound(library, device)
    return prepared_problem(problem, engine, 1)


def _forward(operands: tuple[Any, ...], arguments: Any, activation: str) -> Any:
    x, weight, bias, residual = operands
    last = channels_last(x) or channels_last(weight)
    epilogue = bias is not None, residual is not None, activation
    described = Operands(tuple(x.shape), tuple(weight.shape), x.dtype, last, *epilogue)
    if x.dtype is not weight.dtype or x.dtype not in DTYPES:
        return None
    problem = forward_problem(described, Geometry.of(arguments))
    if problem is None:
        return None
    shape = result_shape(problem)
    for tensor, expected in (bias, tuple(shape[1:2])), (residual, tuple(shape)):
        if tensor is not None and (tuple(tensor.shape), tensor.dtype) != (expected, x.dtype):
            return None  # PyTorch broadcasts, converts or refuses
    call, order = _call(problem, x), axis_order(problem)
    strides = dense_strides(shape, last)

    def by_upconv(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        y = torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device)
        residual_array = None if residual is None else _array(residual, order)
        bias_array = None if bias is None else _array(bias)
        call.run(_array(y, order), _array(x, order), _array(weight), bias_array, residual_array)  # type: ignore[arg-type]
        return y

    def by_pytorch(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return compute.by_pytorch(x, weight, bias, arguments, residual, activation)

    return by_upconv, by_pytorch


def _input_grad(g: Tensor, weight: Tensor, size: Any, arguments: Any) -> Any:
    geometry, last = Geometry.of(arguments), channels_last(g) or channels_last(weight)
    shape = compute.input_shape(g, weight, size, geometry)
    direction = Direction.INPUT_GRAD if geometry.transposed else Direction.FORWARD
    problem = compute.gradient_problem(shape, weight.shape, g, last, geometry, direction)
    if problem is None or g.dtype is not weight.dtype:
        return None
    call, order, strides = _call(problem, g), axis_order(problem), dense_strides(shape, last)

    def by_upconv(g: Tensor, weight: Tensor) -> Tensor:
        dx = torch.empty_strided(shape, strides, dtype=g.dtype, device=g.device)
        call.run(_array(dx, order), _array(g, order), _array(weight))  # type: ignore[arg-type]
        return dx

    return by_upconv, lambda g, weight: compute.input_grad_by_pytorch(g, weight, size, *arguments)


def _weight_grad(g: Tensor, x: Tensor, kernel: Any, arguments: Any) -> Any:
    geometry, last = Geometry.of(arguments), channels_last(g) and channels_last(x)
    shape = compute.weight_shape(g, x, kernel, geometry)
    direction = Direction.WEIGHT_GRAD
    problem = compute.gradient_problem(x.shape, shape, g, last, geometry, direction)
    if problem is None or g.dtype is not x.dtype:
        return None
    call, order, strides = _call(problem, g), axis_order(problem), dense_strides(shape, last)

    def by_upconv(g: Tensor, x: Tensor) -> Tensor:
        dw = torch.empty_strided(shape, strides, dtype=g.dtype, device=g.device)
        operands = (g, x) if geometry.transposed else (x, g)
        call.run(_array(dw), *(_array(operand, order) for operand in operands))  # type: ignore[arg-type]
        return dw

    return by_upconv, lambda g, x: compute.weight_grad_by_pytorch(g, x, kernel, *arguments)
