"""What ordinary MXNet scripts do with arrays, files, executors and blocks."""

import numpy as np
import pytest

import upconv.mxnet as mx
from tests.support.mxnet_arrays import equal
from upconv import UpconvError

gluon, nd, nn, sym = mx.gluon, mx.nd, mx.gluon.nn, mx.sym


class TestOrdinaryScripts:
    """What MXNet's own tests and scripts do with arrays; the values are MXNet 1.9.1's."""

    def test_one_element_is_written_anywhere(self):
        b = nd.zeros((3,))
        b[0], b[1] = nd.array([1.5]), np.array([[2.5]])
        equal(b, [1.5, 2.5, 0])
        c = nd.zeros((2, 2))
        c[0] = nd.array([[1, 2]])
        c[1, 1] = nd.array([[7]])
        equal(c, [[1, 2], [0, 7]])

    @pytest.mark.parametrize("make", [nd.array, mx.np.array])
    def test_numpy_reads_them(self, make):
        a = make([[1, 1], [1, 1]])
        assert np.all(a == 1)
        assert not np.any(a == 0)
        assert float(np.sum(a)) == 4
        assert float(np.max(a)) == float(np.mean(a)) == 1

    def test_astype(self):
        a = nd.ones((2,))
        assert a.astype("float32", copy=False) is a
        assert a.astype("float32") is not a
        equal(a.astype("float16", copy=False), [1, 1], "float16")
        with pytest.raises(TypeError, match="bfloat16"):
            a.astype("bfloat16")

    def test_attach_grad_begins_anew(self):
        x = nd.array([1, 2, 3])
        x.attach_grad()
        with mx.autograd.record():
            y = x * 2
            y.attach_grad()
            z = (y * y).sum()
        z.backward()
        equal(x.grad, [0, 0, 0])
        equal(y.grad, [4, 8, 12])

    def test_shape_semantics(self):
        with mx.np_shape():
            equal(nd.ones((2,)).sum(), [2])
            equal(nd.zeros((0, 2)), np.zeros((0, 2)))
        assert mx.is_np_shape()


class TestFiles:
    ARRAYS = (nd.array([1, 2]), nd.array([[3]], dtype="int32"))

    def same(self, found, kind=nd.NDArray):
        assert isinstance(found, list)
        for x, y in zip(found, self.ARRAYS, strict=True):
            assert type(x) is kind
            equal(x, y.asnumpy(), y.dtype)

    def test_lists_and_one_array(self, tmp_path):
        path = tmp_path / "a.params"
        nd.save(path, [*self.ARRAYS])
        self.same(nd.load(path))
        self.same(nd.load_frombuffer(path.read_bytes()))
        nd.save(path, self.ARRAYS[0])
        [x] = nd.load(path)
        equal(x, [1, 2], "float32")
        for empty in ([], {}):
            nd.save(path, empty)
            assert nd.load(path) == []

    def test_names(self, tmp_path):
        path = tmp_path / "a.params"
        nd.save(path, {"w": self.ARRAYS[0]})
        for found in (nd.load(path), nd.load_frombuffer(path.read_bytes())):
            assert [*found] == ["w"]
            equal(found["w"], [1, 2], "float32")

    def test_bytes_are_those_of_mxnet(self, tmp_path):
        nd.save(tmp_path / "a", [nd.array([1, 2])])
        expected = "120100000000000000000000000000000100000000000000c9fa93f900000000"
        expected += "010000000200000000000000010000000000000000000000"
        expected += "0000803f000000400000000000000000"
        assert (tmp_path / "a").read_bytes().hex() == expected

    def test_of_numpy_arrays(self, tmp_path):
        path, scalar = tmp_path / "a", mx.np.array(3.0)
        mx.npx.save(path, [mx.np.ones((2,)), scalar])
        one, two = mx.npx.load(path)
        assert type(one) is type(two) is mx.np.ndarray
        equal(two, 3)
        mx.npx.savez(tmp_path / "b.npz", scalar, w=mx.np.ones((2,)))
        found = mx.npx.load(tmp_path / "b.npz")
        assert sorted(found) == ["arr_0", "w"]
        equal(found["arr_0"], 3)

    @pytest.mark.parametrize("data", [3, [3], {"a": 3}, None, [[nd.ones((1,))]]])
    def test_other_things_are_refused(self, tmp_path, data):
        with pytest.raises(mx.MXNetError, match="expected NDArrays, in a dict or a list"):
            nd.save(tmp_path / "a", data)
        assert not [*tmp_path.iterdir()]

    def test_damaged_buffers_are_refused(self):
        with pytest.raises(UpconvError, match=r"the buffer.*byte 0"):
            nd.load_frombuffer(b"abc")
        with pytest.raises(TypeError, match="expected bytes"):
            nd.load_frombuffer("abc")


