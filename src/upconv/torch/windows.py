"""Rows for pooling and resampling in the table of operations; see `network_rules`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import starmap
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..network import Network, Value


def _check_rank(x: Any, rank: int) -> None:
    if len(x.shape) != rank + 2:
        raise ArgumentError("x", f"of {len(x.shape)} axes", f"(N, C, *size) of {rank + 2}")


def _window(value: Any) -> Any:
    """Return a window's sizes for the builder; a single size applies to all axes."""
    if isinstance(value, (list, tuple)):
        return value[0] if len(value) == 1 else tuple(value)
    return value


def _pixel_shuffle(network: Network, x: Any, upscale_factor: Any) -> Value:
    _check_rank(x, 2)
    return network.pixel_shuffle(x, upscale_factor)


def _max_pool(
    rank: int, network: Network, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: Any = False, return_indices: Any = False,
) -> Value:  # fmt: skip
    _check_rank(x, rank)
    if return_indices:
        raise ArgumentError("return_indices", "True", "False")
    words = (_window(kernel_size), _window(stride or None), _window(padding))
    return network.max_pool(x, *words, dilation=_window(dilation), ceil_mode=bool(ceil_mode))


def _avg_pool(
    rank: int, network: Network, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: Any = False, count_include_pad: Any = True, divisor_override: Any = None,
) -> Value:  # fmt: skip
    _check_rank(x, rank)
    if divisor_override is not None:
        raise ArgumentError("divisor_override", str(divisor_override), "None")
    words = (_window(kernel_size), _window(stride or None), _window(padding))
    return network.avg_pool(x, *words, bool(count_include_pad), ceil_mode=bool(ceil_mode))


def _adaptive_pool(
    mode: str, rank: int, network: Network, x: Any, output_size: Any, return_indices: Any = False
) -> Value:  # fmt: skip
    _check_rank(x, rank)
    if return_indices:
        raise ArgumentError("return_indices", "True", "False")
    return network.adaptive_pool(x, _window(output_size), mode)


def _reduce(
    mode: str, network: Network, x: Any, dim: Any = None, keepdim: Any = False
) -> Value:  # fmt: skip
    """Reduce the channels or all positions, by mean or maximum, and keep their axes with size 1."""
    axes = dim if isinstance(dim, (list, tuple)) else (dim,)
    numbers = tuple(sorted(axis % len(x.shape) for axis in axes if axis is not None))
    if keepdim and numbers == (1,):
        return network.channel_pool(x, mode)
    if keepdim and numbers == tuple(range(2, len(x.shape))):
        return network.adaptive_pool(x, 1, mode)
    expected = "the channels or all positions, with keepdim=True"
    raise ArgumentError("dim", f"{dim}, keepdim={keepdim}", expected)


def _upsample(
    rank: int, network: Network, x: Any, output_size: Any, align_corners: Any,
    scale_factors: Any = None, *_: Any, mode: str = "linear",
) -> Value:  # fmt: skip
    _check_rank(x, rank)
    return _resampled(network, x, output_size, scale_factors, mode, bool(align_corners))


def _nearest(rank: int, network: Network, x: Any, size: Any, *scales: Any, **named: Any) -> Value:
    return _upsample(rank, network, x, size, False, *scales, **named, mode="nearest")


def _interpolate(
    network: Network, x: Any, size: Any = None, scale_factor: Any = None, mode: Any = "nearest",
    align_corners: Any = None, recompute_scale_factor: Any = None, antialias: Any = False,
) -> Value:  # fmt: skip
    words = {"nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "linear": (1,), "bilinear": (2,),
             "trilinear": (3,)}  # fmt: skip
    if len(x.shape) - 2 not in words.get(mode, ()) or antialias:
        got = f"mode={mode!r}, antialias={antialias}"
        raise ArgumentError("interpolate", got, "nearest or linear, without antialias")
    kind = mode if mode.startswith("nearest") else "linear"
    return _resampled(network, x, size, scale_factor, kind, bool(align_corners))


def _resampled(network: Network, x: Any, size: Any, scales: Any, mode: str, aligned: bool) -> Value:
    """Resample by integer factors, which work at every size, else to a known size."""
    extents = x.shape[2:]
    kind = mode.partition("-")[0]
    given = scales if size is None else size
    listed = tuple(given) if isinstance(given, (list, tuple)) else (given,) * len(extents)
    if size is None:
        if all(float(scale).is_integer() for scale in listed):
            return network.upsample(x, tuple(map(int, listed)), kind, align_corners=aligned)
        listed = tuple(n * scale for n, scale in zip(extents, listed, strict=True) if n)
    known = len(listed) == len(extents) and all(extents) and all(n == int(n) for n in listed)
    if known:
        sizes = tuple(map(int, listed))
        pairs = list(zip(extents, sizes, strict=True))
        if not any(after % before for before, after in pairs):
            factors = tuple(after // before for before, after in pairs)
            return network.upsample(x, factors, kind, align_corners=aligned)
        if mode == "linear" or (mode == "nearest" and all(starmap(_is_nearest_exact, pairs))):
            return network.resize(x, sizes, kind, align_corners=aligned)
    got = f"{mode} to {given} from {tuple(extents)}"
    raise ArgumentError("resampling", got, "integer factors, or known integer sizes")


def _is_nearest_exact(before: int, after: int) -> bool:
    """Whether PyTorch's float32 scale finds the same nearest positions as integer arithmetic."""
    out = np.arange(after)
    scaled = np.floor(out.astype(np.float32) * np.float32(before / after))
    return bool(np.array_equal(np.minimum(scaled, before - 1), out * before // after))


_RANKS = (1, 2, 3)

ROWS: dict[str, Callable[..., Any]] = {
    **{f"max_pool{n}d": partial(_max_pool, n) for n in _RANKS},
    **{f"avg_pool{n}d": partial(_avg_pool, n) for n in _RANKS},
    **{f"adaptive_avg_pool{n}d": partial(_adaptive_pool, "average", n) for n in _RANKS},
    **{f"adaptive_max_pool{n}d": partial(_adaptive_pool, "max", n) for n in _RANKS},
    "mean": partial(_reduce, "average"), "amax": partial(_reduce, "max"),
    **{f"upsample_nearest{n}d": partial(_nearest, n) for n in _RANKS},
    "upsample_linear1d": partial(_upsample, 1), "upsample_bilinear2d": partial(_upsample, 2),
    "upsample_trilinear3d": partial(_upsample, 3), "interpolate": _interpolate,
    "pixel_shuffle": _pixel_shuffle,
}  # fmt: skip
