"""Random oneDNN graphs that the library can run, each made by a seed, and what may differ.

One convolution operation of any kind, with or without a chain behind it. Left out is what libdnnl
itself refuses or gets wrong: see docs/onednn-graph.md, whose table is tested on its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import erf, prod, sqrt
from typing import Any

import numpy as np

from upconv import testing
from upconv.geometry import fitted
from upconv.onednn_graph import Graph, LogicalTensor, Op
from upconv.problem import DataLayout, Direction, DType, Problem, WeightLayout

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
ROLES = {
    "ConvTranspose": "xwy",
    "ConvTransposeBackwardData": "ywx",
    "ConvTransposeBackwardWeights": "xyw",
    "Convolution": "ywx",
    "ConvolutionBackwardData": "xwy",
    "ConvolutionBackwardWeights": "yxw",
}
"""The two inputs and the output, in a transposed convolution's names."""
USUAL = ("Convolution", "ConvolutionBackwardWeights")
"""Operations whose padding the document leaves to custom."""
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
    problem: Problem
    output: int
    rule: str = "library"
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


def case(
    seed: int,
    kind: str | None = None,
    rule: str = "library",
    beyond: bool = False,
    data_types: tuple[str, ...] = ("f32", "f32", "f32", "bf16"),
) -> Case:
    """The case of a seed; of one kind if that is given; `beyond` what the library can do."""
    rng = random.Random(seed)
    kind = kind or rng.choice(KINDS)
    return _Builder(rng, seed, kind, rule, beyond, rng.choice(data_types)).case()


class _Builder:
    def __init__(self, rng, seed, kind, rule, beyond, data_type) -> None:
        self.rng, self.seed, self.kind, self.rule = rng, seed, kind, rule
        self.beyond, self.data_type = beyond, data_type
        self.numbers = np.random.default_rng(seed)
        self.next_id = rng.choice((0, 0, 100))
        self.data: dict[int, np.ndarray] = {}
        self.signs: dict[int, int] = {}
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
        able = self.beyond
        groups = rng.choice((1, 1, 2, 3)) if able or self.kind != "ConvolutionBackwardData" else 1
        most_dilation = 3 if able or self.kind != "ConvTransposeBackwardData" else 1
        auto_pads = ("None", "None", "VALID", "SAME_UPPER", "SAME_LOWER")
        if self.kind == "ConvTransposeBackwardWeights" and not able:
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
        problem = self._problem(axes, auto_pad, batch, i, o, groups, weights)
        w = problem.weight_shape
        if self.rule == "document" and transposed:  # there, it is C_out that is whole
            pair = (i // groups, o)
            w = (*kernel, *pair[::-1]) if weights.startswith("X") else (*pair, *kernel)
        if self.rule == "document":
            auto_pad = auto_pad.lower()
        attributes: dict[str, Any] = {
            "strides": stride, "pads_begin": begin, "pads_end": end, "dilations": dilation,
        }  # fmt: skip
        if auto_pad.lower() != "none" or rng.random() < 0.3:
            attributes["auto_pad"] = auto_pad
        if groups > 1 or rng.random() < 0.3:
            attributes["groups"] = groups
        if self.layout != "NXC" or rng.random() < 0.3:
            attributes["data_format"] = self.layout
        if weights != names[0] or rng.random() < 0.3:
            attributes["weights_format"] = weights
        self.property_type = rng.choice(("undef", "variable", "constant"))
        return self._built(x, w, y, i, o, groups, attributes, problem)

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

    def _problem(self, axes, auto_pad, batch, i, o, groups, weights) -> Problem:
        """The transposed convolution of the six operations, from sizes and pads by the formulas."""
        made = []
        for size, kernel, stride, dilation, begin, _, out in axes:
            extent = dilation * (kernel - 1) + 1
            by_document = self.rule == "document" and self.kind not in USUAL
            if auto_pad == "VALID":
                begin = 0
            elif auto_pad.startswith("SAME") and by_document:
                total = stride * (size - 1) + extent - out
                begin = total // 2 if auto_pad == "SAME_LOWER" else total - total // 2
            elif auto_pad.startswith("SAME"):
                total = max(extent - (out % stride or stride), 0)
                begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            made.append(fitted(size, kernel, stride, dilation, begin, out))
        order = {"XOI": "XOI", "IOX": "IOX", "XIO": "XOI", "OIX": "IOX"}[weights]
        way = {"y": Direction.FORWARD, "x": Direction.INPUT_GRAD, "w": Direction.WEIGHT_GRAD}
        return Problem(
            way[ROLES[self.kind][2]], tuple(made), batch, i, o, groups, DType.FLOAT64,
            DataLayout(self.layout), WeightLayout(order),
        )  # fmt: skip

    def _shape(self, batch, channels, size) -> tuple[int, ...]:
        return (batch, channels, *size) if self.layout == "NCX" else (batch, *size, channels)

    def _built(self, x, w, y, i, o, groups, attributes, problem) -> Case:
        rng, kind = self.rng, self.kind
        roles = [{"x": x, "w": w, "y": y}[role] for role in ROLES[kind]]
        spatial = prod(x) // i
        products = {"x": prod(w), "y": prod(w), "w": spatial}[ROLES[kind][2]]
        scale = 1 / sqrt(max(1, products))
        inputs = [
            self.tensor(roles[0], draw="any"), self.tensor(roles[1], draw="any", scale=scale),
        ]  # fmt: skip
        known = True
        # Behind NXC data the library forgets the dims that its result is known to have.
        by_dims = self.layout == "NCX" or self.beyond
        if kind == "ConvolutionBackwardData" and (not by_dims or rng.random() < 0.5):
            attributes["dst_shape"], known = roles[2], False
        if kind.endswith("BackwardWeights") and rng.random() < 0.5:
            attributes["weights_shape"] = roles[2]
        if kind in ("Convolution", "ConvTransposeBackwardData"):
            known = rng.random() < 0.5
        if kind in ("ConvTranspose", "Convolution") and rng.random() < 0.3:
            inputs.append(self.tensor((o if kind == "ConvTranspose" else i,), draw="any"))
        if kind == "ConvTranspose" and not _same(attributes):
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
            problem, result.id, self.rule, self.signs,
        )  # fmt: skip

    def _maybe_output_padding(self, x, w, y, attributes) -> bool:
        """Say the output's size by output_padding, and perhaps leave it to be inferred."""
        if (self.layout == "NCX" or self.beyond) and self.rng.random() < 0.5:
            return True
        spatial = slice(2, None) if self.layout == "NCX" else slice(1, -1)
        kernel = w[:-2] if attributes.get("weights_format", "XOI") == "XOI" else w[2:]
        pads = [
            b + e for b, e in zip(attributes["pads_begin"], attributes["pads_end"], strict=True)
        ]
        if attributes.get("auto_pad", "").upper() == "VALID":
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


