"""Models read and written: nothing lost on the way, no half file, hostile files refused."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx_ir")

import onnx
import onnx_ir as ir
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.support import onnx_texts
from upconv import FileError
from upconv.errors import DTypeError, ModelError
from upconv.onnx import checker
from upconv.onnx.models import from_model, load, save, to_proto

W = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
BIG = np.random.default_rng(1).standard_normal((3, 40, 50)).astype(np.float32)
HEADER = '<ir_version: 10, opset_import: ["": 18, "own": 1]> g (float[2,3,4] x) => (float[N] y) '


def parsed(body: str, **initialisers: np.ndarray) -> ModelProto:
    return onnx_texts.parsed(HEADER + body, **initialisers)


def written(folder: Path, proto: ModelProto, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def rich() -> ModelProto:
    """A model with everything in it that onnx-ir holds of a model."""
    text = """
    <ir_version: 10, opset_import: ["": 18, "own": 3, "other": 1], producer_name: "maker",
     producer_version: "1.2", domain: "a.domain", model_version: 7, doc_string: "the model",
     metadata_props: ["author": "<script>alert(1)</script>", "licence": "none"]>
    g (float[N, 3, "height"] x, bool c)
      => (float[N, 3, "height"] y, float[2] z)
    <float[2,3,4] w, float[N, 3, "height"] a> {
        [first] a = own.Scale <alpha = 2.0, beta: float = 3.0> (x)
        k = Constant <value_floats = [1.0, 2.0]> ()
        ["<script>"] y = If (c) <
            then_branch = t () => (float[N] u) { v = Neg(a) u = Relu(v) },
            else_branch = e () => (float[N] u) { u = Identity(a) }>
        b = own.Custom <texts = ["p", "q"], reals = [1.0, 2.0]> (y, , w)
        z = Relu(k)
    }
    <domain: "own", overload: "", opset_import: ["": 18], doc_string: "a function">
    Scale <alpha, beta: float = 1.0> (p) => (q) {
        s = Constant <value_float: float = @alpha> () q = Mul(p, s)
    }
    """
    proto = onnx.parser.parse_model(text)
    graph = proto.graph
    graph.doc_string = "the graph"
    graph.node[0].doc_string = "a node"
    graph.node[0].metadata_props.add(key="k", value="v")
    graph.metadata_props.add(key="graph", value="property")
    graph.input[0].doc_string = "an input"
    graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    tensor = numpy_helper.from_array(W, "w")
    tensor.doc_string = "a weight"
    tensor.metadata_props.add(key="of", value="the tensor")
    graph.initializer.append(tensor)
    graph.initializer.append(numpy_helper.from_array(W.astype(np.float16), "half"))
    graph.initializer.append(helper.make_tensor("text", TensorProto.STRING, [2], [b"\xff", b"b"]))
    four = helper.make_tensor("four", TensorProto.INT4, [3], b"\xe1\x07", raw=True)
    graph.initializer.append(four)
    graph.quantization_annotation.add(tensor_name="a").quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="w"
    )
    return proto


def meaning(proto: ModelProto) -> str:
    """A model as text in which only what onnx-ir may write another way is made alike."""
    copy = ModelProto.FromString(proto.SerializeToString())
    waiting = [copy.graph]
    while waiting:
        graph = waiting.pop()
        said = {t.name for t in graph.initializer}
        infos = sorted((i for i in graph.value_info if i.name not in said), key=lambda i: i.name)
        del graph.value_info[:]
        graph.value_info.extend(infos)
        for node in graph.node:
            waiting += [a.g for a in node.attribute if a.HasField("g")]
    opsets = sorted((entry.domain, entry.version) for entry in copy.opset_import)
    del copy.opset_import[:]
    empty = re.compile(r'^ *(domain|overload|doc_string|name): ""\n', re.MULTILINE)
    return f"{opsets}{empty.sub('', str(copy))}"


def test_nothing_is_lost_between_reading_and_writing(tmp_path: Path) -> None:
    proto = rich()
    before = proto.SerializeToString(deterministic=True)
    model = from_model(proto)
    assert meaning(to_proto(model)) == meaning(proto)
    assert save(model, tmp_path / "out.onnx") == (tmp_path / "out.onnx",)
    again = onnx.load(tmp_path / "out.onnx")
    assert meaning(again) == meaning(proto)
    assert meaning(to_proto(load(tmp_path / "out.onnx"))) == meaning(proto)
    assert meaning(to_proto(from_model(model))) == meaning(proto)
    assert proto.SerializeToString(deterministic=True) == before


def test_what_onnx_ir_cannot_hold_is_dropped_aloud_or_refused() -> None:
    trained = parsed("{ y = Neg(x) }")
    trained.training_info.add().algorithm.name = "second"
    with pytest.warns(UserWarning, match="training information is dropped"):
        assert not to_proto(from_model(trained)).training_info
    sparse = parsed("{ y = Neg(x) }")
    sparse.graph.sparse_initializer.add()
    with pytest.raises(ModelError, match="sparse initializers, which are not supported"):
        from_model(sparse)
    mapped = parsed("{ y = Neg(x) }")
    mapped.graph.output[0].type.map_type.key_type = TensorProto.INT64
    with pytest.raises(ModelError, match=r"onnx-ir cannot represent it: .*Map types"):
        from_model(mapped)
    bare = parsed("{ y = Neg(x) }")
    bare.graph.node[0].domain = "own"
    bare.graph.node[0].attribute.add(name="raw", type=AttributeProto.STRING, s=b"\xff")
    assert to_proto(from_model(bare)).graph.node == bare.graph.node


def test_what_runtimes_take_and_the_checker_does_not_is_taken() -> None:
    """A plugin in ONNX's own domain; inputs and outputs without a type or shape."""
    proto = parsed("{ y = EfficientNMS_TRT(x) }")
    proto.graph.output[0].ClearField("type")
    assert meaning(to_proto(from_model(proto))) == meaning(proto)


