"""Arrays of the MXNet front end, `mx.nd` and `mx.np`: values, types, views, errors."""

import itertools

import numpy as np
import pytest

import upconv.mxnet as mx
from tests.support.mxnet_arrays import equal, learned
from upconv import UpconvError

nd = mx.nd
RNG = np.random.default_rng(17)


def square():
    return nd.array([[1, 2], [3, 4]])


class TestCreation:
    @pytest.mark.parametrize(
        ("made", "values", "dtype"),
        [
            (lambda: nd.array([1, 2]), [1, 2], "float32"),
            (lambda: nd.array(np.arange(3.0)), [0, 1, 2], "float32"),
            (lambda: nd.array(nd.array([1], dtype="int32")), [1], "int32"),
            (lambda: nd.array([1.5], dtype="float64"), [1.5], "float64"),
            (lambda: nd.zeros(2), [0, 0], "float32"),
            (lambda: nd.ones((1, 2), dtype="float16"), [[1, 1]], "float16"),
            (lambda: nd.full((2,), 7, dtype="int32"), [7, 7], "int32"),
            (lambda: nd.full(shape=(2,), val=7), [7, 7], "float32"),
            (lambda: nd.array(source_array=[1, 2]), [1, 2], "float32"),
            (lambda: nd.arange(1, 7, 2), [1, 3, 5], "float32"),
            (lambda: nd.zeros((2,), mx.cpu(), stype="row_sparse"), [0, 0], "float32"),
            (lambda: mx.np.zeros((2,), "int32"), [0, 0], "int32"),
            (lambda: mx.np.array([1, 2]), [1, 2], "float32"),
            (lambda: mx.np.array(3.0), 3, "float32"),
            (lambda: mx.np.zeros((2,), dtype="int32"), [0, 0], "int32"),
            (lambda: mx.np.full((2,), 3.5), [3.5, 3.5], "float32"),
            (lambda: mx.np.arange(3), [0, 1, 2], "float32"),
        ],
    )
    def test_has_values_and_type(self, made, values, dtype):
        equal(made(), values, dtype)

    def test_describes_itself(self):
        x = nd.empty((2, 3))
        assert (x.shape, x.size, x.ndim, len(x), x.stype) == ((2, 3), 6, 2, 2, "default")
        assert x.dtype is np.float32
        assert x.context == mx.cpu()
        assert type(nd.array([1.5]).asscalar()) is np.float32
        assert type(nd.array([1.5]).item()) is float
        assert [bool(nd.array(values)) for values in ([], [0], [2])] == [False, False, True]
        for call in (lambda x: x.asscalar(), bool):
            with pytest.raises(ValueError, match="2 elements"):
                call(nd.array([1, 2]))

    def test_seed_repeats_numbers(self):
        drawn = []
        for draw in (nd.random.uniform, nd.random.normal, mx.random.uniform) * 2:
            mx.random.seed(3)
            drawn.append(draw(0, 2, shape=(50,)).asnumpy())
        for first, second in zip(drawn[:3], drawn[3:], strict=True):
            np.testing.assert_array_equal(first, second)
        assert drawn[0].min() >= 0
        assert drawn[0].max() <= 2
        assert mx.np.random.normal(0, 1, size=(2, 3)).shape == (2, 3)

    def test_only_the_processor_computes(self):
        with pytest.raises(mx.MXNetError):
            nd.zeros((2,), ctx=mx.gpu(0))


class TestIndexing:
    @pytest.mark.parametrize(
        "key", [0, -1, slice(1, 2), (1, 1), (slice(None), slice(None, None, -1)), None, (..., 0)]
    )
    def test_reads_as_numpy_does(self, key):
        expected = np.asarray(square().asnumpy()[key])
        equal(square()[key], expected.reshape(expected.shape or (1,)))
        equal(mx.np.array([[1, 2], [3, 4]])[key], expected)

    def test_reads_by_arrays(self):
        equal(square()[nd.array([1, 0])], [[3, 4], [1, 2]])
        x = mx.np.array([1.0, 2, 3])
        equal(x[x > 1], [2, 3])

    @pytest.mark.parametrize("made", [square, lambda: mx.np.array([[1.0, 2], [3, 4]])])
    @pytest.mark.parametrize("key", [1, slice(1, 2), slice(None), slice(-1, None)])
    def test_views_write_through(self, made, key):
        x, expected = made(), square().asnumpy()
        view = x[key]
        view[:] = 9
        expected[key] = 9
        equal(x, expected)
        view += 1
        expected[key] += 1
        equal(x, expected)

    @pytest.mark.parametrize("made", [square, lambda: mx.np.array([[1.0, 2], [3, 4]])])
    def test_parts_that_do_not_lie_together_are_copies(self, made):
        x = made()
        x[:, 1][:] = 9
        equal(x, [[1, 2], [3, 4]])

    def test_a_reshaped_array_is_a_view(self):
        x = square()
        x.reshape((4,))[1] = 9
        equal(x, [[1, 9], [3, 4]])

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            (0, 7), ((0, 1), 7), (slice(None), np.zeros((2, 2))), (slice(None), [5, 6]),
            ((slice(None), slice(1, None)), 8), ([1], 9),
        ],
    )  # fmt: skip
    def test_writes_as_numpy_does(self, key, value):
        for given in (value, nd.array(value)):
            x, expected = square(), square().asnumpy()
            x[nd.array(key) if isinstance(key, list) else key] = given
            expected[key] = value
            equal(x, expected)

    def test_refuses_what_does_not_fit(self):
        with pytest.raises(IndexError):
            square()[2]
        with pytest.raises((mx.MXNetError, ValueError)):
            square()[:] = np.zeros((3, 2))

    def test_copies_are_apart(self):
        x = square()
        for copied in (x.copy(), x.astype("float32"), x.copyto(mx.cpu()), nd.array(x), x.asnumpy()):
            copied[:] = 0
        target = nd.zeros((2, 2), dtype="float64")
        assert x.copyto(target) is target
        equal(target, [[1, 2], [3, 4]], "float64")
        with pytest.raises(mx.MXNetError):  # no broadcasting there
            nd.array([1, 2]).copyto(nd.zeros((2, 2)))