def dense(units=2):
    return sym.FullyConnected(sym.var("x"), num_hidden=units, name="f")


class TestExecutors:
    def test_outputs_are_there_before_and_are_written_in_place(self):
        exe = dense().simple_bind(mx.cpu(), x=(2, 3))
        [held] = exe.outputs
        assert held.shape == (2, 2)
        for value in (3, 4):
            exe.arg_dict["f_bias"][:] = value
            exe.forward()
            equal(held, np.full((2, 2), value))
            equal(exe.output_dict["f_output"], held.asnumpy())
        exe = dense().bind(mx.cpu(), {"x": nd.ones((1, 3)), "f_weight": nd.ones((2, 3)),
                                      "f_bias": nd.ones((2,))})  # fmt: skip
        assert [y.shape for y in exe.outputs] == [(1, 2)]
        with pytest.raises(mx.MXNetError, match="must follow forward"):
            exe.backward(nd.ones((1, 2)))

    def test_parameters_are_copied(self):
        graph = sym.BatchNorm(dense(), name="n", fix_gamma=False)
        exe = graph.simple_bind(mx.cpu(), x=(2, 3))
        exe.copy_params_from({"f_bias": nd.array([1, 2])}, {"n_moving_mean": nd.array([3, 4])})
        equal(exe.arg_dict["f_bias"], [1, 2])
        equal(exe.aux_dict["n_moving_mean"], [3, 4])
        exe.copy_params_from({"other": nd.ones((1,))}, allow_extra_params=True)
        for wrong in ({"other": nd.ones((1,))}, {"f_bias": nd.ones((3,))}):
            with pytest.raises(ValueError, match="f_bias"):
                exe.copy_params_from(wrong)

    def test_of_another_shape_share_the_parameters(self):
        exe = dense().simple_bind(mx.cpu(), x=(2, 3), grad_req={"f_bias": "write"})
        exe.arg_dict["f_bias"][:] = 5
        other = exe.reshape(x=(4, 3))
        assert other.arg_dict["f_weight"] is exe.arg_dict["f_weight"]
        assert other.grad_dict["f_bias"] is exe.grad_dict["f_bias"]
        equal(other.forward()[0], np.full((4, 2), 5))
        equal(exe.forward()[0], np.full((2, 2), 5))


class Scaled(gluon.HybridBlock):
    """Adds a weight, whose shape its own `infer_shape` sets."""

    def __init__(self):
        super().__init__()
        self.w = self.params.get("w", shape=(0,), allow_deferred_init=True)


