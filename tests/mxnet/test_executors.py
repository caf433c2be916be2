"""Executors of the MXNet front end, of both versions: arrays, requests, monitors, differences."""

import numpy as np
import pytest

import upconv.mxnet as mx
from tests.support.mxnet_arrays import equal

nd, sym = mx.nd, mx.sym
RNG = np.random.default_rng(29)
BINDS = [("bind", "simple_bind"), ("_bind", "_simple_bind")]


def line():
    """A 1-D deconvolution, small enough to say what it computes."""
    return sym.Deconvolution(sym.var("x"), kernel=(2,), num_filter=1, name="dc")


ARRAYS = {"x": np.array([[[1, 2, 3]]]), "dc_weight": np.array([[[1, 10]]])}
OUT, D_X, D_W = [[[1, 12, 23, 30]]], [[[11, 11, 11]]], [[[6, 6]]]


def arrays():
    return {name: nd.array(value) for name, value in ARRAYS.items()}


@pytest.mark.parametrize(("bind", "simple"), BINDS)
class TestExecutors:
    def test_of_both_versions_compute(self, bind, simple):
        exe = getattr(line(), simple)(mx.cpu(), x=(1, 1, 3))
        assert [x.shape for x in exe.arg_arrays] == [(1, 1, 3), (1, 1, 2)]
        for array in exe.arg_arrays + exe.grad_arrays:
            equal(array, np.zeros(array.shape))
        for array, value in zip(exe.arg_arrays, ARRAYS.values(), strict=True):
            array[:] = value
        found = exe.forward(is_train=True)
        equal(found[0], OUT)
        equal(exe.outputs[0], OUT)
        equal(exe.output_dict["dc_output"], OUT)
        for head in (nd.ones((1, 1, 4)), [nd.ones((1, 1, 4)) * 2]):
            exe.forward(is_train=True)
            exe.backward(head)
        equal(exe.grad_dict["x"], 2 * np.array(D_X))
        equal(exe.grad_arrays[1], 2 * np.array(D_W))
        equal(exe.forward(x=nd.zeros((1, 1, 3)))[0], np.zeros((1, 1, 4)))
        equal(exe.arg_dict["x"], np.zeros((1, 1, 3)))
        with pytest.raises(ValueError, match=r"(?i)shape"):
            exe.forward(x=nd.zeros((1, 1, 4)))

    def test_take_arrays_by_order_or_name(self, bind, simple):
        for given in ([*arrays().values()], arrays() | {"other": None}):
            exe = getattr(line(), bind)(mx.cpu(), given)
            equal(exe.forward()[0], OUT)
        for wrong in ([nd.ones((1, 1, 3))], {"x": nd.ones((1, 1, 3))}):
            with pytest.raises((ValueError, AttributeError)):
                getattr(line(), bind)(mx.cpu(), wrong).forward()
        with pytest.raises(mx.MXNetError):
            getattr(line(), bind)(mx.cpu(), [nd.ones((1, 1, 3)), nd.ones((1, 1, 4))]).forward()

    @pytest.mark.parametrize(
        "request_", ["write", "add", "null", {"x": "add", "dc_weight": "null"}], ids=str
    )
    def test_requests(self, bind, simple, request_):
        words = [request_] * 2 if isinstance(request_, str) else [*request_.values()]
        grads = {name: nd.ones(value.shape) for name, value in ARRAYS.items()}
        exe = getattr(line(), bind)(mx.cpu(), arrays(), grads, request_)
        for times in (1, 2):
            exe.forward(is_train=True)
            exe.backward(nd.ones((1, 1, 4)))
            for found, full, word in zip(grads.values(), (D_X, D_W), words, strict=True):
                value = {"write": full, "add": 1 + times * np.array(full), "null": [[[1]]]}[word]
                equal(found, np.broadcast_to(value, found.shape))
        exe = getattr(line(), simple)(mx.cpu(), grad_req=request_, x=(1, 1, 3))
        assert [x is None for x in exe.grad_arrays] == [word == "null" for word in words]

    def test_gradients_follow_inference_too(self, bind, simple):
        exe = getattr(line(), simple)(mx.cpu(), x=(1, 1, 3))
        exe.forward(is_train=False, **arrays())
        exe.backward(nd.ones((1, 1, 4)))
        equal(exe.grad_arrays[0], D_X)

    def test_states_change_in_the_backward_pass(self, bind, simple):
        graph = sym.BatchNorm(sym.var("x"), name="bn", fix_gamma=False, momentum=0.5)
        exe = getattr(graph, simple)(mx.cpu(), x=(2, 3))
        exe.aux_dict["bn_moving_var"][:] = 1
        exe.forward(is_train=True, x=nd.array([[0, 1, 2], [4, 5, 6]]), bn_gamma=nd.ones(3))
        equal(exe.aux_arrays[0], [0, 0, 0])
        exe.backward([nd.ones((2, 3))])
        equal(exe.aux_arrays[0], [1, 1.5, 2])
        equal(exe.aux_arrays[1], [2.5, 2.5, 2.5])
        equal(exe.grad_dict["bn_beta"], [2, 2, 2])

    @pytest.mark.parametrize("head", [sym.MakeLoss, sym.SoftmaxOutput])
    def test_losses_need_no_gradient(self, bind, simple, head):
        exe = getattr(head(sym.var("x")), simple)(mx.cpu(), x=(2, 2))
        exe.forward(is_train=True)
        exe.backward()
        equal(exe.grad_arrays[0], np.ones((2, 2)) if head is sym.MakeLoss else [[-0.5, 0.5]] * 2)


