"""Chains of elementwise operations as native code: one pass over memory, however long the chain.

A job computes part of a matrix (`PIECE`) for arrays of equal shape. Code is compiled once per
`ChainClass`: names, kinds of operands and element types. Addresses, strides, numbers and tables are
arguments, so a new size or slope needs no compilation. A chain computes in one type, and rounds
each result that it stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ...activations import Activation
from .activation import activated
from .compile import compiled
from .cpu import Cpu
from .elementary import exp, expm1_of_negative, gelu_tanh, mish, sine, sine_squared, softplus
from .emit import Function, Module
from .kernel_arguments import ArgumentLayout, Arguments, Record, record
from .rows import Span, Spans, converted
from .values import BYTES, DOUBLE, I64, Value
from .walk import COUNTERS, JOB, NUMBERS

PIECE = record("row column rows length")
"""The part of a matrix that a job computes."""
Emitter = Callable[[Function, Value, Value], Value]


def _shared(activation: Activation) -> Emitter:
    return lambda f, v, _: activated(f, activation, 0.0, v)


def _leaky(f: Function, v: Value, slope: Value) -> Value:
    return f.select(f.compare("olt", v, 0), v * slope, v)


def _elu(f: Function, v: Value, alpha: Value) -> Value:
    below = expm1_of_negative(f, f.select(f.compare("ogt", v, 0), 0, v)) * alpha
    return f.select(f.compare("ogt", v, 0), v, below)


def extreme(f: Function, relation: str, v: Value, other: Value) -> Value:
    """Return the larger ("ogt") or smaller ("olt") of two values, or NaN if either is NaN."""
    beyond = f.select(f.compare(relation, v, other), v, other)
    return f.select(f.compare("uno", v, v), v, beyond)


def _snake(f: Function, v: Value, a: Value) -> Value:
    return v + sine_squared(f, a * v) / a


EMITTERS: dict[str, Emitter] = {
    "relu": _shared(Activation.RELU),
    "leaky_relu": _leaky,
    "tanh": _shared(Activation.TANH),
    "sigmoid": _shared(Activation.SIGMOID),
    "silu": _shared(Activation.SILU),
    "gelu": _shared(Activation.GELU),
    "elu": _elu,
    "relu6": _shared(Activation.RELU6),
    "hard_swish": _shared(Activation.HARD_SWISH),
    "softplus": lambda f, v, _: softplus(f, v),
    "prelu": _leaky,
    "snake": _snake,
    "gelu_tanh": lambda f, v, _: gelu_tanh(f, v),
    "mish": lambda f, v, _: mish(f, v),
    "abs": lambda f, v, _: f.intrinsic("llvm.fabs", v),
    "exp": lambda f, v, _: exp(f, v),
    "sin": lambda f, v, _: sine(f, v, 0),
    "cos": lambda f, v, _: sine(f, v, 0.5),
    "square": lambda _, v, __: v * v,
    "sqrt": lambda f, v, _: f.intrinsic("llvm.sqrt", v),
    "add": lambda _, v, other: v + other,
    "sub": lambda _, v, other: v - other,
    "rsub": lambda _, v, other: other - v,
    "mul": lambda _, v, other: v * other,
    "div": lambda _, v, other: v / other,
    "rdiv": lambda _, v, other: other / v,
    "maximum": lambda f, v, other: extreme(f, "ogt", v, other),
    "minimum": lambda f, v, other: extreme(f, "olt", v, other),
}
"""Emitters of vector operations, by name; each takes a value and may take an operand."""
_CHEAP = {
    "store", "relu", "leaky_relu", "prelu", "relu6", "hard_swish", "abs", "square", "add", "sub",
    "rsub", "mul", "maximum", "minimum",
}  # fmt: skip


class Operand(NamedTuple):
    """An operation's second operand: `kind` is "number", "row" or "column" (a table with one entry
    per row or column), "input" or "", and `number` counts within a kind."""

    kind: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class ChainClass:
    """The class of a chain's code: element types, operations with their operands, and the inputs
    (`scalars`) that have a single element per row."""

    computed: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: tuple[tuple[str, Operand], ...]
    scalars: tuple[int, ...] = ()

    @property
    def arrays(self) -> dict[str, str]:
        """The arrays' names in the argument block, with their element types."""
        inputs = {f"x{i}": element for i, element in enumerate(self.inputs)}
        return inputs | {f"y{i}": element for i, element in enumerate(self.outputs)}

    @property
    def parameters(self) -> str:
        """The names in the argument block after the walk's numbers."""
        names = [f"{name}* {name}_image {name}_row" for name in self.arrays]
        operands = {operand for _, operand in self.ops}
        for kind, number in sorted(operands):
            if kind == "number":
                names.append(f"number{number}")
            elif kind in ("row", "column"):
                names.append(f"{kind}{number}* {kind}{number}_image")
        return " ".join(names) + " "


