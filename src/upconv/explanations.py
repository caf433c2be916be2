"""Explanations of what upconv would do and why (`explain`), and output shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

import numpy as np

from . import memory
from .argument_checks import boolean, frozen, one_of
from .arrays import Operand, as_array, as_shape, dtype_of
from .candidate_table import Rated, Use, kernel_of, rated, table_of
from .engine_choice import Algorithm, Refusal, Selection, choose, tuning_asked
from .engines import ENGINES, load
from .engines.base import Engine
from .engines.nonfinite import NonFiniteWeight, is_finite
from .errors import EngineMissing
from .keywords import Keywords
from .primitives import shared_cache
from .problem import Direction, Problem
from .roofline import roofline as roofline_of
from .shape_checks import Request, activation_of
from .signatures import AlgorithmName, Layout, Padding, PrecisionName, Sizes, WeightOrder
from .terminal import WIDTH, aligned
from .threads import resolved
from .timing import format_seconds
from .tuning import remembered, selected

_DIRECTIONS = "Gradients are those of the layer that the other arguments describe."


def output_shape(
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    output_size: Any = None,
    layout: Layout = "NCX",
    weight_layout: WeightOrder = "IOX",
) -> tuple[int, ...]:
    """Return the output shape of `conv_transpose` for arrays of these shapes; nothing is allocated.

    Raises `ArgumentError` for arguments that do not fit together.

    >>> output_shape((1, 64, 32, 32), (64, 16, 4, 4), stride=2, padding=1)
    (1, 16, 64, 64)
    """
    keywords = Keywords.of(
        stride, padding, output_padding, dilation, groups, output_size, layout, weight_layout
    )
    single = np.dtype(np.float32)  # arbitrary: the shape does not depend on the dtype
    x = Operand(as_shape("input_shape", input_shape), single)
    weight = Operand(as_shape("weight_shape", weight_shape), single)
    return Request(x, weight, None, keywords, None).signature(residual=False).shape


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """An engine and its availability; `reason` says why it is unavailable ("" otherwise)."""

    name: str
    available: bool
    reason: str
    fingerprint: str


def engines() -> tuple[EngineStatus, ...]:
    """List every engine of upconv, in order of preference.

    >>> [status.name for status in engines() if status.available][-1]
    'reference'
    """
    return tuple(_status(name) for name in ENGINES)


def _status(name: str) -> EngineStatus:
    try:
        return EngineStatus(name, True, "", load(name).fingerprint())
    except EngineMissing as missing:
        return EngineStatus(name, False, str(missing), "")


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation of a plan: `print` it, or read the fields.

    `engine` is None if every engine refuses; `refusals` holds the reason of each engine that was
    tried before. Bytes, counts and seconds are per call.

    `schedule` describes the computation ("" if the engine has no description). `variant` is the
    tuned variant ("" for the engine's default). `predicted_seconds` comes from the engine's cost
    model and this machine's clock rate. `roofline_seconds` is the direct roofline: the time of the
    multiply-adds at peak FLOP/s, or of reading and writing each array once, whichever is longer.
    Winograd's algorithm multiplies less and may take less time. Both are None if the machine's
    roofline was not measured. `measured_seconds` is the time of the fastest candidate,
    `measured_by`, if the problem was tuned on this machine.

    `uses` lists the choices for a plan, a call and the gradients. A call uses its packed weight
    only once, so another engine may be fastest. `candidates` lists all kernels that could compute
    the problem, with their cycles and the reason why each is taken or not.
    """

    problem: Problem
    engine: str | None
    refusals: tuple[Refusal, ...]
    output_shape: tuple[int, ...]
    workspace_bytes: int
    multiply_adds: int
    nbytes: int
    variant: str = ""
    schedule: str = ""
    predicted_seconds: float | None = None
    roofline_seconds: float | None = None
    measured_seconds: float | None = None
    measured_by: str = ""
    uses: tuple[Use, ...] = ()
    candidates: tuple[Rated, ...] = ()

    def __str__(self) -> str:
        rows = [
            ("problem", str(self.problem)),
            *self._precision_rows(),
            ("engine", f"{self.engine or 'none'} {self.variant}".rstrip()),
            *((use.name, str(use)) for use in self.uses),
            *(("refused by", str(refusal)) for refusal in self.refusals),
            ("output", "x".join(map(str, self.output_shape))),
            ("multiply-adds", f"{self.multiply_adds:,}"),
            ("operands and result", memory.readable(self.nbytes)),
            ("workspace", memory.readable(self.workspace_bytes)),
            *self._memory_rows(),
            *self._time_rows(),
            *self._axis_rows(),
        ]
        indent = " " * (max(len(name) for name, _ in rows) + 2)
        lines = [
            part
            for line in aligned(rows)
            for part in wrap(
                line,
                WIDTH,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        ]
        return "\n".join([*lines, *table_of(self.candidates)])

    def _precision_rows(self) -> list[tuple[str, str]]:
        """Return the rounding of operands, and the error that it may cause."""
        if not self.problem.rounded:
            return []
        precision = self.problem.precision
        error = (1 + precision.epsilon / 2) ** 2 - 1
        return [("precision", f"{precision.value}: a product errs by up to {error:.2g} of it")]

    def _memory_rows(self) -> Iterator[tuple[str, str]]:
        needed, available = self.nbytes + self.workspace_bytes, memory.available_bytes()
        if needed > available:
            words = f"it takes {memory.readable(needed)}, and {memory.readable(available)} are free"
            yield "does not fit", words

    def _time_rows(self) -> list[tuple[str, str]]:
        """Return the schedule and the times that are known."""
        times = (
            ("predicted", self.predicted_seconds, ""),
            ("measured", self.measured_seconds, f" by {self.measured_by}"),
            ("direct roofline", self.roofline_seconds, ""),
        )
        known = [(name, f"{format_seconds(s)}{by}") for name, s, by in times if s is not None]
        return [("schedule", self.schedule), *known] if self.schedule else known

    def _axis_rows(self) -> list[tuple[str, str]]:
        """Return one row per spatial axis: its sizes, and how many of its phases have taps."""
        rows = []
        for i, axis in enumerate(self.problem.axes):
            live, stretched = min(axis.period, axis.kernel), axis.out >= axis.stride
            sizes = f"{axis.size} -> {axis.out} of {axis.full}"
            cuts = f"cut {axis.crop_begin} and {axis.crop_end}"
            phases = f"; {live} of {axis.stride} phases have taps" if stretched else ""
            rows.append((f"axis {i}", f"{sizes}, {cuts}{phases}"))
        return rows


def explain(
    input_shape: Sequence[int],
    weight: Any,
    bias: Any = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    output_size: Any = None,
    layout: Layout = "NCX",
    weight_layout: WeightOrder = "IOX",
    activation: Any = None,
    residual: Any = None,
    direction: str = "forward",
    engine: str | Engine | None = None,
    algorithm: AlgorithmName = "auto",
    precision: PrecisionName | None = None,
    dtype: Any = None,
    threads: int | None = None,
    tune: bool | None = None,
    roofline: bool = False,
) -> Explanation:
    """Explain what `plan` would do with the same arguments: problem, engine, refusals, memory.

    `weight` and `bias` may be shapes (tuples of ints) instead of arrays; `dtype` is then float32 by
    default. If the requested engine refuses, the refusal is reported, not raised. The primitive is
    built to learn its memory and schedule, and stays in the cache.

    direction: "forward"; or "input_grad" or "weight_grad", the gradients of the layer. Gradients
        have no epilogue: bias, activation and residual do not affect them. An input gradient is the
        ordinary convolution with the same weight.
    tune: as in `plan`; True measures the problem if it is not yet tuned. Otherwise nothing is run.
    roofline: measure this machine's roofline if it is not known yet; that takes about a second.
        Roofline times and predictions need a measured roofline.

    >>> print(explain((1, 8, 5), (8, 4, 3), stride=2, padding=1, engine="reference").engine)
    reference
    >>> print(explain((1, 8, 5), (8, 4, 3), direction="weight_grad", engine="jit").schedule)
    weight gradient: tiles of ...
    """
    geometry = stride, padding, output_padding, dilation, groups, output_size
    keywords = Keywords.of(*geometry, layout, weight_layout, precision)
    of_weight = _operand("weight", weight, dtype)
    of_bias = None if bias is None else _operand("bias", bias, dtype)
    x = Operand(as_shape("input_shape", input_shape), of_weight.dtype)
    request = Request(x, of_weight, of_bias, keywords, activation_of(activation, dtype)[0])
    signature = request.signature(residual=request.takes_residual(residual))
    way = one_of("direction", frozen("direction", direction), Direction, _DIRECTIONS)
    if way is not Direction.FORWARD:
        signature = request.gradient(way)
    problem, count = signature.problem, resolved(threads)
    asked = Algorithm.of(algorithm)
    method = Algorithm.DIRECT if way is Direction.WEIGHT_GRAD else asked
    once = way is not Direction.FORWARD  # a gradient packs the weight for one call
    choice = choose(problem, engine, count, method, once=once)
    limits = roofline_of(count, measure=boolean("roofline", roofline))
    work = problem.multiply_adds, problem.nbytes, problem.dtype
    explanation = Explanation(
        problem=problem,
        engine=None,
        refusals=choice.refusals,
        output_shape=signature.shape,
        workspace_bytes=0,
        multiply_adds=problem.multiply_adds,
        nbytes=problem.nbytes,
        roofline_seconds=None if limits is None else limits.seconds(*work),
    )
    if choice.engine is None:
        return explanation
    tuned = tuning_asked(tune)
    chosen = selected(problem, engine, count, tune=tuned, algorithm=method, once=once and not tuned)
    has_values = way is not Direction.WEIGHT_GRAD and not isinstance(weight, tuple | list)
    guarded = has_values and getattr(chosen.engine, "finite_weights_only", False)
    if guarded and not is_finite(as_array("weight", weight)):
        refusals = (*explanation.refusals, Refusal(chosen.engine.name, _NONFINITE))
        return replace(explanation, engine=NonFiniteWeight.engine, refusals=refusals)
    explanation = replace(
        explanation,
        uses=() if once else tuple(_uses(request, problem, engine, count, method)),
        candidates=tuple(rated(problem, chosen, count, once=once)),
    )
    clock = limits.clock if limits else None
    winner = remembered(problem, count, engine, method)
    return _add_primitive(explanation, chosen, winner, count, clock)


def _add_primitive(
    explanation: Explanation, chosen: Selection, winner: Selection | None, threads: int,
    clock: float | None,
) -> Explanation:  # fmt: skip
    """Build the primitive, which stays in the cache, and add its details to an explanation."""
    entry = shared_cache().entry(explanation.problem, chosen.engine, threads, chosen.variant)
    primitive, cycles = entry.primitive, entry.primitive.predicted_cycles
    return replace(
        explanation,
        engine=chosen.engine.name,
        variant=chosen.variant,
        workspace_bytes=primitive.workspace_bytes,
        schedule=primitive.description,
        predicted_seconds=cycles / clock if clock and cycles else None,
        measured_seconds=winner.seconds if winner else None,
        measured_by=str(winner) if winner else "",
    )


def _uses(
    request: Request, problem: Problem, engine: str | Engine | None, threads: int,
    algorithm: Algorithm,
) -> Iterator[Use]:  # fmt: skip
    """Yield the choices of a plan, a call and both gradients of a layer, by cost models."""
    gradients = (Direction.INPUT_GRAD, Direction.WEIGHT_GRAD)
    x, weight = (request.gradient(gradient).problem for gradient in gradients)
    for name, asked, method, once in (
        ("plan", problem, algorithm, False),
        ("conv_transpose", problem, algorithm, True),
        ("gradient of x", x, algorithm, True),
        ("gradient of weight", weight, Algorithm.DIRECT, True),
    ):
        choice = choose(asked, engine, threads, method, once=once)
        by = choice.engine.name if choice.engine else "none"
        yield Use(name, by, kernel_of(choice, asked, threads))


_NONFINITE = "a weight with NaN or infinity needs the reference engine, which multiplies no padding"


def _operand(name: str, value: Any, dtype: Any) -> Operand:
    """Return the description of an array or of a shape."""
    if isinstance(value, tuple | list):
        return Operand(as_shape(name, value), dtype_of("float32" if dtype is None else dtype))
    array = as_array(name, value)
    return Operand(array.shape, array.dtype if dtype is None else dtype_of(dtype))
