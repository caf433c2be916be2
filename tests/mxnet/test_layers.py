"""The small layers of `mx.gluon.nn`, with the values that MXNet 1.9.1 computes."""

import numpy as np
import pytest

import upconv.mxnet as mx

nd, nn = mx.nd, mx.gluon.nn
SQUARE = np.arange(16.0).reshape(1, 1, 4, 4)


def computed(layer, values):
    layer.initialize()
    x = nd.array(values)
    y = layer(x).asnumpy()
    graph = mx.sym.load_json(traced(layer, x))  # the symbols compute the same
    arrays = {k: p.data() for k, p in layer.collect_params().items()}
    np.testing.assert_array_equal(graph.eval(data=x, **arrays)[0].asnumpy(), y)
    return y


def traced(layer, x):
    layer(x)
    return layer(mx.sym.var("data")).tojson()


@pytest.mark.parametrize(("layer", "expected"), [
    (nn.PReLU(), [-0.5, -0.125, 0, 0.5, 2]),
    (nn.PReLU(alpha_initializer="ones", in_channels=5), [-2, -0.5, 0, 0.5, 2]),
    (nn.ELU(), [-0.8647, -0.3935, 0, 0.5, 2]),
    (nn.ELU(0.5), [-0.4323, -0.1967, 0, 0.5, 2]),
    (nn.SELU(), [-1.5202, -0.6918, 0, 0.5254, 2.1014]),
    (nn.GELU(), [-0.0455, -0.1543, 0, 0.3457, 1.9545]),
    (nn.Swish(), [-0.2384, -0.1888, 0, 0.3112, 1.7616]),
    (nn.Swish(2), [-0.036, -0.1345, 0, 0.3655, 1.964]),
    (nn.SiLU(1), [-0.2384, -0.1888, 0, 0.3112, 1.7616]),
    (nn.HybridLambda("tanh"), [-0.964, -0.4621, 0, 0.4621, 0.964]),
    (nn.HybridLambda(lambda F, x: F.LeakyReLU(x, slope=0.1)), [-0.2, -0.05, 0, 0.5, 2]),
])  # fmt: skip
def test_activations(layer, expected):
    np.testing.assert_allclose(computed(layer, [[-2, -0.5, 0, 0.5, 2]]), [expected], atol=6e-5)


@pytest.mark.parametrize(("layer", "expected"), [
    (nn.MaxPool2D(), [[5, 7], [13, 15]]),
    (nn.MaxPool2D(3, 2, 1), [[5, 7], [13, 15]]),
    (nn.MaxPool2D((3, 3), ceil_mode=True), [[10, 11], [14, 15]]),
    (nn.AvgPool2D(2), [[2.5, 4.5], [10.5, 12.5]]),
    (nn.AvgPool2D(3, 2, 1, count_include_pad=False), [[2.5, 4], [8.5, 10]]),
    (nn.GlobalAvgPool2D(), [[7.5]]),
    (nn.GlobalMaxPool2D(), [[15]]),
    (nn.ReflectionPad2D((0, 0, 0, 0, 0, 1, 2, 0)),
     [[2, 1, 0, 1, 2, 3], [6, 5, 4, 5, 6, 7], [10, 9, 8, 9, 10, 11], [14, 13, 12, 13, 14, 15],
      [10, 9, 8, 9, 10, 11]]),
])  # fmt: skip
def test_windows(layer, expected):
    np.testing.assert_array_equal(computed(layer, SQUARE), [[expected]])


def test_windows_of_other_ranks_and_layouts():
    assert computed(nn.MaxPool1D(2), SQUARE[0]).tolist() == [[[1, 3], [5, 7], [9, 11], [13, 15]]]
    y = computed(nn.GlobalAvgPool3D(layout="NDHWC"), SQUARE[..., None])
    assert y.tolist() == [[[[[7.5]]]]]


