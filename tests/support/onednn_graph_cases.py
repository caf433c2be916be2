"""Random calls of oneDNN Graph's six functions, each made from a seed, and their expected results.

Unless `beyond`, libdnnl itself computes a case correctly. The cases that it refuses or gets wrong
are in the table of docs/onednn-graph.md, which is tested separately.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np

from upconv import onednn_graph, testing
from upconv.geometry import fitted
from upconv.problem import DataLayout, Direction, DType, Problem, WeightLayout

KINDS = {
    "ConvTranspose": "xwy",
    "ConvTransposeBackwardData": "ywx",
    "ConvTransposeBackwardWeights": "xyw",
    "Convolution": "ywx",
    "ConvolutionBackwardData": "xwy",
    "ConvolutionBackwardWeights": "yxw",
}
"""The two inputs and the result, in a transposed convolution's names."""
USUAL = ("Convolution", "ConvolutionBackwardWeights")
"""Operations whose padding the document does not define."""
FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "ConvTranspose": onednn_graph.convtranspose,
    "ConvTransposeBackwardData": onednn_graph.convtranspose_backward_data,
    "ConvTransposeBackwardWeights": onednn_graph.convtranspose_backward_weights,
    "Convolution": onednn_graph.convolution,
    "ConvolutionBackwardData": onednn_graph.convolution_backward_data,
    "ConvolutionBackwardWeights": onednn_graph.convolution_backward_weights,
}


@dataclass
class Case:
    """A call of one function: its arrays, in order, and its attributes."""

    seed: int
    kind: str
    rule: str
    arrays: list[np.ndarray]
    attributes: dict[str, Any]
    problem: Problem
    result: tuple[int, ...]

    def __str__(self) -> str:
        shapes = [array.shape for array in self.arrays]
        return f"seed {self.seed}: {self.kind} {self.rule} {shapes} {self.attributes}"

    def run(self, **keywords: Any) -> np.ndarray:
        return FUNCTIONS[self.kind](*self.arrays, **self.attributes, rule=self.rule, **keywords)

    def oracle(self, problem: Problem | None = None, magnitudes: bool = False) -> np.ndarray:
        """Return the result by the definition in float64, or with all terms' `magnitudes`."""
        problem = problem or self.problem
        first, second, *bias = (array.astype(np.float64) for array in self.arrays)
        if magnitudes:
            first, second, bias = np.abs(first), np.abs(second), [np.abs(b) for b in bias]
        roles = KINDS[self.kind]
        named = dict(zip(roles, (first, second), strict=False))
        documented = self.rule == "document" and self.kind.startswith("ConvTranspose")
        if "w" in named and documented:
            named["w"] = regrouped(problem, named["w"], 1)
        order = {"y": "xw", "x": "yw", "w": "yx"}[roles[2]]
        value = testing.scatter(problem, *(named[role] for role in order))
        if roles[2] == "w":
            return regrouped(problem, value, 0) if documented else value
        if bias:
            channel = [1] * value.ndim
            channel[1 if problem.layout is DataLayout.NCX else -1] = -1
            value = value + bias[0].reshape(channel)
        return value

    def difference(self, got: np.ndarray, wanted: np.ndarray, ignore: Any = False) -> str:
        """Describe how two results differ; "" if they agree up to rounding."""
        if got.shape != wanted.shape:
            return f"{self}: shape {got.shape}, expected {wanted.shape}"
        rounding = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(got.dtype.name, 2.0**-23)
        terms = prod(self.problem.kernel) * max(self.arrays[0].shape)
        if KINDS[self.kind][2] == "w":
            terms = self.arrays[0].size
        relative = 2.0**-23 * (4 + 2 * sqrt(terms)) + 2 * rounding
        allowed = relative * self.oracle(magnitudes=True) + 1e-30
        agrees = np.abs(got.astype(np.float64) - wanted.astype(np.float64)) <= allowed
        wrong = ~agrees & np.logical_not(ignore)
        return f"{self}: {wrong.sum()} of {wrong.size} elements differ" if wrong.any() else ""


def regrouped(problem: Problem, weight: np.ndarray, axis: int) -> np.ndarray:
    """Move a weight's groups, blocks along `axis` of IOX, to the other channel axis."""
    order = problem.weight_layout.to_iox(problem.rank)
    blocks = np.split(weight.transpose(order), problem.groups, axis=axis)
    return np.concatenate(blocks, axis=1 - axis).transpose(np.argsort(order))


