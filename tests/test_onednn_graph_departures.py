"""Where libdnnl and its document differ, and what upconv does: the table of docs/onednn-graph.md.

Every row of the table is a function here: `own` shows what upconv computes, against values that
come from elsewhere, and `theirs` that the library still does what the row says, where it is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import graph_cases
from upconv import ArgumentError, EngineError, EngineMissing
from upconv.onednn_graph import SCHEMAS, Graph, LibraryProcess, LogicalTensor, Op
from upconv.onednn_graph.schemas import BOTH, Attribute, Form, Rule

PAGE = Path(__file__).parents[1] / "docs" / "onednn-graph.md"
WINDOW = {"strides": [2], "pads_begin": [0], "pads_end": [0], "dilations": [1]}
NAMES = {"float32": "f32", "bfloat16": "bf16", "int32": "s32"}


class Bench:
    """One operation by upconv and, where it is there, by libdnnl."""

    def __init__(self, library: LibraryProcess | None) -> None:
        self.library = library
        self.rng = np.random.default_rng(21)

    def draw(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def graph(self, kind, inputs, words, out=None, rule="library") -> Graph:
        graph = Graph(rule=rule)
        tensors = [LogicalTensor(i, NAMES[a.dtype.name], a.shape) for i, a in enumerate(inputs)]
        result = LogicalTensor(9, tensors[0].data_type, out)
        graph.add_op(Op(1, kind, tensors, [result], {**WINDOW, **words}))
        graph.finalize()
        return graph

    def own(self, kind, inputs, words=None, out=None, rule="library") -> np.ndarray:
        graph = self.graph(kind, inputs, words or {}, out, rule)
        return graph.execute(dict(enumerate(inputs)))[9]

    def theirs(self, kind, inputs, words=None, out=None, rule="library"):
        """The library's result, its refusal as text, or None without a library."""
        if self.library is None:
            return None
        graph = self.graph(kind, inputs, words or {}, out, rule)
        try:
            return self.library.run(graph, dict(enumerate(inputs)))[9]
        except EngineError as error:
            return str(error)

    def says(self, text: str, *case, **how) -> None:
        found = self.theirs(*case, **how)
        assert found is None or (isinstance(found, str) and text in found), found


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    try:
        library = LibraryProcess(threads=1)
    except EngineMissing:
        yield Bench(None)
        return
    with library:
        yield Bench(library)


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert np.abs(got).max() > 0.1


def odd_position(bench: Bench) -> None:
    """T = 1 with I = 5, k = 3, s = 2, O = 10. By hand: y[o] = sum of x[i]*w[o + p - 2i]."""
    x, w = bench.draw(1, 5, 1), bench.draw(3, 1, 1)
    for mode, p_library, p_document in (("SAME_UPPER", 0, 1), ("SAME_LOWER", 1, 0)):
        for rule, word, p in (
            ("library", mode, p_library), ("document", mode.lower(), p_document),
        ):  # fmt: skip
            wanted = [
                sum(x[0, i, 0] * w[o + p - 2 * i, 0, 0] for i in range(5) if 0 <= o + p - 2 * i < 3)
                for o in range(10)
            ]
            for kind in ("ConvTranspose", "ConvolutionBackwardData"):
                got = bench.own(kind, [x, w], {"auto_pad": word}, (1, 10, 1), rule)
                close(got.ravel(), np.array(wanted))
        words = {"auto_pad": mode, "dst_shape": [1, 10, 1]}
        found = bench.theirs("ConvolutionBackwardData", [x, w], words)
        if found is not None:
            close(found, bench.own("ConvolutionBackwardData", [x, w], words))


def total_with_output_padding(bench: Bench) -> None:
    """I = 5, k = 4, s = 2, output_padding 1, O = 11: T is 12 - 11 + 1 = 2, but 3 by the library."""
    x, w = bench.draw(1, 5, 1), bench.draw(4, 1, 1)
    words = {"output_padding": [1], "dst_shape": [1, 11, 1]}
    wanted = [
        sum(x[0, i, 0] * w[o + 1 - 2 * i, 0, 0] for i in range(5) if 0 <= o + 1 - 2 * i < 4)
        for o in range(11)
    ]
    got = bench.own(
        "ConvolutionBackwardData", [x, w], {**words, "auto_pad": "same_upper"}, rule="document"
    )
    close(got.ravel(), np.array(wanted))
    refused = {**words, "auto_pad": "SAME_UPPER"}
    with pytest.raises(ArgumentError, match="dst_shape on axis 0"):
        bench.own("ConvolutionBackwardData", [x, w], refused)
    bench.says("SIGABRT", "ConvolutionBackwardData", [x, w], refused)


