"""Arrays: `mx.nd`. An `NDArray` holds a NumPy array and the node that computed it.

Operators compute immediately, so `waitall` and similar functions do nothing. Every other function
of `mx.nd` is the operator of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

from ..dialects.mxnet_attributes import KINDS
from ..errors import brief
from .base import (
    Context,
    MXNetError,
    MXNetKeyError,
    MXNetTypeError,
    MXNetValueError,
    cpu,
    nothing,
    raised_by,
    require_processor,
)
from .fluent import Fluent, named
from .operators import OPERATORS, Array, Operator
from .packed import written
from .params import read_arrays, write_params
from .random import generator
from .tape import REQUESTS, STATE, Leaf, compute, gradients


class NDArray(Fluent):
    """An array. `attach_grad` attaches a gradient, which `backward` computes.

    >>> x = array([1, 2, 3])
    >>> x.attach_grad()
    >>> from upconv.mxnet import autograd
    >>> with autograd.record():
    ...     y = (x * x).sum()
    >>> y.backward()
    >>> x.grad.asnumpy()
    array([2., 4., 6.], dtype=float32)
    """

    stype = "default"
    shape: Any = property(lambda self: self.value.shape, doc="Sizes along the axes.")
    dtype: Any = property(lambda self: self.value.dtype.type, doc="The type of the elements.")
    ndim: Any = property(lambda self: self.value.ndim, doc="Number of axes.")
    size: Any = property(lambda self: self.value.size, doc="Number of elements.")
    context = ctx = device = property(lambda self: cpu(), doc="The processor.")

    def __init__(self, value: Array, source: Any = None) -> None:
        self.value = value
        self.source = source  # the node that computed it and the output's number, or a leaf
        self.grad: Any = None

    def asnumpy(self) -> Array:
        """Return a copy as a NumPy array."""
        return np.array(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.value, dtype)

    def asscalar(self) -> Any:
        """Return the only element as a NumPy number."""
        if self.value.size != 1:
            raise MXNetValueError(f"The array has {self.value.size} elements; expected one.")
        return self.value.reshape(-1)[0]

    def item(self) -> Any:
        """Return the only element as a Python number."""
        return self.asscalar().item()

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """Convert to another element type; without `copy`, return self if it has that type."""
        result = self.call("Cast", dtype=dtype)
        return result if copy or result.dtype != self.dtype else self

    def copy(self) -> Any:
        """Return a copy through which gradients pass."""
        return self.call("identity")

    def copyto(self, other: Any) -> Any:
        """Copy the values into another array, or into a new one on a device."""
        if isinstance(other, Context):
            require_processor(other)
            return self.copy()
        if other.shape != self.shape:
            raise MXNetValueError(f"other has shape {other.shape}; expected {self.shape}.")
        other[:] = self
        return other

    def as_in_context(self, ctx: Any) -> Self:
        """Return self; raises `MXNetError` for a GPU."""
        require_processor(ctx)
        return self

    as_in_ctx = to_device = as_in_context

    def tostype(self, stype: str) -> Self:
        """Return self, because sparse arrays are stored densely."""
        if stype not in ("default", "row_sparse", "csr"):
            raise MXNetError(f"stype is {stype!r}; expected default, row_sparse or csr.")
        return self

    wait_to_read = nothing

    def attach_grad(self, grad_req: str = "write", stype: Any = None) -> None:
        """Start a graph at this array, with a gradient that is initially zero.

        grad_req: "null", "write" or "add".
        """
        if grad_req not in REQUESTS:
            raise MXNetKeyError(f"grad_req is {brief(grad_req)}; expected null, write or add.")
        self.grad = None if grad_req == "null" else type(self)(np.zeros_like(self.value))
        self.source = None if grad_req == "null" else Leaf(self.grad, grad_req)

    def detach(self) -> Any:
        """Return the same values, through which no gradient passes."""
        return type(self)(self.value)

    def zero_grad(self) -> None:
        """Set the gradient to zero."""
        if self.grad is not None:
            self.grad[...] = 0

    def backward(
        self, out_grad: Any = None, retain_graph: bool = False, train_mode: bool = True
    ) -> None:
        """Compute the gradients of all recorded arrays on which this one depends."""
        differentiate([self], [out_grad], retain_graph, train_mode)

    def _apply(self, operator: Operator, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        return invoke(operator, inputs, attributes)

    def __getitem__(self, key: Any) -> Any:
        key = _plain_key(key)
        if STATE.recording and self.source is not None:
            return self._apply(OPERATORS["_index"], [self], {"key": key})
        with raised_by("an index"):
            keys = key if isinstance(key, tuple) else (key,)
            basic = all(isinstance(k, (int, np.integer, slice)) for k in keys)
            part = np.asarray(self.value[(*keys, ...) if basic else key])  # "...": a view, if 0-d
        part = part if part.ndim or self.numpy_like else part.reshape(1)
        # As in MXNet, a contiguous part is a view, and any other part is a copy.
        return type(self)(part if part.flags.c_contiguous else part.copy())

    def reshape(self, *shape: Any, **named: Any) -> Any:
        """Return the elements in another shape, as a view if nothing is recorded."""
        copy = super().reshape(*shape, **named)
        recorded = STATE.recording and self.source is not None
        return copy if self.numpy_like or recorded else type(self)(self.value.reshape(copy.shape))

    def __setitem__(self, key: Any, value: Any) -> None:
        if STATE.recording and self.source is not None:
            raise MXNetError("A recorded array cannot be written to; use autograd.pause().")
        with raised_by("an assignment"):
            values = np.asarray(plain(value))
            # As in MXNet, a single element fits anywhere, regardless of its axes.
            self.value[_plain_key(key)] = values.reshape(()) if values.size == 1 else values
        written(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.value.size and self.asscalar())

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    def __deepcopy__(self, memo: Any) -> Self:
        return type(self)(np.array(self.value))

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.shape))
        return f"\n{self.value}\n<{type(self).__name__} {sizes} @{self.context}>"


def _add_in_place(name: str, word: str) -> None:
    def apply(self: NDArray, other: Any) -> NDArray:
        self[...] = self.with_other(word, other)
        return self

    setattr(NDArray, f"__i{name}__", apply)


for _name, _word in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}.items():
    _add_in_place(_name, _word)


def _plain_key(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(_plain_key, key))
    if isinstance(key, NDArray):
        return key.value if key.value.dtype.kind == "b" else key.value.astype(np.int64)
    return key


def applied(
    operator: Operator, attributes: Any, inputs: Sequence[NDArray], name: str = ""
) -> tuple[list[NDArray], int]:
    """Run an operator on arrays; return all outputs, and how many of them a caller sees.

    name: the start of error messages, by default the operator's name.
    """
    values, sources = [x.value for x in inputs], [x.source for x in inputs]
    outputs, node, visible = compute(operator, attributes, values, sources, name)
    kind = type(inputs[0]) if inputs else NDArray
    return [kind(y, None if node is None else (node, i)) for i, y in enumerate(outputs)], visible


def invoke(
    operator: Operator, inputs: Sequence[Any], attributes: dict[str, Any], out: Any = None
) -> Any:
    """Run an operator on arrays; return its output, or a list if there are several."""
    for i, x in enumerate(inputs):
        if not isinstance(x, NDArray):
            raise MXNetError(f"{operator.name}: input {i} is {brief(x)}; expected an NDArray.")
    results, visible = applied(operator, attributes, inputs)
    if out is not None:
        targets = out if isinstance(out, (list, tuple)) else [out] * visible
        results = [_written(operator.name, *pair) for pair in zip(targets, results, strict=False)]
    return results[0] if visible == 1 else results[:visible]


def _written(name: str, target: NDArray, result: NDArray) -> NDArray:
    """Write a result into one of the caller's arrays."""
    shape, dtype = result.value.shape, result.value.dtype
    if target.value.shape != shape or target.value.dtype != dtype:
        raise MXNetError(f"{name}: out must have shape {shape} and type {dtype}.")
    target[...] = NDArray(result.value)
    target.source = result.source or target.source
    return target


