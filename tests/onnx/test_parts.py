"""Parts of ONNX models: each row of the table against ONNX Runtime, refusals, and partitions."""

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="sessions run in it")

import onnx
from onnx import helper

from tests.support.onnx_sessions import by_upconv, plain, same
from tests.support.onnx_texts import made, normal, parsed
from tests.support.repeating import seeds, single
from upconv.onnx import Session
from upconv.onnx.session.arranging import ARITHMETIC
from upconv.onnx.session.network_rules import TABLE

SIZES = (7, 6, 5)
Weights = dict[str, np.ndarray]


def source(body: list[onnx.NodeProto], weights: Weights, rank: int = 2) -> onnx.ModelProto:
    """Nodes from v to y between a convolution before them (x to v) and nothing behind them."""
    w = np.random.default_rng(0).standard_normal((6, 4, *(3,) * rank), np.float32) / 6
    first = [
        helper.make_node("Conv", ["x", "w"], ["u0"], pads=[1] * 2 * rank),
        helper.make_node("LeakyRelu", ["u0"], ["v"]),
    ]
    sizes = [f"s{i}" for i in range(rank)]
    return made([*first, *body], {"w": w, **weights}, ["n", 4, *sizes], opset=20)


def node(kind: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, ["v", *inputs], ["y"], **attributes)


def image(rank: int = 2, batch: int = 2) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((batch, 4, *SIZES[:rank]), np.float32)


def vector(number: int = 6, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).random(number, np.float32) + 0.5


def spread(rank: int) -> np.ndarray:
    """One number per channel, of both signs, as exporters write it."""
    return (vector() - 1).reshape(6, *(1,) * rank)


UNARY = (
    "Relu", "Tanh", "Sigmoid", "Softplus", "Mish", "HardSwish", "Abs", "Exp", "Sin", "Cos"
)  # fmt: skip


