"""Bad graphs end in an `UpconvError` that says what, where and what to do; nothing else happens.

Among them is everything that makes libdnnl refuse, abort or divide by zero.
"""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from upconv import ArgumentError, DTypeError, ShapeError, UpconvError
from upconv.onednn_graph import SCHEMAS, Graph, LogicalTensor, Op

WINDOW = {"strides": [2], "pads_begin": [0], "pads_end": [0], "dilations": [1]}
X, W = (1, 5, 2), (3, 4, 2)


def tensor(id_: int, dims=None, kind="f32", property_type="undef") -> LogicalTensor:
    return LogicalTensor(id_, kind, dims, property_type)


def built(*ops: Op, rule="library") -> Graph:
    graph = Graph(rule=rule)
    for op in ops:
        graph.add_op(op)
    graph.finalize()
    return graph


def deconvolution(changes=None, inputs=None, out=None, kind="ConvTranspose") -> Op:
    words = {**WINDOW, **(changes or {})}
    words = {name: value for name, value in words.items() if value is not ...}
    return Op(7, kind, inputs or [tensor(0, X), tensor(1, W)], [tensor(2, out)], words)


def says(error: type[UpconvError], text: str, *parts: str):
    """The message is `text`, with anything in the place of "..."."""
    pattern = ".*".join(map(re.escape, text.split("...")))
    return pytest.raises(error, match=f"^{pattern}$")