def test_instances():
    values = np.arange(6.0).reshape(1, 2, 3)
    expected = np.float32([[[-1.2247, 0, 1.2247]] * 2])
    layer = nn.InstanceNorm(in_channels=2)
    np.testing.assert_allclose(computed(layer, values), expected, atol=5e-5)
    assert (layer.gamma.grad_req, layer.beta.grad_req) == ("null", "write")
    x, g, b = (nd.array(v) for v in (np.arange(12.0).reshape(1, 2, 2, 3), [1, 2], [0.5, 0]))
    for array in (x, g, b):
        array.attach_grad()
    with mx.autograd.record():
        y = nd.InstanceNorm(x, g, b)
        loss = (y * y * nd.arange(12).reshape((1, 2, 2, 3))).sum()
    loss.backward()
    first = [[-0.9636, -0.3782, 0.2073], [0.7927, 1.3782, 1.9636]]
    np.testing.assert_allclose(y[0, 0].asnumpy(), first, atol=6e-5)
    slopes = [[9.1198, -1.8399, -7.3158], [-7.3078, -1.8160, 9.1597]]
    np.testing.assert_allclose(x.grad[0, 1].asnumpy(), slopes, atol=2e-3)
    np.testing.assert_allclose(g.grad.asnumpy(), [40.2349, 203.9301], rtol=1e-5)
    np.testing.assert_allclose(b.grad.asnumpy(), [35.4904, 40.9808], rtol=1e-5)


def test_lambdas():
    assert nn.Lambda(lambda x: x * 2)(nd.ones((2,))).asnumpy().tolist() == [2, 2]
    assert repr(nn.Lambda("tanh")) == "Lambda(tanh)"
    np.testing.assert_allclose(nn.Lambda("tanh")(nd.ones((1,))).asnumpy(), [0.76159], rtol=1e-5)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: nn.HybridLambda("nosuch"), "no function 'nosuch'"),
    (lambda: nn.Lambda(3), "3; expected a callable"),
    (lambda: nn.MaxPool2D(layout="NCW"), "'NCW'; expected one of"),
    (lambda: nn.MaxPool2D((2, 2, 2)), "expected an int or 2"),
    (lambda: nn.InstanceNorm(axis=2), "axis is 2"),
    (lambda: nn.SELU(alpha=1), "SELU has no argument 'alpha'"),
    (lambda: nd.InstanceNorm(nd.ones((2, 3)), nd.ones((3,)), nd.ones((3,))), "three axes"),
    (lambda: nd.LRN(nd.ones((1, 4, 1)), nsize=4), "nsize is 4; expected an odd number"),
    (lambda: nd.Dropout(nd.ones((1,)), p=5), "p is 5.0; expected a number from 0 to 1"),
])  # fmt: skip
def test_what_is_wrong_is_refused(call, words):
    with pytest.raises(mx.MXNetError, match=words):
        call()


def test_new_operators_have_mxnets_values():
    a = nd.array([[1, 5, 2], [7, 0, 3]])
    assert [nd.argmax(a).asnumpy().tolist(), a.argmax(axis=1).asnumpy().tolist()] == [[3], [1, 0]]
    assert nd.argmin(a, axis=0).asnumpy().tolist() == [0, 1, 0]
    assert nd.argmax(a, axis=1, keepdims=True).shape == (2, 1)
    assert nd.argmax(a, keepdims=True).asnumpy().tolist() == [[3]]
    assert nd.flip(a, axis=1).asnumpy().tolist() == [[2, 5, 1], [3, 0, 7]]
    assert nd.tile(a, reps=(2, 1)).shape == (4, 3)
    assert nd.broadcast_to(a.reshape((1, 2, 3)), shape=(4, 0, 0)).shape == (4, 2, 3)
    x, y = nd.array([1, 2, 3]), nd.array([4, 5, 6])
    assert nd.where(nd.array([0, 1, 2]), x, y).asnumpy().tolist() == [4, 2, 3]
    b = nd.array([[1, 2], [3, 4]])  # of a square, too, a list of conditions chooses rows
    assert nd.where(nd.array([1, 0]), b, -b).asnumpy().tolist() == [[1, 2], [-3, -4]]
    assert (nd.array([1, 2], dtype="uint8") * -1).asnumpy().tolist() == [255, 254]  # as in C
    for wrong in (lambda: nd.broadcast_to(a, shape=(3,)), lambda: nd.where(x, b, b)):
        with pytest.raises(mx.MXNetError, match="expected"):
            wrong()


def test_a_large_channel_changes_only_its_neighbours_response():
    x = np.ones((1, 6, 1))
    expected = nd.LRN(nd.array(x), nsize=3).asnumpy()[0, 3:]
    x[0, 1] = 1e10  # its square absorbs the sums of later channels
    np.testing.assert_array_equal(nd.LRN(nd.array(x), nsize=3).asnumpy()[0, 3:], expected)
