"""Winograd's short correlations F(m, r): m outputs of r taps from m + r - 1 products.

    y[b] = sum over k < r of d[b + k] * g[k],  b < m        y = A ((G g) * (B d))

n = m + r - 1 is the number of *points*. Polynomials through n - 1 of them and infinity give the
matrices (Toom and Cook; transposed as in Lavin and Gray, https://arxiv.org/abs/1509.09308):

    A[b][p] = a_p^b                    m x n, for infinity 1 in the last row
    G[p][k] = a_p^k / prod (a_p - a_l) n x r, for infinity 1 in the last column; l runs over l != p
    B[p]    = coefficients of the product over l != p of (x - a_l), for infinity over all l

The matrices are computed as fractions, without rounding. The points are 0 and powers of two with
either sign, so A and B are exact in floating point. Weights are multiplied by G once, in float64.

Longer correlations are *nested*: an inner F(R, R) correlates blocks of R numbers, and an outer
F(m, r) correlates the blocks. Together they are F(mR, rR), and their numbers of points multiply.
F(2, 2) of F(2, 2) has 9 products instead of 16, and matrices of 0, 1 and -1; F(4, 4) has 7 products
and larger errors. The outer one may be a sum of P *pieces*, F(1, P). A tile's pieces read the
transforms of that tile and of the next P - 1. They are added before the inverse transform.

With several axes, the matrices are Kronecker products: one axis is transformed after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import prod, sqrt

from ....properties import cached_property

Matrix = tuple[tuple[Fraction, ...], ...]

_POINTS = (Fraction(0), Fraction(1), Fraction(-1), Fraction(2), Fraction(-1, 2))
"""The points in order of use. Of all that were tried, these give F(4, 2) and F(4, 3) the smallest
`growth`. With -2 instead of -1/2, F(4, 3) has 1.7 times as much."""


class Stages(tuple[Matrix, ...]):
    """Matrices that are applied one after another.

    They are keys of compiled code. Hashing and comparing fractions is slow, so they are hashed
    once, and `of` returns the same object for equal matrices.
    """

    @classmethod
    @cache
    def of(cls, *matrices: Matrix) -> Stages:
        """Return the stages with these matrices."""
        return cls(matrices)

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash

    @property
    def columns(self) -> int:
        """Length of the first matrix's input vectors."""
        return len(self[0][0])

    @cached_property
    def additions(self) -> tuple[tuple[int, int], ...]:
        """Each matrix's number of rows, and the additions in a product by it."""
        return tuple(
            (len(matrix), sum(sum(map(bool, row)) - 1 for row in matrix)) for matrix in self
        )