AT_ADD_OP = [
    # ------------------------------------------------------------ kinds, ids, tensors
    (Op(7, "Deconvolution", [], []), ArgumentError,
     "kind of op 7 is 'Deconvolution'; expected one of ConvTranspose, ..."),
    (Op(-1, "ReLU", [], []), ArgumentError, "the op's id is -1; expected an integer >= 0."),
    (Op(1.5, "ReLU", [], []), DTypeError, "the op's id is 1.5 (float); expected an integer."),
    (Op(7, 3, [], []), DTypeError, "kind of op 7 is 3 (int); expected text."),
    ("ReLU", DTypeError, "op is 'ReLU' (str); expected an Op."),
    (Op(7, "ReLU", [], [tensor(1)]), ArgumentError,
     "the number of inputs of op 7 (ReLU) is 0; expected a tensor for each of: src."),
    (Op(7, "ReLU", [tensor(0)], []), ArgumentError,
     "the number of outputs of op 7 (ReLU) is 0; expected a tensor for each of: dst."),
    (Op(7, "End", [tensor(0)], [tensor(1)]), ArgumentError,
     "the number of outputs of op 7 (End) is 1; expected a tensor for each of: none."),
    (Op(7, "ConvTranspose", [tensor(i) for i in range(4)], [tensor(9)], WINDOW), ArgumentError,
     ("the number of inputs of op 7 (ConvTranspose) is 4; expected a tensor for each of: src,"
     " weights, [bias].")),
    (Op(7, "ReLU", [0], [1]), DTypeError,
     "inputs of op 7 (ReLU) is one with 0; expected a list of LogicalTensor."),
    (Op(7, "ReLU", tensor(0), [tensor(1)]), DTypeError,
     "inputs of op 7 (ReLU) is LogicalTensor(...; expected a list of LogicalTensor."),
    (Op(7, "ReLU", [tensor(0)], [tensor(0)]), ArgumentError,
     "the output of op 7 (ReLU) is its own input; expected another tensor. ..."),
    (Op(7, "ReLU", [tensor(0)], [tensor(1, None, "f32", "constant")]), ArgumentError,
     "output tensor 1 of op 7 (ReLU) is constant; expected no constant: ..."),
    (Op(7, "Add", [tensor(0, (2,)), tensor(0, (3,))], [tensor(1)]), ShapeError,
     "dims of tensor 0 is (3,); expected (2,). ..."),
    (Op(7, "Add", [tensor(0), tensor(0, None, "f32", "constant")], [tensor(1)]), ArgumentError,
     ("property_type of tensor 0 is 'constant'; expected 'undef', as where it was described first."
     " One id is one tensor.")),
    # ------------------------------------------------------------ types
    (deconvolution(inputs=[tensor(0, X), tensor(1, W, "bf16")]), DTypeError,
     ("data_type of weights of op 7 (ConvTranspose) is bf16; expected f32, the type of tensor 0."
     " Types are not mixed in one operation.")),
    (deconvolution(inputs=[tensor(0, X, "s32"), tensor(1, W)]), DTypeError,
     "data_type of src of op 7 (ConvTranspose) is s32; expected f32 or bf16 or f16."),
    (Op(7, "ReLU", [tensor(0)], [tensor(1, None, "f16")]), DTypeError,
     "data_type of dst of op 7 (ReLU) is f16; expected f32, the type of tensor 0. ..."),
    (deconvolution(kind="ConvolutionBackwardData",
                   inputs=[tensor(0), tensor(1), tensor(5, (3,))]), DTypeError,
     "data_type of dst_shape of op 7 (ConvolutionBackwardData) is f32; expected s32."),
    (Op(7, "BatchNormInference",
        [tensor(0, None, "f16"), *(tensor(i, None, "f16") for i in range(1, 5))],
        [tensor(9, None, "f16")], {"epsilon": 1e-3}), DTypeError,
     "data_type of gamma of op 7 (BatchNormInference) is f16; expected f32."),
    # ------------------------------------------------------------ attributes
    (deconvolution({"strides": ...}), ArgumentError,
     "strides of op 7 (ConvTranspose) is missing; expected s64[], given."),
    (deconvolution({"stride": 2}), ArgumentError,
     "an attribute of op 7 (ConvTranspose) is 'stride'; expected one of strides, pads_begin, ..."),
    (deconvolution({"output_padding": [1]}, kind="ConvTransposeBackwardData"), ArgumentError,
     ("an attribute of op 7 (ConvTransposeBackwardData) is 'output_padding'; expected one of ..."
     " The document has it, the library refuses it: see the graph's rule.")),
    (Op(7, "ReLU", [tensor(0)], [tensor(1)], {"alpha": 1.0}), ArgumentError,
     "an attribute of op 7 (ReLU) is 'alpha'; expected nothing: it has no attributes."),
    (Op(7, "ReLU", [tensor(0)], [tensor(1)], [("alpha", 1.0)]), DTypeError,
     ("attributes of op 7 (ReLU) is [('alpha', 1.0)]; expected a dict from attribute names to"
     " values.")),
    (deconvolution({"strides": [0]}), ArgumentError,
     "strides[0] of op 7 (ConvTranspose) is 0; expected an integer >= 1."),
    (deconvolution({"strides": [-1]}), ArgumentError,
     "strides[0] of op 7 (ConvTranspose) is -1; expected an integer >= 1."),
    (deconvolution({"strides": 2}), DTypeError,
     "strides of op 7 (ConvTranspose) is 2 (int); expected a tuple of integers."),
    (deconvolution({"strides": [2.0]}), DTypeError,
     "strides[0] of op 7 (ConvTranspose) is 2.0 (float); expected an integer."),
    (deconvolution({"dilations": [0]}), ArgumentError,
     "dilations[0] of op 7 (ConvTranspose) is 0; expected an integer >= 1."),
    (deconvolution({"pads_begin": [-1]}), ArgumentError,
     "pads_begin[0] of op 7 (ConvTranspose) is -1; expected an integer >= 0."),
    (deconvolution({"pads_end": [2**70]}), ArgumentError,
     "pads_end[0] of op 7 (ConvTranspose) is 1180591620717411303424; expected an integer <= ..."),
    (deconvolution({"groups": 0}), ArgumentError,
     "groups of op 7 (ConvTranspose) is 0; expected an integer >= 1."),
    (deconvolution({"groups": True}), DTypeError,
     "groups of op 7 (ConvTranspose) is True (bool); expected an integer."),
    (deconvolution({"auto_pad": "same_upper"}), ArgumentError,
     ("auto_pad of op 7 (ConvTranspose) is 'same_upper'; expected one of 'None', 'SAME_UPPER',"
     " 'SAME_LOWER', 'VALID'. It is a spelling of the document: see the graph's rule.")),
    (deconvolution({"auto_pad": "NONE"}), ArgumentError,
     "auto_pad of op 7 (ConvTranspose) is 'NONE'; expected one of 'None', ..."),
    (deconvolution({"weights_format": "OIX"}), ArgumentError,
     "weights_format of op 7 (ConvTranspose) is 'OIX'; expected one of 'XOI', 'IOX'."),
    (deconvolution({"weights_format": "XOI"}, kind="Convolution"), ArgumentError,
     "weights_format of op 7 (Convolution) is 'XOI'; expected one of 'XIO', 'OIX'."),
    (deconvolution({"data_format": "NHWC"}), ArgumentError,
     "data_format of op 7 (ConvTranspose) is 'NHWC'; expected one of 'NXC', 'NCX'."),
    (deconvolution({"data_format": None}), DTypeError,
     "data_format of op 7 (ConvTranspose) is None (NoneType); expected text."),
    (Op(7, "LeakyReLU", [tensor(0)], [tensor(1)]), ArgumentError,
     "alpha of op 7 (LeakyReLU) is missing; expected f32, given."),
    (Op(7, "LeakyReLU", [tensor(0)], [tensor(1)], {"alpha": float("nan")}), ArgumentError,
     "alpha of op 7 (LeakyReLU) is nan; expected a finite number."),
    (Op(7, "LeakyReLU", [tensor(0)], [tensor(1)], {"alpha": "1"}), DTypeError,
     "alpha of op 7 (LeakyReLU) is '1' (str); expected a number."),
    (Op(7, "BatchNormInference", [tensor(i) for i in range(5)], [tensor(9)], {"epsilon": -1.0}),
     ArgumentError,
     "epsilon of op 7 (BatchNormInference) is -1.0; expected a finite number >= 0."),
    (Op(7, "ReLUBackward", [tensor(0), tensor(1)], [tensor(9)], {"use_dst": 1}), DTypeError,
     "use_dst of op 7 (ReLUBackward) is 1 (int); expected True or False."),
    (Op(7, "Add", [tensor(0), tensor(1)], [tensor(9)], {"auto_broadcast": "NUMPY"}),
     ArgumentError, "auto_broadcast of op 7 (Add) is 'NUMPY'; expected one of 'numpy', 'none'."),
]  # fmt: skip


