"""Made-up optimizations, for the tests of reports."""

from dataclasses import replace

from upconv.front_end_reports import Report, Row
from upconv.geometry import Axis
from upconv.measuring import Ratio
from upconv.onnx.optimizing.results import (
    ORIGINAL,
    Candidate,
    LayerResult,
    Optimization,
    WholeResult,
)
from upconv.onnx.verifying.differences import Difference, Run

HOSTILE = (
    "<script>alert(1)</script>", "\"><img src=x onerror='alert(1)'>",
    "</title></style></svg></details><h1>owned</h1>", "{{ 7*7 }}{% raw %}",
    "a\x1b[31mred\x1b]0;title\x07", "line\r\nbreak\x00null\u2028sep",
    "safe\u202egnp.exe\u2066\u200f", "half\ud800pair\ufffe", "z" + "\u0336\u0489" * 40 + "algo",
    "long/" * 40_000, "",
)  # fmt: skip
"""Names that a model may have."""


def tried(name: str, before: float, gain: float = 0.0) -> Candidate:
    """Return a measured candidate; without a gain, the original."""
    ratios = (Ratio(gain, gain * 0.982, gain * 1.021),) if gain else ()
    return Candidate(name, None, (before / (gain or 1.0),), ratios, 2.1e-7)


def compared(name: str, error: float, words: str = "") -> Run:
    """Return a run in which one output was compared."""
    what = (name, "/last", "Relu", (1, 8), "float32", "float64")
    return Run("onnxruntime", (Difference(*what, error, 1.0, 2.5e-6, error < 2.5e-6, words),))


def layer(
    node: str, axes: tuple[Axis, ...], before: float, gains: dict[str, float], chosen: str
) -> LayerResult:
    """Return a float32 layer of 32 to 16 channels with a candidate per gain."""
    shape = (1, 32, *(axis.size for axis in axes))
    refused = Candidate("replace_deconv", "its strides are not all 1: see sub_pixel")
    found = (*(tried(name, before, gain) for name, gain in gains.items()), refused)
    why = "no rewriting is faster by more than the noise"
    if chosen != ORIGINAL:
        why = f"{gains[chosen]:.2f} times as fast (1.30 to 3.40) as the original"
    candidates = (tried(ORIGINAL, before), *found)
    return LayerResult(node, chosen, why, axes, (shape,), 16, 1, "float32", candidates)


def sample() -> Optimization:
    """Return an optimization of five layers: three rewritten, one kept, one unreadable."""
    wide, square = Axis(200, 9, 3, 1, 3, 1), Axis(64, 2, 2)
    depthwise = Axis(40, 5, 3, 2, 2, -1), Axis(52, 3, 4, 1, 0, -1)
    forms = {"sub_pixel:unfolded": 2.94, "sub_pixel:folded": 3.31, "sub_pixel:polyphase": 0.61}
    loop = "its weight is not constant: it is an input of the loop"
    return Optimization(
        model="models/decoder-zoo.onnx",
        runtime="onnxruntime",
        threads=2,
        opset=18,
        inputs=({"latent": (1, 512, 8, 8), "mel": (1, 80, 140)},),
        folded=("fold_batch_norm at /decoder/up.0", "fold_pad at /vocoder/ups.0"),
        layers=(
            layer("/fsrcnn/deconv", (wide, wide), 0.0442, forms, "sub_pixel:folded"),
            layer("/mask/up.0", (square, square), 0.0121, forms, "sub_pixel:folded"),
            layer("/depthwise", depthwise, 0.00042, {"sub_pixel:unfolded": 0.7}, ORIGINAL),
            layer("/vocoder/ups.3", (Axis(17_920, 640, 320),), 0.0207, forms, "sub_pixel:folded"),
            LayerResult("/loop", ORIGINAL, loop),
        ),
        whole=(WholeResult(0.2134, 0.1399, Ratio(1.526, 1.503, 1.549)),),
        verified=True,
        checks=(compared("image", 3.1e-7), compared("waveform", 5e-7)),
        verdict="3 of 5 transposed convolutions rewritten: the model is 1.53 times as fast"
        " (1.50 to 1.55), and verified.",
        bytes_before=61_341_337,
        bytes_after=61_298_200,
        machine="x86-64, AVX2, 2 cores",
        versions={"upconv": "0.6.0", "onnx": "1.23.2", "onnxruntime": "1.31.1"},
        seconds=74.3,
        written="models/decoder-zoo.fast.onnx",
    )


def unequal() -> Optimization:
    """Return an optimization without equal results, which leaves the model unchanged."""
    verdict = "Nothing was both equal and faster in the whole model; the model is unchanged."
    lost = Run("onnxruntime", findings=("b: it failed",))
    return replace(
        sample(), layers=(), whole=(), verified=None, checks=(compared("image", 0.31), lost),
        verdict=verdict, written=None, remarks=("Not equal in onnxruntime with /mask/up.0: image",),
        session=Report("ONNX Runtime", why="upconv does not take it"),
    )  # fmt: skip


def hostile(name: str) -> Optimization:
    """Return the sample with `name` in place of every string."""
    one = sample()
    first = one.layers[0]
    candidates = (Candidate(name, name), replace(first.candidates[0], passes=name))
    bad = replace(first, node=name, dtype=name, candidates=candidates, chosen=name, why=name)
    session = Report(name, (Row(name, name, name, why=name),), name, 2.0, 1.0)
    check = Run(name, (Difference(*[name] * 3, (1,), *[name] * 2, 0.0, 1.0, 1.0, False, name),))
    return replace(
        one, remarks=(name,), model=name, runtime=name, machine=name, verdict=name, written=name,
        folded=(name,), inputs=({name: (1, 2)},), versions={name: name}, checks=(check,),
        layers=(bad, first), session=session,
    )  # fmt: skip
