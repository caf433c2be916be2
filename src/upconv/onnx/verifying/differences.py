"""Two values that should be one: how far apart they are, and whether that is rounding.

    Comparison   what a verification found: findings about the interfaces, and one Run per runtime
    Run          one runtime: its outputs, and the first layer that differs
    Difference   one value, by

    error    the largest distance over the elements that are finite, as a part of the scale
    scale    the largest magnitude of a finite element
    allowed  as a part of the scale, by the first of these rules that applies:

1. integers, booleans and text: none; of what a QuantizeLinear makes, one step.
2. `atol`, `rtol`: |b - a| <= atol + rtol * |a| for every element; told is that of the largest.
3. float64: b is off from it by at most twice what a is, and a few roundings (`_ROUNDING`) of the
   type, or of the precision that the runtime computes in if that is less.
4. else |b - a| is at most `_LOOSE` times as much.
5. Of what a DequantizeLinear makes, one step of its scale more.

NaN equals NaN in the same place, and an infinity its like; any other place where one of the two is
not finite is a difference. Two arrays without a finite element are not verified. Empty ones are.
Only interfaces and outputs decide whether two models are equal; the layer tells where to look.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from math import inf
from typing import Any

import numpy as np

from ...arrays import Array
from ..documents import document
from ..names import neutral

_ROUNDING = {
    "float64": 2.0**-48,
    "float16": 2.0**-8,
    "f16": 2.0**-8,
    "bfloat16": 2.0**-5,
    "bf16": 2.0**-5,
}
_FLOAT32 = 2.0**-19
"""Of the largest value: 16 units in the last place of types with sums in their own precision, as
convolutions by fast algorithms need; 4 of those whose sums are in float32."""

_LOOSE = 64
"""How much more, where there is nothing in float64 to hold against."""

_BLOCK = 1 << 20
"""Elements looked at in one go: their copies in float64 are all the memory a comparison takes."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What was asked for; None for both leaves it to rounding.

    precision: in which the runtime computes, "" for that of the model's own types.
    """

    atol: float | None = None
    rtol: float | None = None
    precision: str = ""

    @property
    def by_rounding(self) -> bool:
        """Whether no tolerance was given."""
        return self.atol is None and self.rtol is None


_BY_ROUNDING = Tolerances()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is made: its name, the node and operator, and the step of a quantised one."""

    name: str
    node: str = ""
    op: str = ""
    step: float = 0.0


@dataclass(frozen=True, slots=True)
class Difference:
    """One value as two models have it: an output, or the result of a layer.

    `node` and `op` are the node that makes it in the first model; `shape` and `dtype` are what it
    has there. `rule` says what the error is against: "float64", "exact", "tolerance" or "a".
    `words` say what differs besides numbers.
    """

    name: str
    node: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    rule: str
    error: float
    scale: float
    allowed: float
    equal: bool
    words: str = ""

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        made = f" of {self.op} {self.node}".rstrip() if self.op else ""
        against = "float64" if self.rule == "float64" else "a"
        verdict = "equal" if self.equal else f"DIFFERENT {self.words}".rstrip()
        return (
            f"{self.name}{made} {shape} {self.dtype}: off from {against} by {self.error:.2g} of its"
            f" largest value, allowed {self.allowed:.2g}: {verdict}"
        )