@pytest.mark.parametrize(("op", "error", "text"), AT_ADD_OP)
def test_add_op_refuses(op, error, text) -> None:
    graph = Graph()
    with says(error, text):
        graph.add_op(op)
    assert graph.operations == ()
    assert not graph.tensors


AT_COMPILE = [
    (deconvolution({"strides": [2, 2]}),
     ("strides of op 7 (ConvTranspose) is (2, 2) (2 of them); expected one integer per ...")),
    (deconvolution({"pads_begin": []}),
     "pads_begin of op 7 (ConvTranspose) is () (0 of them); expected one integer per spatial ..."),
    (deconvolution({"output_padding": [2]}),
     ("output_padding[0] of op 7 (ConvTranspose) is 2; expected less than strides[0] = 2. oneDNN"
     " aborts on more.")),
    (deconvolution(out=(1, 13, 4)),
     ("dims of dst on axis 0 of op 7 (ConvTranspose) is 13, which a convolution with these pads"
      " maps to 6 positions; expected a size that it maps to the input's 5. ...")),
    (deconvolution({"dst_shape": [1, 13, 4]}, kind="ConvolutionBackwardData"),
     "dst_shape on axis 0 of op 7 (ConvolutionBackwardData) is 13, which a convolution with ..."),
    (deconvolution({"dst_shape": [1, 11, 5]}, kind="ConvolutionBackwardData"),
     "dst_shape of op 7 (ConvolutionBackwardData) is (1, 11, 5); expected (1, 11, 4). ..."),
    (deconvolution({"dst_shape": [11]}, kind="ConvolutionBackwardData"),
     ("dst_shape of op 7 (ConvolutionBackwardData) is (11,); expected 3 sizes, N and C included, in"
     " the order NXC.")),
    (deconvolution(out=(2, 11, 4)),
     "dims of dst of op 7 (ConvTranspose) is (2, 11, 4); expected (1, 11, 4). ..."),
    (deconvolution(out=(None, 10, None)),
     "dims of dst of op 7 (ConvTranspose) is (?, 10, ?); expected (1, 11, 4). ..."),
    (deconvolution(out=(1, 11)),
     "dims of dst of op 7 (ConvTranspose) is (1, 11); expected 3 dimensions, as src has."
     ),
    (deconvolution(inputs=[tensor(0, (1, 5, 3)), tensor(1, W)]),
     ("channels of src of op 7 (ConvTranspose) is 3; expected 2, by the weight (3, 4, 2) and"
      " groups. See data_format and weights_format.")),
    (deconvolution(inputs=[tensor(0, X), tensor(1, (3, 3, 4, 2))]),
     "dims of weights of op 7 (ConvTranspose) is (3, 3, 4, 2); expected 3 dimensions, as src has."),
    (deconvolution(inputs=[tensor(0, (5, 2)), tensor(1, (4, 2))]),
     ("dims of src of op 7 (ConvTranspose) is (5, 2); expected 3 to 5 dimensions: batch, channels,"
     " one to three of space.")),
    (deconvolution(inputs=[tensor(0, X), tensor(1, (0, 4, 2))]),
     ("dims of the weights of op 7 (ConvTranspose) is (0, 4, 2); expected 3 sizes >= 1, in the"
      " order XOI.")),
    (deconvolution({"groups": 3}),
     ("groups of op 7 (ConvTranspose) is 3; expected a divisor of 2, the weight's whole channels."
     " The weight's dims are (3, 4, 2).")),
    (deconvolution(inputs=[tensor(0, X), tensor(1, W), tensor(3, (2,))]),
     "dims of bias of op 7 (ConvTranspose) is (2,); expected (4,), one per channel of the result."),
    (deconvolution({"pads_begin": [9], "pads_end": [9]}),
     "the output size on axis 0 of op 7 (ConvTranspose) is -7 = ...; expected at least 0. ..."),
    (deconvolution(inputs=[tensor(0, (1, 2, 4)), tensor(1, (3, 4, 2))], kind="Convolution"),
     ("the padded input on axis 0 of op 7 (Convolution) is 2 positions = ...; expected at least the"
     " dilated kernel's extent, 3. ...")),
    (deconvolution(inputs=[tensor(0, (1, 7, 4)), tensor(1, (3, 4, 2))], kind="Convolution",
                   out=(1, 4, 2)),
     "dims of dst of op 7 (Convolution) is (1, 4, 2); expected (1, 3, 2). ..."),
    (deconvolution(inputs=[tensor(0, X), tensor(1, (1, 11, 4))],
                   kind="ConvTransposeBackwardWeights"),
     ("dims of diff_weights of op 7 (ConvTransposeBackwardWeights) is ?; expected all known. Give"
     " weights_shape, or the dims of diff_weights.")),
    (deconvolution({"weights_shape": [3, 4, 2]}, kind="ConvTransposeBackwardWeights",
                   inputs=[tensor(0, X), tensor(1, (1, 14, 4))]),
     "dims of diff_dst on axis 0 of op 7 (ConvTransposeBackwardWeights) is 14, which a ..."),
    (deconvolution({"weights_shape": [3, 4, 2]}, kind="ConvTransposeBackwardWeights",
                   inputs=[tensor(0, X), tensor(1, (2, 11, 4))]),
     ("the batch size of op 7 (ConvTransposeBackwardWeights) is 1 in src and 2 in diff_dst;"
      " expected one size.")),
    (Op(7, "BiasAdd", [tensor(0, X), tensor(1, (5,))], [tensor(2)]),
     ("dims of bias of op 7 (BiasAdd) is (5,); expected (2,), one per channel of (1, 5, 2). See"
     " data_format.")),
    (Op(7, "BiasAdd", [tensor(0, (5,)), tensor(1, (5,))], [tensor(2)]),
     "dims of src of op 7 (BiasAdd) is (5,); expected at least 2 dimensions, batch and channels."),
    (Op(7, "Add", [tensor(0, X), tensor(1, (1, 4, 2))], [tensor(2)]),
     "dims of src_1 of op 7 (Add) is (1, 4, 2); expected dims that broadcast with (1, 5, 2). ..."),
    (Op(7, "Add", [tensor(0, X), tensor(1, (2,))], [tensor(2)], {"auto_broadcast": "none"}),
     "dims of src_1 of op 7 (Add) is (2,); expected (1, 5, 2), as the first input's."),
    (Op(7, "ReLU", [tensor(0, X)], [tensor(2, (1, 5, 3))]),
     "dims of tensor 2 of op 7 (ReLU) is (1, 5, 3); expected (1, 5, 2). ..."),
    (Op(7, "ReLU", [tensor(0, (1, None, 2))], [tensor(2)]),
     "dims of input tensor 0 is (1, ?, 2); expected all known. Describe it in..."),
]  # fmt: skip


