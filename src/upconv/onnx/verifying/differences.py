"""Differences between values that should be equal: how large they are, and whether by rounding.

    error    the largest distance between finite elements, divided by the scale.
    scale    the largest magnitude of a finite element.
    allowed  the largest error that counts as rounding, by the first of these rules that applies:

1. Integers, booleans and strings: 0; one step for results of QuantizeLinear.
2. `atol`, `rtol`: |b - a| <= atol + rtol * |a| for every element; `allowed` is the largest bound.
3. float64: b's error is at most twice a's, plus a few roundings (`_ROUNDING`) of the type, or of
   the runtime's precision if that is lower.
4. Otherwise: |b - a| is at most `_LOOSE` times these roundings.
5. Results of DequantizeLinear: one step of the scale in addition.

NaN equals NaN at the same index, and an infinity equals the same infinity. Any other element that
is not finite in one of the two is a difference. Two empty arrays are equal. Other arrays without
finite elements are not verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import onnx_ir as ir

from ... import memory
from ...arrays import Array
from ...documents import document
from ...terminal import neutral

_ROUNDING = {
    "float64": 2.0**-48,
    "float16": 2.0**-8,
    "f16": 2.0**-8,
    "bfloat16": 2.0**-5,
    "bf16": 2.0**-5,
}
_FLOAT32 = 2.0**-19
"""Relative to the largest value: 16 units in the last place for types that sum in their own
precision, because fast convolution algorithms need them; 4 for types that sum in float32."""

_LOOSE = 64  # times the roundings, if there is no float64 result
_COPIES = 80  # bytes that a comparison needs per element


@dataclass(frozen=True, slots=True)
class Tolerances:
    """The requested tolerances, and the precision of the runtime; "" is the model's own."""

    atol: float | None = None
    rtol: float | None = None
    precision: str = ""

    @property
    def by_rounding(self) -> bool:
        """Whether no tolerance was given."""
        return self.atol is None and self.rtol is None


_BY_ROUNDING = Tolerances()


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two models in one value: an output, or the result of a layer.

    `node`, `op`, `shape` and `dtype` are the first model's. `rule` names the rule by which errors
    were judged: "float64", "exact", "tolerance" or "a". `words` describes non-numeric differences.
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
        by = f" of {self.op} {self.node}".rstrip() if self.op else ""
        against = "float64" if self.rule == "float64" else "a"
        verdict = "equal" if self.equal else f"DIFFERENT {self.words}".rstrip()
        return (
            f"{self.name}{by} {shape} {self.dtype}: off from {against} by {self.error:.2g} of its"
            f" largest value, allowed {self.allowed:.2g}: {verdict}"
        )


def difference(
    value: ir.Value, a: Any, b: Any, tolerances: Tolerances = _BY_ROUNDING, exact: Any = None
) -> Difference:
    """Return the difference between two models in one value.

    value: the first model's. a, b: the two models' results. exact: the first model's result in
    float64, or None.
    """
    node = value.producer()
    at = str(value.name), (node and node.name) or "", node.op_type if node else ""
    words = "it is not a tensor in one of the two; sequences and optionals are not compared"
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.shape == b.shape:
            return _compared(at, _step(node), a, b, exact, tolerances)
        words = f"the shape {a.shape} became {b.shape}"
    shape, dtype = (a.shape, str(a.dtype)) if isinstance(a, np.ndarray) else ((), type(a).__name__)
    return Difference(*at, shape, dtype, "exact", inf, 0.0, 0.0, False, words)


def _step(node: ir.Node | None) -> float:
    """Return the largest step between neighbouring quantized values."""
    scale = node.inputs[1] if node and node.op_type == "DequantizeLinear" else None
    tensor = None if scale is None else ir.convenience.get_const_tensor(scale)
    if tensor is None:
        return float(node is not None and node.op_type == "QuantizeLinear")
    return _largest(tensor.numpy().astype(np.float64))