class TestBlocks:
    def test_infer_shape_of_the_user_is_called(self):
        calls = []

        class Old(Scaled):
            def infer_shape(self, x):
                calls.append(x.shape)
                self.w.shape = (x.shape[1],)

            def hybrid_forward(self, F, x, w):
                return F.broadcast_add(x, w)

        class New(Scaled):
            infer_shape = Old.infer_shape

            def forward(self, x):
                return x + self.w.data()

        for kind in (Old, New):
            net = nn.HybridSequential()
            net.add(kind(), kind())
            net.initialize("ones")
            equal(net(nd.ones((2, 3))), np.full((2, 3), 3))
            net(nd.ones((2, 3)))
        assert calls == [(2, 3)] * 4

    def test_one_without_it_is_told_what_to_define(self):
        class New(Scaled):
            def forward(self, x):
                return x + self.w.data()

        net = New()
        net.initialize()
        with pytest.raises(mx.MXNetError, match=r"New defines forward.* define infer_shape"):
            net(nd.ones((2, 3)))

    def test_constants(self):
        class Shifted(gluon.HybridBlock):
            def __init__(self):
                super().__init__()
                self.shift = self.params.get_constant("shift", nd.array([1, 2]))

            def hybrid_forward(self, F, x, shift):
                return x + shift

        net = Shifted()
        net.initialize()
        equal(net(nd.zeros((2,))), [1, 2])
        assert net.shift.grad_req == "null"

    def generator(self):
        net = nn.HybridSequential()
        net.add(nn.Conv2DTranspose(4, 4, strides=2, padding=1, use_bias=False), nn.BatchNorm())
        net.add(nn.PReLU(), nn.Conv2DTranspose(3, 3), nn.Activation("tanh"))
        net.initialize(mx.init.Xavier())
        net.hybridize()
        return net

    def test_export_and_back(self, tmp_path):
        net, x = self.generator(), nd.array(np.random.default_rng(3).normal(size=(2, 3, 5, 4)))
        y = net(x)
        graph, params = net.export(str(tmp_path / "g"), epoch=7)
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "g-0007.params", "g-symbol.json",
        ]  # fmt: skip
        block = gluon.SymbolBlock.imports(graph, ["data"], params)
        np.testing.assert_array_equal(block(x).asnumpy(), y.asnumpy())
        symbol, arguments, states = mx.model.load_checkpoint(str(tmp_path / "g"), 7)
        assert sorted(arguments) == [
            "0.weight", "1.beta", "1.gamma", "2.alpha", "3.bias", "3.weight",
        ]  # fmt: skip
        assert sorted(states) == ["1.running_mean", "1.running_var"]
        assert symbol.list_auxiliary_states() == sorted(states)
        exe = symbol.simple_bind(mx.cpu(), grad_req="null", data=x.shape)
        exe.copy_params_from(arguments, states)
        np.testing.assert_array_equal(exe.forward(data=x)[0].asnumpy(), y.asnumpy())
        [z] = mx.load(graph, params).run(data=x.asnumpy())
        np.testing.assert_allclose(z, y.asnumpy(), rtol=0, atol=1e-5)

    def test_a_call_with_a_symbol_makes_a_graph(self):
        net = self.generator()
        for block in (net, nn.Sequential()):
            if block is not net:
                block.add(*net)
            graph = block(sym.var("x"))
            assert graph.list_arguments()[:3] == ["x", "0.weight", "1.gamma"]
            assert graph.infer_shape(x=(1, 3, 5, 5))[1] == [(1, 3, 12, 12)]
        net[0](sym.var("x"))
        assert net(sym.var("x")).list_arguments()[1] == "0.weight"

    def test_export_of_several_inputs(self, tmp_path):
        class Joined(gluon.HybridBlock):
            def hybrid_forward(self, F, x, y):
                return F.concat(x, y, dim=1)

        net = Joined()
        with pytest.raises(mx.MXNetError, match="call the block once"):
            net.export(str(tmp_path / "g"))
        net(nd.ones((1, 2)), nd.ones((1, 1)))
        graph, _ = net.export(str(tmp_path / "g"))
        assert sym.load(graph).list_arguments() == ["data0", "data1"]
        with pytest.raises(UpconvError, match="Cannot write"):
            net.export(str(tmp_path / "no" / "g"))

    def test_export_of_arrays_alone_is_refused(self, tmp_path):
        class New(gluon.HybridBlock):
            def forward(self, x):
                return nd.relu(x)

        net = New()
        net(nd.ones((1,)))
        with pytest.raises(mx.MXNetError, match="expected an NDArray"):
            net.export(str(tmp_path / "g"))
        assert not [*tmp_path.iterdir()]


class TestCheckpoints:
    def test_are_written_and_read(self, tmp_path):
        prefix = str(tmp_path / "net")
        arrays = {"f_weight": nd.ones((2, 3)), "f_bias": nd.zeros((2,))}
        mx.model.save_checkpoint(prefix, 3, dense(), arrays, {"s": nd.ones((1,))})
        graph, arguments, states = mx.model.load_checkpoint(prefix, 3)
        assert graph.list_arguments() == ["x", "f_weight", "f_bias"]
        equal(arguments["f_weight"], np.ones((2, 3)), "float32")
        assert [*states] == ["s"]
        assert mx.model.load_params(prefix, 3)[0].keys() == arrays.keys()

    def test_what_is_none_is_refused(self, tmp_path):
        with pytest.raises(UpconvError, match="No such file"):
            mx.model.load_checkpoint(str(tmp_path / "no"), 0)
        nd.save(tmp_path / "g-0000.params", {"w": nd.ones((1,))})
        with pytest.raises(mx.MXNetError, match="'w' does not begin"):
            mx.model.load_params(str(tmp_path / "g"), 0)
        with pytest.raises(mx.MXNetError, match="epoch"):
            mx.model.save_checkpoint(str(tmp_path / "h"), "0", dense(), {}, {})
        assert not [*tmp_path.glob("h*")]


@pytest.mark.parametrize("call", [
    lambda: mx.mod, lambda: gluon.Trainer, lambda: gluon.loss, lambda: nn.LayerNorm,
    lambda: mx.init.Orthogonal, lambda: nd.dot, lambda: sym.dot,
])  # fmt: skip
def test_what_is_not_here_is_named(call):
    with pytest.raises(AttributeError, match=r"upconv\.mxnet has no .*docs/mxnet\.md lists"):
        call()


def test_bfloat16_is_refused():
    with pytest.raises(mx.MXNetError, match="bfloat16"):
        nd.array([1], dtype="bfloat16")