@pytest.mark.parametrize(("op", "text"), AT_COMPILE)
def test_finalize_or_compile_refuses(op, text) -> None:
    with says(ArgumentError, text):
        built(op).partitions()[0].compile()


def test_the_document_refuses_what_the_library_overlooks() -> None:
    op = deconvolution({"dst_shape": [1, 12, 4]}, kind="ConvolutionBackwardData", out=(1, 11, 4))
    (partition,) = built(op).partitions()
    assert partition.compile().query_logical_tensor(2).dims == (1, 11, 4)
    (partition,) = built(op, rule="document").partitions()
    with says(ShapeError, "dst_shape of op 7 (ConvolutionBackwardData) is (1, 12, 4); expected..."):
        partition.compile()
    with says(ArgumentError, "auto_pad of op 7 (ConvTranspose) is 'VALID'; expected one of 'none',"
                             "... It is a spelling of the library: see ..."):  # fmt: skip
        built(deconvolution({"auto_pad": "VALID"}), rule="document")


def test_a_tensor_of_sizes_must_be_known_in_time_and_agree() -> None:
    inputs = [tensor(0, X), tensor(1, W), tensor(3, (3,), "s32")]
    (partition,) = built(deconvolution(inputs=inputs, kind="ConvolutionBackwardData")).partitions()
    with says(ArgumentError, "dst_shape of op 7 (ConvolutionBackwardData) is a tensor whose data..."
                             " Give them, as in compile(constants={3: ...})."):  # fmt: skip
        partition.compile()
    with says(
        ShapeError, "dst_shape of op 7 (ConvolutionBackwardData) is (1, 11, 0); expected ..."
    ):
        partition.compile(constants={3: [1, 11, 0]})
    for bad in ([1, 11], ["a"], [1.5, 2, 3], [[1], [2, 3]], [1, 11, 2**40], None, object()):
        with pytest.raises(ArgumentError, match=r"^data\[3\]"):
            partition.compile(constants={3: bad})
    compiled = partition.compile(constants={3: [1, 12, 4]})
    data = {0: np.ones(X, np.float32), 1: np.ones(W, np.float32)}
    assert compiled.execute(data)[2].shape == (1, 12, 4)
    with says(ShapeError, "data[3] is (1, 11, 4); expected (1, 12, 4), as compiled. ..."):
        compiled.execute({**data, 3: np.array([1, 11, 4])})


