"""The candidates by Winograd's algorithm: one for each promising choice of tiles."""

from __future__ import annotations

from math import prod

from ...base import Candidate, Eligible
from ..correlation import Correlation
from ..cpu import Cpu
from ..direct import packing_cycles, refused, weight_numbers
from .schedule import Schedule, named_schedule, reduction_of, refusal, schedules

_PREFIX = "winograd "
_MOST_NUMBERS = 1 << 26  # of a transformed weight, which is up to eight times the weight


def candidates(
    correlation: Correlation, threads: int, cpu: Cpu, *, every: bool
) -> tuple[Candidate, ...]:
    """The fastest first; `every` one, or none where the model takes none of them."""
    reason = refusal(correlation)
    if reason is not None:
        return (refused("winograd", reason, winograd=True),)
    reason = _too_little(correlation, cpu.costs.winograd.products)
    if reason and not every:
        return ()
    plans = schedules(correlation, threads, cpu, exact=not every)
    return tuple(_candidate(correlation, plan, threads, cpu, reason) for plan in plans)


def _candidate(
    correlation: Correlation, plan: Schedule, threads: int, cpu: Cpu, reason: str
) -> Candidate:
    form = plan.form
    numbers = weight_numbers(correlation, form.saving[0])
    if not form.exact:
        reason = f"its errors are about {form.growth:.1f} times those of direct sums"
    elif numbers > _MOST_NUMBERS:
        reason = f"its weight has {numbers:,} numbers, more than {_MOST_NUMBERS:,}"
    # Channels that do not fill a vector are packed some at a time.
    filled = min(1.0, form.padded / cpu.lanes(correlation.dtype.itemsize))
    costs = cpu.costs.winograd
    few = correlation.rank > 1 and correlation.reduced < costs.few * correlation.groups
    margin = costs.few_margin if few else costs.margin
    return Candidate(
        "jit", _PREFIX + plan.form.name, plan.cycles,
        packing_cycles(numbers, correlation, threads, cpu) / filled, plan.workspace_bytes,
        margin=margin, winograd=True, exact=form.exact,
        eligible=Eligible.ON_REQUEST if reason else Eligible.BY_MODEL, reason=reason,
    )  # fmt: skip


def _channels(correlation: Correlation) -> int:
    """Channels on the side that has fewer, phases counted as channels."""
    columns = correlation.made * prod(line.stride for line in correlation.lines)
    return min(reduction_of(correlation), columns // correlation.groups)


def _too_little(correlation: Correlation, least: int) -> str:
    """Why no transform is worth it, whichever tiles it has; "" where one may be."""
    if _channels(correlation) < 2:
        return "with one channel on either side, transforms take longer than the products they save"
    if correlation.multiply_adds < least:
        return f"with fewer than {least:,} multiply-adds, choosing tiles takes too long"
    return ""


def is_winograd(variant: str) -> bool:
    """Whether a variant is one of these."""
    return variant.startswith(_PREFIX)


def schedule_of(correlation: Correlation, variant: str, threads: int, cpu: Cpu) -> Schedule:
    """The schedule that a variant names."""
    return named_schedule(correlation, variant.removeprefix(_PREFIX), threads, cpu)