def case(
    seed: int, kind: str, rule: str = "library", beyond: bool = False, dtype: Any = np.float32
) -> Case:
    """Return the case of a seed."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    transposed = kind.startswith("ConvTranspose")
    groups = rng.choice((1, 1, 2, 3)) if beyond or kind != "ConvolutionBackwardData" else 1
    auto_pad = rng.choice(("None", "None", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if kind == "ConvTransposeBackwardWeights" and not beyond:
        auto_pad = rng.choice(("None", "VALID"))
    most_dilation = 3 if beyond or kind != "ConvTransposeBackwardData" else 1
    rows = [
        _axis(rng, kind, auto_pad, most_dilation)
        for _ in range(rng.choices((1, 2, 3), (4, 5, 2))[0])
    ]
    size, kernel, stride, dilation, begin, end, out = map(tuple, zip(*rows, strict=True))
    layout = DataLayout(rng.choice(("NCX", "NXC")))
    name = rng.choice(("XOI", "IOX") if transposed else ("XIO", "OIX"))
    batch, i, o = rng.choice((1, 2, 3)), groups * rng.randint(1, 6), groups * rng.randint(1, 5)
    order = WeightLayout({"XIO": "XOI", "OIX": "IOX"}.get(name, name))
    way = {"y": Direction.FORWARD, "x": Direction.INPUT_GRAD, "w": Direction.WEIGHT_GRAD}
    documented = rule == "document"
    axes = tuple(_fitted(row, auto_pad, documented and kind not in USUAL) for row in rows)
    problem = Problem(way[KINDS[kind][2]], axes, batch, i, o, groups, DType.FLOAT64, layout, order)
    shapes = {
        "x": layout.shape(batch, i, size),
        "y": layout.shape(batch, o, out),
        "w": problem.weight_shape,
    }
    if documented and transposed:
        shapes["w"] = order.shape(i // groups, o, kernel)
    attributes: dict[str, Any] = {"strides": stride, "pads_begin": begin, "pads_end": end,
                                  "dilations": dilation, "groups": groups,
                                  "data_format": layout.value, "weights_format": name}  # fmt: skip
    if auto_pad != "None" or rng.random() < 0.3:
        attributes["auto_pad"] = auto_pad.lower() if documented else auto_pad
    if kind == "ConvolutionBackwardData":
        attributes["dst_shape"] = shapes["y"]
    elif kind.endswith("Weights"):
        attributes["weights_shape"] = shapes["w"]
    elif kind == "ConvTranspose" and not auto_pad.startswith("SAME"):
        attributes["output_padding"] = tuple(_output_padding(row, auto_pad) for row in rows)
    wanted = [shapes[role] for role in KINDS[kind][:2]]
    if kind in ("ConvTranspose", "Convolution") and rng.random() < 0.5:
        wanted.append((o if transposed else i,))
    arrays = [numbers.standard_normal(shape).astype(dtype) for shape in wanted]
    return Case(seed, kind, rule, arrays, attributes, problem, shapes[KINDS[kind][2]])


def _axis(rng: random.Random, kind: str, auto_pad: str, most_dilation: int) -> tuple[int, ...]:
    """Draw (size, kernel, stride, dilation, begin, end, out) of an axis in the library's terms."""
    while True:
        kernel, stride = rng.randint(1, 5), rng.randint(1, 4)
        dilation = rng.choice((1, 1, rng.randint(1, most_dilation)))
        extent = dilation * (kernel - 1) + 1
        if auto_pad.startswith("SAME"):
            out = rng.randint(1, 12)
            size = -(-out // stride)
            if kind == "ConvTranspose":
                out = stride * size  # what ConvTranspose infers
            if extent >= stride:
                return size, kernel, stride, dilation, 0, 0, out
            continue
        size, begin, end = rng.randint(1, 7), rng.randint(0, 3), rng.randint(0, 3)
        used = 0 if auto_pad == "VALID" else begin + end
        out = stride * (size - 1) + extent - used + rng.randint(0, stride - 1)
        if out >= 1 and out + used >= extent:
            return size, kernel, stride, dilation, begin, end, out


def _fitted(row: tuple[int, ...], auto_pad: str, by_document: bool) -> Any:
    """Return the axis, whose crop at the beginning follows the page's formulas."""
    size, kernel, stride, dilation, begin, _, out = row
    extent = dilation * (kernel - 1) + 1
    if auto_pad == "VALID":
        begin = 0
    elif auto_pad.startswith("SAME"):
        total = max(extent - (out % stride or stride), 0)
        upper = auto_pad == "SAME_UPPER"
        if by_document:
            total, upper = stride * (size - 1) + extent - out, not upper
        begin = total // 2 if upper else total - total // 2
    return fitted(size, kernel, stride, dilation, begin, out)


def _output_padding(row: tuple[int, ...], auto_pad: str) -> int:
    size, kernel, stride, dilation, begin, end, out = row
    pads = 0 if auto_pad == "VALID" else begin + end
    return out - (stride * (size - 1) + dilation * (kernel - 1) + 1 - pads)