def test_graphs_are_built_finalized_and_taken_apart_in_that_order() -> None:
    graph = Graph()
    with says(ArgumentError, "the graph is empty; expected at least one operation. Call add_op."):
        graph.finalize()
    graph.add_op(deconvolution())
    for use in (graph.partitions, graph.compile, lambda: graph.execute({})):
        with says(
            ArgumentError, "the graph is not finalized; expected complete. Call finalize()..."
        ):
            use()
    with says(
        ArgumentError, "id of op 7 (ConvTranspose) is taken; expected another than that of ..."
    ):
        graph.add_op(deconvolution())
    with says(
        ArgumentError, "output tensor 2 of op 8 (ReLU) is made by op 7 (ConvTranspose) too;..."
    ):
        graph.add_op(Op(8, "ReLU", [tensor(5)], [tensor(2)]))
    graph.finalize()
    with says(ArgumentError, "the graph is finalized already; expected one still being built."):
        graph.finalize()
    with says(ArgumentError, "the graph is finalized; expected one still being built. ..."):
        graph.add_op(Op(8, "ReLU", [tensor(2)], [tensor(3)]))
    with says(ArgumentError, "policy is 'max'; expected one of fusion, debug."):
        graph.partitions("max")
    with says(ArgumentError, "rule is 'docs'; expected one of 'library', 'document'."):
        Graph(rule="docs")


