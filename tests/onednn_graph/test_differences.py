"""Where libdnnl and its document differ, and what upconv does: the table of docs/onednn-graph.md.

Every row is a function here: it shows what upconv computes, against values that come from
elsewhere, and that the library still does what the row says, where there is one.
"""

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.onednn_graph_cases import FUNCTIONS, KINDS, Case, case
from tests.support.onednn_graph_library import Library, Refused
from tests.support.paths import ROOT
from tests.support.repeating import seeds
from upconv import ArgumentError, EngineMissing
from upconv.engines.onednn.library import runtime
from upconv.problem import DType

PAGE = ROOT / "docs" / "onednn-graph.md"
S2 = {"strides": [2]}
REQUIRED = {"pads_begin": [0], "pads_end": [0], "dilations": [1]}


class Bench:
    """One operation by upconv and, where it is there, by libdnnl."""

    def __init__(self, library: Library | None) -> None:
        self.library = library
        self.rng = np.random.default_rng(21)

    def draw(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def own(self, kind, arrays, words=None, rule="library") -> np.ndarray:
        return FUNCTIONS[kind](*arrays, **{**S2, **(words or {})}, rule=rule)

    def theirs(self, kind, arrays, words=None, result=None):
        """The library's result, its refusal as text, or None without a library."""
        if self.library is None:
            return None
        try:
            return self.library.run(kind, arrays, {**S2, **REQUIRED, **(words or {})}, result)
        except Refused as refusal:
            return str(refusal)

    def says(self, text: str, *case, **how) -> None:
        assert self.theirs(*case, **how) in (None, text)

    def agrees(self, got: np.ndarray, *case, **how) -> None:
        found = self.theirs(*case, **how)
        if found is not None:
            close(found, got)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    try:
        path = runtime().library.path
    except EngineMissing:
        yield Bench(None)
        return
    with Library(path) as library:
        yield Bench(library)


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape, (got, wanted)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert np.abs(got).max() > 0.1


def by_hand(x: np.ndarray, w: np.ndarray, begin: int, out: int) -> np.ndarray:
    """y[o] = sum of x[i]*w[o + p - 2i], one channel."""
    x, w = x.ravel(), w.ravel()
    terms = (
        [x[i] * w[o + begin - 2 * i] for i in range(len(x)) if 0 <= o + begin - 2 * i < len(w)]
        for o in range(out)
    )
    return np.array([sum(each) for each in terms])


def odd_position(bench: Bench) -> None:
    """T = 1 with I = 5, k = 3, s = 2, O = 10."""
    x, w = bench.draw(1, 5, 1), bench.draw(3, 1, 1)
    for mode, p_library, p_document in (("SAME_UPPER", 0, 1), ("SAME_LOWER", 1, 0)):
        for rule, word, p in (("library", mode, p_library), ("document", mode.lower(), p_document)):
            for kind in ("ConvTranspose", "ConvolutionBackwardData"):
                got = bench.own(kind, [x, w], {"auto_pad": word}, rule)
                close(got.ravel(), by_hand(x, w, p, 10))
        words = {"auto_pad": mode, "dst_shape": [1, 10, 1]}
        got = bench.own("ConvolutionBackwardData", [x, w], words)
        bench.agrees(got, "ConvolutionBackwardData", [x, w], words, result=(1, 10, 1))


def total_with_output_padding(bench: Bench) -> None:
    """I = 5, k = 4, s = 2, output_padding 1, O = 11: T is 12 - 11 + 1 = 2, but 3 by the library."""
    x, w = bench.draw(1, 5, 1), bench.draw(4, 1, 1)
    words = {"output_padding": [1], "dst_shape": [1, 11, 1]}
    kind = "ConvolutionBackwardData"
    got = bench.own(kind, [x, w], {**words, "auto_pad": "same_upper"}, rule="document")
    close(got.ravel(), by_hand(x, w, 1, 11))
    refused = {**words, "auto_pad": "SAME_UPPER"}
    with pytest.raises(ArgumentError, match="dst_shape on axis 0"):
        bench.own(kind, [x, w], refused)
    bench.says("SIGABRT", kind, [x, w], refused)


def spelling_of_auto_pad(bench: Bench) -> None:
    pair = [bench.draw(1, 5, 2), bench.draw(3, 4, 2)]
    close(
        bench.own("ConvTranspose", pair, {"auto_pad": "valid"}, rule="document"),
        bench.own("ConvTranspose", pair, {"auto_pad": "VALID"}),
    )
    for word, rule in (("valid", "library"), ("VALID", "document")):
        with pytest.raises(ArgumentError, match="auto_pad is"):
            bench.own("ConvTranspose", pair, {"auto_pad": word}, rule)
    bench.says("invalid_graph_op", "ConvTranspose", pair, {"auto_pad": "valid"})


def required_attributes(bench: Bench) -> None:
    pair = [bench.draw(1, 5, 2), bench.draw(3, 4, 2)]
    got = bench.own("ConvTranspose", pair)
    close(got, bench.own("ConvTranspose", pair, REQUIRED))
    if bench.library is not None:
        with pytest.raises(Refused, match="invalid_graph_op"):
            bench.library.run("ConvTranspose", pair, S2, None)


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
    bench.says("SIGABRT", "ConvTranspose", [x, w], words)


def names_of_weights(bench: Bench) -> None:
    pair = [bench.draw(1, 5, 2), bench.draw(3, 4, 2)]
    for rule in ("library", "document"):
        with pytest.raises(ArgumentError, match="weights_format"):
            bench.own("ConvTranspose", pair, {"weights_format": "XIO"}, rule)
        assert bench.own("ConvTranspose", pair, {"weights_format": "XOI"}, rule).shape == (1, 11, 4)
    bench.says("invalid_graph_op", "ConvTranspose", pair, {"weights_format": "XIO"})


def groups_of_backward_data(bench: Bench) -> None:
    x, w = bench.draw(1, 5, 4), bench.draw(3, 2, 4)
    words = {"groups": 2, "dst_shape": [1, 11, 4]}
    got = bench.own("ConvolutionBackwardData", [x, w], words)
    bench.says("invalid_shape", "ConvolutionBackwardData", [x, w], words)
    bench.agrees(got, "ConvTranspose", [x, w], {"groups": 2})


def shapes_as_tensors(bench: Bench) -> None:
    pair = [bench.draw(1, 5, 2), bench.draw(3, 4, 2)]
    told = np.array([1, 12, 4], np.int32)
    got = bench.own("ConvolutionBackwardData", pair, {"dst_shape": told})
    bench.says("invalid_shape", "ConvolutionBackwardData", [*pair, told])
    bench.says("invalid_graph_op", "ConvolutionBackwardData", [*pair, told], result=(1, 12, 4))
    words = {"dst_shape": [1, 12, 4]}
    bench.agrees(got, "ConvolutionBackwardData", pair, words, result=(1, 12, 4))
    pair, told = [bench.draw(1, 5, 2), bench.draw(1, 11, 4)], np.array([3, 4, 2], np.int32)
    kind = "ConvTransposeBackwardWeights"
    got = bench.own(kind, pair, {"weights_shape": told})
    bench.says("invalid_shape", kind, [*pair, told])
    bench.agrees(got, kind, pair, {"weights_shape": [3, 4, 2]}, result=(3, 4, 2))


def without_dst_shape(bench: Bench) -> None:
    """O = s*(I - 1) + d*(k - 1) + 1 - pads + output_padding, as for ConvTranspose."""
    pair, words = [bench.draw(1, 5, 2), bench.draw(3, 4, 2)], {"output_padding": [1]}
    got = bench.own("ConvolutionBackwardData", pair, words)
    assert got.shape == (1, 12, 4)
    bench.says("invalid_shape", "ConvolutionBackwardData", pair, words)
    close(got, bench.own("ConvTranspose", pair, words))


def output_padding_beside_dst_shape(bench: Bench) -> None:
    pair = [bench.draw(1, 5, 2), bench.draw(3, 4, 2)]
    words = {"output_padding": [1], "dst_shape": [1, 11, 4]}
    got = bench.own("ConvolutionBackwardData", pair, words)
    assert got.shape == (1, 11, 4)
    bench.agrees(got, "ConvolutionBackwardData", pair, words, result=(1, 11, 4))


def output_padding_of_gradients(bench: Bench) -> None:
    pair, words = [bench.draw(1, 12, 4), bench.draw(3, 4, 2)], {"output_padding": [1]}
    kind = "ConvTransposeBackwardData"
    close(bench.own(kind, pair, words, rule="document"), bench.own(kind, pair))
    with pytest.raises(ArgumentError, match="The library has no such attribute"):
        bench.own(kind, pair, words)
    bench.says("invalid_graph_op", kind, pair, words)


def dilated_gradient(bench: Bench) -> None:
    pair, words = [bench.draw(1, 13, 4), bench.draw(3, 4, 2)], {"dilations": [2]}
    got = bench.own("ConvTransposeBackwardData", pair, words)
    bench.says("SIGABRT", "ConvTransposeBackwardData", pair, words)
    bench.agrees(got, "Convolution", pair, words)  # the same, said otherwise


def same_weight_gradient(bench: Bench) -> None:
    """I = 3, O = 6: pads are those of the forward operation, which the library works out of I."""
    x, g = bench.draw(1, 3, 2), bench.draw(1, 6, 4)
    words = {"auto_pad": "SAME_UPPER", "weights_shape": [3, 4, 2]}
    got = bench.own("ConvTransposeBackwardWeights", [x, g], words)
    found = bench.theirs("ConvTransposeBackwardWeights", [x, g], words, result=(3, 4, 2))
    assert found is None or np.abs(found - got).max() > 0.1
    bench.agrees(got, "ConvolutionBackwardWeights", [g, x], words, result=(3, 4, 2))
    w = bench.draw(3, 4, 2)
    y = bench.own("ConvTranspose", [x, w], {"auto_pad": "SAME_UPPER"})
    assert np.isclose(np.vdot(y, g), np.vdot(got, w), rtol=1e-4)


def unmet_taps(bench: Bench) -> None:
    """k = 4, I = 2, O = 3, s = 4: half of the taps meet nothing, and their gradient is 0."""
    bfloat16 = DType.BFLOAT16.numpy
    pair = [bench.draw(1, 2, 9).astype(bfloat16), bench.draw(1, 3, 9).astype(bfloat16)]
    words = {"strides": [4], "pads_begin": [3], "pads_end": [2], "weights_shape": [4, 9, 9]}
    got = bench.own("ConvTransposeBackwardWeights", pair, words)
    met = [any(0 <= 4 * i + t - 3 < 3 for i in range(2)) for t in range(4)]
    for t, meets in enumerate(met):
        assert bool(np.abs(got[t].astype(float)).max()) is meets
    found = bench.theirs("ConvTransposeBackwardWeights", pair, words, result=(4, 9, 9))
    if isinstance(found, np.ndarray):
        np.testing.assert_array_equal(found[met], got[met])


def impossible_sizes(bench: Bench) -> None:
    pair = [bench.draw(1, 5, 2), bench.draw(3, 4, 2)]
    for words in ({"output_padding": [2]}, {"strides": [2, 2]}, {"pads_begin": []}):
        with pytest.raises(ArgumentError):
            bench.own("ConvTranspose", pair, words)
    bench.says("SIGABRT", "ConvTranspose", pair, {"output_padding": [2]})
    bench.says("SIGABRT", "ConvTranspose", pair, {"pads_begin": []})


DIFFERENCES = {
    "odd position of SAME": odd_position,
    "total of SAME with output padding": total_with_output_padding,
    "spelling of auto_pad": spelling_of_auto_pad,
    "pads and dilations omitted": required_attributes,
    "grouped weights of ConvTranspose": weights_of_conv_transpose,
    "names of weights_format": names_of_weights,
    "groups of ConvolutionBackwardData": groups_of_backward_data,
    "dst_shape and weights_shape as tensors": shapes_as_tensors,
    "no dst_shape": without_dst_shape,
    "output_padding beside dst_shape": output_padding_beside_dst_shape,
    "output_padding of gradients": output_padding_of_gradients,
    "dilated ConvTransposeBackwardData": dilated_gradient,
    "SAME in ConvTransposeBackwardWeights": same_weight_gradient,
    "bf16 gradient of taps without products": unmet_taps,
    "impossible sizes": impossible_sizes,
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_row_of_the_table_holds(name: str, bench: Bench) -> None:
    DIFFERENCES[name](bench)


def test_the_table_has_these_rows() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Where document and library differ")[2]
    rows = re.findall(r"^\| ([^|]+?) \|", section.partition("\n## ")[0], re.MULTILINE)
    assert rows[1:] == list(DIFFERENCES)


def agreed(library: Library, first: int, count: int) -> Counter[str]:
    """How many random cases of each kind agree; every one that the library computes must.

    A processor without arithmetic of a type aborts at each case of it, and each costs a process:
    after the first three no more are tried.
    """
    counted: Counter[str] = Counter()
    aborted: Counter[object] = Counter()
    able = set()
    for seed in seeds(first, first + 3 * count):
        if sum(counted.values()) == count:
            break
        dtype = (np.float32, np.float32, np.float16, DType.BFLOAT16.numpy)[seed // 6 % 4]
        if aborted[dtype] >= 3 and dtype not in able:
            continue
        one = case(seed, list(KINDS)[seed % 6], dtype=dtype)
        words = {key: value for key, value in one.attributes.items() if key != "rule"}
        try:
            wanted = library.run(one.kind, one.arrays, words, one.result)
        except Refused as refusal:  # 16-bit arithmetic; dims known behind NXC
            assert dtype != np.float32 or str(refusal) == "invalid_shape", f"{one}: {refusal}"  # noqa: PT017
            aborted[dtype] += str(refusal) == "SIGABRT"
            continue
        able.add(dtype)
        difference = one.difference(one.run(), wanted, ignore=unwritten(one))
        assert not difference, difference
        counted[one.kind] += 1
    return counted


def unwritten(one: Case) -> np.ndarray | bool:
    """bfloat16 gradients of taps that meet no data, which the library may leave unwritten."""
    weights = one.kind.endswith("Weights") and one.arrays[0].dtype.name == "bfloat16"
    return one.oracle(magnitudes=True) == 0 if weights else False


def test_random_calls_agree_with_the_library(bench: Bench) -> None:
    if bench.library is None:
        pytest.skip("libdnnl is not installed")
    counted = agreed(bench.library, 0, 100)
    assert sum(counted.values()) == 100
    assert min(counted[kind] for kind in KINDS) >= 10


@pytest.mark.long
def test_many_random_calls_agree_with_the_library(bench: Bench) -> None:
    if bench.library is None:
        pytest.skip("libdnnl is not installed")
    assert sum(agreed(bench.library, 10_000, 6000).values()) == 6000