def rows(rank: int) -> dict[str, tuple[list[onnx.NodeProto], Weights]]:
    """Nodes for every row of the table, and operands, for values with some spatial axes."""
    ones = (1,) * rank
    floats = {name: vector(seed=i) for i, name in enumerate("abcd")}
    whole = np.array([1, 1, *(2,) * rank], np.float32)
    none = np.zeros(0, np.float32)
    pads = np.array([0, 0, *(2,) * rank, 0, 0, *(1,) * rank])
    cut = {"s": np.full(rank, 1), "e": np.full(rank, -2), "ax": np.arange(2, 2 + rank)}
    found: dict[str, tuple[list[onnx.NodeProto], Weights]] = {
        "Conv": (
            [node("Conv", "u", "a", strides=[2] * rank, auto_pad="SAME_LOWER")],
            {"u": np.ones((6, 6, *(3,) * rank), np.float32) / 9, "a": floats["a"]},
        ),
        "ConvTranspose": (
            [node("ConvTranspose", "u", strides=[3] * rank, auto_pad="SAME_UPPER", group=2)],
            {"u": np.arange(36 * 4**rank, dtype=np.float32).reshape(6, 6, *(4,) * rank) / 999},
        ),
        "BatchNormalization": ([node("BatchNormalization", *"abcd", epsilon=0.1)], floats),
        "InstanceNormalization": ([node("InstanceNormalization", "a", "b")], floats),
        "PRelu, one slope": ([node("PRelu", "a")], {"a": np.float32([0.2])}),
        "PRelu": ([node("PRelu", "a")], {"a": spread(rank)}),
        "Clip": ([node("Clip", "a", "b")], {"a": np.float32(-0.1), "b": np.float32(0.4)}),
        "Clip, above": ([node("Clip", "", "b")], {"b": np.float32(0.4)}),
        "HardSigmoid": ([node("HardSigmoid", alpha=0.3)], {}),
        "Pow": ([node("Pow", "a")], {"a": np.float32(2)}),
        "LeakyRelu": ([node("LeakyRelu", alpha=0.3)], {}),
        "Elu": ([node("Elu", alpha=0.7)], {}),
        "Gelu": ([node("Gelu")], {}),
        "Gelu, tanh": ([node("Gelu", approximate="tanh")], {}),
        "Concat": ([node("Concat", "v", axis=1 - 2 - rank)], {}),
        "Slice": ([node("Slice", "s", "e", "ax")], cut),
        "Slice, channels": (
            [node("Slice", "s", "e", "ax")],
            {"s": np.array([-5]), "e": np.array([99]), "ax": np.array([1])},
        ),
        "Split": (
            [
                helper.make_node("Split", ["v", "p"], ["l", "r"], axis=1),
                helper.make_node("Sub", ["r", "l"], ["y"]),
            ],
            {"p": np.array([3, 3])},
        ),
        "Pad": ([node("Pad", "p")], {"p": pads}),
        "Pad, a number": ([node("Pad", "p", "a")], {"p": pads, "a": np.float32(3)}),
        "GlobalAveragePool": ([node("GlobalAveragePool")], {}),
        "GlobalMaxPool": ([node("GlobalMaxPool")], {}),
        "Softmax": ([node("Softmax", axis=1)], {}),
        "Pad, reflect": ([node("Pad", "p", mode="reflect")], {"p": pads}),
        "Pad, edge": ([node("Pad", "p", mode="edge")], {"p": pads}),
        "Pad, negative": ([node("Pad", "p")], {"p": -pads}),
        "MaxPool": ([node("MaxPool", kernel_shape=[3] * rank, pads=[1] * 2 * rank)], {}),
        "AveragePool": (
            [node("AveragePool", kernel_shape=[2] * rank, strides=[2] * rank, pads=[1] * 2 * rank)],
            {},
        ),
        "MaxPool, up": (
            [node("MaxPool", kernel_shape=[3] * rank, strides=[2] * rank, ceil_mode=1)], {}
        ),
        "MaxPool, dilated": ([node("MaxPool", kernel_shape=[2] * rank, dilations=[2] * rank)], {}),
        "AveragePool, up": (
            [node("AveragePool", kernel_shape=[3] * rank, strides=[2] * rank, ceil_mode=1)], {}
        ),
        "Resize, nearest": (
            [
                node("Resize", "", "a", coordinate_transformation_mode="asymmetric",
                     nearest_mode="floor")
            ],
            {"a": whole},
        ),
        "Resize, half pixel": ([node("Resize", "z", "a")], {"a": whole, "z": none}),
        "Resize, linear": ([node("Resize", "z", "a", mode="linear")], {"a": whole, "z": none}),
        "Resize, corners": (
            [
                node("Resize", "z", "a", mode="linear",
                     coordinate_transformation_mode="align_corners")
            ],
            {"a": whole, "z": none},
        ),
        "Identity": ([node("Identity")], {}),
        "Dropout": ([node("Dropout")], {}),
    }  # fmt: skip
    for kind in UNARY:
        found[kind] = [node(kind)], {}
    found["Sqrt"] = (
        [helper.make_node("Abs", ["v"], ["p"]), helper.make_node("Sqrt", ["p"], ["y"])],
        {},
    )
    for kind in ARITHMETIC:
        found[kind] = [node(kind, "a")], {"a": spread(rank) + 2}
        found[f"{kind}, a number"] = [node(kind, "a")], {"a": np.float32(1.7)}
        found[f"{kind}, constant first"] = (
            [helper.make_node("Exp", ["v"], ["p"]), helper.make_node(kind, ["a", "p"], ["y"])],
            {"a": spread(rank).reshape(1, 6, *ones)},
        )
        found[f"{kind}, two values"] = (
            [helper.make_node("Exp", ["v"], ["p"]), helper.make_node(kind, ["v", "p"], ["y"])],
            {},
        )
    if rank == 2:
        for mode in ("CRD", "DCR"):
            found[f"DepthToSpace, {mode}"] = (
                [
                    helper.make_node("Concat", ["v", "v"], ["p"], axis=1),
                    helper.make_node("DepthToSpace", ["p"], ["y"], blocksize=2, mode=mode),
                ],
                {},
            )
    return found


def check(model: onnx.ModelProto, *inputs: dict[str, np.ndarray], parts: int = 1) -> Session:
    """A session has the values of ONNX Runtime, with all convolutions in so many parts."""
    session = by_upconv(model, *inputs)
    found = session.report().rows
    assert [row.upconv for row in found] == [True] * parts, str(session.report())
    return session


def text(name: str, rank: int) -> str:
    """What a row says."""
    body, weights = rows(rank)[name]
    return f"{body} {[(key, array.tolist()) for key, array in weights.items()]}"


ROWS = [
    (name, rank)
    for rank in (2, 1, 3)
    for name in rows(rank)
    if rank == 2 or text(name, rank) != text(name, 2)
]
"""All rows for images; for lines and volumes those that depend on the number of axes."""


