"""Parts whose operators move axes: linear layers over channels, and squeeze and excitation."""

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="sessions run in it")

from onnx import helper

from tests.support import onnx_texts
from tests.support.onnx_sessions import by_upconv
from upconv.onnx.session import parts

C, H, W = 6, 5, 4
RANDOM = np.random.default_rng(0)
TO_LAST, BACK = [0, 2, 3, 1], [0, 3, 1, 2]


def weights(**shapes):
    return {name: RANDOM.random(shape, np.float32) - 0.4 for name, shape in shapes.items()}


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs.split(), [output], name=f"{kind}_{output}", **attributes)


def convnext():
    values = weights(w=(C, 1, 3, 3), s=(C,), o=(C,), a=(C, 9), b=(9,), c=(9, C), d=(C,), g=(C,))
    nodes = [
        node("Conv", "x w", "v", group=C, pads=[1] * 4),
        node("Transpose", "v", "n", perm=TO_LAST),
        node("LayerNormalization", "n s o", "l"),
        node("MatMul", "l a", "m"), node("Add", "m b", "p"), node("Relu", "p", "q"),
        node("MatMul", "q c", "r"), node("Add", "d r", "e"), node("Mul", "g e", "f"),
        node("Transpose", "f", "h", perm=BACK), node("Add", "x h", "t"),
    ]  # fmt: skip
    return nodes, values


def excited():
    values = weights(w=(C, C, 1, 1), a=(2, C), b=(2,), c=(2, C), d=(1, C))
    values["shape"] = np.array([0, C, 1, 1])
    nodes = [
        node("Conv", "x w", "v"), node("GlobalAveragePool", "v", "p"),
        node("Flatten", "p", "q"), node("Gemm", "q a b", "r", transB=1), node("Relu", "r", "e"),
        node("Gemm", "e c d", "f"), node("Sigmoid", "f", "s"),
        node("Reshape", "s shape", "k"), node("Mul", "v k", "t"),
    ]  # fmt: skip
    return nodes, values


def tokens():
    """Softsign, which no network has, of (N, T, C) that is transposed for a convolution."""
    values = weights(w=(C, W, 1, 1))
    nodes = [
        node("Softsign", "x", "a"), node("Relu", "a", "b"),
        node("Transpose", "b", "c", perm=BACK), node("Conv", "c w", "t"),
    ]  # fmt: skip
    return nodes, values


def recurrent():
    values = weights(w=(C, C, 1, 1), k=(1, 4 * C, C), r=(1, 4 * C, C))
    values |= {"rows": np.array([0, C, -1]), "shape": np.array([1, C, H, W]), "z": np.array([1])}
    nodes = [
        node("Conv", "x w", "v"), node("Reshape", "v rows", "a"),
        node("Transpose", "a", "b", perm=[2, 0, 1]), node("LSTM", "b k r", "c", hidden_size=C),
        node("Squeeze", "c z", "d"), node("Transpose", "d", "e", perm=[1, 2, 0]),
        node("Reshape", "e shape", "t"),
    ]  # fmt: skip
    return nodes, values


def crossing():
    """A transposed value that a part without a convolution gives to one with a convolution."""
    values = weights(w=(C, C, 1, 1), a=(C, C))
    nodes = [
        node("MaxPool", "x", "p", kernel_shape=[1, 1]), node("Transpose", "p", "q", perm=TO_LAST),
        node("Softsign", "q", "r"), node("Transpose", "r", "s", perm=BACK),
        node("Conv", "s w", "u"), node("Transpose", "u", "v", perm=TO_LAST),
        node("MatMul", "q a", "k"), node("Add", "k v", "l"),
        node("Transpose", "l", "t", perm=BACK),
    ]  # fmt: skip
    return nodes, values


def model(made, batch=1, size=(H, W), outputs=()):
    """The nodes, and a transposed convolution at the end."""
    nodes, values = made
    tail = node("ConvTranspose", "t up", "y", strides=[2, 2])
    arrays = {**values, **weights(up=(C, 2, 2, 2))}
    return onnx_texts.made([*nodes, tail], arrays, (batch, C, *size), ("y", *outputs))


def checked(source, *shapes):
    """The rows of a session's report, after a comparison of its results with ONNX Runtime's."""
    report = by_upconv(
        source, *({"x": RANDOM.random(each, np.float32)} for each in shapes)
    ).report()
    assert "ONNX Runtime computed" not in str(report)
    return report.rows


@pytest.mark.parametrize("made", [convnext, excited])
def test_one_part_computes_the_model(made) -> None:
    (row,) = checked(model(made()), (1, C, H, W))
    assert row.layers == 2


def test_open_sizes() -> None:
    (row,) = checked(model(convnext(), None, (None, None)), (1, C, H, W), (3, C, 7, 9))
    assert row.layers == 2


@pytest.mark.parametrize(("made", "count"), [(tokens, 1), (recurrent, 2), (crossing, 2)])
def test_a_part_ends_where_the_order_of_axes_is_not_known(made, count) -> None:
    rows = checked(model(made()), (1, C, H, W))
    assert sum(row.layers for row in rows) == 2
    assert len(rows) == count


@pytest.mark.parametrize("most", [8, 0])
def test_a_part_ends_before_results_in_another_order(most, monkeypatch) -> None:
    monkeypatch.setattr(parts, "_MAX_CHOICES", most)
    nodes, values = convnext()
    rows = checked(model((nodes, values), outputs=("n", "l")), (1, C, H, W))
    assert sum(row.layers for row in rows) == 2
    assert len(rows) == 2


