"""Running a checked normalisation: its engine, its primitive, memory, and where results go.

What lives here: what forward and backward share. What never does: checks of parameters, arithmetic.
"""

from __future__ import annotations

import numpy as np

from .. import memory
from ..arrays import Array, copied, overlap
from ..choices import first_able
from ..engines.normalization import (
    NORMALIZERS,
    Normalization,
    NormEngine,
    NormPrimitive,
    normalizer,
)
from ..errors import DTypeError, EngineRefusal, brief
from ..primitives import Lease, shared_cache
from ..threads import get_num_threads


def leased(problem: Normalization, engine: object) -> Lease[NormPrimitive]:
    """A primitive for a problem, whose scratch memory would fit, held until released."""
    lease = shared_cache().lease(problem, selected(problem, engine), get_num_threads())
    memory.require(lease.primitive.workspace_bytes, "the scratch memory of this call")
    return lease


def selected(problem: Normalization, engine: object) -> NormEngine:
    """The engine asked for, or the first in order of preference that does not refuse.

    `engine` is a name, or None: `UPCONV_ENGINE` says then which is asked first.
    """
    if engine is not None and not isinstance(engine, str):
        got = f"{brief(engine)} ({type(engine).__name__})"
        raise DTypeError("engine", got, "None or a name", f"Names: {', '.join(NORMALIZERS)}.")
    if engine is None:
        found = first_able(problem, NORMALIZERS, normalizer).engine
        if found is None:
            raise EngineRefusal(f"No engine does {problem}.")
        return found
    asked = normalizer(str.__str__(engine))
    reason = asked.refuses(problem)
    if reason is not None:
        raise EngineRefusal(
            f"Engine {asked.name!r} cannot do {problem}: {reason}."
            " Use engine=None to let upconv choose."
        )
    return asked


def new_like(x: Array, name: str) -> Array:
    """An uninitialised array of x's shape and dtype, its axes in the order of x's in memory."""
    memory.require(x.size * x.itemsize, f"{name}, of shape {x.shape},")
    try:
        return np.empty_like(x)
    except (MemoryError, ValueError) as error:
        raise memory.refused(f"{name}, of shape {x.shape},", error) from None


def apart(target: Array, operands: tuple[Array, ...]) -> Array:
    """`target`, or a copy where it overlaps an operand and is not that very array.

    Engines read an element of each operand before they write that place of the target.
    """
    others = [operand for operand in operands if not _is_same(target, operand)]
    return copied("a copy of out", target) if overlap(target, others) else target


def _is_same(first: Array, second: Array) -> bool:
    same_place = first.__array_interface__["data"][0] == second.__array_interface__["data"][0]
    return same_place and first.shape == second.shape and first.strides == second.strides


def delivered(values: Array, out: Array | None) -> Array:
    """`out` with the values in it, or the values where there is no `out`."""
    if out is None or out is values:
        return values
    with np.errstate(all="ignore"):
        out[...] = values
    return out
