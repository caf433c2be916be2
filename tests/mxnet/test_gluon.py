"""Layers and parameters of the MXNet front end: `mx.gluon`."""

import numpy as np
import pytest

import upconv
import upconv.mxnet as mx
from tests.support.mxnet_arrays import close, drawn

nd, gluon, nn = mx.nd, mx.gluon, mx.gluon.nn
autograd = mx.autograd
TRANSPOSED = [nn.Conv1DTranspose, nn.Conv2DTranspose, nn.Conv3DTranspose]
PLAIN = [nn.Conv1D, nn.Conv2D, nn.Conv3D]


class TestLayers:
    @pytest.mark.parametrize("rank", [1, 2, 3])
    @pytest.mark.parametrize("transposed", [True, False])
    @pytest.mark.parametrize(
        "options",
        [
            {}, {"strides": 2, "padding": 1}, {"groups": 2, "use_bias": False}, {"dilation": 2},
            {"activation": "relu"}, {"strides": 2, "output_padding": 1},
            {"strides": 3, "padding": 1, "output_padding": 2, "groups": 2, "activation": "tanh"},
        ],
        ids=str,
    )  # fmt: skip
    def test_are_their_operators(self, rank, transposed, options):
        if rank == 3 and "dilation" in options and transposed:
            options = {**options, "dilation": 1}  # MXNet has none
        if not transposed:
            options = {k: v for k, v in options.items() if k != "output_padding"}
        layer = (TRANSPOSED if transposed else PLAIN)[rank - 1](4, 3, **options)
        layer.initialize()
        if layer.bias is not None:
            layer.bias.set_data(drawn(4))
        x, groups = drawn(2, 2, *(6, 5, 7)[:rank]), options.get("groups", 1)
        found = layer(x)
        ends = (2, 4 // groups) if transposed else (4, 2 // groups)
        assert layer.weight.shape == (*ends, *[3] * rank)
        arrays = [p if p is None else p.data().asnumpy() for p in (layer.weight, layer.bias)]
        words = {"stride" if k == "strides" else k: v for k, v in options.items()}
        words.pop("use_bias", None)
        function = upconv.conv_transpose if transposed else upconv.conv
        close(found, function(x.asnumpy(), *arrays, **words))

    def test_by_hand(self):
        layer = nn.Conv1DTranspose(1, 3, 2, 1, 1, in_channels=1)
        layer.initialize()
        layer.weight.set_data(nd.array([[[1, 10, 100]]]))
        assert layer.outpad == (1,)
        x = nd.array([[[1, 2, 3]]])
        for _ in range(3):
            close(layer(x), [[[10, 102, 20, 203, 30, 300]]])

    @pytest.mark.parametrize(
        ("make", "size"),
        [
            (lambda: nn.Conv1D(4, 3, 2, 1, 2), (4,)),
            (lambda: nn.Conv2D(4, 3, (2, 2), (1, 1), (2, 2)), (4, 4)),
            (lambda: nn.Conv3D(4, 3, 2, 1, 2, 2), (4, 4, 4)),
            (lambda: nn.Conv2DTranspose(4, 3, 2, 1, 1, 2, 2), (20, 20)),
            (lambda: nn.Conv2D(4, 3, 1, 1, 1, 2, "NCHW", "relu", False), (9, 9)),
            (lambda: nn.Conv2DTranspose(4, [3, 2], [2, 1], [1, 0], [1, 0]), (18, 10)),
        ],
    )
    def test_take_their_arguments_in_the_order_of_mxnet(self, make, size):
        """A plain layer's fifth one is dilation, a transposed one's output_padding."""
        layer = make()
        layer.initialize()
        assert layer(drawn(1, 2, *[9] * len(size))).shape == (1, 4, *size)

    @pytest.mark.parametrize("layer", [nn.Conv2DTranspose, nn.Conv2D])
    def test_channels_last(self, layer):
        first, last = layer(4, 3, 2), layer(4, 3, 2, layout="NHWC", in_channels=6)
        assert last.weight.shape == ((6, 3, 3, 4) if layer is nn.Conv2DTranspose else (4, 3, 3, 6))
        x = drawn(1, 6, 5, 5)
        for each in (first, last):
            each.initialize()
        y = first(x)
        last.weight.set_data(first.weight.data().asnumpy().transpose(0, 2, 3, 1))
        close(last(x.transpose((0, 2, 3, 1))), y.asnumpy().transpose(0, 2, 3, 1))

    @pytest.mark.parametrize(
        "make",
        [
            lambda: nn.Conv2DTranspose(4, 3, layout="NCW"),
            lambda: nn.Conv1DTranspose(4, 3, layout="NWC"),
            lambda: nn.Conv3D(4, 3, layout="NCHW"),
            lambda: nn.Conv2DTranspose(4, (3,)),
            lambda: nn.Conv2D(4, (3, 3, 3)),
            lambda: nn.Conv2DTranspose(4, 3, output_padding=(1,)),
        ],
    )
    def test_layouts_and_lengths_are_asserted(self, make):
        with pytest.raises(AssertionError):
            make()

    @pytest.mark.parametrize(
        "make", [nn.Conv2D, nn.Conv2DTranspose, nn.Dense, lambda *a, **k: nn.BatchNorm(**k)]
    )
    def test_unknown_keywords_are_refused(self, make):
        for wrong in ({"nothing": 1}, {"output_padding": 1} if make is nn.Conv2D else {"pad": 1}):
            with pytest.raises(TypeError):
                make(4, 3, **wrong)

    @pytest.mark.parametrize(
        "options", [{"strides": (1,)}, {"output_padding": 1}, {"in_channels": 3}], ids=str
    )
    def test_what_does_not_fit_is_refused_at_the_first_call(self, options):
        def call():
            layer = nn.Conv2DTranspose(4, 3, **options)
            layer.initialize()
            layer(drawn(1, 2, 4, 4))

        with pytest.raises(mx.MXNetError):
            call()

    def test_dense_and_small_layers(self):
        x = drawn(2, 3, 4)
        dense, wide = nn.Dense(5, activation="relu"), nn.Dense(5, flatten=False, use_bias=False)
        for layer in (dense, wide):
            layer.initialize()
        close(dense(x), np.maximum(x.asnumpy().reshape(2, 12) @ dense.weight.data().asnumpy().T, 0))
        close(wide(x), x.asnumpy() @ wide.weight.data().asnumpy().T)
        close(nn.LeakyReLU(0.1)(nd.array([-1, 1])), [-0.1, 1])
        close(nn.Flatten()(x), x.asnumpy().reshape(2, 12))
        close(nn.Dropout(0.5)(x), x.asnumpy())


class TestBatchNorm:
    def test_statistics_change_in_the_backward_pass(self):
        layer = nn.BatchNorm(momentum=0.5, epsilon=1e-3)
        layer.initialize()
        x = nd.array([[0, 1, 2], [4, 5, 6]])
        close(layer(x), x.asnumpy() / np.sqrt(1.001))
        with autograd.record():
            y = layer(x)
        close(y, np.sign([[-1] * 3, [1] * 3]) * 2 / np.sqrt(4.001))
        close(layer.running_mean.data(), [0, 0, 0])
        y.backward()
        close(layer.running_mean.data(), [1, 1.5, 2])
        close(layer.running_var.data(), [2.5, 2.5, 2.5])
        close(layer.beta.grad(), [2, 2, 2])
        assert layer.running_mean.grad_req == "null"

    def test_options(self):
        layer = nn.BatchNorm(axis=-1, scale=False, center=False, use_global_stats=True)
        layer.initialize()
        assert (layer.gamma.grad_req, layer.beta.grad_req) == ("null", "null")
        x = drawn(2, 3, 5)
        with autograd.record():
            y = layer(x)
        close(y, x.asnumpy() / np.sqrt(1 + 1e-5))
        assert layer.gamma.shape == (5,)
        assert nn.BatchNorm(center=False).gamma.grad_req == "write"
        assert nn.BatchNorm(scale=False).beta.grad_req == "write"
        layer.cast("float16")
        assert np.dtype(layer.gamma.dtype) == np.float32
        narrow = nn.BatchNorm(in_channels=4)
        narrow.initialize()
        with pytest.raises(mx.MXNetError):
            narrow(x)


class TestParameters:
    def test_are_known_at_the_first_call(self):
        layer = nn.Conv2DTranspose(4, 3)
        with pytest.raises(RuntimeError):
            layer.weight.data()
        layer.initialize()
        for call in (layer.weight.data, layer.weight.grad):
            with pytest.raises(gluon.parameter.DeferredInitializationError):
                call()
        assert issubclass(gluon.parameter.DeferredInitializationError, mx.MXNetError)
        layer(drawn(1, 2, 5, 5))
        assert layer.weight.data().shape == (2, 4, 3, 3)
        values = layer.weight.data().asnumpy()
        assert 0.04 < np.abs(values).max() <= 0.07
        close(layer.bias.data(), np.zeros(4))

    def test_set_data_decides_before_the_first_call(self):
        layer = nn.Conv2DTranspose(4, 3, use_bias=False)
        layer.initialize()
        layer.weight.set_data(nd.ones((2, 4, 3, 3)))
        close(layer(nd.ones((1, 2, 1, 1))), np.full((1, 4, 3, 3), 2))
        with pytest.raises(AssertionError):
            layer.weight.set_data(nd.ones((2, 5, 3, 3)))
        kept = layer.weight.data()
        layer.weight.set_data(nd.zeros((2, 4, 3, 3)))
        close(kept, np.zeros((2, 4, 3, 3)))

    def test_requests(self):
        parameter = gluon.Parameter("w", shape=(2,), grad_req="add")
        parameter.initialize("ones")
        for _ in range(2):
            with autograd.record():
                y = parameter.data() * 3
            y.backward()
        close(parameter.grad(), [6, 6])
        parameter.zero_grad()
        close(parameter.grad(), [0, 0])
        parameter.grad_req = "null"
        with pytest.raises(RuntimeError):
            parameter.grad()
        with pytest.raises(AssertionError):
            parameter.grad_req = "sum"
        assert gluon.Parameter("w", shape=(2,), differentiable=False).grad_req == "null"

    def test_begin_as_they_are_told(self):
        for given, expected in (("zeros", 0), (mx.init.One(), 1), (mx.init.Constant(3), 3)):
            layer = nn.Dense(2, in_units=2, weight_initializer=given)
            layer.initialize("ones")
            close(layer.weight.data(), np.full((2, 2), expected))
        parameter = gluon.Parameter("w", shape=(2,), init="zeros")
        parameter.initialize(mx.init.One())  # its own one counts only where there is none here
        close(parameter.data(), [1, 1])
        with pytest.warns(UserWarning, match="initialized"):
            parameter.initialize("zeros")
        parameter.initialize("zeros", force_reinit=True)
        close(parameter.data(), [0, 0])

    def test_of_a_layer_applied_twice_get_both_gradients(self):
        layer = nn.Conv1DTranspose(1, 2, in_channels=1, use_bias=False)
        layer.initialize()
        layer.weight.set_data(nd.array([[[1, 2]]]))
        with autograd.record():
            y = layer(layer(nd.array([[[1, 3]]])))
        y.backward()
        close(y, [[[1, 7, 16, 12]]])
        close(layer.weight.grad(), [[[24, 24]]])  # of sum: 4 * (a + b)^2
        other = nn.Conv1DTranspose(1, 2, in_channels=1, use_bias=False)
        other.weight = layer.weight
        with autograd.record():
            y = other(nd.array([[[1]]])) + layer(nd.array([[[2]]]))
        y.backward()
        close(layer.weight.grad(), [[[3, 3]]])


@pytest.mark.parametrize("call", [
    lambda: mx.gluon.nn.Conv2D("8", 3), lambda: mx.gluon.nn.Conv2D(8, None),
    lambda: mx.gluon.nn.Conv2DTranspose(None, 3), lambda: mx.gluon.nn.Dense(object()),
    lambda: mx.gluon.nn.MaxPool2D(2.5), lambda: mx.sym.var("x").infer_shape(x=3),
])  # fmt: skip
def test_sizes_of_wrong_types_are_refused(call) -> None:
    with pytest.raises(mx.MXNetError):
        call()
