"""`upconv.mxnet.to_onnx`, rule by rule: what ONNX Runtime computes of what is written."""

import numpy as np
import pytest

from tests.support.paths import ROOT

pytest.importorskip("onnx", reason="models are written by onnx")
pytest.importorskip("onnxruntime", reason="they are run by ONNX Runtime")

import upconv.mxnet as mx
from tests.support.mxnet_networks import drawn
from upconv.errors import FileError
from upconv.mxnet.model import Model
from upconv.mxnet.onnx_rules import RULES
from upconv.mxnet.operators import OPERATORS
from upconv.mxnet.to_onnx import to_onnx

X, Y, Z = (mx.sym.var(name) for name in "xyz")
IMAGE = {"x": (2, 6, 7, 5)}
WORDS = [
    "relu", "sigmoid", "tanh", "softrelu", "softsign", "log_sigmoid", "mish", "negative", "abs",
    "sign", "exp", "square", "sin", "cos", "erf", "floor", "ceil",
]  # fmt: skip


def deconv(shape=(2, 6, 5, 4), **how):
    return mx.sym.Deconvolution(X, name="up", **{"num_filter": 4, **how}), {"x": shape}


def conv(shape=(2, 6, 9, 8), **how):
    return mx.sym.Convolution(X, name="conv", **{"num_filter": 4, **how}), {"x": shape}


def norm(shape=(2, 6, 5, 4), **how):
    return mx.sym.BatchNorm(X, name="bn", **how), {"x": shape}


def pool(shape=(2, 3, 9, 8), **how):
    return mx.sym.Pooling(X, name="pool", **how), {"x": shape}


def of(operator, *inputs, shapes=None, **how):
    return getattr(mx.sym, operator)(*(inputs or (X,)), name="op", **how), shapes or IMAGE


def leaky(act_type, **how):
    return of("LeakyReLU", act_type=act_type, **how)


def positive(word):
    return getattr(mx.sym, word)(X * X + 0.5), IMAGE


TWO = {"x": (2, 3, 4), "y": (2, 3, 4)}
SPREAD = {"x": (2, 1, 4), "y": (3, 1)}

