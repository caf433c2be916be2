"""Weights that the MXNet front end keeps packed between calls: no result is ever a stale one.

Each way to write a weight or a bias is tried between calls, whose results are compared with those
of a fresh copy in float64, whose path keeps nothing.
"""

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import upconv
import upconv.mxnet as mx
from upconv.mxnet import gluon

nd = mx.nd
RNG = np.random.default_rng(23)
ATTRIBUTES = {
    "Deconvolution": {"kernel": (3, 3), "num_filter": 6, "stride": (2, 2), "no_bias": False},
    "Convolution": {"kernel": (3, 3), "num_filter": 6},
}
SHAPES = {"Deconvolution": (4, 6, 3, 3), "Convolution": (6, 4, 3, 3)}
OPERATORS = [*ATTRIBUTES]


def drawn(shape):
    return nd.array(RNG.standard_normal(shape))


def layer(name):
    """The arrays of a layer: data, weight, bias."""
    return drawn((2, 4, 7, 6)), drawn(SHAPES[name]), drawn((6,))


def expected(name, x, w, b, **more):
    """The result of fresh copies, recorded, so that nothing is kept."""
    copies = [nd.array(each.asnumpy()) for each in (x, w, b)]
    copies[1].attach_grad()
    with mx.autograd.record():
        return getattr(nd, name)(*copies, **ATTRIBUTES[name] | more).asnumpy()


def check(name, x, w, b, times=3, **more):
    """Several calls, each of which is right."""
    right = expected(name, x, w, b, **more)
    for _ in range(times):
        found = getattr(nd, name)(x, w, b, **ATTRIBUTES[name] | more).asnumpy()
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)
    return right


WRITES = [
    "w[:] = drawn(w.shape)", "w[:] = drawn(w.shape).asnumpy()", "w[0] = 2",
    "w[1] = nd.ones(w[1].shape) * 50", "w[nd.array([1, 3])] = 4", "view = w[1:2]; view[:] = 0",
    "w[1:3][1][:] = 7", "view = w[0]; view += 3", "w += 1; w *= 2", "w.reshape((-1,))[:] = 5",
    "nd.ones(w.shape).copyto(w)", "nd.relu(drawn(w.shape), out=w)",
    "nd.relu(drawn(w[0].shape), out=w[0])", "for part in w: part[:] = 3",
]  # fmt: skip


def written(w, statement):
    exec(statement, {"w": w, "nd": nd, "drawn": drawn})


@pytest.mark.parametrize("statement", WRITES)
@pytest.mark.parametrize("name", OPERATORS)
def test_written_weights_count(name, statement):
    x, w, b = layer(name)
    before = check(name, x, w, b)
    written(w, statement)
    after = check(name, x, w, b)
    assert np.abs(after - before).max() > 1e-2
    written(w, statement)
    check(name, x, w, b)


@pytest.mark.parametrize("statement", [WRITES[i] for i in (2, 8, 10, 13)])
@pytest.mark.parametrize("name", OPERATORS)
def test_written_biases_count(name, statement):
    x, w, b = layer(name)
    before = check(name, x, w, b)
    written(b, statement)
    assert np.abs(check(name, x, w, b) - before).max() > 1e-2
    other = drawn((6,))
    check(name, x, w, other)
    other[:] = 1
    check(name, x, w, b)
    check(name, x, w, other)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_bias_is_written_that_two_weights_have(name):
    x, w, b = layer(name)
    other = drawn(w.shape)
    check(name, x, w, b)
    check(name, x, other, b)
    b[0] = 30
    check(name, x, w, b)
    check(name, x, other, b)
    del w
    gc.collect()
    b[1] = 30
    check(name, x, other, b)


@pytest.mark.parametrize("name", OPERATORS)
def test_parts_of_one_array_are_weights_of_their_own(name):
    x, w, b = layer(name)
    both = nd.array(np.stack([w.asnumpy(), drawn(w.shape).asnumpy()]))
    for _ in range(3):
        check(name, x, both[0], b, times=1)
        check(name, x, both[1], b, times=1)
    both[1][:] = 0
    check(name, x, both[0], b)
    check(name, x, both[1], b)
    whole = nd.array(np.concatenate([w.asnumpy().ravel(), b.asnumpy()]))
    size = w.size
    for _ in range(2):  # weight and bias within one array
        check(name, x, whole[:size].reshape(w.shape), whole[size:])
        whole[:] = drawn(whole.shape)


