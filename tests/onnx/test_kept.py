"""What passes keep: names, outputs, metadata, subgraphs, functions, others' weights.

And the official tests of ONNX's operator, through every pass that applies.
"""

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="values are compared in ONNX Runtime")

import onnx
from onnx import numpy_helper

from tests.support.onnx_cases import official
from tests.support.onnx_rewriting import (
    assert_close,
    assert_same_values,
    refusal,
    rewritten,
    terms,
    values,
)
from tests.support.onnx_texts import normal, parsed
from upconv.dialects.onnx import Rule
from upconv.onnx.passes import PASSES

LAYERS = dict.fromkeys(PASSES, "strides=[2]") | {
    "replace_deconv": "pads=[1,0], dilations=[2]",
    "sub_pixel": "group=2, strides=[2]",
    "sub_pixel:unfolded": "group=2, strides=[3], pads=[0,1]",
    "sub_pixel:folded": "strides=[2], pads=[1,1]",
    "sub_pixel:polyphase": "group=2, strides=[3]",
    "fold_pad": "strides=[2], pads=[2,2]",
    "normalise": "strides=[2], auto_pad='VALID'",
    "split_groups": "group=2, strides=[2]",
    "to_rank": "group=2, strides=[2]",
    "symmetric_pads": "strides=[2], pads=[1,0]",
    "no_output_padding": "strides=[2], output_padding=[1]",
    "no_pads": "strides=[2], pads=[1,1]",
    "no_dilation": "dilations=[2]",
}
"""Pass -> attributes of a layer, two channels in and out, four taps, where it fires."""

OUTPUTS = {name: 1 if "group=2" in LAYERS[name] else 2 for name in LAYERS}


def layer(name: str, x: str = "x", y: str = "y") -> str:
    """The layer in a text, with what the pass folds around it."""
    attributes = LAYERS[name].replace("'", '"')
    inner = f"ConvTranspose<{attributes}>"
    if name == "fold_batch_norm":
        return f"{y}0 = {inner}({x}, w, b) {y} = Mul({y}0, c)"
    if name == "fold_pad":
        return f"{x}0 = Pad({x}, around) {y} = {inner}({x}0, w, b)"
    if name == "fold_slice":
        return f"{y}0 = {inner}({x}, w, b) {y} = Slice({y}0, one, far, two)"
    return f"{y} = {inner}({x}, w, b)"


def arrays(name: str) -> dict[str, np.ndarray]:
    return {
        "w": normal(1, 2, OUTPUTS[name], 4), "b": normal(2, 2), "c": normal(3, 2, 1),
        "around": np.array([0, 0, 1, 0, 0, 0]), "one": np.array([1]), "two": np.array([2]),
        "far": np.array([(1 << 63) - 1]),
    }  # fmt: skip


def alone(name: str) -> str:
    """A graph of the layer alone."""
    return f"g (float[N,2,L] x) => (float[N,2,M] y) {{ {layer(name)} }}"


def model(name: str, text: str, fed: str = "") -> onnx.ModelProto:
    found = parsed(text, **{k: v for k, v in arrays(name).items() if k != fed})
    for node in found.graph.node:
        if node.op_type == "ConvTranspose":
            node.name = node.name or f"layer {node.output[0]}"
    return found


every_pass = pytest.mark.parametrize(  # `normalise` by a rule writes what `normalise` writes
    "name", [name for name in LAYERS if not name.startswith("normalise:")]
)


@every_pass
def test_names_outputs_and_metadata_are_kept(name: str) -> None:
    before = model(
        name, f"g (float[N,2,L] in) => (float[N,2,M] out) {{ {layer(name, 'in', 'out')} }}"
    )
    before.graph.name = "kept"
    before.producer_name, before.doc_string = "somebody", "a model"
    before.metadata_props.add(key="license", value="free")
    before.graph.output[0].metadata_props.add(key="of", value="an output")
    for node in before.graph.node:
        node.doc_string = "of a node"
        node.metadata_props.add(key="scope", value="decoder.up")
    after, [step] = rewritten(before, name)
    assert step.fired, step.refusal
    assert step.by == name
    assert step.node in ("layer out", "layer out0")
    assert after.graph.name == "kept"
    assert (after.producer_name, after.doc_string) == ("somebody", "a model")
    assert [(p.key, p.value) for p in after.metadata_props] == [("license", "free")]
    assert [value.name for value in after.graph.input] == ["in"]
    assert after.graph.input == before.graph.input
    assert after.graph.output == before.graph.output
    made = [n for n in after.graph.node if any(p.key == "upconv.pass" for p in n.metadata_props)]
    assert made == list(after.graph.node)
    last = {p.key: p.value for p in after.graph.node[-1].metadata_props}
    assert last["scope"] == "decoder.up"
    assert last["upconv.replaces"] == step.node
    assert after.graph.node[-1].doc_string == "of a node"
    deconvolutions = [n.name for n in after.graph.node if n.op_type == "ConvTranspose"]
    assert len(deconvolutions) != 1 or deconvolutions == [step.node]
    names = [n.name for n in after.graph.node] + [o for n in after.graph.node for o in n.output]
    assert len(set(names)) == len(names)
    read = {i for node in after.graph.node for i in node.input}
    assert {tensor.name for tensor in after.graph.initializer} <= read