class TestArithmetic:
    @pytest.mark.parametrize("made", [nd.array, mx.np.array])
    @pytest.mark.parametrize(
        "function",
        [
            lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y,
            lambda x, y: x % y, lambda x, y: x**y,
        ],
    )  # fmt: skip
    def test_of_arrays_and_numbers_on_both_sides(self, made, function):
        a, b = np.float32([[1, -2, 2.5]]), np.float32([[2], [3]])
        equal(function(made(a), made(b)), function(a, b), "float32")
        equal(function(made(a), 2), function(a, np.float32(2)), "float32")
        equal(function(2.0, made(b)), function(np.float32(2), b), "float32")

    @pytest.mark.parametrize("made", [nd.array, mx.np.array])
    @pytest.mark.parametrize("number", [np.float32(2), np.float64(2), np.int64(2)])
    def test_of_numbers_of_numpy_on_the_left(self, made, number):
        found = number * made([1.0, 2])
        assert type(found) is type(made([1.0]))
        equal(found, [2, 4])
        with pytest.raises(TypeError):
            np.ones(2) + nd.ones(2)

    @pytest.mark.parametrize("made", [nd.array, mx.np.array])
    def test_comparisons_are_bool_in_numpy_only(self, made):
        x, kind = made([1.0, 2]), "float32" if made is nd.array else "bool"
        equal(x == 1, [1, 0], kind)
        equal(x != made([1.0, 3]), [0, 1], kind)
        equal(x < 2, [1, 0], kind)
        equal(x <= 1, [1, 0], kind)

    def test_signs(self):
        equal(-nd.array([1, -2]), [-1, 2])
        equal(abs(nd.array([1, -2])), [1, 2])

    def test_in_place_keeps_the_array(self):
        x = y = nd.array([5, 6])
        x += 1
        x *= nd.array([2, 3])
        x -= 2
        x /= 5
        assert x is y
        equal(y, [2, 3.8])
        with pytest.raises((mx.MXNetError, ValueError)):
            x += nd.array([[1], [2]])

    def test_integers_stay_integers(self):
        x = nd.array([1, 2], dtype="int32")
        equal(x + 1, [2, 3], "int32")
        equal(x / 2, [0, 1], "int32")
        equal(x * 2.5, [2, 4], "int32")
        x += 1.5
        equal(x, [2, 3], "int32")

    def test_numpy_integers_become_floats(self):
        x = mx.np.array([1, 2], dtype="int32")
        equal(x / 2, [0.5, 1], "float32")
        equal(x + mx.np.array([1.0, 2]), [2, 4], "float32")
        equal(x.mean(), 1.5, "float32")

    @pytest.mark.parametrize("other", ["float64", "int32"])
    def test_types_do_not_mix(self, other):
        with pytest.raises(mx.MXNetError):
            nd.array([1, 2]) + nd.array([1, 2], dtype=other)

    def test_shapes_that_do_not_fit(self):
        with pytest.raises(mx.MXNetError):
            nd.array([1, 2]) + nd.array([1, 2, 3])
        with pytest.raises(mx.MXNetError):  # elemwise_* do not broadcast
            nd.elemwise_add(nd.ones((2, 1)), nd.ones((1, 2)))

    def test_out_is_written_and_returned(self):
        x, out = nd.array([-1, 2]), nd.zeros(2)
        assert nd.relu(x, out=out) is out
        equal(out, [0, 2])
        parts = [nd.zeros((1, 2)), nd.zeros((1, 2))]
        nd.split(nd.array([[1, 2, 3, 4]]), num_outputs=2, out=parts)
        equal(parts[1], [[3, 4]])
        for wrong in (nd.zeros(3), nd.zeros(2, dtype="float64")):
            with pytest.raises(mx.MXNetError):
                nd.relu(x, out=wrong)

    @pytest.mark.parametrize(
        "call",
        [
            lambda: nd.relu(),
            lambda: nd.Activation(nd.ones(2), act_type="none"),
            lambda: nd.concat(nd.ones((1, 2)), nd.ones((2, 2))),
            lambda: nd.ones((2, 3)).reshape((5, 5)),
            lambda: nd.ones((2, 3)).sum(axis=3),
            lambda: nd.SliceChannel(nd.ones((2, 3)), num_outputs=2),
            lambda: nd.FullyConnected(nd.ones((2, 3)), nd.ones((5, 4)), no_bias=True, num_hidden=5),
        ],
    )
    def test_errors_are_of_both_kinds(self, call):
        with pytest.raises(mx.MXNetError) as caught:
            call()
        assert isinstance(caught.value, UpconvError)
        assert isinstance(caught.value, RuntimeError)

    def test_an_attribute_that_equals_an_earlier_one_is_still_checked(self):
        assert nd.expand_dims(nd.ones(2), axis=1).shape == (2, 1)
        with pytest.raises(mx.MXNetError, match=r"axis is 1\.0; expected an integer"):
            nd.expand_dims(nd.ones(2), axis=1.0)

    def test_unknown_operators_are_no_attributes(self):
        with pytest.raises(AttributeError):
            nd.NoSuchOperator(nd.ones(2))