@pytest.mark.parametrize(("name", "rank"), ROWS)
def test_rows(name: str, rank: int) -> None:
    """The whole model is one part, whose sizes are open."""
    body, weights = rows(rank)[name]
    model = source(body, weights, rank)
    try:
        plain(model, {"x": image(rank)})
    except Exception:
        pytest.skip("ONNX Runtime has no kernel")
    session = check(model, {"x": image(rank)})
    [part] = session._assembly.partition("parts").parts
    assert (part.inputs, part.outputs) == (("x",), ("y",))
    other = np.concatenate([image(rank), image(rank)], axis=-1)[:1]
    same(session.run(None, {"x": other}), plain(model, {"x": other}))
    assert "ONNX Runtime computed" not in str(session.report())


def test_every_row_of_the_table_is_tested() -> None:
    tested = {name.partition(",")[0] for name in rows(2)}
    every = {*TABLE, *ARITHMETIC} - {"GroupNormalization"}  # ONNX Runtime runs it as a function
    assert tested == every


REFUSALS = {
    "Resize": (
        [node("Resize", "", "a")],
        {"a": np.float32([1, 1, 1.5, 1.5])},
        "No network can resize by its factors, [1.0, 1.0, 1.5, 1.5].",
    ),
    "Softmax": ([node("Softmax", axis=2)], {}, "axis 2, not 1"),
    "Slice": (
        [node("Slice", "s", "e", "ax")],
        {"s": np.array([0]), "e": np.array([3]), "ax": np.array([2])},
        "0:3 of an open size",
    ),
    "MaxPool": (
        [node("MaxPool", kernel_shape=[2, 2], pads=[0, 0, 1, 1], ceil_mode=1)],
        {},
        "ceil_mode",
    ),
    "Add": ([node("Add", "a")], {"a": np.ones((6, 1, 5), np.float32)}, "one number per channel"),
    "Softsign": ([node("Softsign")], {}, "A network has no Softsign."),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_a_network_does_not_have_ends_a_part(name: str) -> None:
    body, weights, reason = REFUSALS[name]
    model = source(body, weights)
    x = image() if name != "Slice" else image()[:, :, :5]
    if name == "Add":
        x = x[..., :5]
    session = check(model, {"x": x})
    [row] = session.report().rows
    assert name not in row.kind
    assert reason in row.why
    assert "It ends at" in str(row.why) or not row.upconv


# Partitions ---------------------------------------------------------------------------------------

TEXT = """g (float[n, 4, h, w] x, bool flag) => (float[n, 4, h, w] y, float[n, 4, h, w] middle)
<float one = {1}>
{ %s }"""

GRAPHS = {
    "an output in the middle": "middle = Conv <pads=[1,1,1,1]> (x, k) y = Relu(middle)",
    "a path that leaves and comes back": "a = Conv <pads=[1,1,1,1]> (x, k) b = Relu(a)"
    " c = Softsign(b) d = Add(b, c) middle = Conv <pads=[1,1,1,1]> (d, k) y = Mul(middle, b)",
    "two branches": "a = Conv <pads=[1,1,1,1]> (x, k) b = Conv <pads=[1,1,1,1]> (a, k)"
    " c = Tanh(a) middle = Add(b, c) e = Sub(middle, one) y = Max(e, a)",
    "a branch through another operator": "a = Conv <pads=[1,1,1,1]> (x, k) c = Softsign(a)"
    " b = Conv <pads=[1,1,1,1]> (a, k) middle = Add(b, c)"
    " y = Conv <pads=[1,1,1,1]> (middle, k)",
    "a value that a subgraph reads": "a = Conv <pads=[1,1,1,1]> (x, k) b = Relu(a)"
    " middle = If (flag) <then_branch = yes () => (float[n, 4, h, w] t) { t = Neg(a) },"
    " else_branch = no () => (float[n, 4, h, w] e) { e = Identity(b) } >"
    " y = Conv <pads=[1,1,1,1]> (middle, k)",
    "an output that is an input too": "a = Conv <pads=[1,1,1,1]> (x, k) middle = Identity(x)"
    " y = Add(a, middle)",
    "values that nobody reads": "a = Conv <pads=[1,1,1,1]> (x, k) dead = Conv (a, k)"
    " middle = Relu(a) y = Relu(middle)",
}
OF_TWO_PARTS = (
    "a path that leaves and comes back", "a branch through another operator",
    "a value that a subgraph reads",
)  # fmt: skip
KERNEL = np.random.default_rng(0).standard_normal((4, 4, 3, 3), np.float32) / 6


@pytest.mark.parametrize("name", GRAPHS)
def test_partitions(name: str) -> None:
    runs = ((True, 2), (False, 1), (True, 0))
    feeds = [{"x": image(2, batch), "flag": np.array(flag)} for flag, batch in runs]
    check(parsed(TEXT % GRAPHS[name], k=KERNEL), *feeds, parts=1 + (name in OF_TWO_PARTS))


PATTERNS = {
    "SiLU": "s = Sigmoid(v) y = Mul(s, v)",
    "Gelu": "d = Div(v, r) e = Erf(d) a = Add(e, one) m = Mul(v, a) y = Mul(m, half)",
    "snake": "m = Mul(v, al) s = Sin(m) p = Pow(s, two) q = Mul(inv, p) y = Add(v, q)",
    "group norm": "a = Reshape(v, to) b = InstanceNormalization(a, g, g) s = Shape(v)"
    " y = Reshape(b, s)",
    "layer norm": "a = Transpose <perm=[0,2,3,1]> (v)"
    " b = LayerNormalization <axis=-1> (a, six, six) y = Transpose <perm=[0,3,1,2]> (b)",
}


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_of_exporters(name: str) -> None:
    """One operation of the network stands for all nodes."""
    alpha = vector().reshape(1, 6, 1, 1)
    operands = {
        "w": np.random.default_rng(0).standard_normal((6, 4, 3, 3), np.float32) / 6,
        "r": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5),
        "two": np.float32(2), "al": alpha, "inv": 1 / alpha, "to": np.array([0, 3, -1]),
        "g": vector(3), "six": vector(),
    }  # fmt: skip
    text = f"""g (float[n, 4, h, w] x) => (float[n, 6, a, b] y)
    {{ u = Conv (x, w) v = LeakyRelu(u) {PATTERNS[name]} }}"""
    session = check(parsed(text, **operands), {"x": image()})
    [part] = session._assembly.partition("parts").parts
    assert part.outputs == ("y",)
    assert part.kind.count(",") == 2  # Conv, LeakyRelu, and the pattern's last node


