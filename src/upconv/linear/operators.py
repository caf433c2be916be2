"""A layer without bias and activation as a matrix A, with y = A x flattened in C order.

The matrix of a transposed convolution is the transpose of a convolution's, not its inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from .. import memory
from ..argument_checks import boolean
from ..arrays import Array, Operand, as_array, as_shape, described
from ..engines.base import Engine
from ..errors import ArgumentError, DTypeError
from ..execution import PackedCall, PreparedCall
from ..geometry import Axis
from ..keywords import Keywords
from ..problem import DataLayout, Direction, Problem
from ..shape_checks import Request, Signature
from ..signatures import Layout, Padding, Sizes, WeightOrder
from ..threads import get_num_threads

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_USUAL = {True: "IOX", False: "OIX"}
"""Default weight order of a transposed convolution, and of an ordinary one."""


class ConvolutionOperator(linalg.LinearOperator):  # type: ignore[misc]  # SciPy has no types
    """A layer as a matrix that is never stored; `operator` creates it, and copies prepare it again.

    `input_shape` and `output_shape` are the shapes of its vectors before flattening.
    """

    def __init__(
        self,
        signature: Signature,
        input_shape: tuple[int, ...],
        weight: Array,
        engine: str | Engine | None,
    ) -> None:
        self._signature, self._weight, self._engine = signature, weight, engine
        self.input_shape, self.output_shape = input_shape, signature.shape
        super().__init__(weight.dtype, (prod(signature.shape), prod(input_shape)))
        convolves = signature.problem.direction is Direction.INPUT_GRAD
        back = Direction.FORWARD if convolves else Direction.INPUT_GRAD
        adjoint = signature._replace(problem=signature.problem.replace(direction=back))
        self._forward, self._adjoint = (
            PreparedCall(each, engine, get_num_threads(), tune=False).pack(weight)
            for each in (signature, adjoint)
        )

    def _matvec(self, x: Any) -> Any:
        return self._run(self._forward, x, self.input_shape, self.output_shape)

    def _rmatvec(self, y: Any) -> Any:
        return self._run(self._adjoint, y, self.output_shape, self.input_shape)

    def _run(
        self, call: PackedCall, vector: Any, shape: tuple[int, ...], result: tuple[int, ...]
    ) -> Array:
        if np.iscomplexobj(vector):
            remedy = "The operator is real: pass the real and the imaginary part separately."
            raise DTypeError("the vector", str(vector.dtype), "real numbers", remedy)
        out = np.empty(result, self.dtype)
        call.run(out, np.asarray(vector, self.dtype).reshape(shape))
        return out.reshape(-1)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self._signature, self.input_shape, self._weight, self._engine
        return ConvolutionOperator, arguments


def operator(
    input_shape: Sequence[int],
    weight: Any,
    *,
    transposed: bool = True,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    output_size: Any = None,
    layout: Layout = "NCX",
    weight_layout: WeightOrder | None = None,
    engine: str | Engine | None = None,
) -> ConvolutionOperator:
    """Return `conv_transpose`, or `conv` with `transposed=False`, as a SciPy `LinearOperator`.

    input_shape: the shape of x, with or without N. weight: float32 or float64; the operator has
        this dtype, and converts all vectors to it. The other arguments: as in `conv_transpose`,
        but for a convolution weight_layout is "OIX" by default.

    `rmatvec` is the exact adjoint: it adds the same products in another order.

    Raises the errors of `conv_transpose`, and `EngineMissing` if SciPy is not installed.

    >>> A = operator((1, 1, 3), np.array([[[1.0, 10.0]]]), stride=2)
    >>> A.matvec([1, 2, 3]), A.rmatvec([1, 0, 0, 0, 0, 1]), A.output_shape
    (array([ 1., 10.,  2., 20.,  3., 30.]), array([ 1.,  0., 10.]), (1, 1, 6))
    """
    keywords = Keywords.of(
        stride, padding, output_padding, dilation, groups, output_size, layout,
        order_of(weight_layout, transposed),
    )  # fmt: skip
    return operator_of(input_shape, weight, keywords, transposed, engine)


def as_matrix(
    input_shape: Sequence[int],
    weight: Any,
    *,
    transposed: bool = True,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    output_size: Any = None,
    layout: Layout = "NCX",
    weight_layout: WeightOrder | None = None,
) -> Any:
    """Return the matrix of `operator` as a `scipy.sparse.csr_array`, built only from the geometry.

    It holds every product once, including zeros in the weight. Raises `MemoryLimitError` in advance
    if it does not fit into memory.

    >>> as_matrix((1, 1, 2), np.array([[[1.0, 10.0]]]), stride=2).toarray()
    array([[ 1.,  0.],
           [10.,  0.],
           [ 0.,  1.],
           [ 0., 10.]])
    """
    keywords = Keywords.of(
        stride, padding, output_padding, dilation, groups, output_size, layout,
        order_of(weight_layout, transposed),
    )  # fmt: skip
    weight, signature = _checked(as_shape("input_shape", input_shape), weight, keywords, transposed)
    problem = signature.problem
    per_group = problem.out_channels // problem.groups
    shape = prod(problem.y_shape), prod(problem.x_shape)
    o, i, t = _pairs(problem.axes, problem.batch * problem.in_channels * per_group, sum(shape))
    n, c, f = np.ogrid[: problem.batch, : problem.in_channels, :per_group]
    n, c, f = n[..., None], c[..., None], f[..., None]
    iox = weight.transpose(problem.weight_layout.to_iox(problem.rank))
    values = iox.reshape(problem.in_channels, per_group, prod(problem.kernel))[c[0], f[0], t]
    column = f + c // (problem.in_channels // problem.groups) * per_group
    rows = _flat(problem, n, column, o, problem.out_channels, prod(problem.out_size))
    columns = _flat(problem, n, c, i, problem.in_channels, prod(problem.size))
    entries = np.broadcast_arrays(values, rows, columns)
    data, at, to = (entry.reshape(-1) for entry in entries)
    matrix = sparse.coo_array((data, (at, to)), shape=shape)
    return (matrix if problem.direction is Direction.FORWARD else matrix.T).tocsr()


def operator_of(
    input_shape: Sequence[int],
    weight: Any,
    keywords: Keywords,
    transposed: bool,
    engine: str | Engine | None,
) -> ConvolutionOperator:
    """Return an `operator` from frozen keywords."""
    shape = as_shape("input_shape", input_shape)
    weight, signature = _checked(shape, weight, keywords, transposed)
    return ConvolutionOperator(signature, shape, weight.copy(), engine)


def _checked(
    shape: tuple[int, ...], weight: Any, keywords: Keywords, transposed: bool
) -> tuple[Array, Signature]:
    """Return the weight as an array, and the layer without bias and activation."""
    weight = as_array("weight", weight)
    if weight.dtype not in _FLOATS:
        remedy = "Convert it: SciPy's vectors do not support 16-bit types."
        raise DTypeError("weight.dtype", str(weight.dtype), "float32 or float64", remedy)
    if not transposed and (keywords.output_padding != 0 or keywords.output_size is not None):
        remedy = "Only a transposed convolution has it."
        raise ArgumentError("output_padding or output_size", "given", "neither", remedy)
    x = Operand(shape, weight.dtype)
    request = Request(x, described(weight), None, keywords, None, not transposed)
    return weight, request.signature(residual=False)


def order_of(weight_layout: object, transposed: object) -> object:
    """Return the weight's order, or the default for None; `transposed` must be a bool."""
    usual = _USUAL[boolean("transposed", transposed)]
    return usual if weight_layout is None else weight_layout


