"""Optimisations that were never made: what the reports are tried on.

`sample` has twelve layers of several kinds and looks like a real one; its numbers are made up.
`hostile` has names that no shell, terminal or browser should see as they are. `bare` has nothing.
"""

from __future__ import annotations

from dataclasses import replace

from upconv.geometry import Axis
from upconv.onnx.optimizing.results import (
    ORIGINAL,
    AxisFacts,
    LayerResult,
    Optimization,
    OutputProof,
    Ratio,
    Timing,
    Trial,
    WholeResult,
)

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "' onmouseover='alert(1)",
    "</title></style></svg></details><h1>owned</h1>",
    "{{ 7*7 }}{% raw %}",
    "javascript:alert(1)",
    "a\x1b[31mred\x1b]0;title\x07",
    "line\r\nbreak\x00null\u2028sep",
    "safe\u202egnp.exe\u2066\u200f",
    "half\ud800pair\ufffe",
    "z" + "\u0336\u0489" * 40 + "algo",
    "\u05e9\u05dc\u05d5\u05dd/1",
    "long/" * 40_000,
    "",
    "&amp;&lt;",
)
"""Names that a model may have."""


def facts(size: int, kernel: int, stride: int = 1, dilation: int = 1, *crops: int) -> AxisFacts:
    """An axis as it was run."""
    axis = Axis(size, kernel, stride, dilation, *crops)
    return AxisFacts(size, kernel, stride, dilation, axis.crop_begin, axis.crop_end, axis.out)


def timing(median: float, spread: float = 0.03) -> Timing:
    """Twenty-one rounds about a median."""
    return Timing(median, median * (1 - spread / 2), median * (1 + spread), median * 0.96, 21)


def tried(name: str, before: float, ratio: float, error: float, size: int, waste: float) -> Trial:
    """A form that was measured."""
    interval = Ratio(ratio, ratio * 0.982, ratio * 1.021)
    return Trial(
        name,
        None,
        timing(before / ratio),
        interval,
        error,
        size,
        waste,
        peak_bytes=size + 5 * 1024**2,
    )


def original(before: float, size: int, error: float = 2.1e-7) -> Trial:
    """The node as it was."""
    return Trial(
        ORIGINAL, None, timing(before, 0.05), None, error, size, 1.0, peak_bytes=size + 5 * 1024**2
    )


def layer(
    node: str,
    axes: tuple[AxisFacts, ...],
    channels: tuple[int, int],
    trials: tuple[Trial, ...],
    chosen: str,
    why: str,
    groups: int = 1,
    place: str = "",
) -> LayerResult:
    """A layer with a batch of one, in float32."""
    return LayerResult(node, place, axes, 1, *channels, groups, "float32", trials, chosen, why)