def differentiate(
    heads: Sequence[NDArray], head_grads: Sequence[Any] | None, retain: bool, training: bool,
    keep: Any = None,
) -> None:  # fmt: skip
    """Write the gradients of all the heads' leaves, or pass them to `keep(leaf, gradient)`."""
    grads = [None] * len(heads) if head_grads is None else list(head_grads)
    if len(grads) != len(heads):
        raise MXNetError(f"{len(grads)} head gradients; expected {len(heads)}, one for each head.")
    starts = []
    for head, grad in zip(heads, grads, strict=True):
        if head.source is None:
            raise MXNetError(
                "A head was not recorded, or depends on no array with a gradient. Compute it "
                "within autograd.record() from arrays after calling their attach_grad()."
            )
        value = np.ones_like(head.value) if grad is None else np.asarray(grad, head.value.dtype)
        if value.shape != head.shape:
            raise MXNetError(f"A head gradient has shape {value.shape}; expected {head.shape}.")
        starts.append((head.source, value))
    for leaf, value in gradients(starts, training, retain):
        if keep is not None:
            keep(leaf, value)
        else:
            leaf.grad[...] = value + (leaf.grad.value if leaf.grad_req == "add" else 0)


@cache
def function(name: str, operator: Operator) -> Any:
    """Create a function of arrays from an operator; `out` is an array to write into."""

    def apply(*values: Any, out: Any = None, name: Any = None, **named: Any) -> Any:
        with raised_by(operator.name):
            inputs, attributes = operator.bind(values, named)
        return invoke(operator, inputs, attributes, out)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"{operator.name}({', '.join((*operator.inputs, *operator.attributes))})"
    return apply


