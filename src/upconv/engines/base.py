"""The two protocols that every engine satisfies, and the candidates of engines with a cost model.

An engine refuses a problem in one sentence or builds a primitive for it. A primitive is everything
about one problem that can be prepared without data; running it does no geometry. Several threads
may run it at once, so each call of `run` has scratch memory of its own.
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
"""An array, or None where a call has none."""
PackedWeight = Any
"""A weight in the engine's own order: only the primitive that packed it looks inside."""


class Primitive(Protocol):
    """One problem, ready to run."""

    @property
    def workspace_bytes(self) -> int:
        """Upper bound of one call's scratch memory in bytes, without the packed weight."""

    @property
    def resident_bytes(self) -> int:
        """Memory in bytes that the primitive keeps while it is cached."""

    @property
    def description(self) -> str:
        """One readable line about the schedule; "" where there is nothing to say."""

    @property
    def predicted_cycles(self) -> float:
        """Processor cycles of one call on each thread, as the engine's cost model predicts them.

        0.0 where the engine has no model.
        """

    def pack(self, weight: Array) -> PackedWeight:
        """Return `weight`, an array of the problem's weight shape, in the engine's own order.

        May raise `nonfinite.NonFinite` inside `NonFiniteFallback`.

        A primitive may have an attribute `order`. Primitives with equal orders, such as those for
        other sizes, read each other's packed weights. None means that no other primitive does.
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

        bias, slopes: one number per channel of the result. residual: of the result's shape. second:
        the array of the second result, of the result's shape.

        Shapes and dtype are the problem's; strides are arbitrary. `out` and `second` overlap
        neither each other nor an operand. `bias`, `residual`, `slopes` and `second` are given
        exactly when the problem says so. An engine may refuse problems with the last two.
        """

    def close(self) -> None:
        """Release the primitive's resources; it is not run again."""


class Engine(Protocol):
    """A backend that computes problems.

    An engine with a cost model may have a method `candidates(problem, threads, every)` that
    returns a tuple of `Candidate`; `every` includes those that the model never takes by itself.
    An engine without that method is built with the variant "".
    """

    @property
    def name(self) -> str:
        """The engine's name, as users write it."""

    def fingerprint(self) -> str:
        """Versions, CPU features, modes: all that a primitive depends on besides its problem."""

    def refuses(self, problem: Problem) -> str | None:
        """Return None if the engine can compute `problem`, else one sentence that says why not."""

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """Short names, such as "channels", of the implementations that tuning may measure.

        The first is "", the model's own choice. An engine without a choice has only this one.
        """

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Build a primitive for a problem that is not refused, for at most `threads` threads.

        Building is slow. `variant` is one of `variants(problem, threads)`.
        """


def tf32_refusal(problem: Problem) -> str | None:
    """Return why CPU engines refuse a problem that asks for TF32, or None if it does not."""
    return "TF32 is a type of NVIDIA's tensor cores: pass arrays of a GPU" if problem.tf32 else None


def on_device(engine: Engine) -> bool:
    """Whether an engine computes on a device, on arrays that another library allocates there.

    Such an engine has an attribute `library`. For tuning it has `placed`, which copies an array
    from main memory to the device, and `sample`, which times a call by the device's own clock.
    """
    return getattr(engine, "library", None) is not None


class Eligible(Enum):
    """When a candidate may be taken."""

    BY_MODEL = "by the model"
    ONCE = "by the model, for one call with a weight"
    ON_REQUEST = "on request"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One implementation of a problem, with its predicted cost.

    `engine` builds it as `variant`. An engine may list a candidate of another engine, which is then
    queried if that candidate is the cheapest. `cycles` counts one call on each thread, `packing`
    the extra cycles for packing the weight, and `workspace` estimates the scratch memory in bytes.
    A candidate with a `margin` is taken only if it seems that many times as fast as the others.

    Candidates with equal `sums` add up in the same order, so their results have equal bits at every
    size; None promises nothing. `winograd` means that the candidate saves multiplications, and
    `exact` that its errors stay within the bounds promised for direct sums. `reason` is a sentence
    that says why the candidate is slow or never taken.
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
        """Cycles by which candidates are compared; `once` includes the packing of the weight."""
        return self.margin * (self.cycles + self.packing * once)


def ranked(candidates: Iterable[Candidate], *, once: bool = False) -> list[Candidate]:
    """Return the candidates that a model may take by itself, cheapest first; the sort is stable.

    once: whether the weight is packed for one call only."""
    taken = {Eligible.BY_MODEL, Eligible.ONCE} if once else {Eligible.BY_MODEL}
    eligible = [candidate for candidate in candidates if candidate.eligible in taken]
    return sorted(eligible, key=lambda candidate: candidate.cost(once=once))
