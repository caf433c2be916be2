"""Winograd's short correlations F(m, r): m outputs of r taps from m + r - 1 products.

    y[b] = sum over k < r of d[b + k] * g[k],  b < m        y = A ((G g) * (B d))

n = m + r - 1 is the number of *points*. Polynomials through n - 1 of them and infinity give the
matrices (Toom and Cook; transposed as in Lavin and Gray, https://arxiv.org/abs/1509.09308):

    A[b][p] = a_p^b                    m x n, for infinity 1 in the last row
    G[p][k] = a_p^k / prod (a_p - a_l) n x r, for infinity 1 in the last column; l runs over l != p
    B[p]    = coefficients of the product over l != p of (x - a_l), for infinity over all l

They are made of fractions, without rounding. The points are powers of two, and so A and B are exact
in floating point; weights meet G once, in float64. Along several axes the
matrices are Kronecker products: each axis is transformed in its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod, sqrt

Matrix = tuple[tuple[Fraction, ...], ...]

_POINTS = (Fraction(0), Fraction(1), Fraction(-1), Fraction(2), Fraction(-1, 2))
"""In the order in which they are taken: of those tried, F(4, 2) and F(4, 3) have the least
`growth` with these. With -2 for -1/2 the second has 1.7 times as much."""


@dataclass(frozen=True, slots=True)
class Transform:
    """F(m, r) along one axis.

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

    m: int
    r: int
    a: Matrix
    g: Matrix
    b: Matrix

    @classmethod
    @cache
    def of(cls, m: int, r: int) -> Transform:
        """F(m, r); F(1, r) and F(m, 1) are the sums themselves, which need no transform."""
        n = m + r - 1
        one = _identity(n)
        if m == 1:
            return cls(m, r, ((Fraction(1),) * n,), one, one)
        if r == 1:
            return cls(m, r, one, ((Fraction(1),),) * n, one)
        points = _POINTS[: n - 1]
        a = tuple((*(p**i for p in points), Fraction(i == m - 1)) for i in range(m))
        scales = [prod(p - q for q in points if q != p) for p in points]
        g = tuple(
            tuple(p**k / scale for k in range(r)) for p, scale in zip(points, scales, strict=True)
        )
        b = tuple((*_from_roots([q for q in points if q != p]), Fraction(0)) for p in points)
        last = tuple(Fraction(k == r - 1) for k in range(r))
        return cls(m, r, a, (*g, last), (*b, _from_roots(points)))

    @property
    def points(self) -> int:
        """Products for m outputs."""
        return self.m + self.r - 1

    @property
    def name(self) -> str:
        """As it is written."""
        return f"F({self.m},{self.r})"

    @property
    def growth(self) -> float:
        """By how much the rounding errors of random data exceed those of direct sums, as a model.

        An error of a sum grows with its length, which here is that of one point: products of
        numbers B and G have made larger are added up, and A adds up the points.
        """
        squares = [
            sum(
                a * a * _square(g) * _square(b) for a, g, b in zip(row, self.g, self.b, strict=True)
            )
            for row in self.a
        ]
        return sqrt(max(squares)) / self.r

    def __str__(self) -> str:
        rows = [self.name]
        for name, matrix in (("A", self.a), ("G", self.g), ("B", self.b)):
            width = 1 + max(len(str(number)) for row in matrix for number in row)
            for i, row in enumerate(matrix):
                numbers = "".join(f" {number!s:>{width}}" for number in row)
                rows.append(f"{name if i == 0 else ' '} {numbers}")
        return "\n".join(rows)


def named(transforms: Sequence[Transform]) -> str:
    """The transforms of all axes as one word.

    >>> named((Transform.of(2, 2), Transform.of(3, 2)))
    'F(2,2)xF(3,2)'
    """
    return "x".join(transform.name for transform in transforms)


def _identity(n: int) -> Matrix:
    return tuple(tuple(Fraction(i == j) for j in range(n)) for i in range(n))


def _from_roots(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients, by rising powers, of the polynomial with these roots and leading 1."""
    found: tuple[Fraction, ...] = (Fraction(1),)
    for root in roots:
        shifted, scaled = (Fraction(0), *found), (*(root * c for c in found), Fraction(0))
        found = tuple(s - c for s, c in zip(shifted, scaled, strict=True))
    return found


def _square(row: Sequence[Fraction]) -> Fraction:
    return sum((number * number for number in row), Fraction(0))
