"""The oneDNN Graph face computes what the definition says, on every engine, by either rule.

Cases are random, the oracle is `testing.scatter` with crops by formulas written down in the tests.
"""

from __future__ import annotations

import numpy as np
import pytest

import graph_cases
from graph_cases import KINDS, case, disagreement, oracle
from upconv import EngineRefusal
from upconv.onednn_graph import SCHEMAS, Graph, LogicalTensor, Op

WINDOW = {"strides": [2], "pads_begin": [1], "pads_end": [0], "dilations": [1]}
TYPES = ("f32", "f32", "bf16", "f16")


def check(seed: int, rule: str, kind: str, **how) -> None:
    one = case(seed, kind, rule, beyond=True, data_types=TYPES)
    got = one.graph.execute(one.data, **how)[one.output]
    said = disagreement(one, got, oracle(one))
    assert not said, said
    assert got.dtype == one.data[min(one.data)].dtype


@pytest.mark.parametrize("rule", ["library", "document"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_computes_the_definition(kind: str, rule: str) -> None:
    for seed in range(15):
        check(seed, rule, kind)


@pytest.mark.long
@pytest.mark.parametrize("rule", ["library", "document"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_computes_the_definition_at_length(kind: str, rule: str) -> None:
    for seed in range(1000, 1400):
        check(seed, rule, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_operations_one_by_one_compute_the_same(kind: str) -> None:
    for seed in range(6):
        check(seed, "library", kind, policy="debug")


def test_any_engine_runs_a_graph(engine) -> None:
    ran = 0
    for seed in range(40):
        one = case(seed, beyond=True)
        try:
            got = one.graph.execute(one.data, engine=engine.name)[one.output]
        except EngineRefusal:
            continue
        ran += 1
        said = disagreement(one, got, oracle(one))
        assert not said, said
    assert ran >= 5


def one_op(kind, inputs, attributes=None, out=None, rule="library"):
    """The result of one operation on arrays, constants where they are integers."""
    words = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "s32"}
    tensors = [
        LogicalTensor(i, words[array.dtype.name], array.shape) for i, array in enumerate(inputs)
    ]
    graph = Graph(rule=rule)
    output = LogicalTensor(99, tensors[0].data_type, out)
    graph.add_op(Op(1, kind, tensors, [output], attributes or {}))
    graph.finalize()
    return graph.execute(dict(enumerate(inputs)))[99]


def test_a_deconvolution_worked_by_hand() -> None:
    """x = [1, 2, 3], w = [1, 10, 100], s = 2, p = (1, 0): the example of the geometry page."""
    x = np.array([[[1], [2], [3]]], np.float32)
    w = np.array([1, 10, 100], np.float32).reshape(3, 1, 1)  # XOI
    y = one_op("ConvTranspose", [x, w], WINDOW)
    assert y.ravel().tolist() == [10, 102, 20, 203, 30, 300]
    assert one_op("ConvolutionBackwardData", [x, w], WINDOW).ravel().tolist() == y.ravel().tolist()


DATA = np.arange(-6, 6, dtype=np.float32).reshape(2, 3, 2)
ELEMENTWISE = {
    "ReLU": ([DATA], {}, np.maximum(DATA, 0)),
    "LeakyReLU": ([DATA], {"alpha": 0.5}, np.where(DATA < 0, DATA / 2, DATA)),
    "Tanh": ([DATA], {}, np.tanh(DATA)),
    "Sigmoid": ([DATA], {}, 1 / (1 + np.exp(-DATA))),
    "GELU": ([DATA], {}, graph_cases.ACTIVATED["GELU"](DATA)),
    "BiasAdd": (
        [DATA, np.array([1, 2, 4], np.float32)],
        {"data_format": "NCX"},
        DATA + np.array([[1], [2], [4]]),
    ),
    "BiasAddBackward": ([DATA], {}, DATA.sum((0, 1))),
    "BatchNormInference": (
        [DATA, *(np.array(v, np.float32) for v in ([2, 3], [1, -1], [0.5, 1], [4, 9]))],
        {"epsilon": 0.0},
        DATA * [1, 1] + [1 - 0.5, -1 - 1],
    ),
    "ReLUBackward": ([DATA, DATA + 1], {"use_dst": False}, np.where(DATA > 0, DATA + 1, 0)),
    "Add": ([DATA, DATA[:, :1]], {}, DATA + DATA[:, :1]),
    "Subtract": ([DATA, DATA[0, 0]], {}, DATA - DATA[0, 0]),
    "Multiply": ([DATA[:1], DATA], {}, DATA[:1] * DATA),
    "Divide": ([DATA, DATA + 9], {"auto_broadcast": "none"}, DATA / (DATA + 9)),
    "Maximum": ([DATA, -DATA], {}, np.abs(DATA)),
    "Minimum": ([DATA, -DATA], {}, -np.abs(DATA)),
}


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_an_operation_without_convolution(kind: str) -> None:
    inputs, attributes, wanted = ELEMENTWISE[kind]
    got = one_op(kind, inputs, attributes)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=3e-7, atol=1e-7)
    half = [array.astype(np.float16) for array in inputs]
    if kind == "BatchNormInference":
        half = [half[0], *inputs[1:]]  # of 16 bits only bfloat16 may have such statistics
    got = one_op(kind, half, attributes)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-3)


def test_every_operation_of_the_table_is_tested() -> None:
    assert {*KINDS, *ELEMENTWISE, "End"} == set(SCHEMAS)


def test_nan_stays_nan_and_nothing_warns() -> None:
    odd = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    assert np.isnan(one_op("ReLU", [odd])[0, 0])
    assert np.isnan(one_op("Subtract", [odd, odd]))[0].all()
    root = [np.full(3, value, np.float32) for value in (1, 0, 0, -1)]
    assert np.isnan(one_op("BatchNormInference", [odd, *root], {"epsilon": 0.0})).all()


def test_dst_shape_as_attribute_as_tensor_and_as_known_dims() -> None:
    """s = 2, k = 3, I = 3, p = (1, 0): O is 6 or 7. The tensor wins, then known dims."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 3, 2), (3, 4, 2)))
    kind, shapes = "ConvolutionBackwardData", {6: [1, 6, 4], 7: [1, 7, 4]}
    whole = one_op(kind, [x, w], WINDOW, out=shapes[7])
    for out, shape in shapes.items():
        by_attribute = one_op(kind, [x, w], {**WINDOW, "dst_shape": shape})
        assert by_attribute.shape == (1, out, 4)
        np.testing.assert_allclose(by_attribute, whole[:, :out], rtol=1e-5, atol=1e-6)
        told = np.array(shape, np.int32)
        other = {**WINDOW, "dst_shape": shapes[13 - out]}
        assert one_op(kind, [x, w, told], other).shape == (1, out, 4)
        assert one_op(kind, [x, w], other, out=shape).shape == (1, out, 4)


@pytest.mark.parametrize("policy", ["fusion", "debug"])
def test_a_size_may_be_known_by_what_follows(policy: str) -> None:
    """O is 6 or 7; only the dims behind BiasAdd and ReLU say which."""
    rng = np.random.default_rng(1)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((1, 3, 2), (3, 4, 2), (4,)))
    tensors = [LogicalTensor(i, "f32", a.shape) for i, a in enumerate((x, w, b))]
    made = [LogicalTensor(i, "f32") for i in range(3, 5)]
    for told in (False, True):
        last = LogicalTensor(5, "f32", (1, 7, 4) if told else None)
        graph = Graph()
        graph.add_op(Op(0, "ConvTranspose", tensors[:2], [made[0]], WINDOW))
        graph.add_op(Op(1, "BiasAdd", [made[0], tensors[2]], [made[1]]))
        graph.add_op(Op(2, "ReLU", [made[1]], [last]))
        graph.finalize()
        got = graph.execute({0: x, 1: w, 2: b}, policy=policy)[last.id]
        assert got.shape == (1, 7 if told else 6, 4)
        whole = one_op("ConvTranspose", [x, w, b], WINDOW, out=got.shape)
        np.testing.assert_allclose(got, np.maximum(whole, 0), rtol=1e-5, atol=1e-6)


def test_weights_shape_as_attribute_as_tensor_and_as_known_dims() -> None:
    rng = np.random.default_rng(2)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 3, 2), (1, 7, 4)))
    for kernel in (3, 4):  # both make 3 positions of 7 with stride 2 and one pad
        shape = (kernel, 4, 2)
        kind = "ConvTransposeBackwardWeights"
        by_dims = one_op(kind, [x, y], WINDOW, out=shape)
        told = np.array(shape, np.int32)
        other = {**WINDOW, "weights_shape": (7 - kernel, 4, 2)}
        for got in (
            one_op(kind, [x, y], {**WINDOW, "weights_shape": shape}),
            one_op(kind, [x, y, told], other),
        ):
            np.testing.assert_array_equal(got, by_dims)
        reach = [
            sum(x[0, i, c] * y[0, 2 * i + t - 1, o] for i in range(3) if 0 <= 2 * i + t - 1 < 7)
            for t in range(kernel)
            for o in range(4)
            for c in range(2)
        ]
        np.testing.assert_allclose(by_dims.ravel(), reach, rtol=1e-5, atol=1e-6)


def test_gradients_are_adjoint_with_groups_dilation_and_same_padding() -> None:
    """<y(x, w), g> = <x, dx(g, w)> = <w, dw(x, g)> for both families, beyond what libdnnl does."""
    rng = np.random.default_rng(3)
    window = {"strides": [3, 2], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [2, 3]}
    words = {**window, "groups": 3, "auto_pad": "SAME_UPPER", "data_format": "NCX"}
    x, w, g = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((2, 6, 3, 4), (6, 2, 3, 2), (2, 6, 9, 8))
    )
    families = (
        ("ConvTranspose", "ConvTransposeBackwardData", "ConvTransposeBackwardWeights", "IOX"),
        ("ConvolutionBackwardData", "Convolution", "ConvolutionBackwardWeights", "OIX"),
    )
    numbers = []
    for forward, by_data, by_weights, order in families:
        attributes = {**words, "weights_format": order}
        y = one_op(forward, [x, w], {**attributes}, out=g.shape)
        dx = one_op(by_data, [g, w], attributes, out=x.shape)
        pair = [x, g] if forward == "ConvTranspose" else [g, x]
        dw = one_op(by_weights, pair, attributes, out=w.shape)
        numbers += [np.vdot(y, g), np.vdot(x, dx), np.vdot(w, dw)]
    np.testing.assert_allclose(numbers, numbers[0], rtol=1e-4)


def test_16_bit_statistics_are_taken_where_onednn_takes_them() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = DATA.astype(bfloat16)
    numbers = [np.array(v, bfloat16) for v in ([2, 3], [1, -1], [0.5, 1], [4, 9])]
    wanted = DATA * [1, 1] + [1 - 0.5, -1 - 1]
    for statistics in (numbers, [v.astype(np.float32) for v in numbers]):
        got = one_op("BatchNormInference", [x, *statistics], {"epsilon": 0.0})
        assert got.dtype == bfloat16
        np.testing.assert_allclose(got.astype(float), wanted, rtol=0.01)


def test_an_empty_batch_and_arrays_of_any_strides() -> None:
    x, w = np.ones((0, 3, 2), np.float32), np.ones((3, 4, 2), np.float32)
    assert one_op("ConvTranspose", [x, w], WINDOW).shape == (0, 6, 4)
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 6, 4)).astype(np.float32)
    w = rng.standard_normal((2, 4, 3)).astype(np.float32).transpose(2, 1, 0)
    strided = one_op("ConvTranspose", [x[::-1, ::2, ::2], w], WINDOW)
    dense = one_op("ConvTranspose", [x[::-1, ::2, ::2].copy(), w.copy()], WINDOW)
    np.testing.assert_array_equal(strided, dense)


# ------------------------------------------------------------- planted faults: the tests can fail


def wrong_side(problem):
    axis = problem.axes[-1]
    moved = graph_cases.fitted(
        axis.size, axis.kernel, axis.stride, axis.dilation, axis.crop_begin + 1, axis.out
    )
    return problem.replace(axes=(*problem.axes[:-1], moved))


@pytest.mark.parametrize("kind", KINDS)
def test_one_position_to_the_side_is_noticed(kind: str) -> None:
    noticed = 0
    for seed in range(12):
        one = case(seed, kind, beyond=True)
        honest, one.problem = one.problem, wrong_side(one.problem)
        moved = oracle(one)
        one.problem = honest
        noticed += bool(disagreement(one, moved, oracle(one)))
    assert noticed >= 8  # a position to the side is the same where all is cut off, or one tap wide


@pytest.mark.parametrize("name", ["BiasAdd", "BatchNormInference", "Add", "ReLU"])
def test_an_operation_forgotten_in_a_chain_is_noticed(name: str) -> None:
    noticed = ran = 0
    for seed in range(60):
        one = case(seed, "ConvTranspose", beyond=True)
        if name not in one.chain:
            continue
        ran += 1
        whole = oracle(one)
        data = {id_: np.array(array) for id_, array in one.data.items()}
        for op in one.graph.operations:
            if op.kind == name == "BatchNormInference":
                for tensor, value in zip(op.inputs[1:], (1, 0, 0, 1 - 1e-3), strict=True):
                    data[tensor.id][...] = value
            elif op.kind == name and name != "ReLU":
                for tensor in op.inputs:
                    if tensor.id in data:
                        data[tensor.id][...] = 0
        if name == "ReLU":
            kept, graph_cases.ACTIVATED["ReLU"] = graph_cases.ACTIVATED["ReLU"], lambda v: v
        forgotten = oracle(one, data)
        if name == "ReLU":
            graph_cases.ACTIVATED["ReLU"] = kept
        noticed += bool(disagreement(one, forgotten, whole))
    assert ran >= 5
    assert noticed >= 0.75 * ran  # ReLU of what is positive anyway changes nothing