SUM = X + Y
CASES = {
    "deconv": deconv(kernel=(4, 4), stride=(2, 2), pad=(1, 1)),
    "deconv bias": deconv(kernel=(3, 3), no_bias=False),
    "deconv adj": deconv(kernel=(3, 3), stride=(2, 3), pad=(1, 1), adj=(1, 1)),
    "deconv adj beyond pad": deconv(kernel=(3, 2), stride=(3, 2), adj=(2, 1), no_bias=False),
    "deconv pad beyond kernel": deconv(kernel=(2, 2), stride=(2, 2), pad=(2, 2)),
    "deconv target": deconv(kernel=(4, 4), stride=(2, 2), target_shape=(9, 8)),
    "deconv groups": deconv(kernel=(4, 4), stride=(2, 2), num_group=2),
    "deconv depthwise": deconv(kernel=(4, 4), stride=(2, 2), num_group=6, num_filter=6),
    "deconv dilated": deconv(kernel=(3, 2), dilate=(2, 3), stride=(2, 1)),
    "deconv 1-D": deconv((2, 6, 9), kernel=(5,), stride=(3,), pad=(1,), adj=(2,)),
    "deconv 3-D": deconv(
        (1, 2, 3, 4, 3), kernel=(3, 3, 3), stride=(2, 2, 2), target_shape=(6, 8, 6)
    ),
    "deconv NHWC": deconv((2, 5, 4, 6), kernel=(3, 2), stride=(2, 2), layout="NHWC", no_bias=False),
    "conv": conv(kernel=(3, 2), stride=(2, 1), pad=(1, 2), dilate=(1, 2)),
    "conv groups": conv(kernel=(3, 3), num_group=2, no_bias=True),
    "conv 1-D": conv((2, 6, 9), kernel=(3,)),
    "conv NHWC": conv((2, 9, 8, 6), kernel=(3, 2), layout="NHWC"),
    "norm": norm(),
    "norm free": norm(fix_gamma=False, eps=1e-5, use_global_stats=True),
    "norm of 2 axes": norm((4, 6), fix_gamma=False),
    "norm of axis 3": norm(fix_gamma=False, axis=3),
    "norm of axis -1": norm((3, 4, 6), axis=-1),
    "norm of axis 0": norm(axis=0),
    "norm three outputs": norm(fix_gamma=False, output_mean_var=True),
    "leaky": leaky("leaky", slope=0.1),
    "prelu": leaky("prelu"),
    "prelu of 2 axes": of("LeakyReLU", act_type="prelu", shapes={"x": (3, 4)}),
    "elu": leaky("elu", slope=0.3),
    "max": pool(kernel=(2, 2), stride=(2, 2)),
    "max padded": pool(kernel=(3, 3), stride=(2, 2), pad=(1, 1)),
    "max full": pool(kernel=(2, 3), stride=(2, 3), pooling_convention="full"),
    "max full padded": pool(kernel=(3, 4), stride=(3, 3), pad=(1, 1), pooling_convention="full"),
    "max same": pool(kernel=(2, 3), stride=(2, 3), pooling_convention="same"),
    "max global": pool(global_pool=True, kernel=(1, 1)),
    "max 1-D": pool((2, 3, 9), kernel=(3,), stride=(2,), pooling_convention="full"),
    "max 3-D": pool((1, 2, 5, 4, 3), kernel=(2, 2, 2), stride=(1, 2, 1)),
    "max NHWC": pool((2, 9, 8, 3), kernel=(2, 3), layout="NHWC"),
    "avg": pool(kernel=(3, 2), pool_type="avg"),
    "avg padded": pool(kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg"),
    "avg full": pool(kernel=(2, 3), stride=(2, 3), pool_type="avg", pooling_convention="full"),
    "avg full padded": pool(
        kernel=(3, 4), stride=(3, 3), pad=(1, 2), pool_type="avg", pooling_convention="full"
    ),
    "avg inside": pool(
        kernel=(3, 3), stride=(2, 3), pad=(1, 1), pool_type="avg", count_include_pad=False
    ),
    "avg inside full": pool(
        kernel=(3, 4), stride=(3, 3), pad=(1, 1), pool_type="avg", count_include_pad=False,
        pooling_convention="full",
    ),
    "avg same": pool(kernel=(2, 3), stride=(2, 3), pool_type="avg", pooling_convention="same"),
    "avg global": pool(global_pool=True, kernel=(1, 1), pool_type="avg"),
    "sum": pool(kernel=(3, 2), stride=(2, 2), pad=(1, 0), pool_type="sum"),
    "concat": of("Concat", X, Y, dim=1, shapes={"x": (2, 3, 4), "y": (2, 5, 4)}),
    "stack": of("stack", X, Y, axis=-1, shapes=TWO),
    "split": of("SliceChannel", num_outputs=3),
    "split squeezed": of("SliceChannel", num_outputs=7, axis=2, squeeze_axis=True),
    "split into one": of("SliceChannel", num_outputs=1),
    "crop": of("Crop", X, offset=(2, 1), h_w=(4, 3), num_args=1),
    "crop like": of("Crop", X, Y, shapes={**IMAGE, "y": (1, 1, 4, 3)}, offset=(1, 2)),
    "crop center": of("Crop", X, Y, shapes={**IMAGE, "y": (1, 1, 4, 3)}, center_crop=True),
    "nearest": of("UpSampling", scale=3, sample_type="nearest"),
    "dense": of("FullyConnected", num_hidden=4),
    "dense of 2 axes": of("FullyConnected", num_hidden=4, no_bias=True, shapes={"x": (3, 5)}),
    "dense by rows": of("FullyConnected", num_hidden=4, flatten=False),
    "dense by rows, no bias": of("FullyConnected", num_hidden=4, flatten=False, no_bias=True),
    "flatten": of("Flatten"),
    "reshape": of("Reshape", shape=(0, -4, 2, -1, -3)),
    "reshape reverse": of("Reshape", shape=(-1, 0), reverse=True),
    "expand_dims": of("expand_dims", axis=-1),
    "squeeze": of("squeeze", axis=1, shapes={"x": (2, 1, 3)}),
    "transpose": of("transpose", axes=(0, 2, 3, 1)),
    "transpose all": of("transpose"),
    "slice": of("slice", begin=(None, 1, -3), end=(None, 5, None)),
    "slice backwards": of("slice", begin=(None, 4, -1), end=(None, None, 1), step=(1, -2, -1)),
    "slice_axis": of("slice_axis", axis=-2, begin=-4, end=-1),
    "slice_axis to the end": of("slice_axis", axis=1, begin=2, end="None"),
    "slice_like": of("slice_like", X, Y, axes=(2, -1), shapes={**IMAGE, "y": (1, 1, 4, 3)}),
    "slice_like, all": of("slice_like", X, Y, shapes={**IMAGE, "y": (1, 2, 4, 3)}),
    "repeat": of("repeat", repeats=3, axis=2),
    "repeat flat": of("repeat", repeats=2),
    "pad": of("Pad", mode="constant", pad_width=(0, 0, 0, 0, 1, 2, 3, 4), constant_value=0.5),
    "pad edge": of("Pad", mode="edge", pad_width=(0, 0, 0, 0, 1, 2, 3, 4)),
    "pad reflect": of("Pad", mode="reflect", pad_width=(0, 0, 0, 0, 1, 2, 3, 4)),
    "clip": of("clip", a_min=-0.5, a_max=0.25),
    "softmax": of("softmax"),
    "softmax hot": of("softmax", axis=1, temperature=0.5),
    "log_softmax": of("log_softmax", axis=1),
    "softmax of channels": of("SoftmaxActivation", mode="channel"),
    "softmax of rows": of("SoftmaxActivation", shapes={"x": (3, 5)}),
    "loss": of("SoftmaxOutput", shapes={"x": (3, 5)}),
    "softmax of the last axis": of("SoftmaxActivation"),
    "loss over channels": of("SoftmaxOutput", multi_output=True),
    "dropout": of("Dropout", p=0.5),
    "instances": of("InstanceNorm", eps=0.01),
    "where": (mx.sym.where(mx.sym.floor(X), Y, X), TWO),
    "where of rows": (mx.sym.where(mx.sym.var("c"), X, Y), {**TWO, "c": (2,)}),
    "broadcast_to": of("broadcast_to", shape=(2, 3, 4), shapes={"x": (2, 1, 4)}),
    "tile": of("tile", reps=(2, 1, 3, 1, 2)),
    "tile of fewer axes": of("tile", reps=(3, 2)),
    "reverse": of("reverse", axis=(1, -1)),
    "argmax": of("argmax", axis=1),
    "argmin": of("argmin", axis=-1, keepdims=True),
    "argmax of all": of("argmax"),
    "sources": (
        X * mx.sym.full((2, 3, 4), 3) + mx.sym.ones((2, 3, 4)) + mx.sym.zeros((2, 3, 4)),
        TWO,
    ),
    "arange": (mx.sym.broadcast_mul(X, mx.sym.arange(1, 5)), TWO),
    "lrn": of("LRN", nsize=3, alpha=0.5, beta=0.6, knorm=1.5),
    "identity": of("identity"),
    "BlockGrad": of("BlockGrad"),
    "make_loss": of("make_loss"),
    "zeros": of("zeros_like"),
    "ones": of("ones_like"),
    "cast": of("Cast", dtype="float64"),
    "add_n": (mx.sym.add_n(X, Y, X), TWO),
    "log": positive("log"),
    "sqrt": positive("sqrt"),
    "reciprocal": positive("reciprocal"),
    "twice": (mx.sym.Group([X * 2, mx.sym.identity(X * 2)]), IMAGE),
    "one value, two outputs": (
        mx.sym.Group([mx.sym.identity(X, name="same"), mx.sym.BlockGrad(X, name="too"), X + Y]),
        TWO,
    ),
    "one result, two outputs": (
        mx.sym.Group([f(SUM, name=f.__name__) for f in (mx.sym.identity, mx.sym.BlockGrad)]),
        TWO,
    ),
}  # fmt: skip
CASES |= {f"act {word}": of("Activation", act_type=word) for word in WORDS[:7]}
CASES |= {f"unary {word}": of(word) for word in WORDS}
for _word in ("add", "sub", "mul", "div", "mod", "maximum", "minimum"):
    CASES[f"broadcast {_word}"] = of(f"broadcast_{_word}", X, Y, shapes=SPREAD)
    CASES[f"scalar {_word}"] = of(
        {"add": "_plus", "sub": "_minus"}.get(_word, f"_{_word}") + "_scalar", X, scalar=0.3
    )
for _word in ("add", "sub", "mul", "div"):
    CASES[f"elemwise {_word}"] = of(f"elemwise_{_word}", X, Y, shapes=TWO)
for _word in ("minus", "div", "mod"):
    CASES[f"scalar on the left {_word}"] = of(f"_r{_word}_scalar", X, scalar=-0.7)
CASES["power"] = (mx.sym.broadcast_power(X * X + 0.1, Y), SPREAD)
CASES["power of a scalar"] = of("_power_scalar", X, scalar=2)
CASES["scalar to the power"] = of("_rpower_scalar", X, scalar=2)
for _word in ("equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal"):
    CASES[f"compare {_word}"] = (
        getattr(mx.sym, f"broadcast_{_word}")(mx.sym.floor(X * 2), mx.sym.floor(Y * 2)),
        TWO,
    )
    CASES[f"compare scalar {_word}"] = (
        getattr(mx.sym, f"_{_word}_scalar")(mx.sym.floor(X * 2), scalar=0),
        TWO,
    )
for _word in ("sum", "mean", "max", "min", "prod"):
    CASES[f"reduce {_word}"] = of(_word)
    CASES[f"reduce {_word} of axes"] = of(_word, axis=(1, -1))
    CASES[f"reduce {_word} but axes"] = of(_word, axis=(1,), exclude=True, keepdims=True)
CASES["norm of all"] = of("norm")


def model_of(net, shapes):
    """A model with drawn parameters, and the shapes of the inputs that it has."""
    shapes = {name: shape for name, shape in shapes.items() if name in net.list_inputs()}
    return drawn(net, **shapes), shapes


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("case", CASES)
def test_what_is_written_computes_the_same(case, opset):
    model, shapes = model_of(*CASES[case])
    proto = to_onnx(model, shapes, opset=opset)  # which compares
    assert [value.name for value in proto.graph.output] == model.outputs
    assert [value.name for value in proto.graph.input] == model.inputs


def test_the_page_lists_the_operators():
    page = (ROOT / "docs" / "mxnet.md").read_text()
    for name in RULES:
        families = ("elemwise_", "broadcast_", "_npi_", "_npx_", "_scalar")
        assert f"`{name}`" in page or any(part in name for part in families), name


def test_every_rule_is_for_an_operator_and_most_operators_have_one():
    assert set(RULES) <= {row.name for row in OPERATORS.values()}
    assert {row.name for row in OPERATORS.values()} - set(RULES) <= {"_index"}


REFUSED = {
    "a random one": (of("Dropout", mode="always"), r"op \(Dropout\): it cannot"),
    "a window beside the data": (
        pool(kernel=(1, 1), stride=(3, 3), pooling_convention="full"),
        r"pool \(Pooling\): it cannot be written: a window is outside the data",
    ),
    "a variable": ((X, IMAGE), "is a variable, not computed"),
    "a norm of one axis": ((norm((6,), axis=0)), r"bn \(BatchNorm\): it cannot .* one axis"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written_is_named(case, tmp_path):
    (net, shapes), says = REFUSED[case]
    model, shapes = model_of(net, shapes)
    with pytest.raises(mx.MXNetError, match=says):
        to_onnx(model, shapes, tmp_path / "net.onnx")
    assert not [*tmp_path.iterdir()]


def test_an_operator_without_a_rule_is_named(monkeypatch):
    monkeypatch.delitem(RULES, "relu")
    says = r"r \(relu\): it cannot be written: docs/mxnet.md lists"
    with pytest.raises(mx.MXNetError, match=says):
        to_onnx(Model(mx.sym.relu(X, name="r"), {}), IMAGE)


def test_other_values_write_no_file(monkeypatch, tmp_path):
    monkeypatch.setitem(RULES, "Activation", lambda w: w.op("Softsign", w.x[0]))
    model = Model(mx.sym.Activation(X, act_type="tanh", name="act"), {})
    with pytest.raises(mx.MXNetError, match=r"act_output differs by 0\..* in ONNX Runtime"):
        to_onnx(model, IMAGE, tmp_path / "net.onnx")
    assert not [*tmp_path.iterdir()]
    to_onnx(model, IMAGE, tmp_path / "net.onnx", verify=False)
    with pytest.raises(FileError, match="exists"):
        to_onnx(model, IMAGE, tmp_path / "net.onnx", verify=False)
    to_onnx(model, IMAGE, tmp_path / "net.onnx", verify=False, force=True)


@pytest.mark.parametrize("opset", [16, 10_000])
def test_other_opsets_are_refused(opset):
    with pytest.raises(mx.MXNetError, match="expected 17 to"):
        to_onnx(Model(mx.sym.relu(X), {}), IMAGE, opset=opset)


@pytest.mark.parametrize("shapes", [{}, {"y": (1,)}, {"x": (-1, 2)}, {"x": "text"}, {"x": (0.5,)}])
def test_other_shapes_are_refused(shapes):
    with pytest.raises(mx.MXNetError):
        to_onnx(Model(mx.sym.relu(X), {}), shapes)


@pytest.mark.parametrize("shapes", [(1, 4, 5, 7), "x", None])
def test_shapes_without_names_are_refused(shapes):
    with pytest.raises(mx.MXNetError, match=r"shapes is .*; expected a dict of shapes by name: x"):
        to_onnx(Model(mx.sym.relu(X), {}), shapes)


def test_a_shape_that_is_a_number_is_refused():
    with pytest.raises(mx.MXNetError, match="shape of x is 3; expected a size for each axis"):
        to_onnx(Model(mx.sym.relu(X), {}), {"x": 3})


@pytest.mark.parametrize(
    ("net", "shape", "open_shape"),
    [
        (mx.sym.Flatten(X), (4, 2, 3), ("N", 2, 3)),
        (mx.sym.slice_axis(X, axis=2, begin=1, end=4), (4, 2, 9), ("N", 2, 9)),
        (mx.sym.Activation(X, act_type="relu"), (4, 7, 5), ("N", 7, "T")),
        (mx.sym.UpSampling(X, scale=2, sample_type="nearest"), (4, 2, 3, 5), ("N", 2, "H", "W")),
        (
            mx.sym.Pooling(X, kernel=(2, 2), stride=(2, 2), pool_type="max"),
            *((3, 2, 8, 6), ("N", 2, "H", "W")),
        ),
    ],
)
def test_an_open_size_takes_any_number(net, shape, open_shape):
    import onnxruntime

    model = Model(net, {})
    proto = to_onnx(model, {"x": open_shape})
    declared = proto.graph.input[0].type.tensor_type.shape.dim
    assert tuple(dim.dim_param or dim.dim_value for dim in declared) == open_shape
    data, provider = proto.SerializeToString(), ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(data, providers=provider)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    for y, expected in zip(session.run(None, {"x": x}), model.run(x=x), strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_a_graph_that_holds_a_number_made_of_an_open_size_is_refused():
    net = mx.sym.Reshape(mx.sym.relu(X), shape=(-1, 2), name="rows")
    with pytest.raises(mx.MXNetError, match=r"rows depends on N: .* Pass numbers"):
        to_onnx(Model(net, {}), {"x": ("N", 4)})


def test_what_no_output_needs_is_left_out():
    net = mx.sym.Crop(X, mx.sym.relu(Y, name="unused"), name="crop")
    proto = to_onnx(Model(net, {}), {"x": (1, 2, 5, 5), "y": (1, 1, 3, 3)})
    assert [node.op_type for node in proto.graph.node] == ["Slice"]


def test_names_that_are_there_twice_stay_apart():
    net = mx.sym.relu(mx.sym.exp(mx.sym.relu(X, name="n"), name="n"), name="n")
    proto = to_onnx(Model(net, {}), IMAGE)
    assert len({node.name for node in proto.graph.node}) == 3
