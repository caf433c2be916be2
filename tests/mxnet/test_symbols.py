"""Graphs of the MXNet front end: names, shapes, JSON."""

import json

import numpy as np
import pytest

import upconv.mxnet as mx

nd, sym = mx.nd, mx.sym


def up(name="dc", **attributes):
    """A 2-D deconvolution of the variable x."""
    return sym.Deconvolution(
        sym.var("x"), name=name, **{"kernel": (3, 3), "num_filter": 4} | attributes
    )


class TestComposition:
    @pytest.mark.parametrize(
        ("graph", "arguments", "states", "outputs"),
        [
            (up(), ["x", "dc_weight"], [], ["dc_output"]),
            (up(no_bias="false"), ["x", "dc_weight", "dc_bias"], [], ["dc_output"]),
            (sym.Deconvolution(kernel=(3,), num_filter=1, name="dc"), ["dc_data", "dc_weight"], [],
             ["dc_output"]),
            (sym.Convolution(sym.var("x"), sym.var("w"), None, kernel=(3,), num_filter=1,
              no_bias=True, name="c"), ["x", "w"], [], ["c_output"]),
            (sym.BatchNorm(sym.var("x"), name="bn", output_mean_var=True),
             ["x", "bn_gamma", "bn_beta"], ["bn_moving_mean", "bn_moving_var"],
             ["bn_output", "bn_mean", "bn_var"]),
            (sym.BatchNorm(sym.var("x"), name="bn"), ["x", "bn_gamma", "bn_beta"],
             ["bn_moving_mean", "bn_moving_var"], ["bn_output"]),
            (sym.SliceChannel(sym.var("x"), num_outputs=2, name="s"), ["x"], [],
             ["s_output0", "s_output1"]),
            (sym.SliceChannel(sym.var("x"), num_outputs=1, name="s"), ["x"], [], ["s_output0"]),
            (sym.LeakyReLU(sym.var("x"), act_type="prelu", name="p"),
             ["x", "p_gamma"], [], ["p_output"]),
            (sym.SoftmaxOutput(sym.var("x"), name="sm"), ["x", "sm_label"], [], ["sm_output"]),
            (sym.Crop(sym.var("x"), sym.var("y"), num_args=2, name="cr"),
             ["x", "y"], [], ["cr_output"]),
            (sym.Group([sym.var("a"), up()]), ["a", "x", "dc_weight"], [], ["a", "dc_output"]),
        ],
        ids=lambda x: str(x) if isinstance(x, list) else "",
    )  # fmt: skip
    def test_names(self, graph, arguments, states, outputs):
        assert graph.list_arguments() == arguments
        assert graph.list_auxiliary_states() == states
        assert graph.list_outputs() == outputs
        assert len(graph) == len(outputs)

    def test_parts(self):
        graph = sym.Activation(up(), act_type="relu", name="a")
        inner = graph.get_internals()
        assert inner.list_outputs() == ["x", "dc_weight", "dc_output", "a_output"]
        assert inner["dc_output"].list_arguments() == ["x", "dc_weight"]
        assert graph["a_output"].name == graph[0].name == "a"
        with pytest.raises(ValueError, match="b_output"):
            graph["b_output"]
        with pytest.raises(IndexError):
            graph[1]

    def test_numbers_its_names(self):
        first, second = (up(name=None).name for _ in range(2))
        assert first.startswith("deconvolution")
        assert int(second[13:]) == int(first[13:]) + 1

    def test_attributes_are_the_texts_that_were_given(self):
        assert up(no_bias=True).attr_dict()["dc"] == {
            "kernel": "(3, 3)", "num_filter": "4", "no_bias": "True",
        }  # fmt: skip

    @pytest.mark.parametrize(
        "attributes",
        [
            {"stride": 2}, {"kernel": (3,) * 4}, {"num_filter": 0}, {"nothing": 1},
            {"no_bias": "yes"}, {"cudnn_tune": "slow"}, {"pad": (1.5, 1)},
            {"bias": sym.var("b")},
        ],
        ids=str,
    )  # fmt: skip
    def test_attributes_are_refused_at_once(self, attributes):
        with pytest.raises((mx.MXNetError, IndexError)):
            up(**attributes)
        with pytest.raises((mx.MXNetError, TypeError, AssertionError)):
            sym.Deconvolution(nd.ones((1, 1, 3)), kernel=(3,), num_filter=1)

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda x: sym.Cast(x, dtype=None), "dtype is None; expected an element type"),
            (lambda x: sym.clip(x, a_min=10**400, a_max=0), "expected a number"),
            (lambda x: sym.sin(x, scale=2), "an attribute is 'scale'; expected no attribute"),
        ],
    )
    def test_a_refusal_says_what_is_expected(self, make, words):
        with pytest.raises(mx.MXNetError, match=words):
            make(sym.var("x"))

    def test_one_array_for_two_variables_of_a_name_is_refused(self):
        with pytest.raises(mx.MXNetError):
            (sym.var("x") + sym.var("x")).bind(mx.cpu(), {"x": nd.ones(2)})


