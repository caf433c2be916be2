"""Shapes and types that graphs of the MXNet front end infer, as MXNet 1.9.1 infers them."""

import numpy as np
import pytest

import upconv.mxnet as mx

sym = mx.sym
F16, F32, F64 = np.float16, np.float32, np.float64


class TestShapes:
    def test_a_conflict_behind_an_unknown_input(self):
        v = sym.var("v")
        graph = sym.transpose(v) + (sym.var("x") + v)
        with pytest.raises(mx.MXNetError, match=r"transpose.*\(3, 2\).*\(2, 3\)"):
            graph.infer_shape(x=(2, 3))
        assert graph.infer_shape(x=(2, 2)) == ([(2, 2), (2, 2)], [(2, 2)], [])

    @pytest.mark.parametrize(("layer", "data", "z"), [
        (lambda d: sym.Convolution(d, kernel=(3, 3), num_filter=4), (0, 3, 8, 8), (5, 4, 6, 6)),
        (lambda d: sym.FullyConnected(d, num_hidden=4), (0, 3), (5, 4)),
        # MXNet leaves these two unknown.
        (lambda d: sym.Deconvolution(d, kernel=(3, 3), num_filter=4), (0, 3, 8, 8), (5, 4, 10, 10)),
        (lambda d: sym.UpSampling(d, scale=2, sample_type="nearest"), (0, 4, 3, 3), (5, 4, 6, 6)),
    ])  # fmt: skip
    def test_the_batch_follows_from_the_output(self, layer, data, z):
        graph = layer(sym.var("d")) + sym.var("z")
        shapes, _, _ = graph.infer_shape(d=data, z=z)
        assert shapes[0] == (5, *data[1:])
        assert layer(sym.var("d")).infer_shape(d=data) == (None, None, None)

    def test_elementwise_inputs_follow_from_the_output(self):
        graph = sym.Activation(sym.var("d"), act_type="relu") + sym.var("z")
        assert graph.infer_shape(z=(5, 4)) == ([(5, 4), (5, 4)], [(5, 4)], [])
        chain = sym.var("d")
        for _ in range(30):
            chain = sym.tanh(chain)
        assert (chain + sym.var("z")).infer_shape(z=(2,))[0] == [(2,), (2,)]


class TestTypes:
    def dense(self, x):
        return sym.FullyConnected(x, num_hidden=2, name="f")

    def test_behind_a_cast(self):
        graph = self.dense(sym.Cast(sym.var("x"), dtype="float32"))
        assert graph.infer_type(x="float16") == ([F16, F32, F32], [F32], [])
        assert graph.infer_type() == (None, None, None)
        assert graph.infer_type_partial() == ([None, F32, F32], [F32], [])

    def test_of_data_follows_from_a_weight(self):
        graph = self.dense(sym.var("x"))
        assert graph.infer_type(f_weight="float16") == ([F16] * 3, [F16], [])
        assert self.dense(sym.var("x", dtype="float16")).infer_type() == ([F16] * 3, [F16], [])
        assert graph.infer_type() == (None, None, None)

    @pytest.mark.parametrize(("graph", "types"), [
        (sym.FullyConnected(sym.var("x"), num_hidden=2, name="f"),
         {"x": "float16", "f_weight": "float32"}),
        (sym.Cast(sym.var("x"), dtype="float16") + sym.var("z"), {"z": "float32"}),
    ])  # fmt: skip
    def test_conflicts_are_refused(self, graph, types):
        with pytest.raises(mx.MXNetError, match=r"the type of .* is float16; expected float32"):
            graph.infer_type(**types)

    def test_other_words_are_refused(self):
        with pytest.raises(mx.MXNetError, match="'foo'"):
            sym.var("x", dtype="foo")

    def test_of_batch_normalisation(self):
        graph = sym.BatchNorm(sym.var("x"), name="b")
        assert graph.infer_type(x="float16") == ([F16, F32, F32], [F16], [F32, F32])
        assert graph.infer_type(x="float64") == ([F64] * 3, [F64], [F64, F64])

    def test_of_an_executor(self):
        graph = self.dense(sym.Cast(sym.var("x"), dtype="float32"))
        exe = graph.simple_bind(mx.cpu(), x=(2, 3), type_dict={"x": "int32", "no": "int8"})
        assert [x.dtype for x in exe.arg_arrays] == [np.int32, F32, F32]
        assert exe.outputs[0].dtype is F32

    def test_of_a_comparison_in_numpy_graphs(self):
        graph = sym._npi_less(sym.var("x"), sym.var("y"))
        assert graph.infer_type(x="float32", y="float32")[1] == [np.bool_]


class TestConstants:
    @pytest.mark.parametrize(("graph", "values", "dtype"), [
        (sym.ones((2, 3)), np.ones((2, 3)), F32),
        (sym.zeros((2,), dtype="int32"), [0, 0], np.int32),
        (sym.full((2,), 3), [3, 3], F32),
        (sym.arange(1, 5, 2), [1, 3], F32),
        (sym.arange(3), [0, 1, 2], F32),
        (sym.var("x") * 0 + sym.ones((2, 3)), np.ones((2, 3)), F32),
    ], ids=["ones", "zeros", "full", "arange", "arange to", "sum"])  # fmt: skip
    def test_have_their_values(self, graph, values, dtype):
        arrays = {"x": mx.nd.ones((2, 3))} if graph.list_arguments() else {}
        [y] = graph.eval(ctx=mx.cpu(), **arrays)
        assert y.dtype is dtype
        assert y.asnumpy().tolist() == np.asarray(values).tolist()
        assert sym.fromjson(graph.tojson()).infer_shape() == graph.infer_shape()

    def test_shapes_need_no_memory(self):
        assert sym.ones((10**12,)).infer_shape() == ([], [(10**12,)], [])
        with pytest.raises(mx.MXNetError, match="the outputs: Unable to allocate"):
            sym.ones((10**14,)).eval()
