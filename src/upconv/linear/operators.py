"""A layer without bias and activation as a matrix A, with y = A x flattened in C order.

The transposed convolution's matrix is the transpose of a convolution's, and no inverse of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from .. import memory, signatures
from ..arrays import Array, Operand, as_array, as_shape, described
from ..engines.base import Engine
from ..errors import ArgumentError, DTypeError, ShapeError
from ..execution import PreparedCall
from ..geometry import Axis
from ..keywords import Keywords
from ..problem import DataLayout, Direction, Problem
from ..signatures import Signature
from ..threads import get_num_threads

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class ConvolutionOperator(linalg.LinearOperator):  # type: ignore[misc]  # SciPy has no types
    """A layer as a matrix that is never made; `operator` makes one.

    `input_shape` and `output_shape` are those of the arrays that its vectors are, flattened.
    """

    def __init__(self, signature: Signature, input_shape: tuple[int, ...], dtype: Any) -> None:
        self.signature, self.input_shape, self.output_shape = (
            signature,
            input_shape,
            signature.shape,
        )
        super().__init__(np.dtype(dtype), (prod(signature.shape), prod(input_shape)))

    def prepare(self, weight: Array, engine: str | Engine | None) -> None:
        """Build both directions for copies of the weight."""
        problem = self.signature.problem
        both = (Direction.FORWARD, Direction.INPUT_GRAD)
        self._ways = [
            _Way(self.signature, problem.replace(direction=way), weight, engine)
            for way in (both if problem.direction is Direction.FORWARD else both[::-1])
        ]

    def _matvec(self, x: Any) -> Any:
        return self._ways[0](x, self.dtype)

    def _rmatvec(self, y: Any) -> Any:
        return self._ways[1](y, self.dtype)


class _Way:
    """One direction of an operator, its weight packed."""

    def __init__(
        self, signature: Signature, problem: Problem, weight: Array, engine: str | Engine | None
    ) -> None:
        self._signature = signature._replace(problem=problem)
        call = PreparedCall(self._signature, engine, get_num_threads(), tune=False)
        self._call = call.pack(weight)

    def __call__(self, vector: Any, dtype: Any) -> Array:
        if np.iscomplexobj(vector):
            remedy = "The operator is real: pass the real and the imaginary part one by one."
            raise DTypeError("the vector", str(vector.dtype), "real numbers", remedy)
        problem = self._signature.problem
        shape, result = problem.operand_shapes[0], problem.result_shape
        if not self._signature.batched:
            shape, result = shape[1:], result[1:]
        out = np.empty(result, dtype)
        operand = np.asarray(vector, dtype).reshape(shape)
        self._call.run(out, operand)
        return out.reshape(-1)


def operator(
    input_shape: Sequence[int],
    weight: Any,
    *,
    transposed: bool = True,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    output_size: Any = None,
    layout: str = "NCX",
    weight_layout: str | None = None,
    engine: str | Engine | None = None,
) -> ConvolutionOperator:
    """`conv_transpose`, or with `transposed=False` `conv`, as a SciPy `LinearOperator`.

    input_shape: of x, with or without N. weight: float32 or float64; the operator has its dtype,
        and computes in it whatever vectors it is given. The rest is `conv_transpose`'s, and
        weight_layout is "OIX" where a convolution does not say.

    `rmatvec` is the exact adjoint: it adds the same products in another order.

    Raises what `conv_transpose` raises, and `EngineMissing` where SciPy is not installed.

    >>> A = operator((1, 1, 3), np.array([[[1.0, 10.0]]]), stride=2)
    >>> A.matvec([1, 2, 3]), A.rmatvec([1, 0, 0, 0, 0, 1]), A.output_shape
    (array([ 1., 10.,  2., 20.,  3., 30.]), array([ 1.,  0., 10.]), (1, 1, 6))
    """
    shape, weight, signature = _checked(
        input_shape, weight, transposed, stride, padding, output_padding, dilation, groups,
        output_size, layout, weight_layout,
    )  # fmt: skip
    made = ConvolutionOperator(signature, shape, weight.dtype)
    made.prepare(weight.copy(), engine)
    return made


def as_matrix(
    input_shape: Sequence[int],
    weight: Any,
    *,
    transposed: bool = True,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    output_size: Any = None,
    layout: str = "NCX",
    weight_layout: str | None = None,
) -> Any:
    """The matrix of `operator`, as a `scipy.sparse.csr_array`: made from the geometry, no engine.

    It holds every product once, zeros in the weight as well. Raises `MemoryLimitError` before it
    would not fit.

    >>> as_matrix((1, 1, 2), np.array([[[1.0, 10.0]]]), stride=2).toarray()
    array([[ 1.,  0.],
           [10.,  0.],
           [ 0.,  1.],
           [ 0., 10.]])
    """
    _, weight, signature = _checked(
        input_shape, weight, transposed, stride, padding, output_padding, dilation, groups,
        output_size, layout, weight_layout,
    )  # fmt: skip
    problem = signature.problem
    each = problem.out_channels // problem.groups
    o, i, t = _pairs(problem.axes, problem.batch * problem.in_channels * each)
    n, c, f = np.ogrid[: problem.batch, : problem.in_channels, :each]
    n, c, f = n[..., None], c[..., None], f[..., None]
    iox = weight.transpose(problem.weight_layout.to_iox(problem.rank))
    values = iox.reshape(problem.in_channels, each, prod(problem.kernel))[c[0], f[0], t]
    made = f + c // (problem.in_channels // problem.groups) * each
    rows = _flat(problem, n, made, o, problem.out_channels, prod(problem.out_size))
    columns = _flat(problem, n, c, i, problem.in_channels, prod(problem.size))
    entries = np.broadcast_arrays(values, rows, columns)
    shape = prod(problem.y_shape), prod(problem.x_shape)
    data, at, to = (each.reshape(-1) for each in entries)
    matrix = sparse.coo_array((data, (at, to)), shape=shape)
    return (matrix if problem.direction is Direction.FORWARD else matrix.T).tocsr()


def _checked(
    input_shape: Sequence[int],
    weight: Any,
    transposed: bool,
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    groups: Any,
    output_size: Any,
    layout: Any,
    weight_layout: Any,
) -> tuple[tuple[int, ...], Array, Signature]:
    """(input shape, weight, signature) of a layer without bias and activation."""
    shape, weight = as_shape("input_shape", input_shape), as_array("weight", weight)
    if weight.dtype not in _FLOATS:
        remedy = "Convert it: SciPy's vectors have no 16-bit types."
        raise DTypeError("weight.dtype", str(weight.dtype), "float32 or float64", remedy)
    words = weight_layout or ("IOX" if transposed else "OIX")
    keywords = Keywords.of(
        stride, padding, output_padding, dilation, groups, output_size, layout, words
    )
    if not transposed and (keywords.output_padding != 0 or keywords.output_size is not None):
        remedy = "Only a transposed convolution has it."
        raise ArgumentError("output_padding or output_size", "given", "neither", remedy)
    call = signatures.transposed if transposed else signatures.convolution
    try:
        found = call(Operand(shape, weight.dtype), described(weight), None, None, keywords, None)
    except ShapeError as error:  # there is no x: its shape was an argument
        raise error.renamed("x.shape", "input_shape") from None
    return shape, weight, found


def _pairs(axes: tuple[Axis, ...], times: int) -> tuple[Array, Array, Array]:
    """Output, input and tap of every product over all axes, as flat positions.

    `times`: how often each is met; `MemoryLimitError` where all of them would not fit.
    """
    found = [
        [(at, p.input, p.tap) for at in range(axis.out) for p in axis.products(at)] for axis in axes
    ]
    count = times * prod(len(each) for each in found)
    memory.require(count * 40, f"a matrix of {count} products")
    o, i, t = (np.zeros(1, np.int64) for _ in range(3))
    for axis, products in zip(axes, found, strict=True):
        each = np.array(products, np.int64).reshape(-1, 3).T
        sizes = axis.out, axis.size, axis.kernel
        o, i, t = (
            (flat[:, None] * size + along).reshape(-1)
            for flat, size, along in zip((o, i, t), sizes, each, strict=True)
        )
    return o, i, t


def _flat(problem: Problem, n: Array, c: Array, at: Array, channels: int, positions: int) -> Array:
    """Places in a flattened data array."""
    if problem.layout is DataLayout.NCX:
        return (n * channels + c) * positions + at
    return (n * positions + at) * channels + c
