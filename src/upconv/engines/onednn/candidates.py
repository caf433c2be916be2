"""Ways to give a problem to the library, and the descriptor that each leads to.

A way says in which layouts data is offered. Weights are always left to the library: given as they
lie beside channels-last data it would take its reference loops, which are a thousand times slower.

    PLAIN         data as it lies
    FREE          data in whatever layout the library likes; it is reordered on the way
    GEMM          data as it lies, and of all implementations the one by matrix products
    CONVOLUTION   stride 1 as a convolution of the turned kernel; data free if channels come first

A descriptor is *fused* if residual, activation and addition to what was there are part of it; one
that is not leaves a float32 result, to which NumPy does the rest. Reference loops are never taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ...activations import Activation
from ...problem import DataLayout, Direction, DType, Problem
from .abi import DTYPE, Alg, Arg, Handle, Library, LibraryError, Prop, Query, vector
from .descriptors import Kind, Operation, Tensor, turns_into_convolution
from .library import Runtime

_FEW_CHANNELS = 8
"""Up to so many output channels of a group, padding them to a vector costs more than columns."""

_ELTWISE = {
    Activation.RELU: (Alg.RELU, 0.0),
    Activation.LEAKY_RELU: (Alg.RELU, None),
    Activation.TANH: (Alg.TANH, 0.0),
    Activation.SIGMOID: (Alg.LOGISTIC, 0.0),
    Activation.SILU: (Alg.SWISH, 1.0),
    Activation.GELU: (Alg.GELU_ERF, 0.0),
}
"""Algorithm and alpha of an activation; None stands for the problem's slope."""