@pytest.mark.parametrize("change", ["alpha", "rows"])
def test_other_layers_over_the_last_axis_are_left_to_onnx_runtime(change) -> None:
    """A scaled Gemm, and a Reshape that divides the channels."""
    nodes, values = excited()
    if change == "alpha":
        nodes[3].attribute.append(helper.make_attribute("alpha", 2.0))
    else:
        values |= {"shape": np.array([1, C // 2, 2, 1]), "again": np.array([1, C, 1, 1])}
        between = node("Reshape", "s shape", "i"), node("Relu", "i", "j")
        nodes[-2:] = [*between, node("Reshape", "j again", "k"), nodes[-1]]
    rows = checked(model((nodes, values)), (1, C, H, W))
    assert any(row.why for row in rows)


def pooled():
    """(1, C, 1, 1) as (1, C)."""
    nodes = [
        node("Conv", "x w", "v"), node("GlobalAveragePool", "v", "p"), node("Flatten", "p", "f"),
    ]  # fmt: skip
    return nodes, weights(w=(C, C, 1, 1))


def rows_bias():
    """A Gemm whose bias differs between the rows, of which there are as many as channels."""
    nodes, values = pooled()
    nodes += [
        node("Gemm", "f a b", "g", transB=1), node("Relu", "g", "r"),
        node("Reshape", "r shape", "k"), node("Mul", "v k", "t"),
    ]  # fmt: skip
    return nodes, {**values, **weights(a=(C, C), b=(C, 1)), "shape": np.array([-1, C, 1, 1])}


def positions_bias():
    """The same between Reshapes, for as many positions as channels."""
    values = weights(w=(C, C, 1, 1), a=(C, C), b=(C, 1))
    values |= {"rows": np.array([-1, C]), "back": np.array([1, 3, 2, C])}
    nodes = [
        node("Conv", "x w", "v"), node("Transpose", "v", "n", perm=TO_LAST),
        node("Reshape", "n rows", "r"), node("Gemm", "r a b", "g"),
        node("Reshape", "g back", "h"), node("Transpose", "h", "t", perm=BACK),
    ]  # fmt: skip
    return nodes, values


def negative_axis():
    nodes, values = pooled()
    nodes[-1] = node("Flatten", "p", "f", axis=-3)
    nodes += [node("Add", "f k", "g"), node("Reshape", "g shape", "t")]
    return nodes, {**values, **weights(k=(C, 1)), "shape": np.array([-1, C, 1, 1])}


def snake():
    """x + sin(a x)^2 / a with numbers along the last axis, which is as long as the channels."""
    values = weights(w=(C, C, 1, 1)) | {"a": np.arange(1, C + 1, dtype=np.float32)}
    values |= {"i": (1 / values["a"]).astype(np.float32), "two": np.float32(2)}
    nodes = [
        node("Conv", "x w", "v"), node("Mul", "v a", "m"), node("Sin", "m", "s"),
        node("Pow", "s two", "q"), node("Mul", "q i", "o"), node("Add", "v o", "t"),
    ]  # fmt: skip
    return nodes, values


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        (rows_bias, (C, C, 3, 4)),
        (positions_bias, (1, C, 3, 2)),
        (negative_axis, (1, C, 3, 4)),
        (snake, (1, C, 4, C)),
    ],
)
def test_sizes_that_coincide_do_not_mislead(made, shape) -> None:
    checked(model(made(), shape[0], shape[2:]), shape)


@pytest.mark.parametrize("output", ["mean", "deviation"])
def test_a_layer_whose_other_results_are_read_is_left(output) -> None:
    values = weights(w=(C, C, 1, 1), s=(C,), o=(C,))
    norm = helper.make_node("LayerNormalization", ["n", "s", "o"], ["l", "mean", "deviation"])
    nodes = [
        node("Conv", "x w", "v"), node("Transpose", "v", "n", perm=TO_LAST), norm,
        node("Transpose", "l", "t", perm=BACK),
    ]  # fmt: skip
    checked(model((nodes, values), outputs=(output,)), (1, C, H, W))


def normalised(tail=()):
    """Group normalisation by two Reshapes, and a convolution; then a head of linear layers."""
    values = weights(s=(2,), o=(2,), w=(C, C, 1, 1))
    values |= {"to": np.array([0, 2, -1]), "from": np.array([1, C, H, W])}
    nodes = [
        node("Reshape", "x to", "a"), node("InstanceNormalization", "a s o", "b"),
        node("Reshape", "b from", "c"), node("Relu", "c", "d"), node("Conv", "d w", "t"),
    ]  # fmt: skip
    return [*nodes, *tail], values


def test_a_pattern_needs_no_layer_before_it() -> None:
    (row,) = checked(model(normalised()), (1, C, H, W))
    assert "InstanceNormalization" in row.kind or "Reshape" in row.kind


def test_a_long_head_does_not_divide_the_model() -> None:
    layers = [node("GlobalAveragePool", "t", "p"), node("Flatten", "p", "g0")]
    for i in range(12):
        layers += [node("Gemm", f"g{i} square", f"h{i}"), node("Relu", f"h{i}", f"g{i + 1}")]
    nodes, values = normalised(layers)
    values |= weights(square=(C, C))
    (row,) = checked(model((nodes, values), outputs=("g12",)), (1, C, H, W))
    assert row.layers == 2


def test_a_transposed_input_that_a_convolution_reads_does_not_lose_it() -> None:
    values = weights(w=(C, H, 1, 1), s=(C,), o=(C,), m=(C,)) | {"v": np.ones(C, np.float32)}
    nodes = [
        node("BatchNormalization", "x s o m v", "a"),
        node("Transpose", "a", "b", perm=[0, 2, 1, 3]),
        node("Conv", "b w", "c"), node("Relu", "c", "t"),
    ]  # fmt: skip
    (row,) = checked(model((nodes, values)), (1, C, H, W))
    assert row.layers == 2