def test_cycles_and_ends_of_nothing() -> None:
    graph = Graph()
    graph.add_op(Op(1, "Add", [tensor(0), tensor(2)], [tensor(1)]))
    graph.add_op(Op(2, "ReLU", [tensor(1)], [tensor(2)]))
    with says(ArgumentError, "the graph is one with the cycle op ...; expected no cycle."):
        graph.finalize()
    graph = Graph()
    graph.add_op(Op(1, "ReLU", [tensor(0)], [tensor(1)]))
    graph.add_op(Op(2, "End", [tensor(0)], []))
    with says(
        ArgumentError, "input of op 2 (End) is tensor 0, which no operation makes; expected..."
    ):
        graph.finalize()


def test_logical_tensors_refuse() -> None:
    for given, text in (
        ((-1,), "id is -1; expected an integer >= 0."),
        (
            (0, "f64"),
            "data_type of tensor 0 is 'f64'; expected one of 'f32', 'bf16', 'f16', 's32'.",
        ),
        ((0, "f32", (1, -1)), "dims[1] of tensor 0 is -1; expected an integer >= 0."),
        ((0, "f32", 5), "dims of tensor 0 is 5; expected a tuple of sizes, or None ..."),
        ((0, "f32", (1,) * 13), "dims of tensor 0 is 13 sizes; expected at most 12, as in oneDNN."),
        ((0, "f32", None, "fixed"), "property_type of tensor 0 is 'fixed'; expected one of ..."),
    ):
        with says(ArgumentError, text):
            LogicalTensor(*given)


def test_compile_and_execute_refuse_wrong_ids_types_and_shapes() -> None:
    graph = built(deconvolution())
    (partition,) = graph.partitions()
    x, w = np.ones(X, np.float32), np.ones(W, np.float32)
    for use, text in (
        (lambda: partition.compile([tensor(9)]),
         "inputs or outputs is tensor 9; expected some of this partition's: 0, 1, 2."),
        (lambda: partition.compile([tensor(0, (1, 6, 2))]), "dims of tensor 0 is (1, 6, 2); ..."),
        (lambda: partition.compile([tensor(0, X, "f16")]), "data_type of tensor 0 is 'f16'; ..."),
        (lambda: partition.compile("x"), "inputs and outputs is 'x'; expected a list of ..."),
        (lambda: partition.compile([0]), "inputs and outputs is one with 0; expected ..."),
        (lambda: partition.compile(constants=[w]), "constants is a list; expected a dict ..."),
        (lambda: partition.compile(constants={2: w}), "constants is tensor 2; expected some ..."),
        (lambda: partition.compile(constants={1: w}),
         ("property_type of tensor 1 is 'undef'; expected 'constant'. Make it one, or give its data"
         " to execute.")),
        (lambda: partition.compile(engine="fast"), "engine is 'fast'; expected one of jit, ..."),
        (lambda: graph.compile([tensor(2)]), "inputs is one with tensor 2; expected only ..."),
        (lambda: graph.compile(constants={9: w}), "constants is one with tensor 9; ..."),
        (lambda: graph.execute({0: x}), "data is without tensor 1; expected all inputs of the ..."),
        (lambda: graph.execute({0: x, 1: w, 5: w}), "data is one with tensor 5; expected only ..."),
        (lambda: graph.execute({0: x, 1: w[:2]}), "data[1].shape is (2, 4, 2); expected (3, ..."),
        (lambda: graph.execute({0: x, "w": w}), "data is a dict with keys [0, 'w']; ..."),
        (lambda: graph.execute([x, w]), "data is a list; expected a dict from tensor ids ..."),
    ):  # fmt: skip
        with says(ArgumentError, text):
            use()
    compiled = partition.compile()
    for given, text in (
        ({0: x}, "inputs is without tensor 1; expected all inputs. ..."),
        ({0: x, 1: w, 2: x}, "inputs is tensor 2; expected some of this partition's: 0, 1."),
        (
            {0: x, 1: w[..., :1]},
            "data[1].shape is (3, 4, 1); expected (3, 4, 2),...",
        ),
        (
            {0: x, 1: w.astype(float)},
            "data[1].dtype is float64; expected float32,...",
        ),
        ({0: x, 1: w.astype(int)}, "data[1].dtype is int64; expected ..."),
        ({0: x, 1: "w"}, "data[1] is 'w' (str); expected an array, ..."),
    ):
        with says(ArgumentError, text):
            compiled.execute(given)
    good = {0: x, 1: w}
    for outputs, text in (
        ({0: x}, "outputs is tensor 0; expected some of this partition's: 2."),
        ({2: x}, "outputs[2].shape is (1, 5, 2); expected (1, 11, 4). ..."),
        ({2: None}, "outputs[2] is of type NoneType; expected a numpy.ndarray or None. ..."),
    ):
        with says(ArgumentError, text):
            compiled.execute(good, outputs)
    for id_ in (3, "2", [2]):
        with pytest.raises(ArgumentError, match=r"^the tensor's id is "):
            compiled.query_logical_tensor(id_)


