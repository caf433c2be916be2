"""Gradients of the MXNet front end: `mx.autograd`, and every operator against differences."""

import re

import numpy as np
import pytest

import upconv.mxnet as mx
from tests.support.mxnet_arrays import equal, learned
from upconv.mxnet.operators import OPERATORS

nd, autograd = mx.nd, mx.autograd


# An operator's attributes and the shapes of its inputs; more than one where they matter.
WINDOW = {"kernel": (2, 3), "stride": (2, 1), "pad": (0, 1), "num_filter": 2}
IMAGE = (1, 2, 3, 4)
CASES = {
    "Deconvolution": [
        ({**WINDOW, "adj": (1, 0), "no_bias": False}, [IMAGE, (2, 2, 2, 3), (2,)]),
        ({"kernel": (2,), "num_filter": 4, "num_group": 2}, [(2, 2, 3), (2, 2, 2)]),
        ({"kernel": (2, 1, 2), "num_filter": 1}, [(1, 1, 2, 2, 2), (1, 1, 2, 1, 2)]),
        ({**WINDOW, "target_shape": (5, 4)}, [IMAGE, (2, 2, 2, 3)]),
    ],
    "Convolution": [
        (WINDOW, [IMAGE, (2, 2, 2, 3), (2,)]),
        ({"kernel": 2, "dilate": 2, "num_filter": 2, "num_group": 2, "no_bias": True},
         [(2, 2, 4), (2, 1, 2)]),
    ],
    "clip": [({"a_min": -0.4, "a_max": 0.5}, [(3, 4)])],
    "Cast": [({"dtype": "float64"}, [(3,)])],
    "add_n": [({}, [(2, 2)] * 3)],
    "Activation": [
        ({"act_type": word}, [(3, 4)])
        for word in ("relu", "sigmoid", "softrelu", "softsign", "tanh", "log_sigmoid", "mish")
    ],
    "LeakyReLU": [
        ({"act_type": "leaky", "slope": 0.1}, [(3, 4)]),
        ({"act_type": "elu", "slope": 0.3}, [(3, 4)]),
        ({"act_type": "prelu"}, [(2, 3, 2), (3,)]),
    ],
    "FullyConnected": [
        ({"num_hidden": 3}, [(2, 2, 2), (3, 4), (3,)]),
        ({"num_hidden": 3, "flatten": False, "no_bias": True}, [(2, 2, 2), (3, 2)]),
    ],
    "softmax": [({"axis": 0, "temperature": 2}, [(3, 4)])],
    "log_softmax": [({}, [(3, 4)]), ({"axis": 0, "temperature": 2}, [(3, 4)])],
    "SoftmaxActivation": [({"mode": "channel"}, [(2, 3, 2)]), ({}, [(2, 3)])],
    "BatchNorm": [
        ({"fix_gamma": False, "axis": -1}, [(4, 2, 3), (3,), (3,), (3,), (3,)]),
        ({"fix_gamma": False, "use_global_stats": True}, [(4, 3), (3,), (3,), (3,), (3,)]),
    ],
    "_contrib_SyncBatchNorm": [({"fix_gamma": False}, [(4, 3, 2), (3,), (3,), (3,), (3,)])],
    "InstanceNorm": [({}, [(2, 3, 4), (3,), (3,)])],
    "where": [({}, [(2, 3)] * 3), ({}, [(2,), (2, 3), (2, 3)])],
    "broadcast_to": [({"shape": (0, 3, 2)}, [(2, 1, 1)])],
    "tile": [({"reps": (2, 1, 3)}, [(2, 3)])],
    "reverse": [({"axis": (0, 2)}, [(2, 3, 2)])],
    "LRN": [({"nsize": 3, "alpha": 0.5}, [(1, 4, 1, 2)])],
    "Pooling": [
        ({"kernel": (3, 2), "stride": (2, 2), "pad": (1, 1), "pool_type": kind, **more}, [IMAGE])
        for kind in ("max", "avg", "sum")
        for more in ({}, {"pooling_convention": "full"}, {"count_include_pad": False})
    ] + [({"global_pool": True, "pool_type": "avg"}, [IMAGE])],
    "Reshape": [({"shape": (0, -3)}, [(2, 2, 3)])],
    "_npx_reshape": [({"newshape": (2, -1)}, [(2, 2, 3)])],
    "_npi_reshape": [({"newshape": (-1,)}, [(2, 2, 3)])],
    "Flatten": [({}, [(2, 2, 3)])],
    "expand_dims": [({"axis": 1}, [(2, 3)])],
    "squeeze": [({"axis": 1}, [(2, 1, 3)])],
    "transpose": [({"axes": (2, 0, 1)}, [(2, 2, 3)])],
    "Pad": [
        ({"mode": mode, "pad_width": (0, 0, 0, 0, 1, 1, 1, 2), "constant_value": 3}, [IMAGE])
        for mode in ("constant", "edge", "reflect")
    ],
    "slice": [({"begin": (None, 2), "end": (1, 0), "step": (1, -1)}, [(2, 3)])],
    "slice_axis": [({"axis": -1, "begin": -2, "end": None}, [(2, 3)])],
    "slice_like": [({"axes": (1,)}, [(2, 3), (1, 2)])],
    "_index": [({"key": np.array([0, 0, 1])}, [(2, 3)])],
    "Crop": [
        ({"h_w": (2, 2), "offset": (1, 2)}, [IMAGE]),
        ({"num_args": 2, "center_crop": True}, [IMAGE, (1, 1, 2, 2)]),
    ],
    "Concat": [({}, [(2, 1), (2, 2)])],
    "_npi_concatenate": [({"axis": 0}, [(1, 2), (2, 2)])],
    "stack": [({"axis": 1}, [(2, 2)] * 2)],
    "SliceChannel": [({"num_outputs": 3, "squeeze_axis": True}, [(2, 3)])],
    "repeat": [({"repeats": 2, "axis": 1}, [(2, 3)]), ({"repeats": 2}, [(3,)])],
    "UpSampling": [
        ({"scale": 2, "sample_type": "nearest"}, [IMAGE]),
        ({"scale": 2, "sample_type": "bilinear", "num_filter": 2}, [IMAGE, (2, 1, 4, 4)]),
    ],
}  # fmt: skip
# Losses, masks and constants, whose gradients are not their derivatives: tested above.
OTHERWISE = {"SoftmaxOutput", "MakeLoss", "BlockGrad", "Dropout"}
TWO = "add sub subtract mul multiply div true_divide mod power maximum minimum"
REDUCING = ("sum", "mean", "max", "min", "prod", "norm")


