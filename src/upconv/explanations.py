"""What upconv would do and why, without running it: `explain`, and the sizes by `output_shape`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import memory
from .arguments import frozen_activation
from .arrays import Operand, as_array, as_shape, dtype_of
from .choices import Refusal, choose
from .engines import ENGINES, load
from .engines.base import Engine
from .errors import EngineMissing
from .primitives import shared_cache
from .problem import Problem
from .signatures import Keywords, Request
from .threads import checked, get_num_threads


def output_shape(
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    output_size: Any = None,
    layout: str = "NCX",
    weight_layout: str = "IOX",
) -> tuple[int, ...]:
    """The shape `conv_transpose` gives for arrays of these shapes; nothing is allocated.

    Raises `ArgumentError` for arguments that do not fit together.

    >>> output_shape((1, 64, 32, 32), (64, 16, 4, 4), stride=2, padding=1)
    (1, 16, 64, 64)
    """
    keywords = Keywords.of(
        stride, padding, output_padding, dilation, groups, output_size, layout, weight_layout
    )
    single = np.dtype(np.float32)  # any: a shape does not depend on it
    x = Operand(as_shape("input_shape", input_shape), single)
    weight = Operand(as_shape("weight_shape", weight_shape), single)
    return Request(x, weight, None, keywords, None).signature(residual=False).shape


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """An engine and whether it can be used here; `reason` says why not ("" if it can)."""

    name: str
    available: bool
    reason: str
    fingerprint: str


def engines() -> tuple[EngineStatus, ...]:
    """Every engine upconv knows, the preferred first.

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
    """What a plan would do: `print` it, or read the fields.

    `engine` is None when every engine refuses; `refusals` holds the sentence of each engine that
    was asked before. Bytes and counts are of one call.
    """

    problem: Problem
    engine: str | None
    refusals: tuple[Refusal, ...]
    output_shape: tuple[int, ...]
    workspace_bytes: int
    multiply_adds: int
    nbytes: int

    def __str__(self) -> str:
        rows = [
            ("problem", str(self.problem)),
            ("engine", self.engine or "none"),
            *(("refused by", str(refusal)) for refusal in self.refusals),
            ("output", "x".join(map(str, self.output_shape))),
            ("multiply-adds", f"{self.multiply_adds:,}"),
            ("operands and result", memory.readable(self.nbytes)),
            ("workspace", memory.readable(self.workspace_bytes)),
            *self._axis_rows(),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{width}}  {value}" for name, value in rows)

    def _axis_rows(self) -> list[tuple[str, str]]:
        """One row per spatial axis: its sizes, and how many of its phases have taps."""
        rows = []
        for i, axis in enumerate(self.problem.axes):
            live, whole = min(axis.period, axis.kernel), axis.out >= axis.stride
            sizes = f"{axis.size} -> {axis.out} of {axis.full}"
            cuts = f"cut {axis.crop_begin} and {axis.crop_end}"
            phases = f"; {live} of {axis.stride} phases have taps" if whole else ""
            rows.append((f"axis {i}", f"{sizes}, {cuts}{phases}"))
        return rows


def explain(
    input_shape: Sequence[int],
    weight: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    output_size: Any = None,
    layout: str = "NCX",
    weight_layout: str = "IOX",
    activation: Any = None,
    residual: Any = None,
    engine: str | Engine | None = None,
    dtype: Any = None,
    threads: int | None = None,
) -> Explanation:
    """What `plan` with the same arguments would do: the problem, the engine, every refusal, memory.

    `weight` and `bias` may be shapes (tuples of ints) instead of arrays, with `dtype` then float32
    if not given. An engine asked for by name that refuses is reported, not raised. The primitive is
    built, to learn what it needs, and stays in the cache; nothing is run.

    >>> print(explain((1, 8, 5), (8, 4, 3), stride=2, padding=1).engine)
    reference
    """
    keywords = Keywords.of(
        stride, padding, output_padding, dilation, groups, output_size, layout, weight_layout
    )
    of_weight = _operand("weight", weight, dtype)
    of_bias = None if bias is None else _operand("bias", bias, dtype)
    x = Operand(as_shape("input_shape", input_shape), of_weight.dtype)
    request = Request(x, of_weight, of_bias, keywords, frozen_activation(activation))
    signature = request.signature(residual=request.takes_residual(residual))
    problem = signature.problem
    choice = choose(problem, engine)
    workspace = 0
    if choice.engine is not None:
        count = get_num_threads() if threads is None else checked(threads)
        with shared_cache().lease(problem, choice.engine, count) as primitive:
            workspace = primitive.workspace_bytes
    return Explanation(
        problem=problem,
        engine=None if choice.engine is None else choice.engine.name,
        refusals=choice.refusals,
        output_shape=signature.shape,
        workspace_bytes=workspace,
        multiply_adds=problem.multiply_adds,
        nbytes=problem.nbytes,
    )


def _operand(name: str, value: Any, dtype: Any) -> Operand:
    """An array's, or a shape's, description."""
    if isinstance(value, tuple | list):
        return Operand(as_shape(name, value), dtype_of("float32" if dtype is None else dtype))
    array = as_array(name, value)
    return Operand(array.shape, array.dtype if dtype is None else dtype_of(dtype))
