"""Limits of the JIT engine: it refuses problems that need very large tables or too much code.

Some kernels have limits of their own: `limits.py` in their folders.
"""

from __future__ import annotations

from math import prod

from ...problem import Direction, Problem


def too_much(problem: Problem) -> str | None:
    """Return why a problem would need too much code or tables that are too large, or None."""
    *outer, last = problem.axes
    sizes = (prod(getattr(axis, side) for axis in problem.axes) for side in ("size", "out"))
    limits = [
        ("positions of a channel", problem.batch * max(sizes), 1 << 31),
        ("taps along the last axis", last.kernel, 1 << 16),
        ("taps over the other axes", prod(axis.kernel for axis in outer), 1 << 16),
    ]
    if problem.direction is Direction.FORWARD:
        phase_tuples = prod(min(axis.stride, axis.out) for axis in outer)
        rows = prod(
            max(axis.size, axis.out // axis.stride) + (axis.extent - 1) // axis.stride
            for axis in outer
        )
        blocks = problem.out_channels // problem.groups * -(-min(last.stride, last.out) // 16)
        limits += [
            ("phases along the last axis", min(last.stride, last.out), 1 << 14),
            ("combinations of phases over the other axes", phase_tuples, 1 << 12),
            ("rows of one image, times combinations of phases", rows * phase_tuples, 1 << 22),
            ("blocks of output channels", blocks, 1 << 17),
        ]
    else:
        channels = max(problem.in_channels, problem.out_channels) // problem.groups
        limits.append(("channels of a group", channels, 1 << 17))
    if problem.direction is Direction.WEIGHT_GRAD:
        taps = prod(axis.kernel for axis in outer)
        rows = problem.batch * prod(axis.size for axis in outer)
        limits += [
            ("taps", taps * last.kernel, 1 << 16),
            ("rows of all images, times taps over the other axes", rows * taps, 1 << 22),
        ]
    for name, number, most in limits:
        if number > most:
            return f"its tables hold at most {most} {name}, and this problem has {number}"
    return None