class TestShapes:
    @pytest.mark.parametrize(
        ("graph", "given", "expected"),
        [
            (up(), {"x": (2, 3, 5, 5)}, ([(2, 3, 5, 5), (3, 4, 3, 3)], [(2, 4, 7, 7)])),
            (up(num_group=2, no_bias=False), {"x": (1, 6, 4, 4)},
             ([(1, 6, 4, 4), (6, 2, 3, 3), (4,)], [(1, 4, 6, 6)])),
            (up(layout="NHWC"), {"x": (1, 4, 4, 6)},
             ([(1, 4, 4, 6), (6, 3, 3, 4)], [(1, 6, 6, 4)])),
            # pad and adj are ignored where there is a target, whatever they are; odd totals too.
            (up(stride=(2, 2), pad=(99, 99), adj=(101, 101), target_shape=(8, 8)),
             {"x": (1, 3, 4, 4)}, ([(1, 3, 4, 4), (3, 4, 3, 3)], [(1, 4, 8, 8)])),
            (up(stride=(2, 2), target_shape=(7, 8, 1)), {"x": (1, 3, 4, 4)},
             ([(1, 3, 4, 4), (3, 4, 3, 3)], [(1, 4, 7, 8)])),
            (up(target_shape=(0, 0), adj=(0, 0)), {"x": (1, 3, 4, 4)},
             ([(1, 3, 4, 4), (3, 4, 3, 3)], [(1, 4, 6, 6)])),
            (up(), {}, None),
            (up(), {"dc_weight": (3, 4, 3, 3)}, None),
            (up(), {"x": (0, 3, 0, 5)}, None),
            (sym.FullyConnected(sym.var("x"), num_hidden=4), {"x": (2, 3, 4)},
             ([(2, 3, 4), (4, 12), (4,)], [(2, 4)])),
            (sym.var("x") + sym.var("y"), {"x": (2, 3)}, ([(2, 3), (2, 3)], [(2, 3)])),
            (sym.SoftmaxOutput(sym.var("x"), multi_output=True), {"x": (4, 5, 3, 3)},
             ([(4, 5, 3, 3), (4, 9)], [(4, 5, 3, 3)])),
            (sym.Pooling(sym.var("x"), kernel=(2, 2), stride=(2, 2)), {"x": (1, 2, 5, 5)},
             ([(1, 2, 5, 5)], [(1, 2, 2, 2)])),
        ],
        ids=lambda x: str(x) if isinstance(x, dict) else "",
    )  # fmt: skip
    def test_follow(self, graph, given, expected):
        found = graph.infer_shape(**given)
        assert found == ((*expected, []) if expected else (None, None, None))

    @pytest.mark.parametrize(
        ("graph", "given"),
        [
            (up(), {"x": (1, 3, 5)}),
            (up(), {"x": (1, 3, 5, 5), "dc_weight": (3, 5, 3, 3)}),
            (up(num_group=3), {"x": (1, 6, 4, 4)}),
            (up(adj=(1, 1)), {"x": (1, 3, 4, 4)}),
            (up(stride=(2, 2), target_shape=(100, 8)), {"x": (1, 3, 4, 4)}),
            (up(target_shape=(5, 6)), {"x": (1, 3, 4, 4)}),  # an odd total without a stride
            (up(stride=(2, 2), target_shape=(8,)), {"x": (1, 3, 4, 4)}),
            (up(), {"unknown": (1, 3, 5, 5)}),
            (sym.var("x") + sym.var("y"), {"x": (2, 3), "y": (2, 1)}),  # no broadcasting
            (sym.concat(sym.var("x"), sym.var("y"), dim=1), {"x": (2, 3), "y": (3, 3)}),
            (sym.BatchNorm(sym.var("x"), axis=4), {"x": (1, 2, 5, 5)}),
            (sym.SliceChannel(sym.var("x"), num_outputs=4), {"x": (4, 6)}),
        ],
        ids=lambda x: str(x) if isinstance(x, dict) else "",
    )
    def test_conflicts_are_refused(self, graph, given):
        with pytest.raises(mx.MXNetError):
            graph.infer_shape(**given)

    @pytest.mark.parametrize(
        ("graph", "given", "expected"),
        [
            (up(), {}, ([(), ()], [()])),
            (up(no_bias=False), {"x": (0, 3, 0, 5)},
             ([(0, 3, 0, 5), (3, 4, 3, 3), (4,)], [(0, 4, 0, 7)])),
            (sym.Convolution(sym.var("x"), kernel=(3, 3), num_filter=4), {"x": (0, 3, 0, 9)},
             ([(0, 3, 0, 9), (4, 3, 3, 3), (4,)], [(0, 4, 0, 7)])),
            (sym.FullyConnected(sym.var("x"), num_hidden=4), {"x": (0, 12)},
             ([(0, 12), (4, 12), (4,)], [(0, 4)])),
            (sym.Flatten(sym.var("x")), {"x": (0, 3, 4)}, ([(0, 3, 4)], [(0, 12)])),
            (sym.concat(sym.var("x"), sym.var("y")), {"x": (0, 2), "y": (0, 3)},
             ([(0, 2), (0, 3)], [(0, 5)])),
            (sym.Reshape(sym.var("x"), shape=(7, -1)), {"x": (0, 3)}, ([(0, 3)], [()])),
            (sym.Pooling(sym.var("x"), kernel=(2, 2)), {"x": (0, 2, 5, 0)},
             ([(0, 2, 5, 0)], [(0, 2, 4, 0)])),
        ],
        ids=lambda x: str(x) if isinstance(x, dict) else "",
    )  # fmt: skip
    def test_are_partly_known(self, graph, given, expected):
        assert graph.infer_shape_partial(**given) == (*expected, [])

    def test_come_with_variables_and_through_layers(self):
        w = sym.var("w")
        inner = sym.Deconvolution(sym.var("x", shape=(1, 3, 6, 6)), w, kernel=(2, 2), num_filter=3)
        graph = sym.BatchNorm(sym.Deconvolution(inner, w, kernel=(2, 2), num_filter=3))
        expected = ([(1, 3, 6, 6), (3, 3, 2, 2), (3,), (3,)], [(1, 3, 8, 8)], [(3,), (3,)])
        assert graph.infer_shape() == expected
        with pytest.raises(mx.MXNetError):
            graph.infer_shape(x=(1, 2, 6, 6))


