"""Rules about classes of layers that a runtime is likely slow at, silent without a target.

Each class was measured: one layer as it is and as the passes rewrite it, in turn, by processor time
on one thread (x86 with AVX-512, float32, ONNX Runtime 1.31.1, OpenVINO 2026.4.1). A class is here
only if a rewriting won on every layer of it that was tried; the range of how much is in the
messages. What another processor does is for `upconv optimize` to measure.

    class                         runtime       layers tried                          won by
    stride 1                      onnxruntime   3x3 and 5x5 of 16 to 256 channels,    1.1 to 4.6
                                                3x3x3, depthwise 1-D and 2-D
    few output channels           openvino      1 to 4 channels, ranks 1 to 3,        1.1 to 3.4
                                                kernels 2 to 1024
    long strides along one axis   openvino      512 to 64 channels, strides 5 and 8   1.6 to 3.0
    inverse transforms            onnxruntime   514 and 1026 to 1 channels            1.1 to 1.5

Not here, because rewriting them lost as often: grouped layers with a stride, kernels as large as
the stride, dilation with a stride.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....dialects.onnx import Rule
from ...nodes import ConvTransposeNode
from ...passes import PASSES
from ..places import Place, countable
from ..wording import counted
from .base import Observation
from .meaning import READERS

_FEW = 4
_MANY = 16
_LONG_STRIDE = 5
_LONG_KERNEL = 512


def stride_one(place: Place) -> Iterator[Observation]:
    """A convolution in disguise."""
    site = _readable(place, Rule.ONNXRUNTIME, "replace_deconv")
    if site is None or _channels(site) < _MANY or (site.rank == 1 and site.groups == 1):
        return
    if any(size != 1 for size in site.sizes):
        yield _slow(
            site,
            Rule.ONNXRUNTIME,
            "replace_deconv",
            "All its strides are 1: it is a convolution",
            "1.1 to 4.6",
        )


def few_output_channels(place: Place) -> Iterator[Observation]:
    """A stride and hardly any output channels."""
    site = _readable(place, Rule.OPENVINO, "sub_pixel")
    if site is not None and _channels(site) <= _FEW:
        words = f"It has a stride and {counted(_channels(site), 'output channel')}"
        yield _slow(site, Rule.OPENVINO, "sub_pixel", words, "1.1 to 3.4")


def long_stride(place: Place) -> Iterator[Observation]:
    """One axis and a long stride, as in sound."""
    site = _readable(place, Rule.OPENVINO, "sub_pixel")
    if site is None or site.rank != 1 or _channels(site) <= _FEW or site.groups > 1:
        return
    if site.axes[0].stride >= _LONG_STRIDE:
        words = f"It has one spatial axis and a stride of {site.axes[0].stride}"
        yield _slow(site, Rule.OPENVINO, "sub_pixel", words, "1.6 to 3.0")


def inverse_transform(place: Place) -> Iterator[Observation]:
    """A kernel of hundreds of taps into one channel: an inverse Fourier transform."""
    site = _readable(place, Rule.ONNXRUNTIME, "sub_pixel")
    if site is None or site.rank != 1 or _channels(site) > 1:
        return
    axis = site.axes[0]
    if axis.kernel >= _LONG_KERNEL:
        words = f"Its kernel of {axis.kernel} at stride {axis.stride} makes one channel"
        yield _slow(site, Rule.ONNXRUNTIME, "sub_pixel", words, "1.1 to 1.5")


def _readable(place: Place, runtime: Rule, by: str) -> ConvTransposeNode | None:
    """The site, where it is for this runtime, means one thing, and the pass `by` rewrites it."""
    site = place.site
    if site is None or place.target is not runtime or not countable(site):
        return None
    return None if PASSES[by].refuses(site) is not None else site


def _slow(site: ConvTransposeNode, runtime: Rule, by: str, words: str, gain: str) -> Observation:
    return Observation(
        f"{words}, at which {READERS[runtime]} is likely slow: rewritten, layers like it ran"
        f" {gain} times as fast.",
        {
            "runtime": runtime.value,
            "pass": by,
            "measured_gain": gain,
            "kernel": [axis.kernel for axis in site.axes],
            "stride": [axis.stride for axis in site.axes],
            "groups": site.groups,
            "output_channels": _channels(site),
        },
    )


def _channels(site: ConvTransposeNode) -> int:
    return int(site.array.shape[1]) * site.groups
