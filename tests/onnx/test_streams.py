"""Streams of files: values as of ONNX Runtime on the whole, and refusals that name the node."""

import io

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import upconv.onnx as uo  # noqa: E402
from tests.support.onnx_sessions import plain  # noqa: E402
from tests.support.onnx_texts import ints, parsed  # noqa: E402
from upconv.errors import ArgumentError, DTypeError, EngineRefusal, ShapeError  # noqa: E402

_RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return _RNG.standard_normal(shape, np.float32)


VOCODER = parsed(
    """g (float[N, T, 4] mel) => (float[N, M] speech) {
        scaled = Sub(mel, mean)
        x = Transpose<perm = [0, 2, 1]>(scaled)
        a = LeakyRelu<alpha = 0.1>(x)
        up = ConvTranspose<strides = [3], pads = [1, 1]>(a, w)
        b = Conv<pads = [2, 2], dilations = [2]>(up, v, bias)
        sum = Add(b, up)
        y = Tanh(sum)
        speech = Squeeze(y, one)
    }""",
    mean=normal(4), w=normal(4, 1, 5) / 4, v=normal(1, 1, 3), bias=normal(1), one=ints(1),
)  # fmt: skip

SIZES = parsed(
    """g (float[N, 4, T] x) => (float[N, 4, M] y) {
        padded = Pad(x, left)
        a = Conv(padded, w)
        shape = Shape(x)
        time = Gather(shape, two)
        rows = Reshape(time, one)
        cut = Slice(a, zero, rows, axes)
        sizes = Shape(cut)
        same = Reshape(cut, sizes)
        last = Transpose<perm = [0, 2, 1]>(same)
        normal = LayerNormalization(last, scale, offset)
        wide = MatMul(normal, up)
        gate = Sigmoid(wide)
        back = MatMul(gate, down)
        first = Transpose<perm = [0, 2, 1]>(back)
        y = Add(x, first)
    }""",
    left=ints(0, 0, 4, 0, 0, 2), w=normal(4, 4, 5) / 4, two=np.array(2), one=ints(1), zero=ints(0),
    axes=ints(2), scale=normal(4), offset=normal(4), up=normal(4, 7), down=normal(7, 4),
)  # fmt: skip


def whole(proto: onnx.ModelProto, *arrays: np.ndarray) -> list[np.ndarray]:
    """What ONNX Runtime makes of inputs in order."""
    return plain(proto, {x.name: array for x, array in zip(proto.graph.input, arrays, strict=True)})


def check(
    stream: uo.FileStream, x: np.ndarray, expected: np.ndarray, axis: int = -1, atol: float = 1e-5
) -> None:
    """The chunks of a signal, one of them empty, have the results of the whole."""
    chunks = np.split(x, [3, 4, 4, 9], axis)
    result = np.concatenate([*map(stream.push, chunks), stream.finish()], -1)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=atol)


@pytest.mark.parametrize(("proto", "axis", "rate"), [(VOCODER, 1, 3), (SIZES, -1, 1)])
def test_values_of_chunks(proto: onnx.ModelProto, axis: int, rate: int) -> None:
    x = normal(2, 23, 4) if axis == 1 else normal(2, 4, 23)
    stream = uo.stream(proto, axis=axis)
    check(stream, x, whole(proto, x)[0], axis)
    assert stream.progress.rate == rate


def test_sizes_of_layers_are_told_node_by_node(monkeypatch) -> None:
    """Each layer pads by its input's length: one inference for all would be one for each layer."""
    layers = "".join(
        f"""s{i} = Shape<start = 2>(x{i})
            h{i} = Mul(s{i}, two)
            e{i} = Sub(h{i}, s{i})
            d{i} = Sub(e{i}, s{i})
            p{i} = Concat<axis = 0>(left, d{i})
            a{i} = Pad(x{i}, p{i})
            x{i + 1} = Conv(a{i}, w)
        """
        for i in range(12)
    )
    proto = parsed(
        f"g (float[N, 4, T] x0) => (float[N, 4, M] x12) {{ {layers} }}",
        two=ints(2), left=ints(0, 0, 4, 0, 0), w=normal(4, 4, 5) / 4,
    )  # fmt: skip
    calls, infer = [], onnx.shape_inference.infer_shapes

    def counted(*arguments, **keywords):
        calls.append(arguments)
        return infer(*arguments, **keywords)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", counted)
    stream, x = uo.stream(proto), normal(2, 4, 23)
    assert len(calls) < 3
    check(stream, x, whole(proto, x)[0], atol=1e-4)
    assert stream.latency == 0


def test_files_and_several_inputs_by_name(tmp_path) -> None:
    proto = parsed(
        """g (float[1, 2, T] x, float[1, 1, T] pitch) => (float[1, 2, T] y, float[1, 2, T] z) {
            y = Conv<pads = [1, 1]>(x, w)
            z = Mul(y, pitch)
        }""",
        w=normal(2, 2, 3),
    )
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    stream, x, pitch = uo.stream(path, chunk=4), normal(1, 2, 9), normal(1, 1, 9)
    assert (stream.input_names, stream.output_names) == (["x", "pitch"], ["y", "z"])
    parts = [stream.push(pitch=pitch[..., :5], x=x[..., :5])]
    parts += [stream.push(x[..., 5:], pitch[..., 5:]), stream.finish()]
    for number, expected in enumerate(whole(proto, x, pitch)):
        result = np.concatenate([part[number] for part in parts], -1)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(
        ArgumentError, match=r"push is given .* by name; expected all inputs: x, pitch"
    ):
        stream.push(x=x)