@pytest.mark.parametrize("name", OPERATORS)
def test_what_else_changes_counts(name):
    x, w, b = layer(name)
    check(name, x, w, b)
    for other in (drawn((1, 4, 7, 6)), drawn((2, 4, 6, 7)), drawn((3, 4, 9, 9)), x):
        check(name, other, w, b, times=2)
    for more in ({"pad": (1, 1)}, {"stride": (1, 1)}, {"pad": (1, 0), "dilate": (2, 1)}, {}):
        check(name, x, w, b, times=2, **more)
    x[:] = 1
    check(name, x, w, b)
    for threads in (1, 2, 1, None):
        upconv.set_num_threads(threads)
        check(name, x, w, b, times=2)
    without = {k: v for k, v in ATTRIBUTES[name].items() if k != "no_bias"}
    for _ in range(3):  # the same weight without a bias, and with zeros for one
        found = getattr(nd, name)(x, w, no_bias=True, **without).asnumpy()
        np.testing.assert_allclose(found, expected(name, x, w, b * 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OPERATORS)
def test_one_weight_with_other_groups_and_kernels(name):
    w = drawn((4, 4, 3, 3))
    for groups in (1, 2, 1, 2):
        channels = 4 if name == "Deconvolution" else 4 * groups
        filters = 4 * groups if name == "Deconvolution" else 4
        x, b = drawn((1, channels, 5, 5)), drawn((filters,))
        check(name, x, w, b, num_filter=filters, num_group=groups, stride=(1, 1))


@pytest.mark.parametrize("name", OPERATORS)
def test_freed_weights_leave_nothing(name):
    """The next one often lies where the last one did, with the same id."""
    x, w, b = layer(name)
    for _ in range(20):
        w, b = drawn(w.shape), drawn(b.shape)
        check(name, x, w, b)
        gc.collect()


@pytest.mark.parametrize("name", OPERATORS)
def test_results_are_the_callers(name):
    x, w, b = layer(name)
    check(name, x, w, b)
    first = getattr(nd, name)(x, w, b, **ATTRIBUTES[name])
    kept = first.asnumpy()
    getattr(nd, name)(drawn(x.shape), w, b, **ATTRIBUTES[name])
    np.testing.assert_array_equal(first.asnumpy(), kept)
    first[:] = 0
    check(name, x, w, b)


@pytest.mark.parametrize("version", [1, 2])
def test_arrays_of_executors(version):
    graph = mx.sym.Deconvolution(mx.sym.var("x"), name="dc", **ATTRIBUTES["Deconvolution"])
    make = graph.simple_bind if version == 1 else graph._simple_bind
    exe = make(mx.cpu(), grad_req="null", x=(2, 4, 7, 6))
    for _ in range(3):
        for array in exe.arg_arrays:
            array[:] = RNG.standard_normal(array.shape)
        for _ in range(3):
            found = exe.forward()[0].asnumpy()
            right = expected("Deconvolution", *exe.arg_arrays)
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)
        exe.forward(dc_weight=drawn(SHAPES["Deconvolution"]), dc_bias=drawn((6,)))
        right = expected("Deconvolution", *exe.arg_arrays)
        np.testing.assert_allclose(exe.outputs[0].asnumpy(), right, rtol=1e-4, atol=1e-4)


def test_training_between_inference():
    """A step of training as users write it: the gradient is subtracted in place."""
    net = gluon.nn.Conv2DTranspose(6, 3, 2, in_channels=4)
    net.initialize()
    x = drawn((2, 4, 7, 6))
    for _ in range(3):
        for _ in range(3):
            right = expected("Deconvolution", x, net.weight.data(), net.bias.data())
            np.testing.assert_allclose(net(x).asnumpy(), right, rtol=1e-4, atol=1e-4)
        with mx.autograd.record():
            y = net(x)
        y.backward()
        for parameter in (net.weight, net.bias):
            parameter.data()[:] -= 0.1 * parameter.grad()
    for value in (drawn(net.weight.shape), RNG.standard_normal(net.weight.shape)):
        net.weight.set_data(value)
        for _ in range(3):
            right = expected("Deconvolution", x, net.weight.data(), net.bias.data())
            np.testing.assert_allclose(net(x).asnumpy(), right, rtol=1e-4, atol=1e-4)


def test_a_weight_that_is_a_gradient():
    x, w, b = layer("Deconvolution")
    source = nd.ones(w.shape)
    source.attach_grad("add")
    for _ in range(3):
        check("Deconvolution", x, source.grad, b)
        with mx.autograd.record():
            y = source * w
        y.backward()
    check("Deconvolution", x, source.grad, b)


def test_biases_that_operators_write():
    """BatchNorm writes ones into gamma, and its backward pass the moving statistics."""
    data, gamma, mean, x, w = map(drawn, ((4, 3), (3,), (3,), (1, 1, 5), (1, 3, 2)))
    rest = [nd.zeros(3), mean, nd.ones(3)]
    attributes = {"kernel": (2,), "num_filter": 3}

    def right(bias):
        plain = nd.Deconvolution(x, w, **attributes).asnumpy()
        for _ in range(3):
            found = nd.Deconvolution(x, w, bias, no_bias=False, **attributes).asnumpy()
            np.testing.assert_allclose(found, plain + bias.asnumpy()[:, None], atol=1e-5)
        return bias.asnumpy()

    right(gamma)
    nd.BatchNorm(data, gamma, *rest)
    np.testing.assert_array_equal(right(gamma), 1)
    before = right(mean)
    gamma.attach_grad()
    with mx.autograd.record():
        y = nd.BatchNorm(data, gamma, *rest, fix_gamma=False)
    y.backward()
    assert np.abs(right(mean) - before).min() > 1e-4


def test_numeric_gradients_in_inference_see_each_difference():
    graph = mx.sym.Deconvolution(mx.sym.var("x"), kernel=(2,), num_filter=1, no_bias=False)
    location = [drawn((1, 1, 3)), drawn((1, 1, 2)), drawn((1,))]
    mx.test_utils.check_numeric_gradient(
        graph, location, numeric_eps=1e-2, rtol=1e-2, atol=1e-3, use_forward_train=False
    )


@pytest.mark.parametrize("shared", [True, False])
def test_threads_at_once(shared):
    """Threads that share a weight, or write each its own."""
    x, w, b = layer("Deconvolution")
    right = expected("Deconvolution", x, w, b)

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(15):
            if shared:
                found = nd.Deconvolution(x, w, b, **ATTRIBUTES["Deconvolution"]).asnumpy()
                np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)
            else:
                own = nd.array(rng.standard_normal(w.shape))
                check("Deconvolution", x, own, b)
                own[0] = 0
                check("Deconvolution", x, own, b)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