def spelling_of_auto_pad(bench: Bench) -> None:
    pair = [bench.draw(1, 5, 2), bench.draw(3, 4, 2)]
    close(
        bench.own("ConvTranspose", pair, {"auto_pad": "valid"}, rule="document"),
        bench.own("ConvTranspose", pair, {"auto_pad": "VALID"}),
    )
    bench.says("invalid_graph_op", "ConvTranspose", pair, {"auto_pad": "valid"}, rule="document")


def weights_of_conv_transpose(bench: Bench) -> None:
    """(C_in/groups, C_out, *k) by the document; here IOX, groups 2: the blocks side by side."""
    x, w = bench.draw(1, 5, 4), bench.draw(2, 6, 3)
    words = {"groups": 2, "weights_format": "IOX"}
    got = bench.own("ConvTranspose", [x, w], words, rule="document")
    halves = [
        bench.own("ConvTranspose", [x[..., 2 * j :][..., :2], w[:, 3 * j :][:, :3]],
                  {"weights_format": "IOX"})
        for j in range(2)
    ]  # fmt: skip
    close(got, np.concatenate(halves, axis=-1))
    g = bench.draw(*got.shape)
    dw = bench.own(
        "ConvTransposeBackwardWeights",
        [x, g],
        {**words, "weights_shape": w.shape},
        None,
        "document",
    )
    assert np.isclose(np.vdot(dw, w), np.vdot(got, g), rtol=1e-4)
    bench.says("SIGABRT", "ConvTranspose", [x, w], words, rule="document")


def names_of_weights(bench: Bench) -> None:
    pair = [bench.draw(1, 5, 2), bench.draw(3, 4, 2)]
    for rule in ("library", "document"):
        with pytest.raises(ArgumentError, match="weights_format"):
            bench.own("ConvTranspose", pair, {"weights_format": "XIO"}, rule=rule)
        assert bench.own("ConvTranspose", pair, rule=rule).shape == (1, 11, 4)


def groups_of_backward_data(bench: Bench) -> None:
    x, w = bench.draw(1, 5, 4), bench.draw(3, 2, 4)
    words = {"groups": 2, "dst_shape": [1, 11, 4]}
    got = bench.own("ConvolutionBackwardData", [x, w], words)
    bench.says("invalid_shape", "ConvolutionBackwardData", [x, w], words)
    found = bench.theirs("ConvTranspose", [x, w], {"groups": 2})
    if found is not None:
        close(got, found)


def dst_shape_as_tensor(bench: Bench) -> None:
    pair = [bench.draw(1, 5, 2), bench.draw(3, 4, 2)]
    told = np.array([1, 12, 4], np.int32)
    words = {"dst_shape": [1, 12, 4]}
    got = bench.own("ConvolutionBackwardData", [*pair, told])
    bench.says("invalid_shape", "ConvolutionBackwardData", [*pair, told])
    bench.says("invalid_graph_op", "ConvolutionBackwardData", [*pair, told], None, (1, 12, 4))
    found = bench.theirs("ConvolutionBackwardData", pair, words)
    if found is not None:
        close(got, found)


def weights_shape_as_tensor(bench: Bench) -> None:
    pair = [bench.draw(1, 5, 2), bench.draw(1, 11, 4)]
    told = np.array([3, 4, 2], np.int32)
    kind = "ConvTransposeBackwardWeights"
    got = bench.own(kind, [*pair, told])
    bench.says("invalid_shape", kind, [*pair, told])
    found = bench.theirs(kind, pair, {"weights_shape": [3, 4, 2]})
    if found is not None:
        close(got, found)


def without_dst_shape(bench: Bench) -> None:
    """O = s*(I - 1) + d*(k - 1) + 1 - pads + output_padding, as for ConvTranspose."""
    pair = [bench.draw(1, 5, 2), bench.draw(3, 4, 2)]
    got = bench.own("ConvolutionBackwardData", pair, {"output_padding": [1]})
    assert got.shape == (1, 12, 4)
    bench.says("invalid_shape", "ConvolutionBackwardData", pair, {"output_padding": [1]})
    close(got, bench.own("ConvTranspose", pair, {"output_padding": [1]}))


def contradicting_dst_shape(bench: Bench) -> None:
    pair, words = [bench.draw(1, 2, 5), bench.draw(3, 4, 2)], {"data_format": "NCX"}
    case = ("ConvolutionBackwardData", pair, {**words, "dst_shape": [1, 4, 12]}, (1, 4, 11))
    got, found = bench.own(*case), bench.theirs(*case)
    if found is not None:
        close(got, found)
    with pytest.raises(ArgumentError, match=r"dst_shape of op 1 .* is \(1, 4, 12\)"):
        bench.own(*case, rule="document")