COMPARING = "equal|greater|less"


def cases_of(name):
    """The cases of an operator, which for the short ones follow from its name."""
    word = re.sub("^(broadcast_|elemwise_|_npi_|_)", "", name)
    single = re.fullmatch("r?(.*)_scalar", word)
    base = single.group(1) if single else word
    base = {"plus": "add", "minus": "sub"}.get(base, base)
    if base in TWO.split():
        wide = [(2, 3), (2, 1)] if name.startswith(("broadcast_", "_npi_")) else [(2, 3)] * 2
        return [({"scalar": 1.3}, [(2, 3)])] if single else [({}, wide)]
    if word in REDUCING:
        return [({}, [(2, 3)]), ({"axis": 1, "exclude": True, "keepdims": True}, [(2, 3, 2)])]
    return CASES.get(name) or [({}, [(2, 3)])]


NAMES = sorted({id(row): name for name, row in reversed(OPERATORS.items())}.values())
TESTED = [
    name
    for name in NAMES
    if OPERATORS[name].inputs and name not in OTHERWISE and not re.search(COMPARING, name)
]


def total(name, attributes, values, projections):
    outputs = getattr(nd, name)(*[nd.array(x, dtype="float64") for x in values], **attributes)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    return sum((y.asnumpy() * p).sum() for y, p in zip(outputs, projections, strict=True))


@pytest.mark.parametrize("name", TESTED)
def test_gradients_are_those_of_differences(name):
    rng = np.random.default_rng(len(name))
    for attributes, shapes in cases_of(name):
        positive = re.search("power|mod|log$|sqrt|prod|BatchNorm|reciprocal|div", name)
        values = [rng.uniform(0.4, 2.4, s) if positive else rng.normal(size=s) for s in shapes]
        own = values[: 3 if "BatchNorm" in name else 9]
        arrays = [nd.array(x, dtype="float64") for x in values]
        for x in arrays[: len(own)]:
            x.attach_grad()
        with autograd.record():
            outputs = getattr(nd, name)(*arrays, **attributes)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        projections = [rng.normal(size=y.shape) for y in outputs]
        heads = [nd.array(p, dtype="float64") for p in projections]
        autograd.backward(outputs, heads)
        with autograd.train_mode():
            for x, array in zip(own, arrays, strict=False):
                expected = np.zeros(x.shape)
                for place in np.ndindex(x.shape):
                    old, ends = x[place], []
                    for step in (1e-5, -1e-5):
                        x[place] = old + step
                        ends.append(total(name, attributes, values, projections))
                    x[place] = old
                    expected[place] = (ends[0] - ends[1]) / 2e-5
                assert array.grad.dtype is np.float64
                close = {"rtol": 1e-6, "atol": 1e-8 * max(1, np.abs(expected).max())}
                np.testing.assert_allclose(array.grad.asnumpy(), expected, **close)


