"""Rules about what a layer's taps do to its result: checkerboards, gaps, edges, idle taps.

Along one axis, output o is made by the taps of phase r = o mod s (see `upconv.geometry`), n_r of
them inside, fewer at the border, which is left out here. Over all axes, phase r = (r_1, ...) has
n_r = the product of theirs.

The measure of a checkerboard. To an input that is constant in space, x_c everywhere in channel c,
output channel m answers y[m, r] = sum over c of x_c * A[c, m, r], A being the sum of the taps of
phase r. Which constants a layer sees inside a network cannot be told, and for any single one, all
ones included, sums over many channels differ between phases by chance. So the loudness of a phase
is the mean square over all of them, independent and of unit power, and over output channels:

    L_r = sqrt(mean over c, m of A[c, m, r]^2)        contrast = 1 - min L / max L

With one input channel L_r is the plain sum of taps. Random weights have the contrast of their
overlap (3 taps at stride 2: 1 - sqrt(1/2) per axis), those of an even overlap have none, bilinear
weights have none at any overlap, nor has an inverse Fourier transform whose windows add up. Phases
without taps are another rule's. So that chance explains it in few layers, the difference of loudest
and quietest phase must exceed `_DEVIATIONS` standard errors over the pairs (c, m).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod, sqrt
from typing import Any

import numpy as np

from ....arrays import Array
from ....geometry import Axis
from ...nodes import ANY_SIZE, ConvTransposeNode
from ..findings import Severity
from ..places import Place, countable
from ..wording import along
from .base import Observation

_MOST_PHASES = 1 << 12  # over all axes, for the loudness
CONTRAST = 0.25
"""Loudness differing by more is a checkerboard; half of it is seen by few people in a picture."""
EVEN = 0.05
"""Weights with a smaller contrast make up for an uneven overlap."""
_DEVIATIONS = 5.0


def uneven_overlap(place: Place) -> Iterator[Observation]:
    """Some outputs are made by more taps than others."""
    site = place.site
    if site is None or not countable(site):
        return
    counts = [_taps_per_phase(axis) for axis in site.axes]
    uneven = [i for i, axis in enumerate(counts) if len(set(axis)) > 1 and _periodic(site, i)]
    if not uneven or any(0 in axis for axis in counts):
        return
    most, least = (prod(f(axis) for axis in counts) for f in (max, min))
    loudness = _loudness(site)
    made_up = loudness is not None and loudness.contrast < EVEN
    yield Observation(
        f"Its overlap is uneven {along(uneven)}: {_kernels(site, uneven)}, so some outputs add up"
        f" {most} taps of each channel and others {least}"
        + ("; its weights make up for that." if made_up else "."),
        {
            "axes": uneven,
            "kernel": [axis.kernel for axis in site.axes],
            "stride": [axis.stride for axis in site.axes],
            "dilation": [axis.dilation for axis in site.axes],
            "taps_per_phase": counts,
            "most_taps": most,
            "least_taps": least,
            "contrast": None if loudness is None else round(loudness.contrast, 4),
        },
        Severity.NOTE if made_up else None,
    )


def checkerboard_weights(place: Place) -> Iterator[Observation]:
    """Weights that answer a constant input with a pattern."""
    site = place.site
    if site is None or (loudness := _loudness(site)) is None:
        return
    if loudness.contrast <= CONTRAST or loudness.deviations <= _DEVIATIONS:
        return
    yield Observation(
        f"To inputs that are constant in space its outputs differ by {loudness.contrast:.0%}"
        f" between positions: phase {loudness.loudest} is the loudest, phase {loudness.quietest}"
        " the quietest.",
        {
            "contrast": round(loudness.contrast, 4),
            "standard_errors": None
            if loudness.deviations == inf
            else round(loudness.deviations, 2),
            "loudest": list(loudness.loudest),
            "quietest": list(loudness.quietest),
            "loudness": loudness.relative,
            "channel": loudness.channel,
            "channel_contrast": round(loudness.channel_contrast, 4),
        },
    )


def dead_phases(place: Place) -> Iterator[Observation]:
    """Output positions, again and again, that no tap reaches."""
    site = place.site
    if site is None:
        return
    dead = [axis.stride - _living(axis) for axis in site.axes]
    axes = [i for i, count in enumerate(dead) if count and _periodic(site, i)]
    if not axes:
        return
    living = prod((a.stride - n) / a.stride for a, n in zip(site.axes, dead, strict=True))
    zeros_only = all(axis.kernel == 1 for axis in site.axes)
    yield Observation(
        f"{1 - living:.0%} of its outputs hold the bias alone: {along(axes)}"
        f" {_kernels(site, axes)}, so no tap reaches them"
        + (" (it only puts zeros between its inputs)." if zeros_only else "."),
        {
            "axes": axes,
            "kernel": [axis.kernel for axis in site.axes],
            "stride": [axis.stride for axis in site.axes],
            "dilation": [axis.dilation for axis in site.axes],
            "dead_phases": dead,
            "share": round(1 - living, 4),
        },
        Severity.NOTE if zeros_only else None,
    )


def bias_only_edge(place: Place) -> Iterator[Observation]:
    """Positions at an end beyond everything the taps reach."""
    site = place.site
    if site is None:
        return
    beyond = [[max(0, -axis.crop_begin), max(0, -axis.crop_end)] for axis in site.axes]
    axes = [i for i, ends in enumerate(beyond) if any(ends)]
    if axes:
        ends = ", ".join(f"{beyond[i]} (begin, end) along axis {i}" for i in axes)
        yield Observation(
            f"Positions at its border that no product reaches hold the bias alone: {ends}.",
            {"axes": axes, "positions": beyond, "padding": _paddings(site.axes)},
        )


def unused_taps(place: Place) -> Iterator[Observation]:
    """Taps that make no output, at the sizes known."""
    site = place.site
    if site is None or not countable(site):
        return
    used = [
        sum(map(axis.meets, range(axis.kernel))) if size is not None else axis.kernel
        for axis, size in zip(site.axes, site.sizes, strict=True)
    ]
    kernel = [axis.kernel for axis in site.axes]
    if used == kernel:
        return
    share = 1 - prod(used) / prod(kernel)
    yield Observation(
        f"{share:.0%} of its weight reaches no output of an input of {list(site.sizes)}: of kernel"
        f" {kernel}, {used} taps are used.",
        {"kernel": kernel, "used_taps": used, "sizes": list(site.sizes), "share": round(share, 4)},
    )


@dataclass(frozen=True, slots=True)
class Loudness:
    """The loudness of every phase; see the module's text.

    `relative` lists it over the largest, nested by axis. `channel` is the output channel, of the
    first group's, with the largest contrast of its own.
    """

    contrast: float
    deviations: float
    loudest: tuple[int, ...]
    quietest: tuple[int, ...]
    relative: list[object]
    channel: int
    channel_contrast: float


def _loudness(site: ConvTransposeNode) -> Loudness | None:
    """None where there is nothing to compare, or no readable, finite weight to compare it with."""
    array = site.weight.array
    if array is None or array.dtype.kind not in "fV" or not countable(site):
        return None
    if not any(len(_taps_per_phase(axis)) > 1 for axis in site.axes):
        return None
    if prod(axis.stride for axis in site.axes) > _MOST_PHASES or not all(
        _periodic(site, i) for i, axis in enumerate(site.axes) if axis.stride > 1
    ):
        return None
    taps = [_phase_taps(axis) for axis in site.axes]
    if any(not phase for axis in taps for phase in axis):
        return None
    return _compared(_sums(array, taps))


def _sums(w: Array, taps: Sequence[Sequence[Sequence[int]]]) -> Array:
    """A[c, m, r_1, r_2, ...], the sums of the taps of every phase."""
    dtype = np.float64 if w.dtype == np.float64 else np.float32
    for i, phases in enumerate(taps):
        parts = [np.take(w, phase, axis=2 + i).sum(axis=2 + i, dtype=dtype) for phase in phases]
        w = np.stack(parts, axis=2 + i)
    return w


def _compared(sums: Array) -> Loudness | None:
    phases = list(product(*map(range, sums.shape[2:])))
    power = np.array([_square(sums, r).mean(axis=0) for r in phases])  # (phases, M/groups)
    whole = power.mean(axis=1)
    if not np.isfinite(whole).all() or not whole.max():
        return None
    high, low = int(whole.argmax()), int(whole.argmin())
    own = 1 - np.sqrt(power.min(axis=0) / np.maximum(power.max(axis=0), np.finfo(float).tiny))
    relative = np.sqrt(whole / whole[high]).round(4).reshape(sums.shape[2:])
    return Loudness(
        1 - sqrt(whole[low] / whole[high]),
        _deviations(_square(sums, phases[high]) - _square(sums, phases[low])),
        phases[high],
        phases[low],
        relative.tolist(),
        int(own.argmax()),
        float(own.max()),
    )


def _square(sums: Array, phase: tuple[int, ...]) -> Array:
    """A[:, :, phase] squared."""
    where: tuple[Any, ...] = (..., *phase)
    with np.errstate(over="ignore", invalid="ignore"):
        squared: Array = np.square(sums[where], dtype=np.float64)
    return squared


def _deviations(differences: Array) -> float:
    """The mean of some numbers in its standard errors; infinite where they are all the same."""
    spread = float(differences.std())
    if spread <= np.finfo(np.float32).eps * float(np.abs(differences).max()):
        return inf
    return float(differences.mean()) / spread * sqrt(differences.size)


def _periodic(site: ConvTransposeNode, i: int) -> bool:
    """Whether an axis has an inside that repeats: with one input, all is border."""
    size = site.sizes[i]
    return size is None or size > 1


def _phase_taps(axis: Axis) -> list[list[int]]:
    whole = replace(axis, size=ANY_SIZE)
    return [[tap.index for tap in phase.taps] for phase in whole.phases()]


def _taps_per_phase(axis: Axis) -> list[int]:
    return [len(phase) for phase in _phase_taps(axis)]


def _living(axis: Axis) -> int:
    """Phases that have taps: as many as there are taps until they meet again."""
    return min(axis.kernel, axis.period)


def _kernels(site: ConvTransposeNode, axes: Sequence[int]) -> str:
    """What makes the phases of these axes, in words; said once where it is the same for all."""
    said = []
    for i in axes:
        axis = site.axes[i]
        dilation = f", dilation {axis.dilation}" if axis.dilation > 1 else ""
        said.append(f"kernel {axis.kernel}{dilation} at stride {axis.stride}")
    return " and ".join(dict.fromkeys(said))


def _paddings(axes: Sequence[Axis]) -> list[list[int]]:
    return [[axis.crop_begin, axis.crop_end] for axis in axes]
