"""What an engine is: the two protocols every engine satisfies, and nothing that computes.

An engine refuses a problem in one sentence or builds a primitive for it. A primitive is everything
about one problem that can be prepared without data; running it does no geometry. It is run by many
threads at once, so `run` keeps its scratch memory to itself.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

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
        """How it computes, in one line for people: the schedule; "" where there is none to tell."""

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

    def run(self, out: Array, a: Array, b: Any, bias: Maybe = None, residual: Maybe = None) -> None:
        """Compute into `out`; operands (a, b) by direction:

        FORWARD (x, packed weight); INPUT_GRAD (g, packed weight); WEIGHT_GRAD (g, x).

        Shapes and dtype are the problem's; strides are arbitrary; `out` overlaps no operand; `bias`
        and `residual` are given exactly when the problem says so.
        """

    def close(self) -> None:
        """Give back what the primitive holds; it is not run again."""


class Engine(Protocol):
    """A way of computing problems.

    It may have a method `defers(problem)` like `refuses`, which says when it would rather have
    another engine chosen: it is taken then where only the reference engine does the problem too.
    """

    @property
    def name(self) -> str:
        """The word users write."""

    def fingerprint(self) -> str:
        """What a built primitive depends on besides its problem: versions, CPU features, modes."""

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


@runtime_checkable
class WinogradEngine(Engine, Protocol):
    """An engine some of whose variants compute by Winograd's algorithm (docs/winograd.md)."""

    def refuses_winograd(self, problem: Problem) -> str | None:
        """None when it can do a problem, which it does not refuse, so; else why not."""

    def winograd(self, problem: Problem, threads: int, *, exact: bool = False) -> tuple[str, ...]:
        """The variants that compute so, by the model the fastest first; `exact`: only those whose
        error stays within what is promised of direct sums."""

    def quicker(self, problem: Problem, threads: int, *, once: bool) -> str:
        """The exact variant that the model expects to beat what `choose` finds, or "".

        `once` counts the packing of the weight too.
        """
