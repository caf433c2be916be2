"""The two protocols that every engine satisfies, the candidates that an engine with a
model may list, and nothing that computes.

An engine refuses a problem in one sentence or builds a primitive for it. A primitive is everything
about one problem that can be prepared without data; running it does no geometry. It is run by many
threads at once, so `run` keeps its scratch memory to itself.
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
"""A weight in the engine's own order: only the primitive that made it looks inside."""


class Primitive(Protocol):
    """One problem, ready to run."""

    @property
    def workspace_bytes(self) -> int:
        """The most scratch memory one running call takes, in bytes; a packed weight not counted."""

    @property
    def resident_bytes(self) -> int:
        """Memory kept while cached."""

    @property
    def description(self) -> str:
        """One line for people about the schedule; "" where there is nothing to say."""

    @property
    def predicted_cycles(self) -> float:
        """Processor cycles that one call takes of each thread, by the engine's model of it.

        0.0 where it has none.
        """

    def pack(self, weight: Array) -> PackedWeight:
        """`weight`, of the problem's weight shape, in the engine's own order.

        May raise `nonfinite.NonFinite` inside `NonFiniteFallback`.

        A primitive may have an attribute `order`: a weight that one has packed is then read by all
        whose orders are equal, such as those of other sizes. None stands for no other.
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
        """Compute into `out`; operands (a, b) by direction:

        FORWARD (x, packed weight); INPUT_GRAD (g, packed weight); WEIGHT_GRAD (g, x).

        bias, slopes: one number per channel of the result. residual: of the result's shape. second:
        the array of the second result, of the result's shape.

        Shapes and dtype are the problem's; strides are arbitrary. `out` and `second` overlap
        neither each other nor an operand. `bias`, `residual`, `slopes` and `second` are given
        exactly when the problem says so; no problem has the last two that an engine refuses.
        """

    def close(self) -> None:
        """Give back what the primitive holds; it is not run again."""


class Engine(Protocol):
    """A way of computing problems.

    An engine with a model of its speed may have a method `candidates(problem, threads, every)` that
    returns a tuple of `Candidate`; `every` asks for those too that the model never takes by itself.
    Of an engine without that method the variant "" is taken.
    """

    @property
    def name(self) -> str:
        """The word users write."""

    def fingerprint(self) -> str:
        """Versions, CPU features, modes: all that a primitive depends on besides its problem."""

    def refuses(self, problem: Problem) -> str | None:
        """None when it can do `problem`, else why not, in one sentence for people."""

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """Short names, such as "channels", of the ways to build a problem that tuning may measure.

        The first is "", the model's own choice; it is the only one of an engine without others.
        """

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """A primitive for a problem that is not refused, for at most `threads` threads; slow.

        `variant` is one of `variants(problem, threads)`.
        """


def tf32_refusal(problem: Problem) -> str | None:
    """Why no engine of a processor does a problem: a sentence where it asks for TF32."""
    return "TF32 is a type of NVIDIA's tensor cores: pass arrays of a GPU" if problem.tf32 else None


def on_device(engine: Engine) -> bool:
    """Whether an engine computes on a device, whose memory the arrays' own library hands out.

    Such an engine has an attribute `library`. For tuning it has `placed`, which copies an array of
    main memory there, and `sample`, the seconds of a call by the device's own clock.
    """
    return getattr(engine, "library", None) is not None


class Eligible(Enum):
    """When a candidate is taken."""

    BY_MODEL = "by the model"
    ON_REQUEST = "on request"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way of computing a problem, as a model of the machine sees it.

    `engine` builds it as `variant`. An engine may list what it expects of another engine: that one
    is asked where the candidate is the cheapest. `cycles` are those of each thread in one call,
    `packing` those that packing the weight adds, `workspace` about the bytes of scratch memory.
    A candidate with a `margin` is taken where it seems so many times as fast as the others.

    Candidates with equal `sums` add up in the same order: they have equal bits at every size, and
    None promises nothing. `winograd` says that products are saved, `exact` that errors stay within
    what is promised of direct sums. `reason` is a sentence: why it is slow, or never taken.
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
        """Whether it can be built at all."""
        return self.eligible is not Eligible.NEVER

    def cost(self, *, once: bool) -> float:
        """Cycles as candidates are compared by them; `once` counts the packing of the weight."""
        return self.margin * (self.cycles + self.packing * once)


def ranked(candidates: Iterable[Candidate], *, once: bool = False) -> list[Candidate]:
    """The candidates that a model takes by itself, the cheapest first, of equal ones the first."""
    eligible = [candidate for candidate in candidates if candidate.eligible is Eligible.BY_MODEL]
    return sorted(eligible, key=lambda candidate: candidate.cost(once=once))