def test_random_nonsense_is_refused_or_runs() -> None:
    """Thousands of small graphs with values of any kind: never anything but an UpconvError."""
    rng = random.Random(11)
    odd = [None, 0, 1, 2, -1, 2**63, 1.5, "", "VALID", "NCX", "OIX", [], [0], [1], [1, 1], [2, 2],
           (1, 2, 3), [None], ["x"], [[1]], {}, True, float("inf"), np.array([1]), np.int64(2),
           object()]  # fmt: skip
    dims = [None, (), (1,), (2, 3), (1, 5, 2), (3, 4, 2), (2, 5, 5, 2), (None, 5, 2), (0, 3, 2)]
    outcomes = {True: 0, False: 0}
    for _ in range(3000):
        schema = rng.choice(list(SCHEMAS.values()))
        count = len(schema.inputs) if rng.random() < 0.9 else rng.randrange(5)
        kinds = rng.choice((["f32"], ["f32"], ["f32", "f16", "s32"]))
        words = {**WINDOW, "epsilon": 0.1, "alpha": 0.1}
        words = {k: v for k, v in words.items() if k in schema.attributes}
        for name in rng.sample(list(schema.attributes), min(len(schema.attributes), 2)):
            words[name] = rng.choice(odd)
        ran = False
        try:
            inputs = [tensor(i, rng.choice(dims), rng.choice(kinds)) for i in range(count)]
            outputs = [tensor(9, rng.choice(dims))] if schema.outputs else []
            graph = built(Op(1, schema.kind, inputs, outputs, words))
            data = {t.id: np.ones(t.shape or (), t.dtype) for t in inputs}
            graph.execute(data)
            ran = True
        except UpconvError as error:
            assert len(str(error)) < 1000  # noqa: PT017
        outcomes[ran] += 1
    assert min(outcomes.values()) > 20, outcomes


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda graph, array: graph.partitions(array), "policy"),
        (lambda graph, array: graph.compile(constants=array), "constants"),
        (lambda graph, array: graph.partitions()[0].compile(constants=array), "constants"),
        (
            lambda graph, array: graph.partitions()[0].compile().execute({0: array}, array),
            "outputs",
        ),
    ],
)
def test_an_array_in_the_place_of_something_else(call, words: str) -> None:
    graph = Graph()
    graph.add_op(Op(0, "ReLU", [LogicalTensor(0, "f32", (3,))], [LogicalTensor(1)]))
    graph.finalize()
    with pytest.raises(UpconvError, match=words):
        call(graph, np.ones(3, np.float32))