class TestVersions:
    def test_1(self):
        exe = line().simple_bind(mx.cpu(), grad_req={"x": "write"}, x=(1, 1, 3))
        assert exe.grad_arrays[1] is None
        exe = line().simple_bind(mx.cpu(), grad_req=["null", "write"], x=(1, 1, 3))
        assert exe.grad_arrays[0] is None
        exe.forward(is_train=True)
        with pytest.raises(mx.MXNetError):
            exe.backward()
        with pytest.raises(TypeError):
            exe.forward(unknown=nd.ones((1, 1, 3)))
        given = arrays()
        exe = line().bind(mx.cpu(), given)
        given["x"][:] = 0
        equal(exe.forward()[0], np.zeros((1, 1, 4)))

    def test_2(self):
        with pytest.raises(KeyError):
            line()._simple_bind(mx.cpu(), grad_req={"x": "write"}, x=(1, 1, 3))
        with pytest.raises(AssertionError):
            line()._simple_bind(mx.cpu(), grad_req=["null", "write"], x=(1, 1, 3))
        exe = line()._simple_bind(mx.cpu(), x=(1, 1, 3))
        exe.forward(is_train=True, unknown=nd.ones(1), **arrays())
        exe.backward()
        equal(exe.grad_arrays[0], D_X)

    def test_2_copies_what_it_binds(self):
        given = arrays()
        exe = line()._bind(mx.cpu(), given)
        given["x"][:] = 0
        equal(exe.forward()[0], OUT)


class TestMonitor:
    @pytest.mark.parametrize(("inputs", "expected"), [
        (False, ["dc_output", "a_output"]),
        (True, ["x", "dc_data", "dc_weight", "dc_weight", "dc_output", "a_input0", "a_output"]),
    ])  # fmt: skip
    def test_names_and_values(self, inputs, expected):
        exe = sym.Activation(line(), act_type="relu", name="a").simple_bind(mx.cpu(), x=(1, 1, 3))
        seen = []
        exe.set_monitor_callback(lambda name, x: seen.append((mx.base.py_str(name), x)), inputs)
        exe.forward(**arrays())
        assert [name for name, _ in seen] == expected
        equal(seen[-1][1], OUT)


class TestNumericGradients:
    def check(self, graph, *location):
        given = [nd.array(RNG.uniform(0.5, 1.5, shape)) for shape in location]
        limits = {"numeric_eps": 1e-2, "rtol": 1e-2, "atol": 1e-3}
        mx.test_utils.check_numeric_gradient(graph, given, **limits)

    def test_agree(self):
        self.check(line(), (1, 1, 3), (1, 1, 2), (9,))  # the third belongs to nothing
        self.check(sym.var("a") * sym.var("b"), (2, 2), (2, 2))

    @pytest.mark.parametrize("wrong", [
        lambda x: sym.BlockGrad(x) * x,
        lambda x: sym.MakeLoss(x * x, grad_scale=0.5),
        lambda x: x + sym.stop_gradient(x) * 0.1,
    ])  # fmt: skip
    def test_catch_a_wrong_one(self, wrong):
        with pytest.raises(AssertionError):
            self.check(wrong(sym.var("x")), (2, 2))