def plain(value: Any) -> Any:
    """Replace `NDArray`s with NumPy arrays, even in lists, tuples and dicts."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    return value.value if isinstance(value, NDArray) else value


_AS_NUMPY = {"val": "fill_value", "source_array": "object"}  # parameters of mx.nd's functions


def creating(name: str, kind: type[NDArray]) -> Any:
    """Return a function that creates arrays of a kind with NumPy's function of this name."""

    def create(
        *values: Any, dtype: Any = None, ctx: Any = None, device: Any = None, stype: Any = None,
        **named: Any,
    ) -> Any:  # fmt: skip
        for context in (ctx, device, *(x for x in values if isinstance(x, Context))):
            require_processor(context)
        arguments = [plain(value) for value in values if not isinstance(value, Context)]
        with raised_by(name):
            options = {_AS_NUMPY.get(key, key): plain(value) for key, value in named.items()}
            array = getattr(np, name)(*arguments, **options)
            typed = any(isinstance(value, (str, type, np.dtype)) for value in arguments[1:])
            typed = typed or any(isinstance(value, NDArray) for value in values[:1])
            keeps = typed or (kind.numpy_like and array.dtype == bool)
            default = None if keeps else np.float32
            return kind(np.asarray(array, KINDS["dtype"]("dtype", dtype) if dtype else default))

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"Like numpy.{name}, but `dtype` is float32 by default."
    return create


CREATORS = ("array", "zeros", "ones", "zeros", "full", "arange")
array, zeros, ones, empty, full, arange = (creating(name, NDArray) for name in CREATORS)
waitall = nothing


def load(fname: Any, kind: type[NDArray] = NDArray) -> Any:
    """Read the arrays of a .params file: by name, or a list of arrays without names."""
    arrays = read_arrays(fname)
    if isinstance(arrays, list):
        return [kind(value) for value in arrays]
    return {name: kind(value) for name, value in arrays.items()}


def load_frombuffer(buf: bytes) -> Any:
    """Read the arrays of a .params file from its bytes; see `load`."""
    if not isinstance(buf, bytes):
        raise MXNetTypeError(f"buf is {brief(buf)}; expected bytes.")
    return load(buf)


def save(fname: Any, data: Any) -> None:
    """Write arrays to a .params file: a dict by name, a list or one array without names."""
    data = [data] if isinstance(data, NDArray) else data
    listed = isinstance(data, (list, tuple))
    values = data if listed else data.values() if isinstance(data, Mapping) else [data]
    for x in values:
        if not isinstance(x, NDArray):
            raise MXNetTypeError(f"data has {brief(x)}; expected NDArrays, in a dict or a list.")
    write_params(fname, plain(data), force=True)


def drawing(method: str, kind: type[NDArray], shape: Any) -> Any:
    """Return a function that draws random numbers with this method of the generator."""

    def draw(
        *values: Any, shape: Any = shape, size: Any = None, dtype: Any = None, ctx: Any = None,
        device: Any = None, **named: Any,
    ) -> Any:  # fmt: skip
        require_processor(ctx or device)
        sizes = values[2] if len(values) > 2 else shape if size is None else size
        value = getattr(generator(), method)(*values[:2], size=sizes, **named)
        return kind(np.asarray(value, dtype or np.float32))

    return draw


random: Any = SimpleNamespace(
    uniform=drawing("uniform", NDArray, (1,)),
    normal=drawing("normal", NDArray, (1,)),
    randn=lambda *shape, **named: random.normal(shape=shape, **named),
)
random_uniform, random_normal = random.uniform, random.normal
_sync = function("SyncBatchNorm", OPERATORS["_contrib_SyncBatchNorm"])
contrib = SimpleNamespace(SyncBatchNorm=_sync)


def __getattr__(name: str) -> Any:
    if name in ("np", "npx"):  # as F.np in a hybrid_forward
        return import_module(f"..{name}", __name__)
    return named(name, function)