def differences(
    place: Place, a: Any, b: Any, tolerances: Tolerances = _BY_ROUNDING, exact: Any = None
) -> list[Difference]:
    """How a value differs; a sequence gives one difference per member, `name[i]`.

    a, b: what the models make of it; exact: what the first makes in float64, None for none.

    >>> a, b = np.ones(3, np.float32), np.array([1, 1, 1.5], np.float32)
    >>> [found] = differences(Place("y"), a, b)
    >>> round(found.error, 3), found.scale, found.equal
    (0.333, 1.5, False)
    """
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        members = exact if isinstance(exact, list) and len(exact) == len(a) else [None] * len(a)
        return [
            found
            for i, (x, y, z) in enumerate(zip(a, b, members, strict=True))
            for found in differences(replace(place, name=f"{place.name}[{i}]"), x, y, tolerances, z)
        ]
    arrays = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    if arrays and a.shape == b.shape:
        same = isinstance(exact, np.ndarray) and exact.shape == a.shape
        wide = exact if same and exact.dtype == np.float64 else None
        return [_compared(place, a, b, wide, tolerances)]
    words = f"the shape {a.shape} became {b.shape}" if arrays else f"{_kind(a)} became {_kind(b)}"
    shape, dtype = (a.shape, str(a.dtype)) if isinstance(a, np.ndarray) else ((), _kind(a))
    at = place.name, place.node, place.op, shape, dtype
    return [Difference(*at, "exact", inf, 0.0, 0.0, False, words)]


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    return "a tensor" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def _compared(
    place: Place, a: Array, b: Array, exact: Array | None, tolerances: Tolerances
) -> Difference:
    rounded = a.dtype.kind in "fcV" and a.dtype.names is None
    x, y, z = a.reshape(-1), b.reshape(-1), None if exact is None else exact.reshape(-1)
    seen = _Seen()
    for start in range(0, a.size, _BLOCK):
        i = slice(start, start + _BLOCK)
        seen = seen.and_also(_look(x[i], y[i], None if z is None else z[i], tolerances))
    scale = seen.scale or 1.0
    error, allowed, rule = seen.apart / scale, place.step / scale, "exact"
    if rounded and not tolerances.by_rounding:
        rule, atol = "tolerance", tolerances.atol or 0.0
        allowed = atol / scale + (tolerances.rtol or 0.0)
    elif rounded:
        names = a.dtype.name, tolerances.precision or "float64"
        few = max(_ROUNDING.get(name, _FLOAT32) for name in names)
        rule, limit = "a", _LOOSE * few
        if exact is not None:
            rule, error = "float64", seen.off_b / scale
            limit = 2 * seen.off_a / scale + few
        allowed += limit
    words = ""
    if a.dtype != b.dtype:
        words = f"{a.dtype} became {b.dtype}"
    elif seen.torn:
        words = f"{seen.torn} of {a.size} elements are NaN or infinite in one of the two only"
    elif a.size and not seen.finite:
        words = "there is no finite element in either, so nothing is verified"
    equal = not words and (not seen.beyond if rule == "tolerance" else error <= allowed)
    at = place.name, place.node, place.op, a.shape, str(a.dtype)
    return Difference(*at, rule, error, seen.scale, allowed, equal, words)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Of some elements: largest distances and magnitudes, and how many are finite in both."""

    apart: float = 0.0
    off_a: float = 0.0
    off_b: float = 0.0
    scale: float = 0.0
    beyond: bool = False
    finite: int = 0
    torn: int = 0

    def and_also(self, more: _Seen) -> _Seen:
        """Of the elements of both."""
        mine, others = astuple(self), astuple(more)
        largest, sums = map(max, mine[:5], others[:5]), map(int.__add__, mine[5:], others[5:])
        return _Seen(*largest, *sums)


def _look(a: Array, b: Array, exact: Array | None, tolerances: Tolerances) -> _Seen:
    if a.dtype.kind not in "biufcV" or b.dtype.kind not in "biufcV":  # text
        return _Seen(float(np.any(a != b)), finite=a.size)
    x, y = (v.astype(np.complex128 if v.dtype.kind == "c" else np.float64) for v in (a, b))
    both = np.isfinite(x) & np.isfinite(y)
    torn = int(np.count_nonzero(~both & (x != y) & ~(np.isnan(x) & np.isnan(y))))
    z = x if exact is None else exact
    both &= np.isfinite(z)
    x, y, z = x[both], y[both], z[both]
    with np.errstate(over="ignore"):  # 1e308 - -1e308
        apart = np.abs(x - y)
        off_a, off_b = (float(np.abs(v - z).max(initial=0.0)) for v in (x, y))
    limit = (tolerances.atol or 0.0) + (tolerances.rtol or 0.0) * np.abs(x)
    largest = float(apart.max(initial=0.0))
    if a.dtype.kind in "iu" and a.itemsize == 8 and not np.array_equal(a, b):
        largest = max(largest, 1.0)  # which float64 may hold for equal
    scale = max(float(np.abs(v).max(initial=0.0)) for v in (x, y))
    return _Seen(largest, off_a, off_b, scale, bool(np.any(apart > limit)), x.size, torn)


@dataclass(frozen=True, slots=True)
class Fed:
    """An input as both models were given it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Both models in one runtime.

    `first_layer` is the first value inside that differs, where an output does. `findings` are
    sentences: why the second model does not run here. `remark` says what could not be compared.
    """

    runtime: str
    outputs: tuple[Difference, ...] = ()
    first_layer: Difference | None = None
    findings: tuple[str, ...] = ()
    remark: str = ""

    @property
    def equal(self) -> bool:
        """Whether every output is equal."""
        return not self.findings and all(output.equal for output in self.outputs)

    def told(self) -> list[str]:
        """Sentences on what is found besides the distances of outputs."""
        said = [*self.findings, *(f"{one.name}: {one.words}" for one in self.outputs if one.words)]
        if self.first_layer is not None:
            said.append(f"first layer that differs: {self.first_layer}")
        return [f"{self.runtime}: {words}" for words in said]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models on the same inputs.

    `findings` are sentences about the interfaces: inputs and outputs that are missing, in another
    order, of another type or shape. `a` is the first model and `b` the second, here and in them.
    """

    findings: tuple[str, ...]
    runs: tuple[Run, ...]
    inputs: tuple[Fed, ...]
    seed: int

    @property
    def equal(self) -> bool:
        """Whether the models have the same interface and in every runtime the same outputs."""
        return not self.findings and all(run.equal for run in self.runs)

    def as_json(self) -> dict[str, Any]:
        """Every field as numbers, text, lists and dictionaries; null stands for an infinity."""
        runs = [{**document(run), "equal": run.equal} for run in self.runs]
        return {**document(self), "runs": runs, "equal": self.equal}

    def __str__(self) -> str:
        outputs = [f"{run.runtime}: {one}" for run in self.runs for one in run.outputs]
        told = [words for run in self.runs for words in run.told()]
        return "\n".join(map(neutral, [*self.findings, *outputs, *told])) or "equal"