class Way(Enum):
    """The ways above; the value is the variant's name."""

    PLAIN = "plain"
    FREE = "reordered"
    GEMM = "gemm"
    CONVOLUTION = "convolution"


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A descriptor with the layouts it wants; `residual` is None unless that is fused in."""

    operation: Operation
    descriptor: Handle
    implementation: str
    fused: bool
    adds: bool
    result: DType
    src: Handle
    weights: Handle
    dst: Handle
    scratchpad: Handle
    residual: Handle | None


def ways(problem: Problem, *, every: bool = False) -> tuple[Way, ...]:
    """The ways worth trying, the one expected to be fastest first; `every`: all that there are."""
    first = problem.layout is DataLayout.NCX
    usual = (Way.FREE, Way.PLAIN) if first else (Way.PLAIN, Way.FREE)
    if problem.direction is not Direction.FORWARD:
        return usual
    gemm = (Way.GEMM,) if _few(problem) else ()
    late = (Way.GEMM,) if every and not gemm else ()
    turned = (Way.CONVOLUTION,) if turns_into_convolution(problem) else ()
    return (*gemm, *usual, *turned, *late)


def _few(problem: Problem) -> bool:
    return problem.out_channels // problem.groups <= _FEW_CHANNELS


def best(runtime: Runtime, problem: Problem, threads: int) -> Candidate | None:
    """The first way that leads to more than reference loops; None if none does."""
    for way in ways(problem):
        found = candidate(runtime, problem, threads, way)
        if found is not None:
            return found
    return None


def candidate(runtime: Runtime, problem: Problem, threads: int, way: Way) -> Candidate | None:
    """What a way leads to: fused if there is such an implementation, else the rest by NumPy."""
    with runtime.making(threads) as library:
        for fused in (True, False) if not problem.epilogue.empty else (True,):
            found = _candidate(library, runtime.engine, problem, way, fused=fused)
            if found is not None:
                return found
    return None


def _candidate(
    library: Library, engine: Handle, problem: Problem, way: Way, *, fused: bool
) -> Candidate | None:
    turned = way is Way.CONVOLUTION
    operation = Operation.by_convolution(problem) if turned else Operation.of(problem)
    offer = _Offer.of(library, problem, operation, way, fused=fused)
    try:
        descriptor = offer.descriptor(library, engine)
    except LibraryError:  # it has no implementation of this
        return None
    name = library.implementation(descriptor)
    while way is Way.GEMM and "gemm" not in name:
        if library.primitive_desc_next_impl(descriptor):
            return None
        name = library.implementation(descriptor)
    if "ref:any" in name:
        return None
    return offer.accepted(library, descriptor, name)


@dataclass(frozen=True, slots=True, eq=False)
class _Offer:
    """What a descriptor is asked for with."""

    problem: Problem
    operation: Operation
    src: Handle
    weights: Handle
    dst: Handle
    bias: Handle | None
    attributes: Handle
    fused: bool
    adds: bool
    result: DType
    residual: int

    @classmethod
    def of(
        cls, library: Library, problem: Problem, operation: Operation, way: Way, *, fused: bool
    ) -> _Offer:
        """Memory descriptors and attributes of one way."""
        free = way is Way.FREE or (way is Way.CONVOLUTION and problem.layout is DataLayout.NCX)
        weights = operation.kind is Kind.WEIGHTS
        # Version 3.2 adds what was there once for every tap of depth in strided deconvolutions.
        adds = problem.accumulate and fused and not free and operation.kind is Kind.CONVOLUTION
        whole = fused and (adds or not problem.accumulate)
        dtype, result = problem.dtype, problem.dtype if whole else DType.FLOAT32
        data, out = DTYPE[dtype], DTYPE[result]

        def described(tensor: Tensor, element: int) -> Handle:
            if free:
                return library.any_layout(tensor.dims, element)
            return library.strided(tensor.dims, element, tensor.strides)

        residual = fused and problem.epilogue.residual
        return cls(
            problem,
            operation,
            src=described(operation.src, data),
            weights=library.any_layout(operation.weights.dims, out if weights else data),
            dst=described(operation.dst, data if weights else out),
            bias=library.strided((problem.result_channels,), data, (1,)) if problem.bias else None,
            attributes=_attributes(
                library,
                problem,
                described(operation.dst, data) if residual else None,
                fused=fused,
                adds=adds,
            ),
            fused=fused,
            adds=adds,
            result=result,
            residual=Arg.POST_OP | Arg.SRC_1 if residual else 0,
        )

    def descriptor(self, library: Library, engine: Handle) -> Handle:
        """The library's first implementation; `LibraryError` if it has none."""
        window = self.operation.window
        spatial = tuple(map(vector, (window.strides, window.dilates, window.begin, window.end)))
        src, weights, dst, bias = self.src, self.weights, self.dst, self.bias
        name = self.operation.kind.value
        direct = Alg.CONVOLUTION_DIRECT
        if self.operation.kind is Kind.WEIGHTS:
            backward = (direct, src, weights, None, dst)
            return library.primitive_desc(name, engine, *backward, *spatial, None, self.attributes)
        if self.operation.kind is Kind.DECONVOLUTION:
            direct = Alg.DECONVOLUTION_DIRECT
        tensors = (Prop.FORWARD_INFERENCE, direct, src, weights, bias, dst)
        return library.primitive_desc(name, engine, *tensors, *spatial, self.attributes)

    def accepted(self, library: Library, descriptor: Handle, name: str) -> Candidate:
        """The descriptor with the layouts it wants."""
        backward = self.operation.kind is Kind.WEIGHTS
        queries = (
            (Query.SRC, Query.DIFF_WEIGHTS, Query.DIFF_DST)
            if backward
            else (Query.SRC, Query.WEIGHTS, Query.DST)
        )
        src, weights, dst = (library.queried_md(descriptor, query) for query in queries)
        residual = None
        if self.residual:
            residual = library.queried_md(descriptor, Query.EXECUTION_ARGUMENT, self.residual)
        return Candidate(
            self.operation,
            descriptor,
            name,
            self.fused,
            self.adds,
            self.result,
            src,
            weights,
            dst,
            library.queried_md(descriptor, Query.SCRATCHPAD),
            residual,
        )


def _attributes(
    library: Library, problem: Problem, residual: Handle | None, *, fused: bool, adds: bool
) -> Handle:
    """User's scratchpad, and what is fused in, in the order in which it happens."""
    attributes = library.create("primitive_attr")
    library.call("primitive_attr_set_scratchpad_mode", attributes, 1)
    if not fused:
        return attributes
    epilogue = problem.epilogue
    with library.create("post_ops") as post:
        if residual is not None:
            library.call("post_ops_append_binary", post, Alg.BINARY_ADD, residual)
        if epilogue.activation is not Activation.NONE:
            algorithm, alpha = _ELTWISE[epilogue.activation]
            slope = epilogue.slope if alpha is None else alpha
            library.call("post_ops_append_eltwise", post, algorithm, slope, 0.0)
        if adds:
            library.call("post_ops_append_sum", post, 1.0, 0, 0)
        library.call("primitive_attr_set_post_ops", attributes, post)
    return attributes
