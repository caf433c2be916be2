"""The implementations that the library offers for a problem, and the layouts that they require.

The library always chooses the weight's layout. For weights in the caller's layout with
channels-last data, it would use its reference loops, which are a thousand times slower. upconv
never uses these.

Almost every descriptor includes the bias (see `REPEATING`). It includes residual, activation and
accumulation if the library computes them exactly: its relu, sigmoid, silu and gelu turn NaN into
numbers. NumPy computes the rest on a float32 result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ...activations import Activation
from ...problem import DataLayout, DType, Problem
from ..copies import Tensor
from .abi import DTYPE, FORWARD_INFERENCE, Alg, Arg, Handle, Library, LibraryError, Query, vector
from .descriptors import Kind, Operation
from .library import Runtime


class LayoutStrategy(Enum):
    """The layout in which data is offered to the library; the value is the variant's name."""

    AS_GIVEN = "plain"
    ANY = "reordered"
    """The layout that the library prefers; data is reordered."""


def layout_strategies(problem: Problem) -> tuple[LayoutStrategy, ...]:
    """Return the strategies, those expected to be fastest first."""
    order = LayoutStrategy.AS_GIVEN, LayoutStrategy.ANY
    return order if problem.layout is DataLayout.NXC else order[::-1]


_EXACT = {Activation.NONE: None, Activation.LEAKY_RELU: Alg.RELU, Activation.TANH: Alg.TANH}
"""The activations for which the library keeps NaN, and its names for them."""


def _begin_beyond_stride(_: Problem, operation: Operation) -> bool:
    """Whether the padding at the start of the outermost axis is at least one stride."""
    begin, stride = operation.window.begin[0], operation.window.strides[0]
    return stride > 1 and begin >= stride


def _odd_channels(problem: Problem, operation: Operation) -> bool:
    """Whether a group's last bfloat16 channel is read together with the next element."""
    channels = operation.src.dims[1] // problem.groups
    return channels % 2 == 1 and problem.dtype is DType.BFLOAT16


@dataclass(frozen=True, slots=True)
class Fault:
    """Faulty implementations: their primitive, part of their name, lowest rank, and a condition."""

    kind: Kind
    name: str
    rank: int
    when: Callable[[Problem, Operation], bool] = lambda *_: True


FAULTS = (
    Fault(Kind.CONVOLUTION, "brgconv:avx512_core_amx", 3),  # writes past the end of its result
    Fault(Kind.CONVOLUTION, "jit:avx512_core_amx", 1),  # spreads NaN with few input channels
    Fault(Kind.CONVOLUTION, "jit_bf16", 1),  # the same
    Fault(Kind.DECONVOLUTION, "jit_bf16", 1),  # turns infinity into NaN
    Fault(Kind.CONVOLUTION, "brgconv:avx512_core_bf16", 1, _odd_channels),  # spreads NaN
    Fault(Kind.CONVOLUTION, "brgconv_1x1:avx512_core_bf16", 1, _odd_channels),
    Fault(Kind.DECONVOLUTION, "brgconv:avx512_core_bf16", 1, _odd_channels),
    Fault(Kind.DECONVOLUTION, "brgconv_1x1:avx512_core_bf16", 1, _odd_channels),
    Fault(Kind.DECONVOLUTION, "brgconv_strided:avx512_core_bf16", 1, _odd_channels),
    Fault(Kind.CONVOLUTION, "x64:gemm", 1, _odd_channels),
    Fault(Kind.WEIGHTS, "jit_bf16", 1),  # reads uninitialized memory
    Fault(Kind.WEIGHTS, "jit:avx512_core", 3, _begin_beyond_stride),  # writes out of bounds
)
"""Faults of version 3.2, found by comparing results for random problems with their definition, in
poisoned memory. The library's next choice is used instead."""

REPEATING = Fault(Kind.DECONVOLUTION, "brgconv_strided", 2)
"""An implementation that cuts a kernel into parts, and repeats bias and epilogue for each of them.
The number of parts depends on the caches: 28 for k16 s8. Here it computes only the sum."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A descriptor and the layouts that it requires; `residual` is None unless fused."""

    offer: Offer
    descriptor: Handle
    implementation: str
    src: Handle
    weights: Handle
    dst: Handle
    residual: Handle | None


def best(runtime: Runtime, problem: Problem, threads: int) -> Candidate | None:
    """Return the candidate of the first strategy that has one, or None."""
    strategies = layout_strategies(problem)
    offers = (candidate(runtime, problem, threads, strategy) for strategy in strategies)
    return next(filter(None, offers), None)


def candidate(
    runtime: Runtime, problem: Problem, threads: int, strategy: LayoutStrategy
) -> Candidate | None:
    """Return a strategy's candidate, with as much of the epilogue as possible, or None."""
    with runtime.making(threads) as library:
        options = (True,) if problem.epilogue.empty else (True, False)
        offers = (_candidate(runtime, library, problem, strategy, fused=fused) for fused in options)
        return next(filter(None, offers), None)


def _candidate(
    runtime: Runtime,
    library: Library,
    problem: Problem,
    strategy: LayoutStrategy,
    *,
    fused: bool,
    alone: bool = False,
) -> Candidate | None:
    offer = Offer.of(library, problem, strategy, fused=fused, alone=alone)
    try:
        descriptor = offer.descriptor(library, runtime.engine)
        while not _takes(runtime, offer, strategy, name := library.implementation(descriptor)):
            if library.primitive_desc_next_impl(descriptor):
                return None
    except LibraryError:  # the library has no implementation
        return None
    follows = offer.bias is not None or (fused and not problem.epilogue.empty)
    if follows and _errs(REPEATING, problem, offer.operation, name):
        return _candidate(runtime, library, problem, strategy, fused=False, alone=True)
    return offer.accepted(library, descriptor, name)


