"""Whether two models compute the same, checked by running both on the same inputs.

`verify` runs both models in each runtime, and the first in float64; compares every output
(`differences`), and where one differs the values inside that both have, to name the first layer
that does (`layers`). A check on one random input is no proof: what it finds equal is verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import onnx_ir as ir

from ...errors import ArgumentError, EngineError, MemoryLimitError, brief
from ..models import Source, from_model
from ..runtimes import Runtime, ready
from ..runtimes.inputs import declared, inputs_of, random_arrays
from ..runtimes.worker import TIME_LIMIT
from .differences import (
    BY_ROUNDING,
    Comparison,
    Difference,
    Fed,
    Place,
    Run,
    Tolerances,
    differences,
)
from .layers import Side, first_difference, in_float64

__all__ = ["Compare", "Comparison", "Difference", "Fed", "Run", "verify"]


def verify(
    a: Source,
    b: Source,
    *,
    runtimes: Iterable[str | Runtime] = ("onnxruntime",),
    sizes: Mapping[str, Sequence[int]] | None = None,
    feeds: Mapping[str, Any] | None = None,
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    float64: bool = True,
    threads: int | None = None,
    time_limit: float = TIME_LIMIT,
    layers: bool = True,
) -> Comparison:
    """Run two models on the same inputs and compare what comes out.

    Floats of `b` may be off from `a` in float64 by twice what `a` itself is in that runtime, and a
    few roundings of their type or of the runtime's precision; integers must be equal, and what a
    QuantizeLinear or DequantizeLinear makes may be off by one step of its scale.

    a, b: a path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`; neither is
        changed. `a` is the one that counts as right.
    runtimes: names ("onnxruntime", "openvino:f32", "reference") or `Runtime` values.
    sizes: the whole shape of an input by its name, or the size of a symbolic dimension by its; the
        rest is as `upconv.onnx.runtimes.feeds` has it.
    feeds: arrays to use for some inputs, or all, instead of random ones.
    seed: of the random inputs.
    atol, rtol: if one is given, |b - a| <= atol + rtol * |a| is the rule for floats instead.
    float64: run `a` in float64; without it, floats may be off by 64 times those roundings.
    threads: of the runtimes; None is the runtime's own, or `upconv.get_num_threads()`.
    time_limit: seconds that one run may take before it is ended.
    layers: where an output differs, look for the first layer that does.

    Raises `ModelError` and `FileError` for models that cannot be read, `EngineMissing`,
    `EngineRefusal` where a runtime does not take `a`, `EngineError` where it fails on `a`,
    `ArgumentError` and its kinds for sizes and feeds, `MemoryLimitError`. What is wrong with `b`
    alone is found, not raised.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = Neg(x)}'
    >>> model = ir.from_onnx_text(text)
    >>> verify(model, model, runtimes=["reference"], sizes={"x": (3,)}).equal
    True
    """
    chosen = [ready(runtime, "runtimes") for runtime in runtimes]
    if not chosen:  # nothing would be compared, and so nothing differ
        raise ArgumentError("runtimes", "empty", "one or more runtimes")
    tolerances = Tolerances(_number(atol, "atol"), _number(rtol, "rtol"))
    ours, theirs = (m if isinstance(m, ir.Model) else from_model(m) for m in (a, b))
    found = _findings(ours, theirs)
    inputs = _fed(inputs_of(ours), inputs_of(theirs))
    if inputs is None:  # nothing can be fed to both
        return Comparison(found, (), (), seed)
    arrays = random_arrays(inputs, sizes, feeds, seed=seed)
    first, second = (Side.of(model, arrays, time_limit) for model in (ours, theirs))
    compare = Compare(first, float64, tolerances)
    if threads is not None:
        chosen = [replace(runtime, threads=threads) for runtime in chosen]
    runs = tuple(compare.run(runtime, second, layers=layers) for runtime in chosen)
    told = tuple(Fed(name, str(array.dtype), array.shape) for name, array in arrays.items())
    return Comparison(found, runs, told, seed)


def _number(given: float | None, argument: str) -> float | None:
    if given is None or (isinstance(given, int | float) and isfinite(given) and given >= 0):
        return given
    raise ArgumentError(argument, brief(given), "a number >= 0, or None")


def _findings(a: ir.Model, b: ir.Model) -> tuple[str, ...]:
    """Sentences about what differs in the interfaces; none where `b` can stand in for `a`.

    An input of one shape in one model and an open one in the other is no finding: what both allow
    is what they are fed. Shapes and types of outputs are compared as they come out.
    """
    inputs = {value.name: value for value in inputs_of(b)}
    pairs = [(value, inputs.get(value.name, value)) for value in inputs_of(a)]
    return (
        *_names("input", inputs_of(a), inputs_of(b)),
        *(
            f"The input {brief(x.name)} is {declared(x)} in a and {declared(y)} in b."
            for x, y in pairs
            if x.type != y.type or _met(x, y) is None
        ),
        *_names("output", a.graph.outputs, b.graph.outputs),
    )


def _names(what: str, a: Sequence[ir.Value], b: Sequence[ir.Value]) -> Iterator[str]:
    ours, theirs = [value.name for value in a], [value.name for value in b]
    yield from (f"The {what} {brief(n)} of a is missing in b." for n in ours if n not in theirs)
    yield from (f"The {what} {brief(n)} of b is missing in a." for n in theirs if n not in ours)
    if ours != theirs and set(ours) == set(theirs):
        orders = (", ".join(map(brief, names)) for names in (ours, theirs))
        yield "The {}s are in another order: {} in a, {} in b.".format(what, *orders)


def _fed(a: Sequence[ir.Value], b: Sequence[ir.Value]) -> tuple[ir.Value, ...] | None:
    """The inputs of both models, each as narrow as either has it; None if they exclude each other.

    >>> x, other = (ir.Value(name="x", shape=ir.Shape(dims)) for dims in (["N", None], [None, 3]))
    >>> str(_fed([x], [other])[0].shape)
    '[N,3]'
    """
    others = {value.name: value for value in b}
    merged = [_met(value, others.pop(value.name, value)) for value in a]
    values = [value for value in merged if value is not None]
    return None if len(values) < len(merged) else (*values, *others.values())


def _met(a: ir.Value, b: ir.Value) -> ir.Value | None:
    shape = b.shape if a.shape is None else a.shape
    if a.shape is not None and b.shape is not None:
        pairs = list(zip(a.shape, b.shape, strict=False))
        apart = any(isinstance(x, int) and isinstance(y, int) and x != y for x, y in pairs)
        if len(a.shape) != len(b.shape) or apart:
            return None
        # A size says more than a name, and a name more than nothing.
        said = [y if isinstance(y, int) or getattr(x, "value", x) is None else x for x, y in pairs]
        shape = ir.Shape(said)
    return ir.Value(name=a.name, type=a.type, shape=shape)


class Compare:
    """One model, with others to be held against it; what it gives is computed once per runtime."""

    def __init__(self, a: Side, float64: bool = True, tolerances: Tolerances = BY_ROUNDING) -> None:
        self.a, self.tolerances = a, tolerances
        self.float64 = float64 and tolerances.by_rounding
        self._given: dict[Runtime, tuple[Mapping[str, Any], str]] = {}

    def run(self, runtime: Runtime, b: Side, *, layers: bool) -> Run:
        """Both models in one runtime."""
        ours, _ = self._outputs(runtime)
        tolerances = replace(self.tolerances, precision=runtime.working_precision())
        try:
            theirs = b.outputs(runtime)
        except (EngineError, MemoryLimitError) as error:
            return Run(str(runtime), findings=(f"b: {error}",))
        wide = in_float64(runtime)
        exact, said = self._outputs(wide) if self.float64 else ({}, "")
        remark = said and f"Not compared with float64: {said}"
        places = self.a.places
        found: list[Difference] = []
        for name in (name for name in ours if name in theirs):
            place, pair = places.get(name, Place(name)), (ours[name], theirs[name])
            found += differences(place, *pair, tolerances, exact.get(name))
        first = None
        if layers and not all(one.equal for one in found):
            runtimes = (runtime, wide) if exact else (runtime,)
            first, said = first_difference(runtimes, self.a, b, tolerances)
            remark = remark or said
        return Run(str(runtime), tuple(found), first, remark=remark)

    def _outputs(self, runtime: Runtime) -> tuple[Mapping[str, Any], str]:
        """The outputs of `a`; in float64, or why there are none."""
        if runtime not in self._given:
            try:
                self._given[runtime] = self.a.outputs(runtime), ""
            except (EngineError, MemoryLimitError) as error:
                if runtime.precision != "f64":
                    raise
                self._given[runtime] = {}, str(error)
        return self._given[runtime]