def test_a_part_that_does_not_fit_some_shapes_is_left_to_onnx_runtime_for_them() -> None:
    """Two inputs are added that are alike in one run, and broadcast over some axes in another."""
    text = """g (float[n, 4, h, w] x, float[m, 4, i, j] z) => (float[a, 4, b, c] y)
    { u = Conv <pads=[1,1,1,1]> (x, k) y = Add(u, z) }"""
    others = image(), image()[:, :, :1], image()[:1]
    session = check(parsed(text, k=KERNEL), *({"x": image(), "z": z} for z in others))
    [row] = session.report().rows
    assert "ONNX Runtime computed some shapes: " in row.why


def random_graph(seed: int) -> onnx.ModelProto:
    """Values of one shape and the nodes between them, some of which no network has."""
    rng = random.Random(seed)
    values, nodes = ["x"], list[onnx.NodeProto]()
    for number in range(rng.randint(4, 14)):
        kind = rng.choice(
            ("Conv", "Conv", "Relu", "Tanh", "Softsign", "Add", "Sub", "Max", "Concat")
        )
        inputs, y = [rng.choice(values[-5:])], f"v{number}"
        if kind in ("Add", "Sub", "Max"):
            inputs.append(rng.choice(values))
        if kind == "Conv":
            nodes.append(helper.make_node("Conv", [*inputs, "k"], [y], pads=[1, 1]))
        elif kind == "Concat":
            nodes.append(
                helper.make_node("Concat", [*inputs, rng.choice(values)], [f"c{number}"], axis=1)
            )
            nodes.append(helper.make_node("Conv", [f"c{number}", "k2"], [y], pads=[1, 1]))
        else:
            nodes.append(helper.make_node(kind, inputs, [y]))
        values.append(y)
    outputs = {values[-1], *rng.sample(values[1:], min(2, len(values) - 1))}
    weights = {"k": normal(seed, 3, 3, 3) / 3, "k2": normal(seed, 3, 6, 3) / 4}
    return made(nodes, weights, ["n", 3, "l"], sorted(outputs))


@pytest.mark.parametrize("first", [0, pytest.param(12, marks=pytest.mark.long)])
def test_random_graphs(first: int) -> None:
    met = 0
    for seed in seeds(first, first + 12):
        model = random_graph(seed)
        feeds = ({"x": normal(seed, n, 3, length)} for n, length in ((2, 9), (1, 20), (0, 4)))
        met += any(row.upconv for row in by_upconv(model, *feeds).report().rows)
    assert met >= 8 or single()
