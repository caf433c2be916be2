"""The two protocols that every engine implements, and the candidates that cost models compare.

An engine refuses a problem in one sentence or builds a primitive for it. A primitive is everything
that can be prepared for a problem before its data is known; running it does no geometry. Several
threads may run it at once, so each call of `run` uses separate scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from numpy.typing import NDArray

from ..problem import Problem

Array = NDArray[Any]
Maybe = Array | None
"""An array, or None for an argument that is left out."""
PackedWeight = Any
"""A weight in the engine's order; only the primitive that packed it can interpret it."""


class Primitive(Protocol):
    """One problem, ready to run."""

    @property
    def workspace_bytes(self) -> int:
        """Upper bound of a call's scratch memory in bytes, excluding the packed weight."""

    @property
    def resident_bytes(self) -> int:
        """Memory in bytes that the primitive keeps while it is cached."""

    @property
    def description(self) -> str:
        """The schedule in one readable line, or ""."""

    @property
    def predicted_cycles(self) -> float:
        """Predicted processor cycles per thread for one call.

        0.0 if the engine has no cost model.
        """

    def pack(self, weight: Array) -> PackedWeight:
        """Return `weight`, an array of the problem's weight shape, in the engine's order.

        May raise `nonfinite.NonFinite` inside `NonFiniteFallback`.

        A primitive may have an attribute `order`. Primitives with equal orders, such as two for
        different sizes, can share packed weights. None means that weights cannot be shared.
        """

    def run(
        self,
        out: Array,
        a: Array,
        b: Any,
        bias: Maybe = None,
        residual: Maybe = None,
        slopes: Maybe = None,
        second: Maybe = None,
    ) -> None:
        """Compute into `out`; the direction determines the operands (a, b):

        FORWARD (x, packed weight); INPUT_GRAD (g, packed weight); WEIGHT_GRAD (g, x).

        bias, slopes: one number per channel of the result. residual: an array of the result's
        shape. second: the array for the second result, of the same shape.

        Shapes and dtype are the problem's; strides are arbitrary. `out` and `second` overlap
        neither each other nor an operand. `bias`, `residual`, `slopes` and `second` are passed
        exactly when the problem has them. An engine may refuse problems with the last two.
        """

    def close(self) -> None:
        """Release the primitive's resources; it must not be run again."""


class Engine(Protocol):
    """A backend that computes problems.

    An engine with a cost model may have a method `candidates(problem, threads, every)` that
    returns a tuple of `Candidate`; `every` includes those that the model never chooses by itself.
    An engine without this method builds only the variant "".
    """

    @property
    def name(self) -> str:
        """The name by which users select the engine."""

    def fingerprint(self) -> str:
        """Return the versions, CPU features and modes on which primitives depend."""

    def refuses(self, problem: Problem) -> str | None:
        """Return None if the engine can compute `problem`, else the reason in one sentence."""

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """Return short names, such as "channels", of the implementations that tuning may measure.

        The first is "", the engine's default. An engine without alternatives returns only this one.
        """

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Build a primitive that uses at most `threads` threads, for a problem it does not refuse.

        Building is slow. `variant` is one of `variants(problem, threads)`.
        """


def tf32_refusal(problem: Problem) -> str | None:
    """Return why CPU engines refuse a problem that requests TF32, or None if it does not."""
    return "only NVIDIA GPUs have TF32: pass GPU arrays" if problem.tf32 else None


def on_device(engine: Engine) -> bool:
    """Whether an engine computes on a device, with arrays that another library allocates there.

    Such an engine has an attribute `library`. For tuning it has `placed`, which copies an array
    from main memory to the device, and `sample`, which times a call with the device's clock.
    """
    return getattr(engine, "library", None) is not None


class Eligible(Enum):
    """When a candidate may be chosen."""

    BY_MODEL = "by the model"
    ONCE = "by the model, for one call with a weight"
    ON_REQUEST = "on request"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An implementation of a problem, with its predicted cost.

    `engine` builds it as `variant`. An engine may list a candidate of another engine, which is then
    queried if that candidate is the cheapest. `cycles` counts cycles per thread for one call,
    `packing` the extra cycles for packing the weight; `workspace` estimates scratch bytes.
    A candidate with a `margin` is chosen only if it seems that many times as fast as the others.

    Candidates with equal `sums` add in the same order, so their results are bitwise equal at every
    size; None promises nothing. `winograd` means that the candidate saves multiplications, and
    `exact` that its errors stay within the bounds promised for direct sums. `reason` says in one
    sentence why the candidate is slow or never chosen.
    """

    engine: str
    variant: str
    cycles: float = 0.0
    packing: float = 0.0
    workspace: int = 0
    sums: str | None = None
    margin: float = 1.0
    winograd: bool = False
    exact: bool = True
    eligible: Eligible = Eligible.BY_MODEL
    reason: str = ""

    @property
    def possible(self) -> bool:
        """Whether the candidate can be built at all."""
        return self.eligible is not Eligible.NEVER

    def cost(self, *, once: bool) -> float:
        """Return the cycles to compare candidates by; `once` includes packing the weight."""
        return self.margin * (self.cycles + self.packing * once)


def ranked(candidates: Iterable[Candidate], *, once: bool = False) -> list[Candidate]:
    """Return the candidates that the model may choose by itself, cheapest first, ties in order.

    once: whether the weight is packed for one call only."""
    allowed = {Eligible.BY_MODEL, Eligible.ONCE} if once else {Eligible.BY_MODEL}
    eligible = [candidate for candidate in candidates if candidate.eligible in allowed]
    return sorted(eligible, key=lambda candidate: candidate.cost(once=once))
