"""Attributes of symbols in the MXNet front end: kept, scoped, written, or refused in words."""

import pytest

import upconv.mxnet as mx

sym = mx.sym


def dense(x, **named):
    return sym.FullyConnected(x, num_hidden=2, name="f", **named)


def test_a_variable_keeps_what_it_is_given():
    v = sym.var("v", attr={"__a__": "1", "mood": "m"}, lr_mult=0.5, wd_mult=2, dtype="float16",
                shape=(2, 3), init=mx.init.Constant(3), __b__=4)  # fmt: skip
    assert v.list_attr() == {
        "__a__": "1", "mood": "m", "__lr_mult__": "0.5", "lr_mult": "0.5", "__wd_mult__": "2",
        "wd_mult": "2", "__dtype__": "2", "__shape__": "(2, 3)", "__b__": "4",
        "__init__": '["constant", {"value": 3}]',
    }  # fmt: skip
    assert (v.attr("lr_mult"), v.attr("__lr_mult__"), v.attr("no")) == ("0.5", "0.5", None)
    again = sym.load_json(v.tojson())
    assert again.attr_dict() == v.attr_dict()
    assert again.infer_type()[0] == [mx.np.float16]


def test_an_operator_hands_them_to_the_variables_it_makes():
    graph = dense(sym.var("v"), attr={"__a__": "1", "ctx_group": "d"}, lr_mult="3")
    given = {"__a__": "1", "__ctx_group__": "d", "ctx_group": "d", "__lr_mult__": "3"}
    given["lr_mult"] = "3"
    assert graph.attr_dict() == {
        "f": given | {"num_hidden": "2"}, "f_weight": given, "f_bias": given,
    }  # fmt: skip
    assert sym.load_json(graph.tojson()).attr_dict() == graph.attr_dict()


def test_a_scope_reaches_every_symbol_within():
    with mx.AttrScope(ctx_group="dev1", lr_mult="0.1"):
        v = sym.var("v", lr_mult=2)
        with mx.AttrScope(mirror="x", lr_mult="0.3"):
            graph = sym.relu(v, name="r")
    after = sym.var("w")
    assert v.attr("lr_mult") == "2"
    assert graph.list_attr() == {
        "ctx_group": "dev1", "__ctx_group__": "dev1", "lr_mult": "0.3", "__lr_mult__": "0.3",
        "mirror": "x",
    }  # fmt: skip
    assert after.list_attr() == {}


def test_later_ones_are_kept_too():
    graph = sym.relu(sym.var("x"), name="r")
    graph._set_attr(mood="so")
    assert graph.attr("mood") == "so"


@pytest.mark.parametrize("call", [
    lambda: sym.var("v", attr={"a": 1}), lambda: sym.var("v", attr=5), lambda: sym.var("v", foo=3),
    lambda: sym.var("v", shape="abc"), lambda: sym.relu(sym.var("x"), attr={"a": 1}),
    lambda: mx.AttrScope(a=3), lambda: dense(sym.var("v"), foo="3"),
])  # fmt: skip
def test_others_are_refused(call):
    with pytest.raises(
        ValueError, match=r"expected a (dict of )?string|a shape such|__foo__|'foo'; expected one"
    ):
        call()


def test_files_of_mxnet_hand_variables_the_attributes_of_their_operator():
    text = dense(sym.var("v")).tojson()
    text = text.replace('"name": "f_weight",', '"name": "f_weight", "attr": {"num_hidden": "2"},')
    graph = sym.load_json(text)
    assert graph.attr_dict()["f_weight"] == {"num_hidden": "2"}
    assert graph.infer_shape(v=(1, 3))[0] == [(1, 3), (2, 3), (2,)]
