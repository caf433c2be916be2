"""What parameters begin with in the MXNet front end: `mx.init`, with MXNet 1.9.1's answers."""

import numpy as np
import pytest

import upconv.mxnet as mx

init, nd = mx.init, mx.nd


def filled(initializer, shape=(60, 40, 3, 3), name="up_weight"):
    array = nd.zeros(shape)
    mx.random.seed(5)
    initializer(init.InitDesc(name), array)
    return array.asnumpy()


@pytest.mark.parametrize(("initializer", "deviation", "text"), [  # of MXNet's own draws
    (init.Xavier(), 0.047,
     '["xavier", {"rnd_type": "uniform", "factor_type": "avg", "magnitude": 3}]'),
    (init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2), 0.074,
     '["xavier", {"rnd_type": "gaussian", "factor_type": "in", "magnitude": 2}]'),
    (init.Xavier(factor_type="out"), 0.043,
     '["xavier", {"rnd_type": "uniform", "factor_type": "out", "magnitude": 3}]'),
    (init.MSRAPrelu(), 0.064, '["msraprelu", {"factor_type": "avg", "slope": 0.25}]'),
    (init.MSRAPrelu("in", 0.1), 0.074, '["msraprelu", {"factor_type": "in", "slope": 0.1}]'),
    (init.Normal(0.02), 0.02, '["normal", {"sigma": 0.02}]'),
    (init.Uniform(0.5), 0.29, '["uniform", {"scale": 0.5}]'),
])  # fmt: skip
def test_random_ones_have_their_scale(initializer, deviation, text):
    values = filled(initializer)
    assert abs(values.std() - deviation) <= 0.02 * deviation
    assert abs(values.mean()) <= 0.03 * values.std()
    assert initializer.dumps() == text
    np.testing.assert_array_equal(filled(init.create(text)), values)


def test_bilinear():
    rows = np.outer([0.25, 0.75, 0.75, 0.25], [0.25, 0.75, 0.75, 0.25])
    np.testing.assert_allclose(filled(init.Bilinear(), (2, 1, 4, 4)), [[rows], [rows]])
    rows = np.outer([0.25, 0.75, 0.75], [0.25, 0.75, 0.75])
    np.testing.assert_allclose(filled(init.Bilinear(), (1, 1, 3, 3)), [[rows]])


def test_a_call_goes_by_the_name():
    for name, value in (("a_bias", 0), ("a_gamma", 1), ("a_beta", 0)):
        assert filled(init.Xavier(), (4,), name).tolist() == [value] * 4
    array = nd.zeros((2,))
    init.Xavier()(init.InitDesc("a_bias", {"__init__": '["constant", {"value": 3}]'}), array)
    assert array.asnumpy().tolist() == [3, 3]
    assert filled(init.Xavier(), (4, 4), "foo_weight").any()


@pytest.mark.parametrize(("call", "words"), [
    (lambda: filled(init.Xavier(), (4,), "foo"), "'foo' determines no initial values"),
    (lambda: filled(init.Xavier(), (4,)), "up_weight has shape"),
    (lambda: filled(init.Bilinear(), (4,)), "four axes"),
    (lambda: init.Xavier(rnd_type="foo"), "'foo'"),
    (lambda: init.Xavier(factor_type="foo"), "'foo'"),
    (lambda: filled(init.Normal(-1)), "initial values of up_weight"),
    (lambda: filled(init.Constant([1, 2, 3]), (2,)), "an assignment"),
    (lambda: init.create("[broken"), "init: "),
])  # fmt: skip
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_class_of_the_user():
    @init.register
    class Sevens(init.Initializer):
        def _init_weight(self, name, arr):
            arr[:] = 7

    layer = mx.gluon.nn.Dense(1, in_units=2)
    layer.initialize("sevens")
    assert layer.weight.data().asnumpy().tolist() == [[7, 7]]
    with pytest.raises(mx.MXNetError, match=r"'eights'; expected one of .*sevens"):
        layer.initialize("eights", force_reinit=True)


def test_of_gluon():
    layer = mx.gluon.nn.Conv2DTranspose(2, 4, in_channels=3)
    mx.random.seed(1)
    layer.initialize(init.Xavier(magnitude=2.24))
    weight = layer.weight.data().asnumpy()
    limit = np.sqrt(2.24 / ((3 + 2) * 16 / 2))
    assert 0.9 * limit < np.abs(weight).max() <= limit
    assert layer.bias.data().asnumpy().tolist() == [0, 0]
    layer = mx.gluon.nn.Dense(2, in_units=2, bias_initializer=init.Xavier())
    with pytest.raises(mx.MXNetError, match="bias has shape"):
        layer.initialize()