def _takes(runtime: Runtime, offer: Offer, strategy: LayoutStrategy, name: str) -> bool:
    """Whether upconv uses an implementation: it is neither slow nor known to err."""
    problem, operation = offer.problem, offer.operation
    if "ref:any" in name or (operation.kind.value, name) in runtime.distrusted:
        return False
    grouped = operation.kind is Kind.DECONVOLUTION and problem.groups > 1
    as_given = strategy is LayoutStrategy.AS_GIVEN and problem.layout is DataLayout.NXC
    if grouped and as_given and "gemm" in name:
        return False  # one product per group and row: reordering is five times as fast
    return not any(_errs(fault, problem, operation, name) for fault in FAULTS)


def _errs(fault: Fault, problem: Problem, operation: Operation, name: str) -> bool:
    return (
        operation.kind is fault.kind
        and problem.rank >= fault.rank
        and fault.name in name
        and fault.when(problem, operation)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """The arguments of a request to the library for a descriptor.

    `complete`: NumPy has nothing left to do. `adds`: the library adds to the result's old values.
    """

    problem: Problem
    operation: Operation
    src: Handle
    weights: Handle
    dst: Handle
    bias: Handle | None
    attributes: Handle
    complete: bool
    adds: bool
    result: DType
    residual: int

    @classmethod
    def of(
        cls,
        library: Library,
        problem: Problem,
        strategy: LayoutStrategy,
        *,
        fused: bool,
        alone: bool,
    ) -> Offer:
        """Return a strategy's offer: memory descriptors and attributes."""
        operation, any_layout = Operation.of(problem), strategy is LayoutStrategy.ANY
        weights = operation.kind is Kind.WEIGHTS
        # In strided deconvolutions, version 3.2 adds the old values once per depth tap.
        complete = problem.epilogue.empty or (fused and problem.epilogue.activation in _EXACT)
        complete = complete and not (alone and problem.bias)
        adds = problem.accumulate and complete and operation.kind is Kind.CONVOLUTION
        adds = adds and not any_layout
        # A reorder could only add to the activation's result, which would be too late.
        late = problem.epilogue.activation is not Activation.NONE
        complete = complete and (adds or not (problem.accumulate and late))
        is_final = complete and (adds or not problem.accumulate)
        dtype, result = problem.dtype, problem.dtype if is_final else DType.FLOAT32
        data, out = DTYPE[dtype], DTYPE[result]

        def described(tensor: Tensor, element: int) -> Handle:
            if any_layout:
                return library.any_layout(tensor.dims, element)
            return library.strided(tensor.dims, element, tensor.strides)

        residual = None
        if fused and problem.epilogue.residual:
            residual = described(operation.dst, data)
        bias = None
        if problem.bias and not alone:
            bias = library.strided((problem.result_channels,), data, (1,))
        return cls(
            problem, operation,
            described(operation.src, data),
            library.any_layout(operation.weights.dims, out if weights else data),
            described(operation.dst, data if weights else out),
            bias, _attributes(library, problem, residual, activation=complete, adds=adds),
            complete, adds, result, 0 if residual is None else Arg.POST_OP | Arg.SRC_1,
        )  # fmt: skip

    def descriptor(self, library: Library, engine: Handle) -> Handle:
        """Return the descriptor of the library's first choice; raise `LibraryError` if none."""
        window = self.operation.window
        spatial = tuple(map(vector, (window.strides, window.dilates, window.begin, window.end)))
        tensors = (self.src, self.weights, self.bias, self.dst)
        first: tuple[Any, ...] = (FORWARD_INFERENCE, Alg.CONVOLUTION_DIRECT)
        last: tuple[Any, ...] = (self.attributes,)
        if self.operation.kind is Kind.DECONVOLUTION:
            first = FORWARD_INFERENCE, Alg.DECONVOLUTION_DIRECT
        elif self.operation.kind is Kind.WEIGHTS:  # a hint precedes the attributes
            first, last = (Alg.CONVOLUTION_DIRECT,), (None, self.attributes)
        name = self.operation.kind.value
        return library.primitive_desc(name, engine, *first, *tensors, *spatial, *last)

    def accepted(self, library: Library, descriptor: Handle, name: str) -> Candidate:
        """Return the candidate for a descriptor, with the layouts that it requires."""
        backward = self.operation.kind is Kind.WEIGHTS
        queries = Query.SRC, Query.WEIGHTS, Query.DST
        if backward:
            queries = Query.SRC, Query.DIFF_WEIGHTS, Query.DIFF_DST
        src, weights, dst = (library.queried_md(descriptor, query) for query in queries)
        residual = None
        if self.residual:
            residual = library.queried_md(descriptor, Query.EXECUTION_ARGUMENT, self.residual)
        return Candidate(self, descriptor, name, src, weights, dst, residual)


def _attributes(
    library: Library, problem: Problem, residual: Handle | None, *, activation: bool, adds: bool
) -> Handle:
    """Return attributes with the operations that follow the sum, in order of execution."""
    epilogue, following = problem.epilogue, list[tuple[Any, ...]]()
    algorithm = _EXACT.get(epilogue.activation) if activation else None
    if residual is not None:
        following.append(("binary", Alg.BINARY_ADD, residual))
    if adds:
        following.append(("sum", 1.0, 0, 0))
    if algorithm is not None:
        following.append(("eltwise", algorithm, epilogue.slope, 0.0))
    return library.attributes(*following)
