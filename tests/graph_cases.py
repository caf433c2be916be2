"""Random oneDNN graphs that the library can run, each made by a seed, and what may differ.

One convolution operation of any kind, with or without a chain behind it. Left out is what libdnnl
itself refuses or gets wrong: see docs/onednn-graph.md, whose table is tested on its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import prod, sqrt
from typing import Any

import numpy as np

from upconv.onednn_graph import Graph, LogicalTensor, Op

KINDS = (
    "ConvTranspose",
    "ConvTransposeBackwardData",
    "ConvTransposeBackwardWeights",
    "Convolution",
    "ConvolutionBackwardData",
    "ConvolutionBackwardWeights",
)
CHAINS = (
    (),
    ("BiasAdd",),
    ("ReLU",),
    ("Add",),
    ("BiasAdd", "ReLU"),
    ("Add", "ReLU"),
    ("ReLU", "Add"),
    ("BiasAdd", "BatchNormInference", "ReLU"),
    ("BatchNormInference", "Add", "ReLU"),
    ("BiasAdd", "BatchNormInference", "Add", "ReLU"),
    ("BatchNormInference", "BiasAdd"),
    ("LeakyReLU",),
    ("BiasAdd", "Sigmoid"),
    ("Tanh",),
    ("GELU",),
)
EPSILON = {"f32": 2.0**-23, "bf16": 2.0**-7, "f16": 2.0**-10}


@dataclass
class Case:
    """A finalized graph, data for its inputs, and how many products one element sums up."""

    seed: int
    kind: str
    chain: tuple[str, ...]
    graph: Graph
    data: dict[int, np.ndarray]
    data_type: str
    products: int
    attributes: dict[str, Any]
    signs: dict[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = {id_: array.shape for id_, array in self.data.items()}
        words = f"{self.kind} {self.chain} {self.data_type}"
        return f"seed {self.seed}: {words} {shapes} {self.attributes}"

    def magnitudes(self) -> dict[int, np.ndarray]:
        """Data whose result sums up the magnitudes of every term of the true result."""
        return {
            id_: np.abs(array) * array.dtype.type(self.signs.get(id_, 1))
            if array.dtype.kind != "i"
            else array
            for id_, array in self.data.items()
        }

    def allowed(self, magnitude: np.ndarray) -> np.ndarray:
        """How far two results may be apart: sums in float32, every operation's result rounded."""
        sums = 2.0**-23 * (4 + 2 * sqrt(self.products))
        roundings = (2 + len(self.chain)) * EPSILON[self.data_type]
        bounded = {"Tanh", "Sigmoid", "GELU", "LeakyReLU"} & set(self.chain)
        slack = 1.0 if bounded else 0.0  # activations are approximated, to an absolute error
        return (sums + roundings) * (np.abs(magnitude.astype(np.float64)) + slack) + 1e-30


def case(seed: int, kind: str | None = None, rule: str = "library") -> Case:
    """The case of a seed; of one kind if that is given."""
    rng = random.Random(seed)
    return _Builder(rng, seed, kind or rng.choice(KINDS), rule).case()