def _compared(
    at: tuple[str, str, str], step: float, a: Array, b: Array, exact: Any, tolerances: Tolerances
) -> Difference:
    memory.require(_COPIES * a.size, f"Comparing {at[0]}")
    x, y = _wide(a, b)
    finite = np.isfinite(x) & np.isfinite(y)
    mismatched = np.count_nonzero(~finite & (x != y) & ~(np.isnan(x) & np.isnan(y)))
    known = isinstance(exact, np.ndarray) and (exact.shape, exact.dtype) == (a.shape, np.float64)
    z = exact if known else x
    finite &= np.isfinite(z)
    x, y, z = x[finite], y[finite], z[finite]
    scale = max(_largest(x), _largest(y))
    divisor = scale or 1.0
    with np.errstate(over="ignore"):  # 1e308 - -1e308
        apart = np.abs(x - y)
        off_a, off_b = _largest(x - z) / divisor, _largest(y - z) / divisor
    error, allowed, rule = _largest(apart) / divisor, step / divisor, "exact"
    if a.dtype.kind in "iu" and not np.array_equal(a, b):
        error = max(error, 1 / divisor)  # float64 may round a difference away
    equal = error <= allowed
    if a.dtype.kind in "fcV" and tolerances.by_rounding:
        names = a.dtype.name, tolerances.precision or "float64"
        few = max(_ROUNDING.get(name, _FLOAT32) for name in names)
        rule, limit = "a", _LOOSE * few
        if known:
            rule, error, limit = "float64", off_b, 2 * off_a + few
        allowed += limit
        equal = error <= allowed
    elif a.dtype.kind in "fcV":
        atol, rtol = tolerances.atol or 0.0, tolerances.rtol or 0.0
        rule, allowed = "tolerance", atol / divisor + rtol
        equal = bool(np.all(apart <= atol + rtol * np.abs(x)))
    words = ""
    if a.dtype != b.dtype:
        words = f"{a.dtype} became {b.dtype}"
    elif mismatched:
        words = f"{mismatched} of {a.size} elements are NaN or infinite in only one of the two"
    elif a.size and not x.size:
        words = "there is no finite element in either, so nothing is verified"
    shape, dtype, equal = a.shape, str(a.dtype), equal and not words
    return Difference(*at, shape, dtype, rule, error, scale, allowed, equal, words)


def _wide(a: Array, b: Array) -> tuple[Array, Array]:
    """Convert two arrays to float64 or complex128; for strings, mark differences with ones."""
    if a.dtype.kind not in "biufcV" or b.dtype.kind not in "biufcV":
        return np.zeros(a.shape), np.asarray(a != b, np.float64)
    x, y = (v.astype(np.complex128 if v.dtype.kind == "c" else np.float64) for v in (a, b))
    return x, y


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))


@dataclass(frozen=True, slots=True)
class Run:
    """The comparison of both models in one runtime.

    `first_layer` is the first intermediate value that differs, if an output differs. `findings` say
    why the second model does not run here; `remark` says which comparison was impossible.
    """

    runtime: str
    outputs: tuple[Difference, ...] = ()
    first_layer: Difference | None = None
    findings: tuple[str, ...] = ()
    remark: str = ""

    @property
    def equal(self) -> bool:
        """Whether outputs were compared, and all are equal."""
        return bool(self.outputs) and all(output.equal for output in self.outputs)

    def sentences(self) -> list[str]:
        """Return the findings, remarks about outputs and the first differing layer as sentences."""
        outputs = [f"{output.name}: {output.words}" for output in self.outputs if output.words]
        sentences = [*self.findings, *outputs]
        if self.first_layer is not None:
            sentences.append(f"first layer that differs: {self.first_layer}")
        return [f"{self.runtime}: {words}" for words in sentences]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two models, a and b, on the same inputs.

    `findings` are sentences about the interfaces: inputs and outputs that are missing or in a
    different order. `inputs` are the shapes of the feeds.
    """

    findings: tuple[str, ...]
    runs: tuple[Run, ...]
    inputs: Mapping[str, tuple[int, ...]]
    seed: int

    @property
    def equal(self) -> bool:
        """Whether the models have the same interface, and the same outputs in every runtime."""
        return not self.findings and all(run.equal for run in self.runs)

    def as_json(self) -> dict[str, Any]:
        """Return all fields as numbers, strings, lists and dictionaries; null means infinity."""
        runs = [{**document(run), "equal": run.equal} for run in self.runs]
        return {**document(self), "runs": runs, "equal": self.equal}

    def __str__(self) -> str:
        outputs = [f"{run.runtime}: {output}" for run in self.runs for output in run.outputs]
        sentences = [words for run in self.runs for words in run.sentences()]
        return "\n".join(map(neutral, [*self.findings, *outputs, *sentences])) or "equal"