class TestJson:
    @pytest.mark.parametrize("form", ["text", "file"])
    def test_comes_back(self, form, tmp_path):
        graph = sym.BatchNorm(up(pad=[1, 1], no_bias="0"), name="bn", output_mean_var=True)
        graph = sym.Group([graph[2], sym.Concat(graph[0], sym.var("y"), dim=1, name="cc")])
        if form == "file":
            graph.save(str(tmp_path / "a-symbol.json"))
            again = sym.load(str(tmp_path / "a-symbol.json"))
        else:
            again = sym.load_json(graph.tojson())
        assert again.tojson() == graph.tojson()
        for method in ("list_arguments", "list_outputs", "list_auxiliary_states", "attr_dict"):
            assert getattr(again, method)() == getattr(graph, method)()
        shapes = {"x": (2, 3, 4, 4), "y": (2, 1, 4, 4)}
        assert again.infer_shape(**shapes) == graph.infer_shape(**shapes)
        results = []
        for each in (graph, again):
            exe = each.simple_bind(mx.cpu(), **shapes)
            for i, array in enumerate(exe.arg_arrays):
                array[:] = np.cos(np.arange(array.size) + i).reshape(array.shape)
            results.append([y.asnumpy() for y in exe.forward(is_train=True)])
        for first, second in zip(*results, strict=True):
            np.testing.assert_array_equal(first, second)

    def test_is_that_of_mxnet(self):
        graph = json.loads(up().tojson())
        assert [node["op"] for node in graph["nodes"]] == ["null", "null", "Deconvolution"]
        assert graph["nodes"][2]["inputs"] == [[0, 0, 0], [1, 0, 0]]
        assert graph["nodes"][2]["attrs"]["kernel"] == "(3, 3)"
        assert (graph["arg_nodes"], graph["heads"]) == ([0, 1], [[2, 0, 0]])
