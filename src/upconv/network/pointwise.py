"""Steps of pointwise chains: one pass over memory for a chain of any length.

Values are computed in float32, or in float64 if one of the arrays is, and rounded when stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack, unpack
from typing import NamedTuple

import numpy as np

from ..engines.jit.chains import ChainClass, Operand, argument_layout, chain_code
from ..engines.jit.steps import Step
from ..engines.jit.values import DOUBLE
from ..engines.jit.walk import Phase
from .graph import Array, Input, Pointwise
from .matrices import Matrices
from .tables import Arrays, Target, as_numbers, computed_type, stored_type, walk_step


class Table(NamedTuple):
    """An operand with one number per row or column: (images or 1, rows or columns)."""

    kind: str
    numbers: Array


Listed = Sequence[tuple[str, float | Array | Input | Table | None]]
"""A chain as a sequence of names and operands."""


class BoundChain(NamedTuple):
    """A chain, the values of its argument block, and the arrays to which these point."""

    form: ChainClass
    values: dict[str, int]
    kept: tuple[object, ...]


COPY = Pointwise(())


def steps(operation: Pointwise, outputs: Arrays, inputs: Arrays, target: Target) -> list[Step]:
    """Return the native step of a chain; an output may be input 0. Empty arrays have no step."""
    arrays = (*inputs, *outputs)
    if not arrays[0].size:
        return []
    listed = [(op.name, op.operand) for op in operation.chain]
    by_channel = any(isinstance(operand, np.ndarray) for _, operand in listed)
    lanes = target.cpu.lanes(4)
    matrices = Matrices.of(arrays, target.layout, by_channel=by_channel, lanes=lanes)
    bound = bind(listed, matrices, outputs, inputs)
    pieces = as_numbers(matrices.pieces(max(a.itemsize for a in arrays), target.threads))
    code = chain_code(bound.form, "", target.cpu)
    phase = Phase(code.addresses["pointwise"], pieces, None, outer_count=matrices.images)
    kept = (code, pieces, *bound.kept)
    return [walk_step(argument_layout(bound.form), bound.values, [phase], target, kept)]


def bind(chain: Listed, matrices: Matrices, outputs: Arrays, inputs: Arrays) -> BoundChain:
    """Bind a chain to arrays; array operands have one number per channel."""
    arrays = (*inputs, *outputs)
    computed = computed_type(arrays)
    values: dict[str, int] = {}
    kept: list[object] = []

    def bound(number: int, operand: float | Array | Input | Table | None) -> Operand:
        if operand is None:
            return Operand("")
        if isinstance(operand, Input):
            return Operand("input", operand.number)
        if isinstance(operand, np.ndarray):
            kind = "row" if matrices.per_row else "column"
            operand = Table(kind, matrices.table(operand)[None])
        if isinstance(operand, Table):
            numeric = np.float64 if computed == DOUBLE else np.float32
            table = np.ascontiguousarray(operand.numbers, numeric)
            kept.append(table)
            name, image = f"{operand.kind}{number}", len(table) > 1
            values.update({name: table.ctypes.data, f"{name}_image": image * table.strides[0]})
            return Operand(operand.kind, number)
        values[f"number{number}"] = unpack("<q", pack("<d", operand))[0]
        return Operand("number", number)

    ops = tuple((name, bound(i, operand)) for i, (name, operand) in enumerate(chain))
    elements, split = [*map(stored_type, arrays)], len(inputs)
    types = tuple(elements[:split]), tuple(elements[split:])
    form = ChainClass(computed, *types, ops, matrices.scalars)
    for name, array, (image, row) in zip(form.arrays, arrays, matrices.strides, strict=True):
        values |= {name: array.ctypes.data, f"{name}_image": image, f"{name}_row": row}
    return BoundChain(form, values, (*kept, *arrays))