def test_a_copy_shares_nothing_that_changes(tmp_path: Path) -> None:
    proto = parsed("{ y = Mul(x, w) }", w=W)
    own = ir.from_proto(proto)
    path = written(tmp_path, proto)
    for source in (proto, own, from_model(proto), path, str(path), path.read_bytes()):
        model = from_model(source)
        model.graph.initializers["w"].name = "renamed"
        model.graph[0].op_type = "Add"
        to_proto(model)
    assert proto == parsed("{ y = Mul(x, w) }", w=W)
    assert own.graph[0].op_type == "Mul"
    assert list(own.graph.initializers) == ["w"]
    with pytest.raises(DTypeError, match=r"model is 7 .* expected a path"):
        from_model(7)  # type: ignore[arg-type]


def test_nodes_out_of_order_are_sorted() -> None:
    body = """{ y = Neg(b) b = If (c) <then_branch = t () => (float u) { u = Neg(v) v = Neg(a) },
        else_branch = e () => (float u) { u = Neg(x) }> a = Relu(x) c = Cast <to = 9> (x) }"""
    proto = to_proto(from_model(parsed(body)))
    assert [node.op_type for node in proto.graph.node] == ["Relu", "Cast", "If", "Neg"]
    branch = proto.graph.node[2].attribute[0].g
    assert [node.output[0] for node in branch.node] == ["v", "u"]
    ordered = parsed("{ c = Relu(x) a = Neg(x) b = Neg(c) y = Add(a, b) }")
    assert meaning(to_proto(from_model(ordered))) == meaning(ordered)


# Hostile files


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    for name, content in {
        "empty": b"",
        "text": b"hello, I am a text",
        "zeros": bytes(1000),
        "cut": rich().SerializeToString()[:-1],
        "other": TensorProto(name="w").SerializeToString(),
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match=f"{name}': It (is no|holds no|does not)"):
            load(tmp_path / name)
    os.mkfifo(tmp_path / "pipe")
    for path, message in {
        tmp_path: "is a directory",
        tmp_path / "pipe": "is not a regular file",
        tmp_path / "none": "No such file",
        Path("/dev/zero"): "is not a regular file",
        Path("a\0b"): "null",
    }.items():
        with pytest.raises(FileError, match=message):
            load(path)


def test_a_file_beyond_protobuf_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "m.onnx").open("wb") as file:
        file.truncate(1 << 31)  # sparse: takes no disk
    with pytest.raises(FileError, match="has 2147483648 bytes; the limit is 2147483647"):
        load(tmp_path / "m.onnx")


