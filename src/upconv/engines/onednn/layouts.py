"""Layout strategies: in which layouts data is offered to the library.

    AS_GIVEN      data as it lies, tried first where channels come last
    ANY           data in whatever layout the library likes; it is reordered on the way

Tuning measures both.
"""

from __future__ import annotations

from enum import Enum

from ...problem import DataLayout, Problem


class LayoutStrategy(Enum):
    """The strategies above; the value is the variant's name."""

    AS_GIVEN = "plain"
    ANY = "reordered"


def layout_strategies(problem: Problem) -> tuple[LayoutStrategy, ...]:
    """The strategies, the faster by expectation first."""
    order = LayoutStrategy.AS_GIVEN, LayoutStrategy.ANY
    return order if problem.layout is DataLayout.NXC else order[::-1]