def _pairs(axes: tuple[Axis, ...], times: int, lines: int) -> tuple[Array, Array, Array]:
    """Return each product's output, input and tap over all axes, as flat positions.

    `times`: how often each product occurs. `lines`: the matrix's rows plus columns.
    Raises `MemoryLimitError` in advance if the matrix does not fit into memory.
    """
    meetings = [[axis.meeting(tap) for tap in range(axis.kernel)] for axis in axes]
    count = times * prod(sum(len(inputs) for inputs, _ in phases) for phases in meetings)
    memory.require(40 * count + 8 * lines, f"a matrix of {count} products")
    o, i, t = (np.zeros(1, np.int64) for _ in range(3))
    for axis, phases in zip(axes, meetings, strict=True):
        inputs = np.concatenate([np.asarray(inputs, np.int64) for inputs, _ in phases])
        outputs = np.concatenate([np.asarray(outputs, np.int64) for _, outputs in phases])
        taps = np.repeat(np.arange(axis.kernel), [len(inputs) for inputs, _ in phases])
        sizes, positions = (axis.out, axis.size, axis.kernel), (outputs, inputs, taps)
        o, i, t = (
            (flat[:, None] * size + along).reshape(-1)
            for flat, size, along in zip((o, i, t), sizes, positions, strict=True)
        )
    return o, i, t


def _flat(problem: Problem, n: Array, c: Array, at: Array, channels: int, positions: int) -> Array:
    """Return positions in a flattened data array."""
    if problem.layout is DataLayout.NCX:
        return (n * channels + c) * positions + at
    return (n * positions + at) * channels + c
