"""Blocks of the MXNet front end: `mx.gluon`, and `mx.npx` as its blocks call it."""

import numpy as np
import pytest

import upconv.mxnet as mx
from tests.support.mxnet_arrays import close, drawn, learned
from tests.support.paths import DATA

nd, npx, gluon, nn = mx.nd, mx.npx, mx.gluon, mx.gluon.nn
autograd = mx.autograd
MODELS = DATA / "mxnet" / "models"


class Net1(gluon.HybridBlock):
    """As MXNet 1 writes a block."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.w = self.params.get("w", shape=(0, 2, 3), allow_deferred_init=True)
            self.norm = nn.BatchNorm()

    def hybrid_forward(self, F, x, w):
        y = self.norm(F.Deconvolution(x, w, kernel=(3,), num_filter=2))
        return F.concat(y, y.reshape((0, 0, -1)).slice_axis(axis=1, begin=0, end=1), dim=1)


class Net2(gluon.HybridBlock):
    """As MXNet 2 writes it."""

    def __init__(self):
        super().__init__()
        self.weight = gluon.Parameter("weight", shape=(1, 2, 3))
        self.bias = gluon.Parameter("bias", shape=2)

    def forward(self, x):
        return npx.deconvolution(
            x, self.weight.data(x.device), self.bias.data(), (3,), num_filter=2
        )


class TestBlocks:
    @pytest.mark.parametrize("hybrid", [False, True])
    def test_of_version_1(self, hybrid):
        net = Net1()
        net.initialize("ones")
        net.hybridize(hybrid)
        for _ in range(2):
            y = net(nd.ones((1, 4, 3)))
        assert y.shape == (1, 3, 5)
        close(y, np.tile([4, 8, 12, 8, 4], (1, 3, 1)) / np.sqrt(1 + 1e-5))
        assert net.w.shape == (4, 2, 3)
        with autograd.record():
            y = net(nd.ones((1, 4, 3)))
        y.backward()
        assert net.w.grad().shape == (4, 2, 3)
        close(net.norm.beta.grad(), [10, 5])

    def test_of_version_2(self):
        net = Net2()
        net.initialize()
        net.weight.set_data(mx.np.ones((1, 2, 3)))
        net.bias.set_data(mx.np.array([1, 2]))
        y = net(mx.np.ones((1, 1, 2)))
        assert isinstance(y, mx.np.ndarray)
        close(y, [[[2, 3, 3, 2], [3, 4, 4, 3]]])

    @pytest.mark.parametrize("kind", [nn.Sequential, nn.HybridSequential])
    def test_in_sequence(self, kind, tmp_path):
        def make():
            net = kind()
            net.add(nn.Conv2DTranspose(3, 2, activation="relu"), nn.BatchNorm(), nn.Dense(2))
            return net

        net, x = make(), drawn(1, 2, 3, 3)
        net.initialize()
        with autograd.record():
            y = net(x)
        y.backward()
        y = net(x)
        assert len(net) == 3
        close(net[2](net[1](net[0](x))), y.asnumpy())
        assert isinstance(net[:2], kind)
        close(net[1:](net[:1](x)), y.asnumpy())
        assert len([*net.collect_params().keys()]) == 8
        assert len([*net.collect_params(".*weight|.*gamma").keys()]) == 3
        for _ in range(2):  # the second time over the first file
            net.save_parameters(str(tmp_path / "net.params"))
        again = make()
        again.load_parameters(str(tmp_path / "net.params"))
        close(again(x), y.asnumpy())
        assert {"0.weight", "0.bias", "1.running_mean", "2.bias"} <= {
            *nd.load(str(tmp_path / "net.params"))
        }
        net.collect_params().setattr("grad_req", "null")
        assert net[0].weight.grad_req == "null"

    @pytest.mark.parametrize(("here", "there", "option"), [
        (True, False, "ignore_extra"), (False, True, "allow_missing"),
    ])  # fmt: skip
    def test_files_name_all_parameters_or_say_so(self, here, there, option, tmp_path):
        first, second = nn.Dense(3, use_bias=here), nn.Dense(3, use_bias=there)
        first.initialize("ones")
        first(drawn(1, 2))
        name = str(tmp_path / "dense.params")
        first.save_parameters(name)
        with pytest.raises((AssertionError, ValueError)):
            second.load_parameters(name)
        second.load_parameters(name, **{option: True})
        close(second.weight.data(), np.ones((3, 2)))

    @pytest.mark.parametrize("name", ["gluon", "gluon_np", "gluon2"])
    def test_exported_by_mxnet(self, name):
        files = str(MODELS / f"{name}-symbol.json"), str(MODELS / f"{name}-0000.params")
        block = gluon.SymbolBlock.imports(files[0], ["data"], files[1])
        with np.load(MODELS / f"{name}.npz") as stored:
            x, expected = stored["data"], [stored["out0"], stored["out1"]]
        for _ in range(3):
            for found, value in zip(block(nd.array(x)), expected, strict=True):
                close(found, value)
        x = learned(x)
        with autograd.record():
            y = block(x)[0]
        y.backward()
        assert np.abs(x.grad.asnumpy()).max() > 0

    def test_of_a_graph(self):
        x = mx.sym.var("x")
        block = gluon.SymbolBlock(mx.sym.FullyConnected(x, num_hidden=2, name="f"), [x])
        block.initialize("ones")
        close(block(nd.ones((2, 3))), np.full((2, 2), 4))  # the bias too begins with ones


class TestNpx:
    X, W, B = mx.np.ones((1, 1, 2)), mx.np.ones((1, 1, 3)), mx.np.array([5])

    @pytest.mark.parametrize("name", ["deconvolution", "convolution"])
    def test_has_a_bias_by_default(self, name):
        function, x = getattr(npx, name), mx.np.ones((1, 1, 4))
        y = function(x, self.W, self.B, (3,))
        plain = function(x, self.W, kernel=(3,), no_bias=True, stride=None, layout=None)
        close(y, plain.asnumpy() + 5)
        assert isinstance(y, mx.np.ndarray)
        for wrong in (
            {"weight": None}, {"data": None}, {"kernel": None}, {"num_filter": 0},
            {"workspace": -1}, {"no_bias": True},
        ):  # fmt: skip
            given = {"data": x, "weight": self.W, "bias": self.B, "kernel": (3,)} | wrong
            with pytest.raises(AssertionError):
                function(**given)
        for wrong in ("out", "name"):
            with pytest.raises(TypeError):
                function(x, self.W, self.B, (3,), **{wrong: None})
        with pytest.raises((mx.MXNetError, AssertionError)):
            function(x, self.W, kernel=(3,))

    def test_targets_by_document_or_library(self):
        x, w = mx.np.array([[[1, 2]]]), mx.np.array([[[1, 10, 100]]])
        given = {"kernel": (3,), "stride": (2,), "target_shape": (4,), "no_bias": True}
        close(npx.deconvolution(x, w, pad=(9,), **given), [[[10, 102, 20, 200]]])
        with pytest.raises(mx.MXNetError):
            npx.deconvolution(x, w, rule="library", **given)
        close(npx.deconvolution(x, w, pad=(1,), rule="library", **given), [[[10, 102, 20, 200]]])
        found = nd.Deconvolution(nd.array(x), nd.array(w), num_filter=1, **given)
        close(found, [[[10, 102, 20, 200]]])