@dataclass(frozen=True, eq=False)
class Transform:
    """A correlation with r taps along one axis, in `pieces` of r / pieces taps.

    `a` and `b` are stages; `g` is one piece's matrix. Transforms compare by identity. Figures for
    the cost model are computed once, because fractions are slow.

    >>> print(Transform.of(2, 2))
    F(2,2)
    A   1   1   0
        0   1   1
    G   -1   0
         1   1
         0   1
    B   -1   1   0
         0   1   0
         0  -1   1
    """

    name: str
    m: int
    r: int
    pieces: int
    a: Stages
    g: Matrix
    b: Stages

    @classmethod
    @cache
    def of(cls, m: int, r: int) -> Transform:
        """Return F(m, r); F(1, 1) is a single product."""
        points = _POINTS[: m + r - 2]
        a = tuple((*(p**i for p in points), Fraction(i == m - 1)) for i in range(m))
        scales = [prod(p - q for q in points if q != p) for p in points]
        g = tuple(
            tuple(p**k / scale for k in range(r)) for p, scale in zip(points, scales, strict=True)
        )
        b = tuple((*_from_roots([q for q in points if q != p]), Fraction(0)) for p in points)
        last = tuple(Fraction(k == r - 1) for k in range(r))
        stages = Stages.of(a), (*g, last), Stages.of((*b, _from_roots(points)))
        return cls(f"F({m},{r})", m, r, 1, *stages)

    def around(self, inner: Transform) -> Transform:
        """Nest `inner`, which has as many outputs as taps, in this transform of blocks.

        >>> nested = Transform.of(2, 2).around(Transform.of(2, 2))
        >>> nested.name, nested.m, nested.r, nested.points
        ('F(2,2)*F(2,2)', 4, 4, 9)
        """
        if inner.m == 1:
            return self
        if self.m == self.r == 1:
            return inner
        size, (a,), (b,), points = inner.m, self.a, self.b, _identity(self.points)
        ones = _identity(size)
        return Transform(
            f"{self.name}*{inner.name}",
            self.m * size,
            self.r * size,
            1,
            Stages.of(*(_kronecker(points, stage) for stage in inner.a), _kronecker(a, ones)),
            _kronecker(self.g, inner.g),
            Stages.of(_overlapping(b, size), *(_kronecker(points, stage) for stage in inner.b)),
        )

    def in_pieces(self, pieces: int) -> Transform:
        """Return the sum of `pieces` copies of this transform, for that many times the taps.

        >>> Transform.of(3, 3).in_pieces(4).name
        'F(1,4)*F(3,3)'
        """
        if pieces == 1:
            return self
        name = f"F(1,{pieces})" + (f"*{self.name}" if self.r > 1 else "")
        return replace(self, name=name, r=pieces * self.r, pieces=pieces)

    def of_taps(self, r: int) -> Transform:
        """Return this transform without the points that only taps beyond the first r need."""
        kept = [p for p in range(self.points) if self.pieces > 1 or any(self.g[p][:r])]
        if len(kept) == self.points:
            return self
        (first, *more), (*before, last) = self.a, self.b
        columns = tuple(tuple(row[p] for p in kept) for row in first)
        g, rows = (tuple(matrix[p] for p in kept) for matrix in (self.g, last))
        return replace(self, a=Stages.of(columns, *more), g=g, b=Stages.of(*before, rows))

    def pieces_of(self, r: int) -> tuple[int, ...]:
        """Return how many pieces r taps need at each point."""
        rest = r - (self.pieces - 1) * self.r // self.pieces
        return tuple(self.pieces - (first >= rest) for first in self._first_taps)

    @cached_property
    def _first_taps(self) -> tuple[int, ...]:
        """The first tap in a piece that each point sums."""
        return tuple(next(k for k, number in enumerate(row) if number) for row in self.g)

    @property
    def points(self) -> int:
        """Number of products in a piece, for m outputs."""
        return len(self.g)

    @cached_property
    def exact(self) -> bool:
        """Whether "auto" may choose it: G and A have no fractions but halves, so errors are about
        as large as in direct sums, and small integers give exact results."""
        numbers = (n for matrix in (self.g, *self.a) for row in matrix for n in row)
        return all(number.denominator <= 2 for number in numbers)

    @cached_property
    def growth(self) -> float:
        """Predicted rounding errors for random data, relative to those of direct sums.

        A sum's error grows with its length. B and G enlarge the factors of each point's products,
        and A sums the points.
        """
        points = [_dot(g, g) * _dot(b, b) for g, b in zip(self.g, _multiplied(self.b), strict=True)]
        squares = [_dot([number**2 for number in row], points) for row in _multiplied(self.a)]
        return sqrt(max(squares)) * self.pieces / self.r

    def __str__(self) -> str:
        rows = [self.name]
        for name, matrix in (("A", _multiplied(self.a)), ("G", self.g), ("B", _multiplied(self.b))):
            width = 1 + max(len(str(number)) for row in matrix for number in row)
            for i, row in enumerate(matrix):
                numbers = "".join(f" {number!s:>{width}}" for number in row)
                rows.append(f"{name if i == 0 else ' '} {numbers}")
        return "\n".join(rows)


def named(transforms: Sequence[Transform]) -> str:
    """Return the name of all axes' transforms.

    >>> named((Transform.of(2, 2), Transform.of(3, 2)))
    'F(2,2)xF(3,2)'
    """
    return "x".join(transform.name for transform in transforms)


def _identity(n: int) -> Matrix:
    return tuple(tuple(Fraction(i == j) for j in range(n)) for i in range(n))


def _multiplied(stages: Sequence[Matrix]) -> Matrix:
    """Return the product of matrices that are applied one after another."""
    total, *more = stages
    for matrix in more:
        columns = list(zip(*total, strict=True))
        total = tuple(tuple(_dot(row, column) for column in columns) for row in matrix)
    return total


def _dot(row: Sequence[Fraction], column: Sequence[Fraction]) -> Fraction:
    return sum((p * q for p, q in zip(row, column, strict=True) if p and q), Fraction(0))


def _kronecker(x: Matrix, y: Matrix) -> Matrix:
    zeros = (Fraction(0),) * len(y[0])
    return tuple(
        tuple(
            number
            for p in row
            for number in (other if p == 1 else (p * q for q in other) if p else zeros)
        )
        for row in x
        for other in y
    )


def _overlapping(matrix: Matrix, size: int) -> Matrix:
    """Return the matrix for blocks of 2 * size - 1 numbers that begin every `size` numbers."""
    width = 2 * size - 1
    rows = [[Fraction(0)] * (len(matrix[0]) * size + size - 1) for _ in range(width * len(matrix))]
    for p, row in enumerate(matrix):
        for i, number in enumerate(row):
            for j in range(width):
                rows[p * width + j][i * size + j] += number
    return tuple(map(tuple, rows))


def _from_roots(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return the coefficients, by rising powers, of the monic polynomial with these roots."""
    polynomial: tuple[Fraction, ...] = (Fraction(1),)
    for root in roots:
        shifted = Fraction(0), *polynomial
        scaled = *(root * c for c in polynomial), Fraction(0)
        polynomial = tuple(s - c for s, c in zip(shifted, scaled, strict=True))
    return polynomial