class _Builder:
    def __init__(self, rng: random.Random, seed: int, kind: str, rule: str) -> None:
        self.rng, self.seed, self.kind, self.rule = rng, seed, kind, rule
        self.numbers = np.random.default_rng(seed)
        self.next_id = rng.choice((0, 0, 100))
        self.data: dict[int, np.ndarray] = {}
        self.signs: dict[int, int] = {}
        self.data_type = rng.choice(("f32", "f32", "f32", "bf16"))
        self.layout = rng.choice(("NCX", "NXC"))
        self.graph = Graph(rule=rule)

    def tensor(
        self, shape, *, draw=None, data_type=None, scale=1.0, sign=1, known=True
    ) -> LogicalTensor:
        kind = data_type or self.data_type
        made = LogicalTensor(
            self.next_id, kind, shape if known else None, self.property_type if draw else "undef"
        )
        self.next_id += 1
        if draw:
            values = self.numbers.standard_normal(shape) * scale
            if draw == "positive":
                values = np.abs(values) + 0.5
            self.data[made.id] = values.astype(made.dtype)
            self.signs[made.id] = sign
        return made

    def case(self) -> Case:
        rng = self.rng
        transposed = self.kind.startswith("ConvTranspose")
        rank = rng.choices((1, 2, 3), (4, 5, 2))[0]
        groups = 1 if self.kind == "ConvolutionBackwardData" else rng.choice((1, 1, 2, 3))
        most_dilation = 1 if self.kind == "ConvTransposeBackwardData" else 3
        auto_pads = ("None", "None", "VALID", "SAME_UPPER", "SAME_LOWER")
        if self.kind == "ConvTransposeBackwardWeights":
            auto_pads = ("None", "VALID")
        auto_pad = rng.choice(auto_pads)
        axes = [self._axis(auto_pad, most_dilation) for _ in range(rank)]
        i, o = groups * rng.randint(1, 6), groups * rng.randint(1, 5)
        batch = rng.choice((1, 2, 3))
        size, kernel, stride, dilation, begin, end, out = map(tuple, zip(*axes, strict=True))
        names = ("XOI", "IOX") if transposed else ("XIO", "OIX")
        weights = rng.choice(names)
        x = self._shape(batch, i, size)
        y = self._shape(batch, o, out)
        w = (*kernel, o // groups, i) if weights.startswith("X") else (i, o // groups, *kernel)
        attributes: dict[str, Any] = {
            "strides": stride, "pads_begin": begin, "pads_end": end, "dilations": dilation,
        }  # fmt: skip
        if auto_pad != "None" or rng.random() < 0.3:
            attributes["auto_pad"] = auto_pad
        if groups > 1 or rng.random() < 0.3:
            attributes["groups"] = groups
        if self.layout != "NXC" or rng.random() < 0.3:
            attributes["data_format"] = self.layout
        if weights != names[0] or rng.random() < 0.3:
            attributes["weights_format"] = weights
        self.property_type = rng.choice(("undef", "variable", "constant"))
        return self._built(x, w, y, i, o, groups, attributes)

    def _axis(self, auto_pad: str, most_dilation: int) -> tuple[int, ...]:
        """size, kernel, stride, dilation, begin, end, out of one axis, as the library has them."""
        rng = self.rng
        while True:
            kernel, stride = rng.randint(1, 5), rng.randint(1, 4)
            dilation = rng.choice((1, 1, rng.randint(1, most_dilation)))
            extent = dilation * (kernel - 1) + 1
            if auto_pad.startswith("SAME"):
                out = rng.randint(1, 12)
                size = -(-out // stride)
                if extent < stride or self.kind == "ConvTranspose":
                    out = stride * size  # what ConvTranspose infers
                if extent < stride:
                    continue
                return size, kernel, stride, dilation, 0, 0, out
            size = rng.randint(1, 7)
            begin, end = rng.randint(0, 3), rng.randint(0, 3)
            full = stride * (size - 1) + extent
            used = (0, 0) if auto_pad == "VALID" else (begin, end)
            out = full - sum(used) + rng.randint(0, stride - 1)
            if out >= 1 and out + sum(used) >= extent:
                return size, kernel, stride, dilation, begin, end, out

    def _shape(self, batch, channels, size) -> tuple[int, ...]:
        return (batch, channels, *size) if self.layout == "NCX" else (batch, *size, channels)

    def _built(self, x, w, y, i, o, groups, attributes) -> Case:
        rng, kind = self.rng, self.kind
        roles = {
            "ConvTranspose": (x, w, y), "ConvTransposeBackwardData": (y, w, x),
            "ConvTransposeBackwardWeights": (x, y, w), "Convolution": (y, w, x),
            "ConvolutionBackwardData": (x, w, y), "ConvolutionBackwardWeights": (y, x, w),
        }[kind]  # fmt: skip
        spatial = prod(x) // i
        products = {x: (o // groups) * prod(w), y: prod(w), w: spatial}[roles[2]]
        scale = 1 / sqrt(max(1, products))
        inputs = [
            self.tensor(roles[0], draw="any"), self.tensor(roles[1], draw="any", scale=scale),
        ]  # fmt: skip
        known = True
        # Behind NXC data the library forgets the dims that its result is known to have.
        by_dims = self.layout == "NCX"
        if kind == "ConvolutionBackwardData" and (not by_dims or rng.random() < 0.5):
            attributes["dst_shape"], known = roles[2], False
        if kind.endswith("BackwardWeights") and rng.random() < 0.5:
            attributes["weights_shape"] = roles[2]
        if kind in ("Convolution", "ConvTransposeBackwardData"):
            known = rng.random() < 0.5
        if kind in ("ConvTranspose", "Convolution") and rng.random() < 0.3:
            inputs.append(self.tensor((o if kind == "ConvTranspose" else i,), draw="any"))
        if kind == "ConvTranspose" and attributes.get("auto_pad", "None") in ("None", "VALID"):
            known = self._maybe_output_padding(x, w, roles[2], attributes)
        chain: tuple[str, ...] = ()
        if kind in ("ConvTranspose", "ConvolutionBackwardData", "Convolution"):
            chain = rng.choice(CHAINS)
        result = self.tensor(roles[2], known=known)
        self.graph.add_op(Op(1, kind, inputs, [result], attributes, "convolution"))
        for number, name in enumerate(chain):
            result = self._after(2 + number, name, result, roles[2], known)
        self.graph.finalize()
        return Case(
            self.seed, kind, chain, self.graph, self.data, self.data_type, products, attributes,
            self.signs,
        )  # fmt: skip

    def _maybe_output_padding(self, x, w, y, attributes) -> bool:
        """Say the output's size by output_padding, and perhaps leave it to be inferred."""
        if self.layout == "NCX" and self.rng.random() < 0.5:
            return True
        spatial = slice(2, None) if self.layout == "NCX" else slice(1, -1)
        kernel = w[:-2] if attributes.get("weights_format", "XOI") == "XOI" else w[2:]
        pads = [
            b + e for b, e in zip(attributes["pads_begin"], attributes["pads_end"], strict=True)
        ]
        if attributes.get("auto_pad") == "VALID":
            pads = [0] * len(pads)
        plain = [
            s * (n - 1) + d * (k - 1) + 1 - p
            for s, n, d, k, p in zip(
                attributes["strides"],
                x[spatial],
                attributes["dilations"],
                kernel,
                pads,
                strict=True,
            )
        ]
        attributes["output_padding"] = tuple(
            out - least for out, least in zip(y[spatial], plain, strict=True)
        )
        return self.rng.random() < 0.3

    def _after(self, number: int, name: str, source: LogicalTensor, shape, known) -> LogicalTensor:
        channels = shape[1] if self.layout == "NCX" else shape[-1]
        result = self.tensor(shape, known=known)
        inputs, attributes = [source], {}
        if name == "BiasAdd":
            inputs.append(self.tensor((channels,), draw="any"))
            attributes["data_format"] = self.layout
        elif name == "BatchNormInference":
            for draw, sign in (("any", 1), ("any", 1), ("any", -1), ("positive", 1)):
                inputs.append(self.tensor((channels,), draw=draw, sign=sign, data_type="f32"))
            attributes = {"epsilon": 1e-3, "data_format": self.layout}
        elif name == "Add":
            other = self.tensor(shape, draw="any")
            inputs = [source, other] if self.rng.random() < 0.5 else [other, source]
        elif name == "LeakyReLU":
            attributes["alpha"] = 0.125
        self.graph.add_op(Op(number, name, inputs, [result], attributes, name))
        return result