def known_dims_of_channels_last(bench: Bench) -> None:
    """I = 5, k = 3, s = 2: O may be 11 or 12, and NXC forgets that it is known to be 12."""
    pair = [bench.draw(1, 5, 2), bench.draw(3, 4, 2)]
    got = bench.own("ConvTranspose", pair, {}, (1, 12, 4))
    bench.says("invalid_shape", "ConvTranspose", pair, {}, (1, 12, 4))
    found = bench.theirs("ConvTranspose", pair, {"output_padding": [1]})
    if found is not None:
        close(got, found)


def output_padding_of_gradients(bench: Bench) -> None:
    pair, words = [bench.draw(1, 12, 4), bench.draw(3, 4, 2)], {"output_padding": [1]}
    kind = "ConvTransposeBackwardData"
    got = bench.own(kind, pair, words, rule="document")
    close(got, bench.own(kind, pair))
    with pytest.raises(ArgumentError, match="The document has it, the library refuses it"):
        bench.own(kind, pair, words)
    bench.says("invalid_graph_op", kind, pair, words, rule="document")


def dilated_gradient(bench: Bench) -> None:
    pair, words = [bench.draw(1, 13, 4), bench.draw(3, 4, 2)], {"dilations": [2]}
    got = bench.own("ConvTransposeBackwardData", pair, words)
    bench.says("SIGABRT", "ConvTransposeBackwardData", pair, words)
    found = bench.theirs("Convolution", pair, words)  # the same, said otherwise
    if found is not None:
        close(got, found)


def same_weight_gradient(bench: Bench) -> None:
    """I = 3, O = 6: pads are those of the forward operation, which the library works out of I."""
    x, g = bench.draw(1, 3, 2), bench.draw(1, 6, 4)
    words = {"auto_pad": "SAME_UPPER", "weights_shape": [3, 4, 2]}
    got = bench.own("ConvTransposeBackwardWeights", [x, g], words)
    found = bench.theirs("ConvTransposeBackwardWeights", [x, g], words)
    if found is not None:
        assert np.abs(found - got).max() > 0.1
        close(got, bench.theirs("ConvolutionBackwardWeights", [g, x], words))
    w = bench.draw(3, 4, 2)
    y = bench.own("ConvTranspose", [x, w], {"auto_pad": "SAME_UPPER"})
    assert np.isclose(np.vdot(y, g), np.vdot(got, w), rtol=1e-4)