class TestPooling:
    @pytest.mark.parametrize(
        ("attributes", "expected"),
        [
            ({}, [1, 3, 4]),
            ({"pool_type": "sum"}, [1, 5, 4]),
            ({"pool_type": "avg"}, [0.5, 2.5, 2]),
            ({"pool_type": "avg", "count_include_pad": False}, [1, 2.5, 4]),
            ({"pad": 0, "kernel": 3}, [3]),
            ({"pad": 0, "kernel": 3, "pooling_convention": "full"}, [3, 4]),
            ({"pool_type": "avg", "pad": 0, "kernel": 3, "pooling_convention": "full"}, [2, 3.5]),
            ({"pad": 0, "stride": 3, "pooling_convention": "same"}, [2, 4]),
            ({"pool_type": "avg", "global_pool": True}, [2.5]),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("layout", ["NCW", "NWC"])
    def test_by_hand(self, attributes, expected, layout):
        shape = (1, 1, 4) if layout == "NCW" else (1, 4, 1)
        given = {"kernel": 2, "stride": 2, "pad": 1, "layout": layout} | attributes
        found = nd.Pooling(nd.array([1, 2, 3, 4]).reshape(shape), **given)
        equal(found, np.reshape(expected, (1, 1, -1) if layout == "NCW" else (1, -1, 1)))

    def test_the_first_maximum_has_the_gradient(self):
        x = learned([[[2, 2, 1, 2]]])
        with mx.autograd.record():
            y = nd.Pooling(x, kernel=3)
        y.backward()
        equal(x.grad, [[[1, 1, 0, 0]]])


class TestReductions:
    @pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
    @pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
    @pytest.mark.parametrize(("keepdims", "exclude"), [*itertools.product([0, 1], repeat=2)])
    def test_over_axes_or_all_but_them(self, name, axis, keepdims, exclude):
        x = RNG.uniform(0.5, 1.5, (2, 3, 4)).astype(np.float32)
        axes = range(3) if axis is None else np.atleast_1d(axis) % 3
        over = tuple(a for a in range(3) if (a in axes) != bool(exclude and axis is not None))
        expected = np.asarray(getattr(np, name)(x, axis=over, keepdims=bool(keepdims)))
        if not (exclude and axis is None):
            found = getattr(nd.array(x), name)(axis=axis, keepdims=keepdims, exclude=exclude)
            np.testing.assert_allclose(found.asnumpy(), expected.reshape(found.shape), rtol=1e-5)
            assert found.shape == (expected.shape or (1,))
        if not exclude:
            found = getattr(mx.np.array(x), name)(axis=axis, keepdims=bool(keepdims))
            assert found.shape == expected.shape
            np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5)

    def test_codes_of_reshape(self):
        x = nd.arange(24).reshape((2, 3, 4))
        codes = {(-1, 4): (6, 4), (0, -3): (2, 12), (-4, 1, 2, -2): (1, 2, 3, 4), (0, -1): (2, 12)}
        for given, shape in codes.items():
            assert x.reshape(given).shape == shape
        assert nd.Reshape(x, shape=(-1, 0), reverse=True).shape == (6, 4)
