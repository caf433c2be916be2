"""Rules about the number of taps per output: checkerboards, gaps, borders.

docs/onnx-lint.md defines A[c, m, r], the gain of a phase r and the contrast, and says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod, sqrt

import numpy as np

from ...arrays import Array
from ..nodes import ANY_SIZE, ConvTransposeNode
from .context import Context, axes_in_words

_MAX_TAPS = 1 << 16  # or phases along an axis: listing them takes time and memory
_MAX_PHASES = 1 << 12  # over all axes
CONTRAST = 0.25  # more is a checkerboard; half of this is rarely visible in an image
EVEN = 0.05  # weights with less contrast compensate for an uneven overlap
_SHOWN = 12  # phases per axis in a message
_DEVIATIONS = 5.0  # standard errors by which gains must differ to exclude chance


def uneven_overlap(context: Context) -> Iterator[str]:
    """Some outputs are sums of more taps than their neighbours.

    If the kernel is not a multiple of the stride, the overlap is uneven: outputs at regular
    intervals sum more products than those between them. Training can even this out, but often does
    not. It then leaves a checkerboard in images, and a tone at the frame rate in sound. Nothing is
    reported if the weights are known and compensate for it.

    Fix: Use a kernel that is a multiple of the stride (4 instead of 3 at stride 2) when the model
    is next trained, or upsample by interpolation followed by a convolution.
    """
    conv = context.conv
    counts = [[len(phase) for phase in axis] for axis in phase_taps(conv)]
    uneven = [i for i, axis in enumerate(counts) if len(set(axis)) > 1 and conv.sizes[i] != 1]
    if not uneven or any(0 in axis for axis in counts):
        return
    sums = phase_sums(conv)
    if sums is None or gains_of(sums).min() <= 1 - EVEN:
        most, least = (prod(f(axis) for axis in counts) for f in (max, min))
        yield (
            f"The overlap is uneven along {axes_in_words(uneven)} ({_kernels(conv, uneven)}): some"
            f" outputs are sums of {most} taps of each channel, others of {least}. Taps per output,"
            f" in turn: {'; '.join(f'{_some(counts[i])} along axis {i}' for i in uneven)}."
        )


def checkerboard_weights(context: Context) -> Iterator[str]:
    """The weights turn an input that is constant in space into a pattern.

    For a constant input the outputs of one phase are larger than those of another, by more than
    25 % and by more than chance explains. The gain of a phase is the root mean square, over all
    pairs of input and output channels, of the sum of its taps. Kernels that are a multiple of the
    stride can show it too. Borders are ignored.

    Fix: Look at the layer's output for a constant input. Continue training, if necessary from
    weights whose phases are scaled to the same gain.
    """
    sums = phase_sums(context.conv)
    if sums is None:
        return
    gains = gains_of(sums)
    high, low = gains.argmax(), gains.argmin()
    large, small = (tuple(map(int, np.unravel_index(i, gains.shape))) for i in (high, low))
    contrast = 1 - float(gains.min())
    power = np.square(sums.reshape(*sums.shape[:2], -1))
    differences = power[..., high] - power[..., low]
    error = float(differences.std()) / sqrt(differences.size)
    if contrast > CONTRAST and float(differences.mean()) > _DEVIATIONS * error:
        yield (
            f"For constant inputs the outputs differ by {contrast:.0%} between positions: those at"
            f" {large} modulo the strides are the largest, those at {small} the smallest."
        )


def dead_phases(context: Context) -> Iterator[str]:
    """No tap reaches outputs at regular intervals, which hold only the bias.

    A kernel smaller than the stride, or a dilation that has a common divisor with it, leaves gaps
    that do not depend on the input. If every kernel is 1, the node only inserts zeros for a filter
    that follows, and nothing is reported.

    Fix: Use a kernel of at least the stride, and a dilation without a common divisor with it.
    """
    conv = context.conv
    reached = [min(axis.kernel, axis.period) / axis.stride for axis in conv.axes]
    axes = [i for i, part in enumerate(reached) if part < 1 and conv.sizes[i] != 1]
    if axes and any(axis.kernel > 1 for axis in conv.axes):
        yield (
            f"{1 - prod(reached):.0%} of the outputs hold only the bias: no tap reaches them along"
            f" {axes_in_words(axes)} ({_kernels(conv, axes)})."
        )


def bias_only_border(context: Context) -> Iterator[str]:
    """No tap reaches outputs at a border, which hold only the bias.

    output_padding, or an output_shape, that exceeds what the padding cuts off adds positions beyond
    the last product: a border that no input can change.

    Fix: Cut off more at that end (pads), ask for less (output_padding, output_shape), or use a
    larger kernel.
    """
    ends = [(max(0, -axis.crop_begin), max(0, -axis.crop_end)) for axis in context.conv.axes]
    shown = [f"the first {a} and last {b} of axis {i}" for i, (a, b) in enumerate(ends) if a or b]
    if shown:
        words = "No tap reaches positions at the border, which hold only the bias"
        yield f"{words}: {', '.join(shown)}."


def phase_taps(conv: ConvTransposeNode) -> list[list[list[int]]]:
    """Return the taps of every phase along every axis; empty if there are too many to list."""
    if any(max(axis.kernel, axis.stride) > _MAX_TAPS for axis in conv.axes):
        return []
    unbounded = [replace(axis, size=ANY_SIZE) for axis in conv.axes]
    return [[[tap.index for tap in phase.taps] for phase in axis.phases()] for axis in unbounded]


def phase_sums(conv: ConvTransposeNode) -> Array | None:
    """Return A[c, m, r_1, r_2, ...], scaled; None without phases to compare or a finite weight."""
    w, taps = conv.weight.array, phase_taps(conv)
    strided = [size for size, phases in zip(conv.sizes, taps, strict=False) if len(phases) > 1]
    if w is None or w.dtype.kind not in "fV" or not strided or 1 in strided:
        return None  # 1: an axis of one position has only borders
    if not all(map(all, taps)) or prod(map(len, taps)) > _MAX_PHASES:
        return None
    for i, phases in enumerate(taps, start=2):
        parts = [np.take(w, phase, axis=i).sum(axis=i, dtype=np.float64) for phase in phases]
        w = np.stack(parts, axis=i)
    largest = np.abs(w).max()
    return w / largest if np.isfinite(largest) and largest else None


def gains_of(sums: Array) -> Array:
    """Return the gain of every phase, (r_1, r_2, ...), scaled so that the largest is 1."""
    power = np.square(sums).mean(axis=(0, 1))
    gains: Array = np.sqrt(power / power.max())
    return gains


def _some(counts: Sequence[int]) -> str:
    """List the first few counts, because a stride can have thousands of phases."""
    return " ".join(map(str, counts[:_SHOWN])) + (" ..." if len(counts) > _SHOWN else "")


def _kernels(conv: ConvTransposeNode, axes: Sequence[int]) -> str:
    shown = []
    for axis in (conv.axes[i] for i in axes):
        dilation = f", dilation {axis.dilation}" if axis.dilation > 1 else ""
        shown.append(f"kernel {axis.kernel}{dilation} at stride {axis.stride}")
    return " and ".join(dict.fromkeys(shown))