def unmet_taps(bench: Bench) -> None:
    """k = 9, I = 2, O = 3, s = 4: most taps meet nothing, and their gradient is 0."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    pair = [bench.draw(1, 2, 9).astype(bfloat16), bench.draw(1, 3, 9).astype(bfloat16)]
    words = {"strides": [4], "pads_begin": [3], "pads_end": [2], "weights_shape": [4, 9, 9]}
    got = bench.own("ConvTransposeBackwardWeights", pair, words)
    met = [
        any(0 <= 4 * i + t - 3 < 3 for i in range(2)) for t in range(4)
    ]  # fmt: skip
    for t, meets in enumerate(met):
        assert bool(np.abs(got[t].astype(float)).max()) is meets
    found = bench.theirs("ConvTransposeBackwardWeights", pair, words)
    if isinstance(found, np.ndarray):
        np.testing.assert_array_equal(found[met], got[met])


def bias_gradient(bench: Bench) -> None:
    graph, data = Graph(), {0: bench.draw(2, 3, 4)}
    graph.add_op(Op(1, "BiasAddBackward", [LogicalTensor(0, "f32", (2, 3, 4))], [LogicalTensor(1)]))
    graph.finalize()
    np.testing.assert_allclose(graph.execute(data)[1], data[0].sum((0, 1)), rtol=1e-5)
    if bench.library is not None:
        with pytest.raises(EngineError, match="unimplemented"):
            bench.library.run(graph, data)


def gelu(bench: Bench) -> None:
    graph, data = Graph(rule="document"), {0: bench.draw(2, 9)}
    graph.add_op(Op(1, "GELU", [LogicalTensor(0, "f32", (2, 9))], [LogicalTensor(1)]))
    graph.finalize()
    got = graph.execute(data)[1]
    close(got, graph_cases.ACTIVATED["GELU"](data[0]))
    if bench.library is not None:
        close(got, bench.library.run(graph, data)[1])


def impossible_sizes(bench: Bench) -> None:
    pair = [bench.draw(1, 5, 2), bench.draw(3, 4, 2)]
    for words, out in (
        ({"output_padding": [2]}, None), ({}, (1, 14, 4)), ({"strides": [2, 2]}, None),
        ({"pads_begin": []}, None),
    ):  # fmt: skip
        with pytest.raises(ArgumentError):
            bench.own("ConvTranspose", pair, {"data_format": "NXC", **words}, out)
    bench.says("SIGABRT", "ConvTranspose", pair, {"output_padding": [2]})
    bench.says("SIGABRT", "ConvTranspose", pair, {"pads_begin": []})


def changed_constants(bench: Bench) -> None:
    """What upconv does is in test_onednn_graph_fusion: other data are refused."""
    graph = Graph()
    x, w, y = (
        LogicalTensor(0, "f32", (1, 5, 2)),
        LogicalTensor(1, "f32", (3, 4, 2), "constant"),
        LogicalTensor(2, "f32"),
    )
    graph.add_op(Op(1, "ConvTranspose", [x, w], [y], WINDOW))
    graph.finalize()
    data = {0: bench.draw(1, 5, 2), 1: bench.draw(3, 4, 2)}
    with graph.compile() as compiled:
        compiled.execute(data)
        with pytest.raises(ArgumentError, match="it is a constant"):
            compiled.execute({0: data[0], 1: 2 * data[1]})


DEPARTURES = {
    "odd position of SAME": odd_position,
    "total of SAME with output padding": total_with_output_padding,
    "spelling of auto_pad": spelling_of_auto_pad,
    "grouped weights of ConvTranspose": weights_of_conv_transpose,
    "names of weights_format": names_of_weights,
    "groups of ConvolutionBackwardData": groups_of_backward_data,
    "dst_shape as a tensor": dst_shape_as_tensor,
    "weights_shape as a tensor": weights_shape_as_tensor,
    "no dst_shape and no known dims": without_dst_shape,
    "dst_shape against known dims": contradicting_dst_shape,
    "known dims behind NXC": known_dims_of_channels_last,
    "output_padding of gradients": output_padding_of_gradients,
    "dilated ConvTransposeBackwardData": dilated_gradient,
    "SAME in ConvTransposeBackwardWeights": same_weight_gradient,
    "bf16 gradient of taps that meet nothing": unmet_taps,
    "BiasAddBackward": bias_gradient,
    "GELU": gelu,
    "sizes that fit nothing": impossible_sizes,
    "constants that change": changed_constants,
}


@pytest.mark.parametrize("name", DEPARTURES)
def test_a_row_of_the_table_holds(name: str, bench: Bench) -> None:
    DEPARTURES[name](bench)


def test_the_table_has_these_rows() -> None:
    section = PAGE.read_text().partition("## Where document and library differ")[2]
    rows = re.findall(r"^\| ([^|]+?) \|", section.partition("\n## ")[0], re.MULTILINE)
    assert rows[1:] == list(DEPARTURES)


def described(attribute: Attribute) -> str:
    """A row of the attribute tables, from the schema."""
    default = "required" if attribute.required else attribute.default
    if attribute.form is Form.STRING:
        words = ", ".join(f"`{word}`" for word in attribute.words)
        other = ", ".join(f"`{word}`" for word in attribute.words_of_document)
        accepted = f"{words}; document: {other}" if other else words
        default = f"`{attribute.words[0]}`"
    elif attribute.form in (Form.S64, Form.S64_LIST):
        accepted = f">= {attribute.low}"
        if default is None:
            default = "zeros" if attribute.name == "output_padding" else "absent"
    else:
        accepted = {"epsilon": ">= 0", "alpha": "finite", "use_dst": "`True`, `False`"}[
            attribute.name
        ]
    rules = "both" if attribute.rules == BOTH else attribute.rules[0].value
    default = "`True`" if default is True else default
    return f"| `{attribute.name}` | {attribute.form.value} | {default} | {accepted} | {rules} |"


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_page_has_every_operation_with_its_attributes(kind: str) -> None:
    text, schema = PAGE.read_text(), SCHEMAS[kind]
    found = re.search(rf"^(#+) (?:[^\n]*, )?{kind}(?:,[^\n]*)?$(.*?)(?=^#|\Z)", text, re.M | re.S)
    assert found, kind
    rows = re.findall(r"^\| `.*\|$", found[2], re.MULTILINE)
    assert rows == [described(attribute) for attribute in schema.attributes.values()]
    slots = [slot.name if slot.required else f"[{slot.name}]" for slot in schema.inputs]
    assert f"Inputs: {', '.join(slots)}." in found[2].replace("`", "")


def test_the_rules_are_the_dialects() -> None:
    assert [rule.value for rule in Rule] == ["library", "document"]
