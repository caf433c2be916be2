"""Parts of MXNet's graphs that run as networks: their values are those of the operators.

`compared` runs a graph as networks and by the operators of the front end. What MXNet itself
computed of decoders is in `test_mxnet_models`, which runs them the same way.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import upconv.mxnet as mx
from tests.support.mxnet_networks import DECODERS, drawn, generator, plain
from upconv.mxnet import autograd, gluon
from upconv.mxnet.gluon import nn
from upconv.mxnet.model import Model
from upconv.mxnet.network_rules import RULES

F, X = mx.sym, mx.sym.var("data")
SHAPE = (2, 6, 9, 8)


def same(results, expected):
    assert len(results) == len(expected)
    for y, z in zip(results, expected, strict=True):
        assert y.shape == z.shape
        assert y.dtype == z.dtype
        np.testing.assert_allclose(y, z, rtol=0, atol=2e-5 * max(1, np.abs(z).max()))


def compared(graph, shape=SHAPE, networks=1, **more):
    """The model of a graph whose outputs were compared; `networks` of its nodes are networks."""
    model = drawn(graph, data=shape, **more)
    draw = np.random.default_rng(3).standard_normal
    inputs = {name: draw({"data": shape, **more}[name], np.float32) for name in model.inputs}
    same(model.run(**inputs), plain(model, **inputs))
    assert model.explain(**inputs).count("a network") == networks, model.explain(**inputs)
    return model


def behind(layer, **window):
    """A graph of a convolution, the layer and a convolution."""
    x = F.Convolution(X, kernel=(3, 3), pad=(1, 1), num_filter=6, name="first", **window)
    return F.Convolution(layer(x), kernel=(1, 1), num_filter=4, name="last")


EQUAL = ("elemwise_add", "elemwise_sub", "elemwise_mul", "elemwise_div", "_maximum", "_minimum")
WIDE = tuple(
    f"{start}_{word}"
    for start, words in (
        ("broadcast", ("add", "sub", "mul", "div")),
        ("_npi", ("add", "subtract", "multiply", "true_divide")),
    )
    for word in (*words, "maximum", "minimum")
)
"""Operators of two: of equal shapes, and of shapes that are broadcast."""


def everywhere(x):
    return F.Pooling(x, kernel=(1, 1), global_pool=True)


POOL = {"kernel": (3, 2), "stride": (2, 2)}
LAYERS = {
    "Deconvolution": [
        lambda x: F.Deconvolution(x, kernel=(3, 2), stride=(2, 3), num_filter=5, no_bias=False),
        lambda x: F.Deconvolution(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), adj=(1, 0),
                                  dilate=(2, 1), num_filter=4, num_group=2),
        lambda x: F.Deconvolution(x, kernel=(4, 4), stride=(2, 2), target_shape=(17, 16),
                                  num_filter=3),
    ],
    "Convolution": [lambda x: F.Convolution(x, kernel=(3, 1), stride=(2, 1), dilate=(1, 2),
                                            pad=(0, 1), num_filter=6, num_group=3)],
    "BatchNorm": [lambda x: F.BatchNorm(x, fix_gamma=False, eps=0.1), F.BatchNorm],
    "_contrib_SyncBatchNorm": [lambda x: F.contrib.SyncBatchNorm(x, fix_gamma=False)],
    "InstanceNorm": [lambda x: F.InstanceNorm(x, eps=0.01)],
    "Activation": [
        lambda x, word=word: F.Activation(x, act_type=word)
        for word in ("relu", "sigmoid", "tanh", "softrelu", "log_sigmoid", "mish", "softsign")
    ],
    "LeakyReLU": [
        lambda x, word=word: F.LeakyReLU(x, act_type=word)
        for word in ("leaky", "elu", "selu", "gelu", "prelu", "rrelu")
    ],
    "Pooling": [
        *(
            lambda x, how=how, kind=kind: F.Pooling(x, pool_type=kind, **how)
            for kind in ("max", "avg", "sum")
            for how in (POOL, POOL | {"pad": (1, 1)}, {"kernel": (2, 2)})
        ),
        lambda x: F.Pooling(x, **POOL, pad=(1, 0), pool_type="avg", count_include_pad=False),
        lambda x: F.Pooling(x, **POOL, pooling_convention="full"),
        lambda x: F.Pooling(x, **POOL, pooling_convention="full", pool_type="avg"),
        lambda x: F.Pooling(x, kernel=(1, 1), global_pool=True, pool_type="avg"),
        lambda x: F.Pooling(x, kernel=(1, 1), global_pool=True),
    ],
    "UpSampling": [
        lambda x: F.UpSampling(x, scale=3, sample_type="nearest"),
        lambda x: F.UpSampling(x, scale=2, sample_type="bilinear", num_filter=6),
    ],
    "Concat": [lambda x: F.Concat(x, F.tanh(x), x)],
    "_npi_concatenate": [lambda x: x.call("_npi_concatenate", F.tanh(x), axis=1)],
    "SliceChannel": [lambda x: (p := F.SliceChannel(x, num_outputs=3))[2] * F.sigmoid(p[0])],
    "slice": [
        lambda x: F.slice(x, begin=(0, 1, 2, 0), end=(2, 5, 8, -3)),
        lambda x: F.slice(x, begin=(None, None, 1), end=(None, 3, None)),
    ],
    "slice_axis": [
        lambda x: F.slice_axis(x, axis=1, begin=2, end=None),
        lambda x: F.slice_axis(x, axis=-1, begin=1, end=-2),
        lambda x: F.slice_axis(x, axis=2, begin=-4, end=8),
    ],
    "Crop": [
        lambda x: F.Crop(x, h_w=(5, 4), offset=(1, 2)),
        lambda x: F.Crop(x, F.Pooling(x, **POOL), num_args=2, center_crop=True),
    ],
    "slice_like": [lambda x: F.slice_like(x, F.Pooling(x, **POOL), axes=(2, 3))],
    "Pad": [
        lambda x, mode=mode: F.Pad(x, mode=mode, pad_width=(0, 0, 0, 0, 2, 1, 0, 3))
        for mode in ("constant", "reflect", "edge")
    ],
    "add_n": [lambda x: F.add_n(x, F.tanh(x), x)],
    "clip": [lambda x: F.clip(x, a_min=0, a_max=0.5), lambda x: F.clip(x, a_min=-0.2, a_max=9)],
    **{name: [lambda x, name=name: getattr(F, name)(x)]
       for name in ("identity", "BlockGrad", "MakeLoss", "Dropout", "negative", "square", "relu",
                    "sigmoid", "tanh", "softrelu", "log_sigmoid", "mish", "softsign", "abs", "exp",
                    "sin", "cos")},
    "sqrt": [lambda x: F.sqrt(F.abs(x))], "reciprocal": [lambda x: F.reciprocal(F.exp(x))],
    **{name: [lambda x, name=name: x.call(name, F.sigmoid(x))] for name in EQUAL},
    **{name: [lambda x, name=name: x.call(name, F.sigmoid(x)),
              lambda x, name=name: x.call(name, everywhere(x) + 5)] for name in WIDE},
    **{name: [lambda x, name=name: x.call(name, scalar=2.5)]
       for start in ("_", "_r", "_npi_", "_npi_r")
       for word in ("plus", "minus", "mul", "div", "maximum", "minimum", "add", "subtract",
                    "multiply", "true_divide")
       for name in [f"{start}{word}_scalar"]
       if name in RULES and name not in ("_rdiv_scalar", "_npi_rtrue_divide_scalar")},
    **{name: [lambda x, name=name: F.exp(x).call(name, scalar=2.0)]
       for name in ("_power_scalar", "_npi_power_scalar", "_rdiv_scalar",
                    "_npi_rtrue_divide_scalar")},
}  # fmt: skip
"""Layers that are in a network, by operators."""
CASES = [(name, i) for name, layers in LAYERS.items() for i in range(len(layers))]


def test_every_rule_has_a_case():
    assert {*LAYERS} == {*RULES}


@pytest.mark.parametrize(("name", "i"), CASES)
def test_layers_compute_what_the_operators_do(name, i):
    graph = behind(LAYERS[name][i])
    model = compared(graph)
    assert name in {node.operator.name for node in graph.nodes() if node.operator}
    assert model.explain(data=np.zeros(SHAPE)) == "first..last: a network"


REFUSED = [
    ("BatchNorm", lambda x: F.BatchNorm(x, axis=2), "axis is 2"),
    ("BatchNorm", lambda x: F.BatchNorm(x, output_mean_var=True)[1].reshape((1, 6, 1, 1)),
     "more than its first output"),
    ("Pooling", lambda x: F.Pooling(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg",
                                    pooling_convention="full"), "beyond the padding"),
    ("Concat", lambda x: F.Concat(x, x, dim=2), "along axis 2"),
    ("SliceChannel", lambda x: F.SliceChannel(x, num_outputs=2, axis=3)[1], "split channels"),
    ("slice", lambda x: F.slice(x, begin=(0, 0, 0), end=(2, 6, 9), step=(1, 1, 2)),
     "the step of a slice is 2"),
    ("slice", lambda x: F.slice(x, begin=(1,), end=(2,)), "the batch"),
    ("Pad", lambda x: F.Pad(x, mode="constant", pad_width=(0,) * 6 + (1, 1), constant_value=1),
     "with zeros"),
    ("_power_scalar", lambda x: x**3, "not a square"),
    ("broadcast_mul", lambda x: F.broadcast_mul(x, F.slice_axis(x, axis=2, begin=0, end=1)),
     "and (2, 6, 9, 8)"),
    ("broadcast_add", lambda x: F.broadcast_add(x, mx.sym.var("c_weight", shape=(1, 1, 9, 8))),
     "one number per channel"),
    ("erf", F.erf, "no such layer"),
    ("Cast", lambda x: F.Cast(x, dtype="float32"), "no such layer"),
    ("Convolution", lambda x: F.Convolution(x, F.erf(F.slice_axis(x, axis=0, begin=0, end=1)),
                                            kernel=(9, 8), num_filter=1, no_bias=True),
     "parameters are not constant"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "layer", "says"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_networks_refuse_is_computed_by_itself(name, layer, says):
    before = F.tanh(F.Convolution(X, kernel=(3, 3), pad=(1, 1), num_filter=6, name="first"))
    y = layer(before)
    after = F.tanh(F.Convolution(y, kernel=(1, 1), num_filter=4, name="last"))
    model = drawn(after, data=SHAPE)
    x = np.random.default_rng(3).standard_normal(SHAPE, np.float32)
    same(model.run(data=x), plain(model, data=x))
    [reason] = [line for line in model.explain(data=x).splitlines() if f"{name}:" in line]
    assert says in reason


@pytest.mark.parametrize("name", DECODERS)
class TestDecoders:
    def test_values_of_several_sizes(self, name):
        make, *shapes = DECODERS[name]
        model = drawn(make(), data=shapes[0])
        for shape in (*shapes, shapes[0]):
            x = np.random.default_rng(1).standard_normal(shape, np.float32)
            same(model.run(data=x), plain(model, data=x))
            assert "a network" in model.explain(data=x)

    def test_several_threads(self, name):
        make, shape, other = DECODERS[name]
        model = drawn(make(), data=shape)
        draw = np.random.default_rng(1).standard_normal
        xs = [draw(shape if i % 2 else other, np.float32) for i in range(4)]
        expected = [plain(model, data=x) for x in xs]

        def run(i):
            for _ in range(3):
                same(model.run(data=xs[i]), expected[i])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, range(4)))

    def test_executors_see_changed_parameters(self, name):
        make, shape, _ = DECODERS[name]
        model = drawn(make(), data=shape)
        exe = model.graph.simple_bind(mx.cpu(), grad_req="null", data=shape)
        states = {*model.graph.list_auxiliary_states()}
        x = np.random.default_rng(1).standard_normal(shape, np.float32)
        for factor in (1, 0.5, -1):
            arrays = {k: mx.nd.array(v * (1 if "var" in k else factor))
                      for k, v in model.arrays.items()}  # fmt: skip
            changed = Model(model.graph, {k: v.asnumpy() for k, v in arrays.items()})
            exe.copy_params_from({k: v for k, v in arrays.items() if k not in states},
                                 {k: v for k, v in arrays.items() if k in states})  # fmt: skip
            for _ in range(3):
                same([y.asnumpy() for y in exe.forward(data=mx.nd.array(x))],
                     plain(changed, data=x))  # fmt: skip


class TestModels:
    def test_reports_see_every_node(self):
        graph = DECODERS["dcgan"][0]()
        model, names = drawn(graph, data=(1, 10, 1, 1)), []
        model.run(data=np.ones((1, 10, 1, 1)))
        model.computed({"data": np.ones((1, 10, 1, 1))}, lambda node, *_: names.append(node.name))
        assert len(names) == 8

    def test_inner_outputs_of_a_part(self):
        y = F.relu(F.Convolution(X, kernel=(3, 3), num_filter=4, name="first"))
        z = F.Convolution(y, kernel=(1, 1), num_filter=2, name="last")
        compared(F.Group([z, y, y, F.erf(y)]), networks=1)

    def test_no_path_leaves_a_part_and_comes_back(self):
        y = F.tanh(F.Convolution(X, kernel=(3, 3), num_filter=4, name="first"))
        z = F.Convolution(y + F.erf(y), kernel=(1, 1), num_filter=2, name="last")
        compared(F.relu(z) + F.erf(F.slice_axis(y, axis=1, begin=0, end=2)), networks=2)

    def test_single_layers_are_left_to_plans(self):
        model = compared(F.Convolution(X, kernel=(3, 3), num_filter=4, name="c"), networks=0)
        assert "it has no neighbour" in model.explain(data=np.ones(SHAPE))

    def test_constants_of_the_graph_are_folded(self):
        scale = F.exp(F.ones((1, 6, 1, 1))) * 0.5
        model = compared(behind(lambda x: F.broadcast_mul(x, scale)))
        assert model.explain(data=np.zeros(SHAPE)) == "first..last: a network"

    def test_constants_of_another_type_are_left_to_the_operators(self):
        cast = F.Cast(mx.sym.var("c_weight", shape=(1, 6, 1, 1)), dtype="float64")
        graph = behind(lambda x: F.Cast(cast.call("_npi_add", x), dtype="float32"))
        model = drawn(graph, data=SHAPE)
        x = np.random.default_rng(1).standard_normal(SHAPE, np.float32)
        same(model.run(data=x), plain(model, data=x))
        assert "_npi_add: networks compute only float32" in model.explain(data=x)

    def test_shapes_that_are_equal_for_one_input_alone(self):
        low = F.Pooling(X, kernel=(1, 1), stride=(4, 4), pooling_convention="full")
        y = F.Convolution(X, kernel=(3, 3), stride=(2, 2), num_filter=6, name="c")
        graph = F.tanh(F.broadcast_add(y, F.Pooling(low, kernel=(1, 1), stride=(1, 1))))
        model = drawn(graph, data=(1, 6, 5, 5))
        for size in (5, 4, 3, 5):  # 2x2 and 2x2, 1x1 and 1x1; then broadcast
            x = np.random.default_rng(1).standard_normal((1, 6, size, size), np.float32)
            same(model.run(data=x), plain(model, data=x))

    @pytest.mark.parametrize("dtype", [np.float16, np.float64])
    def test_other_types_are_as_they_were(self, dtype):
        arrays = drawn(behind(F.tanh), data=SHAPE).arrays
        model = Model(behind(F.tanh), {k: v.astype(dtype) for k, v in arrays.items()})
        x = np.random.default_rng(1).standard_normal(SHAPE).astype(dtype)
        for y, z in zip(model.run(data=x), plain(model, data=x), strict=True):
            np.testing.assert_array_equal(y, z)
        assert "networks compute only float32" in model.explain(data=x)

    def test_infinite_weights_are_left_to_the_operators(self):
        model = drawn(behind(F.tanh), data=SHAPE)
        model = Model(model.graph, model.arrays | {"first_bias": np.full(6, np.inf, np.float32)})
        x = np.ones(SHAPE, np.float32)
        same(model.run(data=x), plain(model, data=x))
        assert "inf" in model.explain(data=x)

    def test_nan_reaches_the_outputs(self):
        model = drawn(behind(F.relu), data=SHAPE)
        x = np.ones(SHAPE, np.float32)
        x[0, 0, 0, 0] = np.nan
        [y], [z] = model.run(data=x), plain(model, data=x)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(z))


def by_layers(net, x):
    """The outputs without networks."""
    net.hybridize(False)
    y = net(x)
    net.hybridize()
    return y.asnumpy()


class TestGluon:
    x = mx.nd.array(np.random.default_rng(4).standard_normal((2, 5, 3, 4)))

    def ready(self):
        net = generator()
        net(self.x)
        net.hybridize(static_alloc=True, static_shape=True)
        return net

    def test_values_and_other_sizes(self):
        net = self.ready()
        for size in ((3, 4), (4, 6), (3, 4)):
            x = mx.nd.array(np.random.default_rng(5).standard_normal((2, 5, *size)))
            expected = by_layers(net, x)
            for _ in range(3):
                same([net(x).asnumpy()], [expected])
        assert net.explain(x).count("a network") == 1
        assert isinstance(net(self.x), mx.nd.NDArray)
        assert isinstance(net(mx.np.array(self.x)), mx.np.ndarray)

    def test_networks_run_from_the_second_call_on(self, monkeypatch):
        net, runs = self.ready(), []
        forward = nn.HybridSequential.forward
        monkeypatch.setattr(nn.HybridSequential, "forward",
                            lambda *args: (runs.append(0), forward(*args))[1])  # fmt: skip
        for count in (2, 2, 2):  # with symbols, and with arrays
            net(self.x)
            assert len(runs) == count
        with autograd.record():
            net(self.x)
        with autograd.train_mode():
            net(self.x)
        assert len(runs) == 4

    @pytest.mark.parametrize("change", ["set_data", "write", "step", "load", "initialize", "cast"])
    def test_changed_parameters_are_seen(self, change, tmp_path):
        net, other = self.ready(), self.ready()
        for _ in range(3):
            before = net(self.x).asnumpy()
        parameters = net.collect_params()
        if change == "set_data":
            parameters["0.weight"].set_data(parameters["0.weight"].data() * 2)
        elif change == "write":
            parameters["3.norm.running_mean"].data()[0] = 3
        elif change == "step":
            with autograd.record():
                loss = (net(self.x) ** 2).sum()
            loss.backward()
            for parameter in parameters.values():
                if parameter.grad_req != "null":
                    parameter.data()[:] -= 0.001 * parameter.grad()
        elif change == "load":
            other.save_parameters(tmp_path / "other.params")
            net.load_parameters(tmp_path / "other.params")
        elif change == "initialize":
            net.initialize(mx.init.Normal(0.3), force_reinit=True)
        else:
            net.cast("float64")
        for _ in range(3):
            after = net(self.x.astype("float64") if change == "cast" else self.x).asnumpy()
            same([after], [by_layers(net, self.x.astype(after.dtype))])
        assert change == "cast" or np.abs(after - before).max() > 1e-5

    def test_layers_that_are_added_are_seen(self):
        net = self.ready()
        for _ in range(3):
            net(self.x)
        inner = net[3]
        inner.norm = nn.Activation("tanh")
        for _ in range(3):
            same([net(self.x).asnumpy()], [by_layers(net, self.x)])
        net.add(nn.Activation("sigmoid"))
        for _ in range(3):
            y = net(self.x).asnumpy()
            assert 0 < y.min() < y.max() < 1
        nn.Dense(3)  # of another model
        assert "a network" in net.explain(self.x)

    def test_imported_blocks(self, tmp_path):
        net = self.ready()
        expected = by_layers(net, self.x)
        files = net.export(str(tmp_path / "net"))
        block = gluon.SymbolBlock.imports(files[0], ["data"], files[1])
        block.hybridize()
        for _ in range(3):
            same([block(self.x).asnumpy()], [expected])
        assert "a network" in block.explain(self.x)

    def test_several_outputs_and_inputs(self):
        class Two(gluon.HybridBlock):
            def __init__(self):
                super().__init__()
                self.layer = nn.Conv2D(4, 3, padding=1, activation="relu")

            def forward(self, x, y):
                z = self.layer(x + y)
                return z, z * 2

        net = Two()
        net.initialize()
        expected = [y.asnumpy() for y in net(self.x, self.x)]
        net.hybridize()
        for _ in range(3):
            results = net(self.x, self.x)
            assert isinstance(results, tuple)
            same([y.asnumpy() for y in results], expected)
        assert "a network" in net.explain(self.x, self.x)

    def test_blocks_that_take_no_symbols_are_computed(self):
        class Shaped(gluon.HybridBlock):
            def __init__(self):
                super().__init__()
                self.layer = nn.Conv2D(4, 3, padding=1, activation="relu")

            def forward(self, x):
                return self.layer(x) if x.shape[0] == 2 and x.sum() != 0 else x

        net = Shaped()
        net.initialize()
        expected = net(self.x).asnumpy()
        net.hybridize()
        for _ in range(3):
            same([net(self.x).asnumpy()], [expected])
        assert net.explain(self.x).startswith("It does not accept symbols: AttributeError: ")

    def test_blocks_that_are_not_hybridized_say_so(self):
        assert generator().explain(self.x) == "The block is not hybridized."

    def test_networks_end_with_their_block(self):
        import gc
        import weakref

        net = self.ready()
        for _ in range(3):
            net(self.x)
        array = weakref.ref(net.collect_params()["0.weight"].data().value)
        del net
        gc.collect()
        assert array() is None


def test_symbols_are_neither_true_nor_false():
    with pytest.raises(mx.MXNetError, match="neither true nor false"):
        bool(mx.sym.var("x") > 0)


def test_files_have_names_that_mxnet_reads():
    """MXNet has no operators for a number on the left of what commutes; it requires num_args."""
    graph = F.maximum(F.maximum(2 + X, 3 * X), X)
    names = {node.operator.name for node in graph.nodes() if node.operator}
    assert names == {"_plus_scalar", "_mul_scalar", "_maximum"}
    window = F.Crop(F.UpSampling(X, scale=2, sample_type="nearest"), h_w=(3, 3))
    assert all(node.texts()["num_args"] == "1" for node in window.nodes() if node.operator)
