"""Check whether two models compute the same results, by running both on the same inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import onnx_ir as ir

from ...arrays import Array
from ...errors import ArgumentError, UpconvError, brief
from ..inputs import feeds as drawn
from ..inputs import inputs_of
from ..models import Source, from_model
from ..runtimes import TIME_LIMIT, Runtime, ready
from .differences import Comparison, Difference, Run, Tolerances, difference

__all__ = ["Comparison", "Run", "Side", "compared", "verify"]

_GROUP = 32  # intermediate values per run in the search for the first difference


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
) -> Comparison:
    """Run two models on the same inputs and compare their outputs.

    The reference is `a` in float64. For floats, the error of `b` may be twice that of `a` in the
    same runtime, plus a few roundings of their type or of the runtime's precision. Integers must be
    equal. Results of QuantizeLinear and DequantizeLinear may be off by one step of the scale.

    a, b: a path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`; neither is
        changed. `a` is assumed to be correct.
    runtimes: names ("onnxruntime", "openvino:f32", "reference") or `Runtime` values.
    sizes: by name, the full shapes of inputs or the sizes of symbolic dimensions;
        `upconv.onnx.inputs` has the defaults.
    feeds: arrays to use for some or all inputs instead of random ones.
    seed: seed of the random inputs.
    atol, rtol: if one is given, floats must satisfy |b - a| <= atol + rtol * |a| instead.
    float64: run `a` in float64; without this, floats may be off by 64 times those roundings.
    threads: threads of a runtime; None keeps its own setting, or `upconv.get_num_threads()`.
    time_limit: seconds that one run may take before it is ended.

    Raises `ModelError` and `FileError` for models that cannot be read; `EngineMissing`;
    `EngineRefusal` if a runtime refuses `a`; `EngineError` if it fails on `a`; `ArgumentError` and
    its subclasses for sizes and feeds; `MemoryLimitError`. A failure of only `b` is a finding, not
    an exception.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = Neg(x)}'
    >>> model = ir.from_onnx_text(text)
    >>> verify(model, model, runtimes=["reference"], sizes={"x": (3,)}).equal
    True
    """
    chosen = [ready(runtime, "runtimes") for runtime in runtimes]
    if not chosen:  # nothing would be compared, so the models would seem equal
        raise ArgumentError("runtimes", "empty", "one or more runtimes")
    for name, bound in (("atol", atol), ("rtol", rtol)):
        number = bound is None or isinstance(bound, int | float)
        if not (number and (bound or 0) >= 0 and isfinite(bound or 0)):
            raise ArgumentError(name, brief(bound), "a number >= 0, or None")
    models = [m if isinstance(m, ir.Model) else from_model(m) for m in (a, b)]
    inputs_a, inputs_b = ({str(v.name): v for v in inputs_of(model)} for model in models)
    arrays = drawn([*(inputs_b | inputs_a).values()], sizes, feeds, seed=seed)
    first, second = (
        Side(model, {name: arrays[name] for name in names}, time_limit)
        for model, names in zip(models, (inputs_a, inputs_b), strict=True)
    )
    if threads is not None:
        chosen = [replace(runtime, threads=threads) for runtime in chosen]
    bounds = Tolerances(atol, rtol)
    runs = tuple(compared(runtime, first, second, bounds, float64=float64) for runtime in chosen)
    shapes = {name: array.shape for name, array in arrays.items()}
    return Comparison(tuple(_findings(*models)), runs, shapes, seed)


def _findings(a: ir.Model, b: ir.Model) -> Iterator[str]:
    """Yield sentences about inputs and outputs that are missing or in a different order."""
    for what, values, others in (
        ("input", inputs_of(a), inputs_of(b)),
        ("output", a.graph.outputs, b.graph.outputs),
    ):
        in_a, in_b = [value.name for value in values], [value.name for value in others]
        yield from (f"The {what} {brief(n)} of a is missing in b." for n in in_a if n not in in_b)
        yield from (f"The {what} {brief(n)} of b is missing in a." for n in in_b if n not in in_a)
        if in_a != in_b and set(in_a) == set(in_b):
            orders = (", ".join(map(brief, names)) for names in (in_a, in_b))
            yield "The {}s are in a different order: {} in a, {} in b.".format(what, *orders)


class Side:
    """One of the two models, with its feeds and the seconds that a run may take."""

    def __init__(self, model: ir.Model, feeds: Mapping[str, Array], limit: float) -> None:
        self.model, self.feeds, self.limit = model, feeds, limit
        self.values = {str(v.name): v for node in model.graph for v in node.outputs if v.name}
        self._results: dict[Runtime, Mapping[str, Any] | UpconvError] = {}

    def outputs(self, runtime: Runtime) -> Mapping[str, Any]:
        """Return the model's results or raise its error; run it only once, as that may be slow."""
        if runtime not in self._results:
            try:
                with runtime.session(self.model, limit=self.limit) as session:
                    self._results[runtime] = session.run(self.feeds)
            except UpconvError as error:
                self._results[runtime] = error
        result = self._results[runtime]
        if isinstance(result, UpconvError):
            raise result
        return result

    def inner(self, runtime: Runtime, names: Sequence[str]) -> Mapping[str, Any]:
        """Return intermediate values by name, from a copy that outputs them and fuses less."""
        copy = Side(self.model.clone(), self.feeds, self.limit)
        copy.model.graph.outputs[:] = [copy.values[name] for name in names]
        return copy.outputs(runtime)


def compared(
    runtime: Runtime,
    a: Side,
    b: Side,
    tolerances: Tolerances,
    *,
    float64: bool = True,
    layers: bool = True,
) -> Run:
    """Compare two models in one runtime; layers: whether to search for the first that differs."""
    expected = a.outputs(runtime)
    tolerances = replace(tolerances, precision=runtime.working_precision())
    try:
        results = b.outputs(runtime)
    except UpconvError as error:
        return Run(str(runtime), findings=(f"b: {error}",))
    reference = Runtime("reference", precision="f64", rule=runtime.reading.value)
    exact: Mapping[str, Any] = {}
    remark, first = "", None
    try:
        if float64 and tolerances.by_rounding:
            exact = a.outputs(reference)
    except UpconvError as error:
        remark = f"Not compared with float64: {error}"
    outputs = [
        difference(value, expected[name], results[name], tolerances, exact.get(name))
        for value in a.model.graph.outputs
        if (name := str(value.name)) in results
    ]
    if layers and not all(output.equal for output in outputs):
        try:
            first = _first_layer((runtime, reference) if exact else (runtime,), a, b, tolerances)
        except UpconvError as error:
            remark = remark or f"Layers were not compared: {error}"
    return Run(str(runtime), tuple(outputs), first, remark=remark)


def _first_layer(
    runtimes: Sequence[Runtime], a: Side, b: Side, tolerances: Tolerances
) -> Difference | None:
    """Find the first differing intermediate value; runtimes: for both, and for `a` in float64."""
    outputs = {value.name for side in (a, b) for value in side.model.graph.outputs}
    names = [name for name in a.values if name in b.values and name not in outputs]
    for start in range(0, len(names), _GROUP):
        group = names[start : start + _GROUP]
        expected, results = (side.inner(runtimes[0], group) for side in (a, b))
        exact = a.inner(runtimes[1], group) if runtimes[1:] else {}
        for name in group:
            pair = expected[name], results[name]
            layer = difference(a.values[name], *pair, tolerances, exact.get(name))
            if not layer.equal:
                return layer
    return None