@pytest.mark.parametrize("biased", [False, True])
def test_an_lstm_in_a_stream(biased: bool) -> None:
    proto = parsed(
        f"""g (float[N, 4, T] x) => (float[N, 6, M] y) {{
            t = Transpose<perm = [2, 0, 1]>(x)
            h = LSTM<hidden_size = 6>(t, w, r{", b" if biased else ""})
            s = Squeeze(h, one)
            p = Transpose<perm = [1, 2, 0]>(s)
            y = Conv<pads = [1, 1]>(p, v)
        }}""",
        w=normal(1, 24, 4), r=normal(1, 24, 6) / 2, b=normal(1, 48), one=ints(1), v=normal(6, 6, 3),
    )  # fmt: skip
    x, stream = normal(2, 4, 23), uo.stream(proto)
    check(stream, x, whole(proto, x)[0])
    assert stream.latency == 1


@pytest.mark.filterwarnings("ignore")
def test_an_exported_lstm() -> None:
    """Exporters compute the state at the begin of the batch's size."""
    torch = pytest.importorskip("torch")

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(4, 6, num_layers=2)

        def forward(self, x):
            return self.lstm(x.permute(2, 0, 1))[0].permute(1, 2, 0)

    layers, x, file = Layers().eval(), normal(2, 4, 23), io.BytesIO()
    names = {"input_names": ["x"], "dynamic_axes": {"x": {0: "N", 2: "T"}}}
    torch.onnx.export(layers, (torch.from_numpy(x),), file, dynamo=False, **names)
    with torch.no_grad():
        check(uo.stream(file.getvalue()), x, layers(torch.from_numpy(x)).numpy())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["hifigan", "vits", "dac", "encodec"])
def test_decoders_of_transformers(name: str) -> None:
    torch = pytest.importorskip("torch")
    from tests.support.small_codecs import DECODERS

    module, x, axis = DECODERS[name]()
    module, file = module.eval(), io.BytesIO()
    names = {"input_names": ["x"], "dynamic_axes": {"x": {axis: "T"}}}
    torch.onnx.export(module, (x,), file, dynamo=False, **names)
    with torch.no_grad():
        check(uo.stream(file.getvalue(), axis=axis), x.numpy(), module(x).numpy(), axis)


def test_a_batch_of_streams() -> None:
    batch, signals = uo.stream(VOCODER, axis=1).batch(), [normal(1, 23, 4), normal(2, 23, 4)]
    numbers = [batch.join() for _ in signals]
    parts = [batch.push({n: x[:, i : i + 8] for n, x in zip(numbers, signals, strict=True)})
             for i in range(0, 23, 8)]  # fmt: skip
    for number, x in zip(numbers, signals, strict=True):
        rest = batch.leave(number).finish()
        result = np.concatenate([*(part[number] for part in parts), rest], -1)
        np.testing.assert_allclose(result, whole(VOCODER, x)[0], rtol=1e-4, atol=1e-5)


REFUSED = {
    "InstanceNormalization": "y = InstanceNormalization(x, s, s)",
    "Slice": "y = Slice(x, zero, five, two)",
    "ReduceMean": "y = ReduceMean<axes = [2]>(x)",
    "MatMul": "t = Transpose<perm = [0, 2, 1]>(x) y = MatMul(x, t)",
    "Softmax": "y = Softmax<axis = 2>(x)",
    "LSTM": 't = Transpose<perm = [2, 0, 1]>(x) y = LSTM<direction = "reverse">(t, w, r)',
    "GRU": "t = Transpose<perm = [2, 0, 1]>(x) y = GRU(t, w, r)",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refusals_name_the_node(kind: str) -> None:
    nodes = REFUSED[kind]
    proto = parsed(
        f"g (float[1, 4, T] x) => (y) {{ {nodes} }}",
        s=normal(4), zero=ints(0), five=ints(5), two=ints(2),
        w=normal(1, 16, 4), r=normal(1, 16, 4),
    )  # fmt: skip
    proto.graph.node[-1].name = "last"
    with pytest.raises(EngineRefusal, match=f"A stream cannot compute .*{kind} last") as error:
        uo.stream(proto)
    assert "whole inputs" in str(error.value)


def test_a_function_named_like_an_operator_is_not_taken_for_it() -> None:
    proto = parsed("""<ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[1, 4, T] x) => (y) { y = own.Add(x, x) }
        <domain: "own", opset_import: ["": 17]> Add (p, q) => (r) { r = Sub(p, q) }""")
    with pytest.raises(EngineRefusal, match=r"A network has no own\.Add\."):
        uo.stream(proto)


def test_bad_arguments() -> None:
    fixed = parsed("g (float[1, 4, 9] x) => (float[1, 4, 9] y) { y = Relu(x) }")
    other = parsed("g (double[1, 4, T] x) => (double[1, 4, T] y) { y = Relu(x) }")
    plane = parsed("g (float[1, 4, H, T] x) => (float[1, 4, H, T] y) { y = Relu(x) }")
    for proto, words in (
        (fixed, "dynamic along axis -1. Export"), (other, "expected float32"), (plane, "shapes="),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=words):
            uo.stream(proto)
    with pytest.raises(ArgumentError, match="axis"):
        uo.stream(VOCODER, axis=3)
    with pytest.raises(ArgumentError, match="name of an input"):
        uo.stream(VOCODER, axis=1, shapes={"y": (1, 2, None)})
    stream = uo.stream(plane, shapes={"x": (1, 4, 5, None)})
    with pytest.raises(ShapeError, match=r"\(1, 4, 6, 3\)"):
        stream.push(normal(1, 4, 6, 3))
    with pytest.raises(DTypeError, match="float32"):
        stream.push(np.zeros((1, 4, 5, 3)))
    assert stream.push(normal(1, 4, 5, 3)).shape == (1, 4, 5, 3)
