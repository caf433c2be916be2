"""Run times of libdnnl relative to this engine's direct sums, measured per class of layers.

A factor is libdnnl's time divided by this engine's. On layers of real models (Zen 4, one thread,
2026-11-22 and 23; in brackets, restricted to AVX2):

    few channels to sum over 0.82 to 3 (0.55 to 2.2), in groups 0.35
    narrow groups 0.3 to 1.3, forward 0.35 to 0.57, but with a bias 1.7 to 4
    channels-last data of many positions 0.9 to 3 (0.73 to 1.4)
    weight gradients of one tap 0.8 to 1.0, depthwise ones of 3x3 taps 0.6 to 0.9
    all others 0.75 to 18

With AVX2 on a Zen 3 (libdnnl 3.2, one thread, 2026-11-28), 150 layers of both layouts:

    1 to 6 channels to sum over, channels last 0.46 to 0.92, channels first with a stride 0.7 to
    0.9; with 9 taps in a row or more, or more than 21 taps and channels of a row, 1.0 to 1.9
    channels-last data of more channels: one tap 0.76 to 1.0, more taps 0.86 to 2
    channels-last depthwise images with 3x3 taps or a stride 0.6 to 0.83, with more taps 0.8 to 1.2
    channels-last depthwise layers with one axis 6 to 19
    channels-last groups 0.94 to 2, with one result channel 0.5 to 1.5; 2.4 to 9.4 if
    several groups fill a vector (2026-11-29)

On a Xeon with AMX (bfloat16, one thread, 2026-11-27), where libdnnl also uses tiles:

    44 layers, both directions and layouts: 0.65 to 12, geometric mean 1.40; channels-last
    convolutions of stride 1 0.7 to 1.0, input gradients of volumes 5 to 12, packing 1.4 to 7
    weight gradients of 22 classes that this engine computes with tiles 0.78 to 8, below 1 only for
    two of them, with channels-last data; of eight other classes, with few channels, 0.8 to 70

On the same Xeon, restricted to AVX512-BF16 without tiles, 44 layers in all directions and layouts:
0.88 to 64, only one of them below 1. With only AVX2, libdnnl refuses bfloat16.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ...problem import DataLayout, Direction, DType, Problem
from ..base import Candidate
from .channels.lanes import spans_groups
from .correlation import Correlation
from .cpu import Cpu
from .direct import TILES, refused, weight_numbers
from .values import LINE

_NO_ROUNDING = replace(refused("", "it does not round operands"), engine="onednn")
_SLOWER = 1.5, "libdnnl is faster on few classes of layers"
_FEW_CHANNELS, _LANES, _FEW_POSITIONS, _FEW_TAPS = 8, 16, 64, 9
_LONG_ROW, _MERGED = 9, 21
"""With at least `_LONG_ROW` taps per row, or more than `_MERGED` inputs under a row's taps, the JIT
engine on AVX2 sums over a row's taps and its few channels in one loop."""
_PACK_TILES = 4.0  # relative to tiles: the time to pack a weight
_PACK = 2.3  # relative to other kernels: the time to pack a weight


def of_correlation(
    problem: Problem, correlation: Correlation, best: Candidate, cpu: Cpu
) -> Candidate:
    """Return libdnnl's candidate, relative to the best direct candidate of a correlation."""
    if problem.rounded:
        return _NO_ROUNDING
    forward = problem.direction is Direction.FORWARD
    if best.variant == TILES:
        ratio, reason = _beside_tiles(correlation, forward=forward)
        return Candidate(
            "onednn", "", ratio * best.cycles, _PACK_TILES * best.packing, reason=reason
        )
    narrow = correlation.reduced > correlation.groups and spans_groups(correlation.weight, cpu)
    if narrow or (problem.dtype.itemsize == 2 and not cpu.tiles):
        ratio, reason = _SLOWER
    elif best.variant == "planes":
        ratio, reason = _beside_planes(correlation, is_wide=cpu.vector_bytes == LINE)
    else:
        ratio, reason = _forward(problem) if forward else _input_grad(correlation, best, cpu)
    packing = _PACK * best.packing
    return Candidate("onednn", "", ratio * best.cycles, packing, reason=reason)


