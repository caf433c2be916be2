"""Plans: a transposed convolution with its weights packed once, for calling many times."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from . import memory
from .arguments import frozen_activation
from .arrays import Array, Operand, as_array, as_shape, check_out, converted, described, overlap
from .engines.base import Engine, PackedWeight, Primitive
from .errors import DTypeError, EngineError, ShapeError
from .execution import new_result, result_of, run_batched
from .primitives import Lease, select, shared_cache
from .problem import Problem
from .signatures import Keywords, Request, Signature, transposed
from .threads import checked, get_num_threads


def plan(
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
) -> Plan:
    """`conv_transpose` for one input shape, its weights packed once: `plan(x, residual=None,
    out=None)`.

    input_shape: the shape of x, with or without N. weight, bias and the other keywords are
        `conv_transpose`'s.
    residual: True, or an array of the result's shape, prepares for calls with a residual.
    dtype: the type to work in, which weight and bias are converted to (default: the weight's own).
    threads: for this plan (default: `get_num_threads()` now).

    Raises what `conv_transpose` raises.

    >>> import numpy as np
    >>> double = plan((1, 1, 3), np.ones((1, 1, 2), np.float32), stride=2)
    >>> double(np.array([[[1, 2, 3]]], np.float32))
    array([[[1., 1., 2., 2., 3., 3.]]], dtype=float32)
    """
    keywords = Keywords.of(
        stride, padding, output_padding, dilation, groups, output_size, layout, weight_layout
    )
    weight = converted("weight", weight, dtype)
    bias = None if bias is None else converted("bias", bias, dtype)
    x = Operand(as_shape("input_shape", input_shape), weight.dtype)
    request = Request(
        x, described(weight), described(bias), keywords, frozen_activation(activation)
    )
    if hasattr(residual, "__array__") or hasattr(residual, "__dlpack__"):
        given = described(as_array("residual", residual))
        transposed(x, request.weight, request.bias, given, keywords, request.activation)
        residual = True
    if residual is not None and not isinstance(residual, bool):
        raise DTypeError("residual", f"a {type(residual).__name__}", "None, a bool or an array")
    count = get_num_threads() if threads is None else checked(threads)
    return Plan(request, engine, count, weight, bias, bool(residual))


@dataclass(frozen=True, slots=True, eq=False)
class _Ready:
    """One variant of a plan: a primitive held by a lease, and the weight in its order."""

    signature: Signature
    lease: Lease
    primitive: Primitive
    packed: PackedWeight


class Plan:
    """A transposed convolution ready to run: made by `upconv.plan`, called with x.

    It holds a copy of the weight and the bias, so later changes to the caller's arrays do not reach
    it. It may be called from many threads at once. `close`, or the end of a `with` block, gives
    back what it holds; a closed plan raises `EngineError`.

    >>> import numpy as np, upconv
    >>> with upconv.plan((1, 1, 3), np.ones((1, 1, 2), np.float32), stride=2) as plan:
    ...     plan(np.array([[[1, 2, 3]]], np.float32))
    array([[[1., 1., 2., 2., 3., 3.]]], dtype=float32)
    """

    def __init__(
        self,
        request: Request,
        engine: str | Engine | None,
        threads: int,
        weight: Array,
        bias: Array | None,
        residual: bool,
    ) -> None:
        """Prepare `request` on copies of its weight and bias; call `upconv.plan` instead."""
        self._request = request
        self._engine = engine
        self._threads = threads
        self._weight = np.array(weight)
        self._bias = None if bias is None else np.array(bias)
        self._lock = threading.Lock()
        self._leases: list[Lease] = []
        self._finalizer = weakref.finalize(self, _release, self._leases)
        self._variants: dict[bool, _Ready] = {}
        self._main = self._variant(residual)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape x must have."""
        return self._request.x.shape

    @property
    def engine(self) -> str:
        """The name of the engine that runs this plan."""
        return select(self.problem, self._engine).name

    @property
    def problem(self) -> Problem:
        """The problem this plan solves."""
        return self._main.signature.problem

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self._main.signature.shape

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory one running call takes, in bytes."""
        return self._main.primitive.workspace_bytes

    def __call__(self, x: Any, residual: Any = None, out: Array | None = None) -> Array:
        """Run on x, of `input_shape`.

        residual: of `output_shape`; the first call with one prepares for it unless the plan was
        made with `residual=True`. out: as in `conv_transpose`. Raises what `conv_transpose` raises.
        """
        ready = self._variants.get(residual is not None) or self._variant(residual is not None)
        x = self._operand("x", x, self._request.x.shape)
        signature, run = ready.signature, ready.primitive
        if residual is not None:
            residual = self._operand("residual", residual, signature.shape)
        if out is None:
            target = new_result(signature)
        else:
            target = check_out("out", out, *result_of(signature))
            if overlap(target, x, residual):
                separate = np.empty_like(target)
                run_batched(run, signature, separate, x, ready.packed, self._bias, residual)
                target[...] = separate
                return target
        run_batched(run, signature, target, x, ready.packed, self._bias, residual)
        return target

    def close(self) -> None:
        """Give back the primitives, when no call is running; a closed plan raises when called."""
        with self._lock:
            self._variants.clear()
            self._finalizer()

    def __enter__(self) -> Plan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Plan {self.problem} on {self.engine}>"

    def _variant(self, residual: bool) -> _Ready:
        """This plan with or without a residual, prepared once."""
        with self._lock:
            if not self._finalizer.alive:
                raise EngineError("This plan is closed. Make a new one with upconv.plan.")
            if residual not in self._variants:
                signature = self._request.signature(residual=residual)
                engine = select(signature.problem, self._engine)
                lease = shared_cache().lease(signature.problem, engine, self._threads)
                self._leases.append(lease)
                memory.require(lease.primitive.workspace_bytes, "the scratch memory of this plan")
                packed = lease.primitive.pack(self._weight)
                self._variants[residual] = _Ready(signature, lease, lease.primitive, packed)
            return self._variants[residual]

    def _operand(self, name: str, value: Any, shape: tuple[int, ...]) -> Array:
        array = as_array(name, value)
        if array.shape != shape:
            raise ShapeError(
                f"{name}.shape",
                str(array.shape),
                f"{shape}, as planned",
                "Make a plan for this shape.",
            )
        if array.dtype != self._weight.dtype:
            expected = f"{self._weight.dtype}, as planned"
            raise DTypeError(f"{name}.dtype", str(array.dtype), expected, "Convert, or plan anew.")
        return array


def _release(leases: list[Lease]) -> None:
    for lease in leases:
        lease.release()