def test_every_case_belongs_to_an_operator():
    assert {*CASES, *OTHERWISE} <= {*NAMES}
    assert len(TESTED) > 120


class TestAutograd:
    def test_flags(self):
        def flags():
            return autograd.is_recording(), autograd.is_training()

        assert flags() == (False, False)
        with autograd.record():
            assert flags() == (True, True)
            with autograd.pause():
                assert flags() == (False, False)
            with autograd.pause(train_mode=True):
                assert flags() == (False, True)
            with autograd.predict_mode():
                assert flags() == (True, False)
        with autograd.record(train_mode=False), autograd.train_mode():
            assert flags() == (True, True)
        with pytest.raises(ZeroDivisionError), autograd.record():
            _ = 1 / 0
        assert flags() == (False, False)

    @pytest.mark.parametrize("request_", ["write", "add", "null"])
    def test_requests(self, request_):
        x, z = nd.array([1, 2]), learned([3, 4])
        x.attach_grad(request_)
        for _ in range(2):
            with autograd.record():
                y = x * x * z
            y.backward()
        if request_ != "null":
            equal(x.grad, np.array([6, 16]) * (2 if request_ == "add" else 1))
        equal(z.grad, [1, 4])
        with pytest.raises(KeyError):
            x.attach_grad("sum")

    def test_a_graph_is_used_once_unless_retained(self):
        x = nd.array([1, 2])
        x.attach_grad("add")
        with autograd.record():
            y = x * x
        y.backward(retain_graph=True)
        y.backward()
        equal(x.grad, [4, 8])
        with pytest.raises(mx.MXNetError):
            y.backward()

    def test_what_was_not_recorded_has_no_gradient(self):
        x = learned([1, 2])
        with pytest.raises(mx.MXNetError):
            (x * x).backward()
        with pytest.raises(mx.MXNetError), autograd.record():
            nd.ones(2).backward()

    def test_head_gradients(self):
        x = learned([1, 2])
        with autograd.record():
            y, z = x * x, x * 3
        autograd.backward([y, z], [nd.array([1, 10]), None], retain_graph=True)
        equal(x.grad, [5, 43])
        y.backward(nd.array([10, 20]))
        equal(x.grad, [20, 80])
        with pytest.raises((mx.MXNetError, AssertionError)):
            autograd.backward([z], [nd.ones(2), nd.ones(2)])

    def test_grad_returns_a_list_and_keeps_what_is_there(self):
        x = learned([1, 2])
        with autograd.record():
            y = x * x
        found = autograd.grad([y], [x], head_grads=[nd.array([3, 4])], retain_graph=True)
        assert isinstance(found, list)
        equal(found[0], [6, 16])
        (found,) = autograd.grad(y, x)
        equal(found, [2, 4])
        equal(x.grad, [0, 0])

    def test_a_deconvolution_has_no_second_derivative(self):
        def second():
            with autograd.record():
                y = nd.Deconvolution(nd.ones((1, 1, 3)), w, kernel=(2,), num_filter=1)
                autograd.grad(y, [w], create_graph=True)[0].backward()

        w = learned(np.ones((1, 1, 2)))
        with pytest.raises(mx.MXNetError):
            second()

    def test_grad_of_what_does_not_count_is_refused(self):
        x, z = learned([1, 2]), learned([1])
        with autograd.record():
            y = x * x
        with pytest.raises(mx.MXNetError):
            autograd.grad(y, [z])

    def test_pauses_and_stops(self):
        x = learned([1, 2])
        with autograd.record():
            y = x * x
            with autograd.pause():
                paused = x * 5
            z = y * x.detach() + paused + nd.BlockGrad(y) * x + nd.stop_gradient(x)
        z.backward()
        equal(x.grad, [3, 12])

    def test_values_are_those_of_the_forward_pass_outputs(self):
        x = learned([1, 2])
        with autograd.record():
            y = nd.exp(x).copy() * 2
            inner = y[1:]
        inner.backward()
        equal(x.grad, [0, 2 * np.exp(np.float32(2))])

    def test_a_recorded_array_that_is_written_gives_no_wrong_gradient(self):
        x = learned([1, 2])
        with autograd.record():
            y = x * 2
            with pytest.raises(mx.MXNetError):
                y[:] = 0

    def test_comparisons_pass_no_gradient(self):
        x = learned([1, 2, 3])
        with autograd.record():
            y = (x > 1) * x
        y.backward()
        equal(x.grad, [0, 1, 1])

    def test_indexing_iterating_and_numpy(self):
        x = learned([[1, 2, 3], [4, 5, 6]])
        with autograd.record():
            y = x[0] * x[1] + x[nd.array([0, 0])][1]
            for each in x:
                y = y + each
        y.backward()
        equal(x.grad, [[6, 7, 8], [2, 3, 4]])
        x = mx.np.array([[1.0, 2], [3, 4]])
        x.attach_grad()
        with autograd.record():
            y = (mx.np.concatenate([x.T, x * 2], axis=1)[0, 1:3] ** 2).sum() + mx.np.mean(x)
        assert y.shape == ()
        y.backward()
        equal(x.grad, [[8.25, 0.25], [6.25, 0.25]])
        assert type(x.grad) is type(x)

    def test_dropout_keeps_its_mask(self):
        x = learned(np.ones(40))
        with autograd.record():
            y = nd.Dropout(x, p=0.5)
        y.backward()
        equal(x.grad, y.asnumpy())
        assert {*y.asnumpy()} == {0, 2}
        equal(nd.Dropout(x, p=0.5), np.ones(40))

    @pytest.mark.parametrize(
        ("attributes", "expected"),
        [
            ({}, lambda p, t: p - t),
            ({"grad_scale": 3}, lambda p, t: 3 * (p - t)),
            ({"normalization": "batch"}, lambda p, t: (p - t) / 2),
            ({"use_ignore": True, "ignore_label": 0}, lambda p, t: (p - t) * [[1], [0]]),
            ({"smooth_alpha": 0.1}, lambda p, t: p - t * 0.9 - (1 - t) * 0.05),
        ],
        ids=lambda x: str(x) if isinstance(x, dict) else "",
    )
    def test_softmax_losses_have_their_own_gradient(self, attributes, expected):
        x, head = learned([[1, 2, 3], [3, 1, 2]]), nd.array([[1, 2, 3], [4, 5, 6]])
        with autograd.record():
            y = nd.SoftmaxOutput(x, nd.array([1, 0]), **attributes)
        y.backward(head)
        p, t = y.asnumpy(), np.float32([[0, 1, 0], [1, 0, 0]])
        np.testing.assert_allclose(p.sum(1), 1, rtol=1e-6)
        np.testing.assert_allclose(x.grad.asnumpy(), expected(p, t), rtol=1e-5)

    @pytest.mark.parametrize(("normalization", "divisor"), [("null", 4), ("valid", 8)])
    def test_softmax_losses_over_an_image(self, normalization, divisor):
        """Divided by the positions of one image, or with "valid" by those of the batch."""
        x = learned(np.arange(16).reshape(2, 2, 4))
        label = nd.array([[0, 1, 1, 0], [1, 0, 0, 0]])
        with autograd.record():
            y = nd.SoftmaxOutput(x, label, multi_output=True, normalization=normalization)
        y.backward()
        hot = label.asnumpy()[:, None] == np.arange(2)[:, None]
        np.testing.assert_allclose(x.grad.asnumpy(), (y.asnumpy() - hot) / divisor, atol=1e-6)

    def test_a_gradient_attached_later_is_of_what_comes_later(self):
        x = learned([1, 2])
        with autograd.record():
            y = x * 3
        x.attach_grad()
        y.backward()
        equal(x.grad, [0, 0])

    def test_made_losses_have_their_own_gradient(self):
        x, head = learned([[1, 2, 3]]), nd.array([[4, 5, 6]])
        with autograd.record():
            y = nd.MakeLoss(x * x, grad_scale=3)
        y.backward(head)
        equal(x.grad, 6 * x.asnumpy())


def test_gradients_of_numbers_that_are_not_taken_are_zero():
    """Even if the gradient of the result is infinite there; NaN is not clipped."""
    x, y = nd.array([1, 2, np.nan, 9]), nd.array([3, 4, 5, 6])
    for array in (x, y):
        array.attach_grad()
    infinite = nd.array([np.inf] * 4)
    with mx.autograd.record():
        z = nd.where(nd.array([1, 0, 1, 0]), x, y)
    z.backward(infinite)
    assert x.grad.asnumpy().tolist() == [np.inf, 0, np.inf, 0]
    assert y.grad.asnumpy().tolist() == [0, np.inf, 0, np.inf]
    with mx.autograd.record():
        z = nd.clip(x, a_min=1.5, a_max=3)
    z.backward(infinite)
    assert x.grad.asnumpy().tolist() == [0, np.inf, np.inf, 0]