def of_weight_grad(problem: Problem, best: Candidate, cpu: Cpu) -> Candidate:
    """Return libdnnl's candidate, relative to this engine's weight gradient."""
    if problem.rounded:
        return _NO_ROUNDING
    sixteen = problem.dtype is DType.BFLOAT16 or (problem.dtype.itemsize == 2 and not cpu.tiles)
    ratio, reason = _SLOWER if sixteen else _weight_grad(problem)
    return Candidate("onednn", "", ratio * best.cycles, margin=best.margin, reason=reason)


def _beside_tiles(correlation: Correlation, *, forward: bool) -> tuple[float, str]:
    """Return libdnnl's time relative to that of tiles, with the reason."""
    last = correlation.layout is DataLayout.NXC and correlation.groups == 1
    dense = not forward and all(line.step == 1 for line in correlation.lines)
    if last and dense and (correlation.rank < 3 or correlation.taps == 1):
        return 0.9, "it reads channels-last images in place"
    return 1.3, "it also uses tiles, but needs more memory and time to arrange data"


def _forward(problem: Problem) -> tuple[float, str]:
    channels = problem.out_channels // problem.groups
    is_narrow = 1 < problem.groups < problem.in_channels and 1 < channels < _LANES
    if is_narrow and problem.layout is DataLayout.NXC and not problem.bias:
        return 0.45, _not_full(channels)
    return _SLOWER


def _beside_planes(correlation: Correlation, *, is_wide: bool) -> tuple[float, str]:
    is_dense = all(line.step == 1 for line in correlation.lines)
    channels_last = correlation.layout is DataLayout.NXC
    has_many_taps = is_dense and correlation.taps > _FEW_TAPS
    if is_wide or not channels_last or correlation.rank != 2 or has_many_taps:
        return _SLOWER
    return 0.75, "the JIT engine is slow on depthwise layers of few taps in channels-last data"


def _input_grad(correlation: Correlation, best: Candidate, cpu: Cpu) -> tuple[float, str]:
    channels_first, is_wide = correlation.layout is DataLayout.NCX, cpu.vector_bytes == LINE
    channels = correlation.made // correlation.groups
    depthwise = 1 < correlation.groups == correlation.made == correlation.reduced
    if best.variant == "positions":
        return _SLOWER
    if channels_first and (depthwise or is_heavy(correlation)):
        return _SLOWER  # libdnnl reorders as much data, and reorders weights more slowly
    if depthwise and correlation.rank > 2:
        return _SLOWER  # libdnnl takes 5 to 21 times as long
    is_grouped = correlation.groups > 1 and channels > 1
    if not (channels_first or is_wide) and is_grouped:
        return _SLOWER
    inside = all(line.is_inside for line in correlation.lines)
    reduced = correlation.reduced // correlation.groups
    if reduced < _FEW_CHANNELS and not (channels_first and inside):
        reason = f"the JIT engine is slow on fewer than {_FEW_CHANNELS} channels to sum over"
        if correlation.groups > 1:
            return 0.4, reason
        row = len(correlation.lines[-1].phases[0].taps)
        merges = row >= _LONG_ROW or row * reduced > _MERGED
        return _SLOWER if is_wide or merges else (0.7, reason)
    if channels < _LANES and (correlation.groups > 1 or channels > _LANES // 4):
        return (0.6 if correlation.groups > 1 else 0.95), _not_full(channels)
    has_one_tap = correlation.taps == 1 and prod(correlation.result_size) > _FEW_POSITIONS
    if not channels_first and not is_wide and has_one_tap:
        return 0.9, "the JIT engine is slower on layers of one tap in channels-last data"
    return _SLOWER


def is_heavy(correlation: Correlation) -> bool:
    """Whether there are more weights than data, in one group."""
    data = prod(correlation.operand_shape) + prod(correlation.result_shape)
    return correlation.groups == 1 and weight_numbers(correlation) > data


def _not_full(channels: int) -> str:
    return f"the JIT engine's vectors are not full with {channels} channels per group"


def _weight_grad(problem: Problem) -> tuple[float, str]:
    kernel, channels_first = problem.kernel, problem.layout is DataLayout.NCX
    channels = max(problem.in_channels, problem.out_channels) // problem.groups
    if channels_first and prod(kernel) == 1:
        return 0.9, "transposing channels-first data takes too long for a weight of one tap"
    if channels == 1 < problem.groups and kernel == (3, 3):
        return 0.75, "libdnnl has a kernel for depthwise weights of 3x3 taps"
    if not channels_first and problem.groups > 1 and 1 < channels < _LANES:
        return 0.6, _not_full(channels)
    return _SLOWER
