"""Whether two models compute the same, checked by running both on the same inputs."""

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

_GROUP = 32  # values that become outputs together, where the first that differs is looked for


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
    """Run two models on the same inputs and compare what comes out.

    Floats of `b` may be off from `a` in float64 by twice what `a` itself is in that runtime, and a
    few roundings of their type or of the runtime's precision; integers must be equal, and what a
    QuantizeLinear or DequantizeLinear makes may be off by one step of its scale.

    a, b: a path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`; neither is
        changed. `a` is the one that counts as right.
    runtimes: names ("onnxruntime", "openvino:f32", "reference") or `Runtime` values.
    sizes: the whole shape of an input by its name, or the size of a symbolic dimension by its; the
        rest is as `upconv.onnx.inputs.feeds` has it.
    feeds: arrays to use for some inputs, or all, instead of random ones.
    seed: of the random inputs.
    atol, rtol: if one is given, |b - a| <= atol + rtol * |a| is the rule for floats instead.
    float64: run `a` in float64; without it, floats may be off by 64 times those roundings.
    threads: of the runtimes; None is the runtime's own, or `upconv.get_num_threads()`.
    time_limit: seconds that one run may take before it is ended.

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
    for name, given in (("atol", atol), ("rtol", rtol)):
        number = given is None or isinstance(given, int | float)
        if not (number and (given or 0) >= 0 and isfinite(given or 0)):
            raise ArgumentError(name, brief(given), "a number >= 0, or None")
    models = [m if isinstance(m, ir.Model) else from_model(m) for m in (a, b)]
    ours, theirs = ({str(v.name): v for v in inputs_of(model)} for model in models)
    arrays = drawn([*(theirs | ours).values()], sizes, feeds, seed=seed)
    first, second = (
        Side(model, {name: arrays[name] for name in names}, time_limit)
        for model, names in zip(models, (ours, theirs), strict=True)
    )
    if threads is not None:
        chosen = [replace(runtime, threads=threads) for runtime in chosen]
    how = Tolerances(atol, rtol)
    runs = tuple(compared(runtime, first, second, how, float64=float64) for runtime in chosen)
    shapes = {name: array.shape for name, array in arrays.items()}
    return Comparison(tuple(_findings(*models)), runs, shapes, seed)


def _findings(a: ir.Model, b: ir.Model) -> Iterator[str]:
    """Sentences about what inputs and outputs one of the models lacks, or has in another order."""
    for what, values, others in (
        ("input", inputs_of(a), inputs_of(b)),
        ("output", a.graph.outputs, b.graph.outputs),
    ):
        ours, theirs = [value.name for value in values], [value.name for value in others]
        yield from (f"The {what} {brief(n)} of a is missing in b." for n in ours if n not in theirs)
        yield from (f"The {what} {brief(n)} of b is missing in a." for n in theirs if n not in ours)
        if ours != theirs and set(ours) == set(theirs):
            orders = (", ".join(map(brief, names)) for names in (ours, theirs))
            yield "The {}s are in another order: {} in a, {} in b.".format(what, *orders)


class Side:
    """One of the two models, with what it is fed, and the seconds a run may take."""

    def __init__(self, model: ir.Model, feeds: Mapping[str, Array], limit: float) -> None:
        self.model, self.feeds, self.limit = model, feeds, limit
        self.made = {str(v.name): v for node in model.graph for v in node.outputs if v.name}
        self._given: dict[Runtime, Mapping[str, Any] | UpconvError] = {}

    def outputs(self, runtime: Runtime) -> Mapping[str, Any]:
        """The model's results, or its error; computed once, since it may take minutes."""
        if runtime not in self._given:
            try:
                with runtime.session(self.model, limit=self.limit) as session:
                    self._given[runtime] = session.run(self.feeds)
            except UpconvError as error:
                self._given[runtime] = error
        found = self._given[runtime]
        if isinstance(found, UpconvError):
            raise found
        return found

    def inner(self, runtime: Runtime, names: Sequence[str]) -> Mapping[str, Any]:
        """Values inside, by name: outputs of a copy, which its runtime optimises less for that."""
        copy = Side(self.model.clone(), self.feeds, self.limit)
        copy.model.graph.outputs[:] = [copy.made[name] for name in names]
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
    """Two models in one runtime; layers: whether to look for the first that differs."""
    ours = a.outputs(runtime)
    tolerances = replace(tolerances, precision=runtime.working_precision())
    try:
        theirs = b.outputs(runtime)
    except UpconvError as error:
        return Run(str(runtime), findings=(f"b: {error}",))
    wide = Runtime("reference", precision="f64", rule=runtime.reading.value)
    exact: Mapping[str, Any] = {}
    remark, first = "", None
    try:
        if float64 and tolerances.by_rounding:
            exact = a.outputs(wide)
    except UpconvError as error:
        remark = f"Not compared with float64: {error}"
    found = [
        difference(value, ours[name], theirs[name], tolerances, exact.get(name))
        for value in a.model.graph.outputs
        if (name := str(value.name)) in theirs
    ]
    if layers and not all(one.equal for one in found):
        try:
            first = _first_layer((runtime, wide) if exact else (runtime,), a, b, tolerances)
        except UpconvError as error:
            remark = remark or f"Layers were not compared: {error}"
    return Run(str(runtime), tuple(found), first, remark=remark)


def _first_layer(
    runtimes: Sequence[Runtime], a: Side, b: Side, tolerances: Tolerances
) -> Difference | None:
    """The first inner value that differs; runtimes: where both run, and `a` in float64."""
    outputs = {value.name for side in (a, b) for value in side.model.graph.outputs}
    names = [name for name in a.made if name in b.made and name not in outputs]
    for start in range(0, len(names), _GROUP):
        group = names[start : start + _GROUP]
        ours, theirs = (side.inner(runtimes[0], group) for side in (a, b))
        exact = a.inner(runtimes[1], group) if runtimes[1:] else {}
        for name in group:
            pair = ours[name], theirs[name]
            found = difference(a.made[name], *pair, tolerances, exact.get(name))
            if not found.equal:
                return found
    return None
