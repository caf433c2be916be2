"""Whether two models compute the same, shown by running both on the same inputs.

`verify` draws the inputs, runs both models in each runtime, compares every output, and then the
layers that both have, to say where a difference begins. What is a difference and what is rounding
is decided in `allowances` and `differences`; what was found is a `Comparison`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import onnx

from ... import memory
from ...arrays import Array
from ...errors import ArgumentError, EngineError, brief
from ...threads import get_num_threads
from ..known import known
from ..models import Source, from_model, to_proto
from ..runtimes import Interface, Runtime, ready
from ..runtimes.feeds import drawn
from . import interfaces
from .allowances import allowances, of_dtype
from .comparison import Comparison, Fed, Run
from .differences import Difference, Place, differences
from .layers import Allow, Layers, Side, compared_layers

__all__ = ["Comparison", "Difference", "Fed", "Run", "verify"]


def verify(
    a: Source,
    b: Source,
    *,
    runtimes: Iterable[str | Runtime] = ("onnxruntime",),
    sizes: Mapping[str, Sequence[int]] | None = None,
    feeds: Mapping[str, Any] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    layers: bool = True,
) -> Comparison:
    """Run two models on the same inputs and compare what comes out.

    a, b: a path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`; neither is
        changed. `a` is the one that counts as right.
    runtimes: names ("onnxruntime", "openvino", "reference") or `Runtime` objects.
    sizes: the whole shape of an input by its name, or the size of a symbolic dimension by its; the
        rest is as `upconv.onnx.runtimes.feeds` has it.
    feeds: arrays to use for some inputs, or all, instead of random ones.
    seed: of the random inputs.
    tolerance: the error allowed of any value, as a part of its largest magnitude, in place of what
        rounding in these models may explain.
    layers: whether values inside are compared too.

    Raises `ModelError` and `FileError` for models that cannot be read, `EngineMissing`,
    `EngineRefusal` where a runtime does not take `a`, `EngineError` where it fails on `a`,
    `ArgumentError` and its kinds for sizes and feeds, `MemoryLimitError`. What is wrong with `b`
    alone is found, not raised.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = Neg(x)}'
    >>> model = onnx.parser.parse_model(text)
    >>> verify(model, model, runtimes=["reference"], sizes={"x": (3,)}).equal
    True
    """
    chosen = [ready(r, "runtimes") if isinstance(r, str) else r for r in runtimes]
    if not chosen:  # nothing would be compared, and so nothing differ
        raise ArgumentError("runtimes", "empty", "one or more runtimes")
    limit = _tolerance(tolerance)
    models = [to_proto(from_model(model)) for model in (a, b)]
    ours, theirs = map(Interface.of, models)
    found = interfaces.findings(ours, theirs)
    inputs = interfaces.fed(ours, theirs)
    if inputs is None:  # nothing can be fed to both
        return Comparison(found, (), (), seed)
    own = _own_arrays(feeds or {}, [value.name for value in inputs])
    shapes = {**(sizes or {}), **{name: array.shape for name, array in own.items()}}
    arrays = {**drawn(inputs, shapes, seed=seed), **own}
    first, second = (_side(model, arrays) for model in models)
    allow = _allow((first, second), limit)
    runs = tuple(_run(runtime, first, second, allow, layers=layers) for runtime in chosen)
    told = tuple(Fed(name, str(array.dtype), array.shape) for name, array in arrays.items())
    return Comparison(found, runs, told, seed)


# What is given ------------------------------------------------------------------------------------


def _tolerance(tolerance: float | None) -> float | None:
    if tolerance is None:
        return None
    if not (isinstance(tolerance, int | float) and isfinite(tolerance) and tolerance >= 0):
        raise ArgumentError("tolerance", brief(tolerance), "a number >= 0, or None")
    return float(tolerance)


def _own_arrays(feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Array]:
    for name in feeds:
        if name not in names:
            listed = ", ".join(map(brief, names)) or "none"
            raise ArgumentError("feeds", f"with {brief(name)}", f"the models' inputs: {listed}")
    return {name: np.asarray(array) for name, array in feeds.items()}


def _side(model: onnx.ModelProto, arrays: Mapping[str, Array]) -> Side:
    """A model with the inputs it has, in its own types, if all it holds can fit."""
    fed = {
        value.name: arrays[value.name].astype(value.dtype or arrays[value.name].dtype, copy=False)
        for value in Interface.of(model).inputs
    }
    facts = known(model, {name: array.shape for name, array in fed.items()})
    for node in model.graph.node:
        for name in node.output:
            memory.require(facts.nbytes(name) or 0, f"The value {brief(name)} of {node.op_type}")
    return Side(model, fed, facts)


def _allow(sides: Sequence[Side], tolerance: float | None) -> Allow:
    by_rounding = [allowances(side.model, side.known) for side in sides]

    def allow(name: str, value: Any) -> float:
        if tolerance is not None:
            return tolerance
        least = of_dtype(value.dtype) if isinstance(value, np.ndarray) else 0.0
        if isinstance(value, np.ndarray) and not least:
            return 0.0  # integers: nothing rounds them
        return max(least, *(allowed.get(name, 0.0) for allowed in by_rounding))

    return allow


# Running ------------------------------------------------------------------------------------------


def _run(runtime: Runtime, a: Side, b: Side, allow: Allow, *, layers: bool) -> Run:
    threads = get_num_threads()
    ours = _outputs(runtime, a, threads)
    try:
        theirs = _outputs(runtime, b, threads)
    except EngineError as error:
        return Run(runtime.name, findings=(f"b: {error}",))
    places, found = a.made, []
    for name in (name for name in ours if name in theirs):
        place = places.get(name, Place(name))
        found += differences(place, ours[name], theirs[name], allow(name, ours[name]))
    inner = compared_layers(runtime, a, b, allow, threads) if layers else Layers(())
    return Run(runtime.name, tuple(found), inner.compared, remark=inner.remark)


def _outputs(runtime: Runtime, side: Side, threads: int) -> dict[str, Any]:
    with runtime.session(side.model, threads=threads) as session:
        return session.run(side.feeds)