def _up(number: int, size: int, channels: int, before: float, gain: float) -> LayerResult:
    axis = facts(size, 4, 2, 1, 1, 1)
    weights = channels * channels // 2 * 16 * 4
    trials = (
        original(before, weights),
        Trial("replace_deconv", "its stride is 2, and only stride 1 is one plain convolution"),
        tried("sub_pixel:unfolded", before, gain, 2.3e-7, weights, 1.0),
        tried("sub_pixel:folded", before, gain * 0.71, 2.2e-7, weights * 9 // 4, 2.25),
        tried("sub_pixel:polyphase", before, gain * 0.88, 2.3e-7, weights, 1.0),
    )
    return layer(
        f"/decoder/up.{number}/ConvTranspose",
        (axis, axis),
        (channels, channels // 2),
        trials,
        "sub_pixel:unfolded",
        "The fastest of four, and faster than the original by more than the noise.",
    )


def _others() -> tuple[LayerResult, ...]:
    fold = "fold_batch_norm+sub_pixel:unfolded"
    square = facts(64, 2, 2)
    head = facts(128, 3, 1, 1, 1, 1)
    known = tried("to_rank+sub_pixel", 0.00894, 1.71, 3.4e-7, 8_388_608, 1.0)
    kept = "No form is faster than the original by more than the noise."
    return (
        layer(
            "/mask/upscaling/0/ConvTranspose",
            (square, square),
            (256, 64),
            (
                original(0.0121, 262_144),
                tried("sub_pixel:unfolded", 0.0121, 2.94, 1.1e-7, 262_144, 1.0),
                tried(fold, 0.0121, 3.31, 1.4e-7, 262_144, 1.0),
            ),
            fold,
            "Kernel equals stride: a plain matrix product with an interleaved store.",
        ),
        layer(
            "/head/ConvTranspose",
            (head, head),
            (32, 3),
            (original(0.00312, 3456), tried("replace_deconv", 0.00312, 1.005, 9e-8, 3456, 1.0)),
            ORIGINAL,
            kept,
        ),
        layer(
            "/vocoder/ups.0/ConvTranspose",
            (facts(140, 16, 8, 1, 4, 4),),
            (512, 256),
            (
                original(0.00894, 8_388_608),
                tried("sub_pixel:unfolded", 0.00894, 1.62, 3.4e-7, 8_388_608, 1.0),
                tried("sub_pixel:folded", 0.00894, 0.83, 3.4e-7, 12_582_912, 1.5),
                replace(known, remembered=True),
            ),
            "to_rank+sub_pixel",
            "The fastest of three; its measurement is an earlier one of the same layer.",
        ),
        layer(
            "/vocoder/ups.3/ConvTranspose",
            (facts(17_920, 640, 320, 1, 160, 160),),
            (64, 1),
            (
                original(0.0207, 163_840),
                tried("sub_pixel:unfolded", 0.0207, 0.52, 4e-7, 163_840, 1.0),
            ),
            ORIGINAL,
            kept,
        ),
        layer(
            "/seg/up/ConvTranspose",
            (facts(8, 3, 2, 1, 1, 0), facts(16, 3, 2, 1, 1, 0), facts(16, 3, 2, 1, 1, 0)),
            (96, 48),
            (
                original(0.0151, 497_664),
                tried("sub_pixel:unfolded", 0.0151, 0.61, 2e-7, 1_179_648, 2.37),
                tried("sub_pixel:polyphase", 0.0151, 1.28, 2e-7, 497_664, 1.0),
            ),
            "sub_pixel:polyphase",
            "One convolution per phase wastes nothing, and wins in spite of eight of them.",
        ),
        layer(
            "/depthwise/ConvTranspose",
            (facts(40, 5, 3, 2, 2, -1), facts(52, 3, 4, 1, 0, -1)),
            (48, 48),
            (
                original(0.00042, 2880),
                Trial("sub_pixel:unfolded", "its groups are 48 and the target has no grouped form"),
                tried("split_groups", 0.00042, 0.21, 1e-7, 2880, 1.0),
            ),
            ORIGINAL,
            kept,
            groups=48,
        ),
        LayerResult(
            "/loop/ConvTranspose", "/loop/body", (), 0, 0, 0, 1, "float16", (), ORIGINAL,
            "Its weight is an input of the loop's body, so that nothing can be computed from it.",
        ),
    )  # fmt: skip


def sample() -> Optimization:
    """Twelve layers: seven others now, four kept, one that could not be read."""
    ups = tuple(
        _up(number, 8 << number, 512 >> number, before, gain)
        for number, (before, gain) in enumerate(
            ((0.0083, 1.91), (0.0117, 2.06), (0.0124, 1.74), (0.0098, 1.37))
        )
    )
    prelu = facts(200, 9, 3, 1, 3, 1)
    fsrcnn = layer(
        "/fsrcnn/deconv",
        (prelu, prelu),
        (56, 1),
        (original(0.0442, 18_144), tried("sub_pixel:folded", 0.0442, 3.05, 1.9e-7, 18_144, 1.0)),
        "sub_pixel:folded",
        "The fastest of one, and faster than the original by more than the noise.",
    )
    return Optimization(
        model="models/decoder-zoo.onnx",
        target="onnxruntime",
        threads=2,
        opset=18,
        inputs=(("latent", "float32", (1, 512, 8, 8)), ("mel", "float32", (1, 80, 140))),
        prepared=("fold_batch_norm at /decoder/up.0", "fold_pad at /vocoder/ups.0"),
        layers=(*ups, fsrcnn, *_others()),
        whole=WholeResult(timing(0.2134, 0.02), timing(0.1399, 0.04), Ratio(1.526, 1.503, 1.549)),
        proofs=(
            OutputProof("image", "onnxruntime", "float32", 3.1e-7, 4.8e-6, True),
            OutputProof("image", "reference", "float64", 2.2e-15, 8.9e-15, True),
            OutputProof("waveform", "onnxruntime", "float32", 5.7e-7, 4.8e-6, True),
            OutputProof("waveform", "reference", "float64", 0.0, 8.9e-15, True),
        ),
        verdict="8 of 12 layers rewritten; the whole model is faster and every output is equal",
        bytes_before=61_341_337,
        bytes_after=61_298_200,
        machine="x86-64, AVX2, 2 cores",
        versions=(("upconv", "0.6.0"), ("onnx", "1.23.2"), ("onnxruntime", "1.31.1")),
        seconds=74.3,
        remarks=("/loop/ConvTranspose was left alone: its weight is an input of the loop",),
        broken=("/head/ConvTranspose is still a ConvTranspose",),
        written="models/decoder-zoo.fast.onnx",
    )


def bare() -> Optimization:
    """A model without deconvolutions, for no runtime."""
    return replace(
        sample(), model="plain.onnx", target="none", inputs=(), prepared=(), layers=(), whole=None,
        remarks=(), broken=(), proofs=(), verdict="", bytes_after=0, written=None,
    )  # fmt: skip


def unproven() -> Optimization:
    """A model whose results differ: nothing was written."""
    bad = OutputProof("image", "onnxruntime", "float32", 0.31, 4.8e-6, False)
    lost = OutputProof("waveform", "onnxruntime", "float32", float("nan"), 4.8e-6, False)
    return replace(
        sample(), proofs=(bad, lost), written=None, bytes_after=0,
        whole=WholeResult(timing(0.1), timing(0.13), Ratio(0.77, 0.71, 0.8)),
        verdict="not written: the result differs",
    )  # fmt: skip


def hostile(name: str) -> Optimization:
    """The sample with one name in every place where a text can stand."""
    one = sample()
    trials = (Trial(name, name), replace(one.layers[0].trials[0], rewriting=name))
    bad = replace(
        one.layers[0], node=name, place=name, dtype=name, trials=trials, chosen=name, why=name
    )
    return replace(
        one, remarks=(name,), broken=(name,), model=name, target=name, machine=name,
        verdict=name, written=name, prepared=(name,),
        inputs=((name, name, (1, 2)),), versions=((name, name),), layers=(bad, *one.layers[:1]),
        proofs=(OutputProof(name, name, name, 0.0, 1.0, True),),
    )  # fmt: skip


def crowd() -> Optimization:
    """Every hostile name at once."""
    all_of_them = [hostile(name) for name in HOSTILE]
    return replace(
        all_of_them[0],
        layers=tuple(each.layers[0] for each in all_of_them),
        proofs=tuple(each.proofs[0] for each in all_of_them),
        prepared=HOSTILE,
        versions=tuple((name, name) for name in HOSTILE),
        verdict=" ".join(name[:99] for name in HOSTILE),
    )


def many(layers: int) -> Optimization:
    """The sample's layers over and over."""
    one = sample()
    repeated = (one.layers * (layers // len(one.layers) + 1))[:layers]
    return replace(one, layers=repeated)