@every_pass
def test_an_output_that_others_read_and_a_weight_that_they_share_stay(name: str) -> None:
    text = f"""g (float[N,2,L] x) => (float[N,2,M] y, float[N,2,M] r, float[N,2,K] q)
        {{ {layer(name)} r = Relu(y) q = Conv<group={2 // OUTPUTS[name]}>(x, w, b) }}"""
    before = model(name, text)
    after, [step] = rewritten(before, name)
    assert step.fired, step.refusal
    assert [value.name for value in after.graph.output] == ["y", "r", "q"]
    kept = {tensor.name: numpy_helper.to_array(tensor) for tensor in after.graph.initializer}
    np.testing.assert_array_equal(kept["w"], arrays(name)["w"])
    assert_same_values(before, after)


@every_pass
def test_a_layer_in_a_branch_of_if(name: str) -> None:
    """x and the weights come from outside the branch; constants are made inside it."""
    text = f"""g (float[N,2,L] x, bool flag) => (float[N,2,M] z)
        {{ z = If (flag) <
            then_branch = a () => (float[N,2,P] y) {{ {layer(name)} }},
            else_branch = e () => (float[N,2,Q] n) {{ n = Neg(x) }} > }}"""
    before = model(name, text)
    after, [step] = rewritten(before, name)
    assert step.fired, step.refusal
    inside = next(a.g for a in after.graph.node[0].attribute if a.name == "then_branch")
    assert [value.name for value in inside.output] == ["y"]
    assert not inside.initializer
    x = normal(9, 2, 2, 7)
    for flag in (True, False):
        given = {"x": x, "flag": np.array(flag)}
        assert_close(values(before, given), values(after, given), 8)


@every_pass
def test_a_layer_in_a_function(name: str) -> None:
    head = '<ir_version: 9, opset_import: ["": 17, "own": 1]>\n'
    found = model(name, alone(name))
    before = onnx.parser.parse_model(
        head
        + "g (float[N,2,L] x) => (float[N,2,M] z) { z = own.up(x) }\n"
        + '<domain: "own", opset_import: ["": 17]> up (x) => (y) { y = Neg(x) }'
    )
    [function] = before.functions
    del function.node[:]
    for tensor in found.graph.initializer:
        constant = onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        function.node.append(constant)
    function.node.extend(found.graph.node)
    after, [step] = rewritten(before, name)
    assert step.fired, step.refusal
    assert len(after.graph.node) == 1
    assert not after.graph.initializer
    assert_same_values(before, after)


def test_names_in_branches_of_a_function_are_not_given_again() -> None:
    before = parsed("""<ir_version: 9, opset_import: ["": 17, "own": 1]>
        g (float[1, 1, L] x, bool c) => (float[1, 1, M] y) { y = own.f(x, c) }
        <domain: "own", opset_import: ["": 17]> f (x, c) => (y) {
            w = Constant<value = float[1, 1, 2] {1, 2}>() [up] t = ConvTranspose<strides=[2]>(x, w)
            y = If (c) < then_branch = a () => (z) { s = Neg(t) z = Neg(s) },
                         else_branch = b () => (e) { e = Identity(t) }> }""")
    then = before.functions[0].node[2].attribute[0].g
    then.node[0].output[0] = then.node[1].input[0] = "up/Conv_output"
    _, [step] = rewritten(before, "sub_pixel")  # checked: no name is defined twice
    assert step.fired, step.refusal


NEED_THE_WEIGHT = (
    *("replace_deconv", "sub_pixel", "fold_batch_norm", "no_dilation", "no_output_padding"),
    *("to_rank", "split_groups"),
)
NEED_THE_BIAS = ("replace_deconv", "sub_pixel", "fold_batch_norm", "split_groups")


@every_pass
@pytest.mark.parametrize("fed", ["w", "b"])
def test_what_is_computed_matters_to_passes_that_need_its_value(name: str, fed: str) -> None:
    shape = {"w": f"2,{OUTPUTS[name]},4", "b": "2"}[fed]
    text = alone(name).replace(" x)", f" x, float[{shape}] {fed})")
    before = model(name, text, fed=fed)
    if fed == "w" and name.startswith(NEED_THE_WEIGHT):
        assert "its weight is not constant" in refusal(before, name)
    elif fed == "b" and name.startswith(NEED_THE_BIAS):
        assert "its bias is not constant" in refusal(before, name)
    else:
        after, [step] = rewritten(before, name)
        assert step.fired, step.refusal
        assert_same_values(before, after)


@every_pass
def test_a_layer_of_float64(name: str) -> None:
    before = model(name, alone(name).replace("float[", "double["))
    for tensor in before.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float64), tensor.name))
    after, [step] = rewritten(before, name)
    assert step.fired, step.refusal
    assert 1 not in {tensor.data_type for tensor in after.graph.initializer}
    assert_same_values(before, after, {"L": [6]}, "reference")


# The official tests -------------------------------------------------------------------------------


OFFICIAL = official()
assert len(OFFICIAL) >= 11


@pytest.mark.parametrize("case", OFFICIAL)
def test_the_official_tests_hold_after_every_pass(case: str) -> None:
    """Their weights are inputs; here they are initialisers, as in models."""
    fired = 0
    for (x, w), wanted in OFFICIAL[case].data_sets:
        before = onnx.ModelProto.FromString(OFFICIAL[case].model.SerializeToString())
        before.ir_version = min(before.ir_version, 10)
        before.opset_import[0].version = min(before.opset_import[0].version, 22)
        del before.graph.input[1:]
        before.graph.initializer.append(numpy_helper.from_array(w, before.graph.node[0].input[1]))
        for name in PASSES:
            after, [step] = rewritten(before, name, rule=Rule.ONNXRUNTIME)
            if step.fired and name not in ("normalise:spec", "normalise:openvino"):
                found = values(after, {before.graph.input[0].name: x})
                assert_close(wanted, found, terms(before))
                fired += 1
    assert fired >= 3
