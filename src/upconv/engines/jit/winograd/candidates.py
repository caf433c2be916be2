"""The candidates of Winograd's algorithm, one for each promising form."""

from __future__ import annotations

from math import inf, prod

from ...base import Candidate, Eligible
from ..correlation import Correlation
from ..cpu import Cpu
from ..direct import packing_cycles, refused, weight_numbers
from .limits import refusal
from .schedule import Schedule, forms_of, reduction_of, schedules

_PREFIX = "winograd "
_MAX_NUMBERS = 1 << 26  # in a transformed weight that the model may choose


def candidates(
    correlation: Correlation, threads: int, cpu: Cpu, *, every: bool, border: float, direct: float,
    prepared: bool,
) -> tuple[Candidate, ...]:  # fmt: skip
    """Return `every` candidate, or those that the model might choose, the fastest first.

    `border` is the number of cycles for filling the border, `direct` for direct sums: without
    `every`, forms that cannot be faster are left out. `prepared`: many runs follow one choice.
    """
    reason = refusal(correlation)
    if reason is not None:
        return (refused("winograd", reason, winograd=True),)
    costs = cpu.costs.winograd
    least = costs.prepared_products if prepared else costs.products
    reason = _too_little(correlation, least)
    if reason and not every:
        return ()
    few = correlation.rank > 1 and correlation.reduced < costs.few * correlation.groups
    margin = costs.prepared_margin if prepared else costs.margin
    if any(line.step > 1 for line in correlation.lines) and not prepared:
        margin *= costs.axis ** (correlation.rank - 1)
    margin = costs.few_margin if few else margin
    most = inf if every else direct / margin - border
    plans = schedules(correlation, threads, cpu, exact=not every, most=most)
    return tuple(
        Candidate(
            "jit", _PREFIX + plan.form.name, plan.cycles + border,
            _packing(correlation, plan, threads, cpu), plan.workspace_bytes, margin=margin,
            winograd=True, exact=plan.form.exact,
            eligible=Eligible.ON_REQUEST if why_not else Eligible.BY_MODEL, reason=why_not,
        )
        for plan in plans
        for why_not in (_reason(correlation, plan) or reason,)
    )  # fmt: skip


def _packing(correlation: Correlation, plan: Schedule, threads: int, cpu: Cpu) -> float:
    """Return the cycles for packing the weight: more if channels do not fill a vector, or if few
    taps are transposed at a time."""
    numbers = weight_numbers(correlation, plan.form.saving[0])
    filled = min(1.0, plan.form.padded / plan.form.lanes)
    taps, by_reduced = correlation.taps, correlation.weight.strides[1]
    lacking = 0.0 if by_reduced == taps else max(0.0, plan.form.lanes / taps - 1)
    costs = cpu.costs.packing
    factor = costs.transformed * (1 + costs.narrow * lacking) / filled
    return packing_cycles(numbers, correlation, threads, cpu) * factor


def _reason(correlation: Correlation, plan: Schedule) -> str:
    """Return why the model must not choose a form, or "" if it may."""
    if not plan.form.exact:
        return f"its errors are about {plan.form.growth:.1f} times those of direct sums"
    numbers = weight_numbers(correlation, plan.form.saving[0])
    if numbers > _MAX_NUMBERS:
        return f"its transformed weight has {numbers:,} numbers, more than {_MAX_NUMBERS:,}"
    return ""


def _too_little(correlation: Correlation, least: int) -> str:
    """Return why no form can be faster, or "" if one may be."""
    # Phases count as channels on both sides.
    columns = correlation.made * prod(line.stride for line in correlation.lines)
    if min(reduction_of(correlation), columns // correlation.groups) < 2:
        return "with one channel on a side, transforms take longer than the products that they save"
    if correlation.multiply_adds < least:
        return f"with fewer than {least:,} multiply-adds, choosing tiles takes too long"
    return ""


def is_winograd(variant: str) -> bool:
    """Whether a variant uses Winograd's algorithm."""
    return variant.startswith(_PREFIX)


def schedule_of(correlation: Correlation, variant: str, threads: int, cpu: Cpu) -> Schedule:
    """Return the schedule for the form that a variant names."""
    form = forms_of(correlation, cpu)[variant.removeprefix(_PREFIX)]
    return form.schedule(correlation, threads)