TEXTS = {
    "{ a = Neg(y) y = Neg(a) }": "form a cycle",
    "{ [up] y = ConvTranspose(x, q) }": "ConvTranspose node 'up' reads 'q', which nothing defines",
    "{ a = Neg(x) }": "returns 'y', which nothing defines",
    "{ y = Neg(x) y = Neg(x) }": "is redeclared in the current graph",
    '{ [up] y = ConvTranspose<strides = "2">(x, x) }': "attribute type in 'up : strides'",
    "{ y = Cast(x) }": "Required attribute 'to' is missing",
    "{ y = Relu() }": "has input size 0 not in range",
    '{ y = own.f(x) } <domain: "own", opset_import: ["own": 1]> f (x) => (y) { y = own.f(x) }': (
        "Model-local functions must not be recursive"
    ),
}
TENSORS: dict[str, tuple[dict[str, Any], str]] = {
    "long": ({"raw_data": bytes(97)}, "'w': onnx-ir cannot represent it: buffer size must be"),
    "empty": ({}, "'w': It declares 96 bytes, but has fewer"),
    "2**40": ({"dims": [1 << 40]}, "It declares 4398046511104 bytes, but has fewer"),
    "negative": ({"dims": [-2, -12], "raw_data": bytes(96)}, "'w': onnx-ir cannot represent it"),
    "type": ({"data_type": 99}, "99 is not a valid DataType"),
    "list": ({"int64_data": [1] * 24}, "Unsupported dtype FLOAT for int64_data"),
    "nameless": ({"raw_data": bytes(96), "name": ""}, "Two initializers have the same name"),
}


@pytest.mark.parametrize("case", [*TEXTS, *TENSORS])
def test_what_onnx_does_not_allow_is_refused_in_words(case: str, tmp_path: Path) -> None:
    if case in TEXTS:
        proto, message = parsed(case), TEXTS[case]
    else:
        fields, message = TENSORS[case]
        proto = parsed("{ y = Mul(x, w) }")
        tensor = {"dims": W.shape, "data_type": 1, "name": "w", **fields}
        proto.graph.initializer.append(TensorProto(**tensor))
    path = written(tmp_path, proto)
    with pytest.raises(ModelError) as caught:
        load(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"'{path}': "[:100])
    with pytest.raises(ModelError):
        from_model(proto)


@pytest.mark.parametrize(
    ("opset", "ir_version", "message"),
    [
        (12, 8, r"opset 12 and IR version 8; expected 13 and 4 or later. Convert it with onnx"),
        (99, 8, "opset 99; the installed onnx supports"),
        (13, 3, r"opset 13 and IR version 3; expected 13 and 4 or later. Convert it with"),
    ],
)
def test_versions_that_are_not_read(opset: int, ir_version: int, message: str) -> None:
    proto = parsed("{ y = Neg(x) }")
    proto.opset_import[0].version, proto.ir_version = opset, ir_version
    with pytest.raises(ModelError, match=message):
        from_model(proto)
    proto.opset_import.add(domain="ai.onnx", version=opset - 1)
    with pytest.raises(ModelError, match="two opsets of ONNX's own domain"):
        from_model(proto)
    del proto.opset_import[:]
    with pytest.raises(ModelError, match="no opset of ONNX's own domain"):
        from_model(proto)


def nested(levels: int) -> ModelProto:
    proto = parsed("{ y = Neg(x) }")
    graph = proto.graph
    for i in range(levels):
        node = graph.node.add(op_type="If", domain="own", output=[f"o{i}"])
        graph = node.attribute.add(name="body", type=AttributeProto.GRAPH).g
        graph.name = "inner"
    return proto


def test_deep_nesting_is_refused_and_shallow_kept(tmp_path: Path) -> None:
    assert meaning(to_proto(from_model(nested(20)))) == meaning(nested(20))
    for levels in (40, 200):
        with pytest.raises(ModelError):
            load(written(tmp_path, nested(levels)))
        with pytest.raises(ModelError):
            from_model(nested(levels))


def test_huge_counts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = parsed("{ a = Neg(x) b = Neg(a) y = Neg(b) }")
    from_model(nodes)
    monkeypatch.setattr(checker, "MAX_NODES", 2)
    with pytest.raises(ModelError, match="has 3 nodes; expected at most 2"):
        from_model(nodes)


def test_sizes_that_no_array_has_are_refused_and_minus_one_is_open() -> None:
    proto = parsed("{ y = Slice(x, s, s) }", s=np.array([0]))
    size = proto.graph.input[0].type.tensor_type.shape.dim[0]
    size.dim_value = -5
    with pytest.raises(ModelError, match="'x' is declared with the negative size -5"):
        from_model(proto)
    size.dim_value = -1
    assert str(from_model(proto).graph.inputs[0].shape) == "[None,3,4]"


def test_a_model_of_onnx_ir_s_own_is_taken_and_refused() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    node = ir.node("Add", [x, ir.Value(name="stray")])
    node.outputs[0].name = "y"
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 13}, name="g")
    with pytest.raises(ModelError, match="stray"):
        from_model(ir.Model(graph, ir_version=8))
    node.replace_input_with(1, x)
    model = from_model(ir.Model(graph, ir_version=8))
    (result,) = ReferenceEvaluator(to_proto(model)).run(None, {"x": np.float32([1, 2])})
    np.testing.assert_array_equal(result, np.float32([2, 4]))