def _same(attributes) -> bool:
    return attributes.get("auto_pad", "").upper().startswith("SAME")


def oracle(case: Case, data: dict[int, np.ndarray] | None = None) -> np.ndarray:
    """The result by the definition, in float64, chain and all; nothing of it is upconv's face."""
    data = case.data if data is None else data
    convolution, *tail = case.graph.operations
    arrays = [data[tensor.id].astype(np.float64) for tensor in convolution.inputs[:2]]
    named = dict(zip(ROLES[case.kind], arrays, strict=False))
    regroup = case.rule == "document" and case.kind.startswith("ConvTranspose")
    if "w" in named and regroup:
        named["w"] = regrouped(case.problem, named["w"])
    order = {"y": "xw", "x": "yw", "w": "yx"}[ROLES[case.kind][2]]
    value = testing.scatter(case.problem, *(named[role] for role in order))
    if ROLES[case.kind][2] == "w" and regroup:
        value = ungrouped(case.problem, value)
    channel = [1] * value.ndim
    channel[1 if case.problem.layout is DataLayout.NCX else -1] = -1
    if len(convolution.inputs) > 2 and convolution.kind in ("ConvTranspose", "Convolution"):
        value = value + data[convolution.inputs[2].id].astype(np.float64).reshape(channel)
    made = convolution.outputs[0].id
    for op in tail:
        others = [data[t.id].astype(np.float64) for t in op.inputs if t.id != made]
        made = op.outputs[0].id
        if op.kind == "BiasAdd":
            value = value + others[0].reshape(channel)
        elif op.kind == "BatchNormInference":
            gamma, beta, mean, variance = (other.reshape(channel) for other in others)
            value = gamma * (value - mean) / np.sqrt(variance + 1e-3) + beta
        elif op.kind == "Add":
            value = value + others[0]
        else:
            value = ACTIVATED[op.kind](value)
    return value


ACTIVATED = {
    "ReLU": lambda v: np.where(v > 0, v, 0.0),
    "LeakyReLU": lambda v: np.where(v > 0, v, 0.125 * v),
    "Tanh": np.tanh,
    "Sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "GELU": lambda v: v * (1 + np.vectorize(erf, otypes=[float])(v / sqrt(2))) / 2,
}


def regrouped(problem: Problem, weight: np.ndarray) -> np.ndarray:
    """The weight of the document, (C_in/groups, C_out, *k), as (C_in, C_out/groups, *k)."""
    iox = weight.transpose(problem.weight_layout.to_iox(problem.rank))
    blocks = np.split(iox, problem.groups, axis=1)
    back = np.argsort(problem.weight_layout.to_iox(problem.rank))
    return np.concatenate(blocks, axis=0).transpose(back)


def ungrouped(problem: Problem, weight: np.ndarray) -> np.ndarray:
    """The other way round."""
    iox = weight.transpose(problem.weight_layout.to_iox(problem.rank))
    blocks = np.split(iox, problem.groups, axis=0)
    back = np.argsort(problem.weight_layout.to_iox(problem.rank))
    return np.concatenate(blocks, axis=1).transpose(back)


def disagreement(case: Case, got: np.ndarray, wanted: np.ndarray, ignore=None) -> str:
    """Empty where two results agree within what `allowed` grants, else what is wrong and where."""
    if got.shape != wanted.shape:
        return f"{case}: shape {got.shape}, expected {wanted.shape}"
    allowed = case.allowed(oracle(case, case.magnitudes()))
    apart = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
    wrong = ~(apart <= allowed)
    if ignore is not None:
        wrong &= ~ignore
    if not wrong.any():
        return ""
    where = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    place = tuple(map(int, where))
    return (
        f"{case}: {int(wrong.sum())} of {wrong.size} elements differ, the first at {place}:"
        f" {got[where]!r}, expected {wanted[where]!r} within {allowed[where]:.3g}"
    )