@lru_cache(maxsize=256)
def argument_layout(chain: ChainClass, before: str = "") -> ArgumentLayout:
    """Return a walk's argument layout with a chain; the numbers `before` precede the chain's."""
    return ArgumentLayout(NUMBERS + before + chain.parameters, counters=COUNTERS)


@compiled("pointwise", kept=128)
def chain_code(module: Module, chain: ChainClass, before: str, cpu: Cpu) -> None:
    """Emit the job `pointwise(args, mine, piece, image)`, for a piece of image number `image`."""
    lanes = cpu.lanes(BYTES[chain.computed])
    unrolled = 4 if all(name in _CHEAP for name, _ in chain.ops) else 2
    with module.function("pointwise", JOB) as f:
        a = argument_layout(chain, before).reader(f)
        piece = Record(f, f["inner"], PIECE)
        image = f.convert("ptrtoint", f["outer"], I64)
        row, column, length = piece["row"], piece["column"], piece["length"]
        body = _Body(f, chain, a, lanes)
        bases = {
            name: (
                a[name]
                + (image * a[f"{name}_image"] + row * a[f"{name}_row"])
                + (0 if name in body.scalars else column * BYTES[element]),
                a[f"{name}_row"],
            )
            for name, element in chain.arrays.items()
        }
        tables = body.tables(image, row, column)
        spans = Spans(f, length, lanes, unrolled)
        with f.loop(0, piece["rows"]) as loop:
            here = {name: base + loop.index * apart for name, (base, apart) in bases.items()}
            in_row = body.in_row(tables, loop.index)
            scalars = body.loaded(here)
            spans.each(lambda span: body.emit(span, here, in_row, scalars))


class _Body:
    """Emits a chain for one span of a row."""

    def __init__(self, f: Function, chain: ChainClass, a: Arguments, lanes: int) -> None:
        self._f, self._chain, self._arguments, self._lanes = f, chain, a, lanes
        self.scalars = {f"x{number}" for number in chain.scalars}
        self._operands = sorted({operand for _, operand in chain.ops})
        self._numbers = {
            operand: f.broadcast(
                converted(f, f.load(DOUBLE, a.address(f"number{operand.number}")), chain.computed),
                lanes,
            )
            for operand in self._operands
            if operand.kind == "number"
        }

    def tables(self, image: Value, row: Value, column: Value) -> dict[Operand, Value]:
        """Return the addresses of an image's tables at a row or column."""
        a, result = self._arguments, {}
        for operand in self._operands:
            if operand.kind in ("row", "column"):
                name = f"{operand.kind}{operand.number}"
                base = a[name] + image * a[f"{name}_image"]
                first = row if operand.kind == "row" else column
                result[operand] = self._f.at(base, first, self._chain.computed)
        return result

    def in_row(self, tables: dict[Operand, Value], row: Value) -> dict[Operand, Value]:
        """Return the same tables, with a row's numbers in all lanes."""
        f, element, result = self._f, self._chain.computed, dict(tables)
        for operand, table in tables.items():
            if operand.kind == "row":
                number = f.load(element, f.at(table, row, element))
                result[operand] = f.broadcast(number, self._lanes)
        return result

    def loaded(self, bases: dict[str, Value]) -> dict[int, Value]:
        """Load the inputs that have one element per row into all lanes."""
        f, chain, result = self._f, self._chain, {}
        for number in chain.scalars:
            single = f.load(chain.inputs[number], bases[f"x{number}"])
            result[number] = f.broadcast(converted(f, single, chain.computed), self._lanes)
        return result

    def emit(
        self, span: Span, bases: dict[str, Value], tables: dict[Operand, Value],
        scalars: dict[int, Value],
    ) -> None:  # fmt: skip
        """Emit the chain. All loads come first, because an output may be input 0."""
        f, chain = self._f, self._chain
        inputs = []
        for number, element in enumerate(chain.inputs):
            if number in scalars:
                inputs.append(scalars[number])
                continue
            inputs.append(span.read(bases[f"x{number}"], element, chain.computed))
        value, stored = inputs[0], 0
        for name, operand in chain.ops:
            if name == "store":
                span.write(value, bases[f"y{stored}"], chain.outputs[stored])
                stored += 1
                continue
            second = value  # for operations without an operand, which ignore it
            if operand.kind == "input":
                second = inputs[operand.number]
            elif operand.kind == "column":
                second = span.read(tables[operand], chain.computed, chain.computed)
            elif operand.kind:
                second = (tables | self._numbers)[operand]
            value = EMITTERS[name](f, value, second)
        span.write(value, bases[f"y{stored}"], chain.outputs[stored])
