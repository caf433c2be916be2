"""The oneDNN engine: what it hands to libdnnl and how; values are the conformance suite's."""

import re

import numpy as np
import pytest

import upconv
from tests.support.paths import ROOT
from tests.support.processes import printed
from upconv import testing
from upconv.activations import Activation
from upconv.engines import load
from upconv.engines.base import Primitive
from upconv.errors import EngineMissing
from upconv.geometry import Axis, fitted
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem, WeightLayout

try:
    ENGINE = load("onednn")
except EngineMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)

from upconv.engines.onednn.candidates import FAULTS, candidate, layout_strategies
from upconv.engines.onednn.descriptors import Operation
from upconv.engines.onednn.library import runtime

# Below AVX-512 the library has fewer implementations, and takes matrix products for most layers.
AVX512 = 0x20
wide_vectors = pytest.mark.skipif(
    not runtime().library.get_effective_cpu_isa() & AVX512,
    reason="states what libdnnl takes with AVX-512, which is not here or not allowed to it",
)

AXES = (Axis(5, 3, 2, 1, 1, 0), Axis(7, 4, 3, 1, 2, 3))
PROBLEM = Problem(Direction.FORWARD, AXES, 2, 32, 48, layout=DataLayout.NXC)


class TestWeights:
    @pytest.mark.parametrize("layout", WeightLayout)
    @pytest.mark.parametrize("groups", [1, 3])
    @pytest.mark.parametrize("direction", Direction)
    def test_are_described_where_they_lie(
        self, layout: WeightLayout, groups: int, direction: Direction
    ) -> None:
        """Strides of the description lead to the element that the layout means."""
        problem = PROBLEM.replace(
            in_channels=6, out_channels=12, groups=groups, weight_layout=layout, direction=direction
        )
        w = np.arange(np.prod(problem.weight_shape)).reshape(problem.weight_shape)
        iox = w.transpose(layout.to_iox(2)).reshape(groups, 6 // groups, 12 // groups, 3, 4)
        into_out = iox.swapaxes(1, 2) if direction is Direction.FORWARD else iox
        described = Operation.of(problem).weights
        step = [stride * w.itemsize for stride in described.strides]
        seen = np.lib.stride_tricks.as_strided(w, described.dims, step)
        np.testing.assert_array_equal(seen, into_out if groups > 1 else into_out[0])

    @pytest.mark.parametrize("direction", Direction)
    def test_are_left_to_the_library_beside_channels_last_data(self, direction: Direction) -> None:
        """Its reference loops would take a thousand times as long."""
        primitive = ENGINE.build(PROBLEM.replace(direction=direction), 1)
        assert "ref:any" not in primitive.description

    def test_that_suit_the_library_are_not_copied(self) -> None:
        problem = PROBLEM.replace(layout=DataLayout.NCX)
        primitive = ENGINE.build(problem, 1, "plain")
        assert "gemm" in primitive.description
        weight = testing.operands(problem).b
        assert np.shares_memory(primitive.pack(weight).array, weight)

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("direction", Direction)
    @pytest.mark.parametrize("layout", DataLayout)
    @pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
    def test_and_data_that_are_not_finite_reach_what_they_should(
        self, value: float, direction: Direction, layout: DataLayout, dtype: DType
    ) -> None:
        """Where the reference has a number, NaN or infinity, so has this engine, by every way."""
        odd = {"in_channels": 51, "out_channels": 15, "groups": 3}
        deep = {"in_channels": 32, "out_channels": 32, "groups": 32}
        line = (Axis(6, 2, 3),)
        for changes in (
            {}, {"axes": (Axis(4, 3, 1, 1, 1, 1),) * 2}, odd, {**odd, "axes": line}, deep,
            {**deep, "axes": line}, {"in_channels": 17, "out_channels": 1, "axes": line},
            {"in_channels": 3, "out_channels": 5, "axes": (Axis(4, 1),)},
        ):  # fmt: skip
            problem = PROBLEM.replace(**changes)
            problem = problem.replace(direction=direction, layout=layout, dtype=dtype)
            if ENGINE.refuses(problem):
                continue
            for which in ("a", "b"):
                given = testing.operands(problem)
                array = getattr(given, which)
                array.flat[77 % array.size] = value
                wanted = testing.compute(load("reference"), problem, given).astype(np.float64)
                for variant in ENGINE.variants(problem, 1):
                    primitive, out = ENGINE.build(problem, 1, variant), given.before.copy()
                    bare = direction is Direction.WEIGHT_GRAD
                    primitive.run(out, given.a, given.b if bare else primitive.pack(given.b))
                    np.testing.assert_array_equal(np.isnan(out), np.isnan(wanted), variant)
                    np.testing.assert_array_equal(np.isinf(out), np.isinf(wanted), variant)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.INPUT_GRAD])
def test_activations_keep_nan(
    activation: Activation, layout: DataLayout, direction: Direction
) -> None:
    slope = 0.2 if activation is Activation.LEAKY_RELU else 0.0
    problem = PROBLEM.replace(
        layout=layout, direction=direction, epilogue=Epilogue(activation, slope, residual=True)
    )
    given = testing.operands(problem)
    given.a.flat[5], given.a.flat[95], given.a.flat[200] = np.nan, np.inf, -np.inf
    wanted = testing.compute(load("reference"), problem, given)
    assert np.isnan(wanted).any()
    for variant in ENGINE.variants(problem, 1):
        primitive, out = ENGINE.build(problem, 1, variant), given.before.copy()
        primitive.run(out, given.a, primitive.pack(given.b), None, given.residual)
        np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4, err_msg=variant)


class _Strategy:
    """The engine, made to take one way."""

    name = "onednn"

    def __init__(self, variant: str) -> None:
        self._variant = variant

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        return ENGINE.build(problem, threads, self._variant)


class TestWays:
    @wide_vectors
    def test_channels_first_data_is_reordered_and_channels_last_data_is_not(self) -> None:
        first = ENGINE.build(PROBLEM.replace(layout=DataLayout.NCX), 1).description
        assert "2 reorders of data" in first
        assert "data as given" in ENGINE.build(PROBLEM, 1).description

    def test_the_librarys_cache_hides_no_implementation(self) -> None:
        """Its cached descriptor of the plain way, the same arrays, has no next implementation."""
        problem = PROBLEM.replace(
            axes=(Axis(1, 1, 2),), batch=5, in_channels=63, out_channels=120, groups=3, bias=True,
            epilogue=Epilogue(Activation.LEAKY_RELU, 0.2, residual=True),
        )  # fmt: skip
        known = ENGINE.variants(problem, 1)
        for _ in range(2):
            assert ENGINE.variants(problem, 1) == known
            for variant in known:
                testing.check(_Strategy(variant), problem)

    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind.value} {fault.name}")
    def test_implementations_that_err_are_left_out(self, fault) -> None:
        axes = tuple(Axis(5, 3, 2, 1, 1, 1) for _ in range(fault.rank))
        for direction in Direction:
            for channels in (3, 16):
                problem = PROBLEM.replace(
                    axes=axes, direction=direction, dtype=DType.BFLOAT16, out_channels=channels
                )
                if ENGINE.refuses(problem) is None:
                    found = candidate(runtime(), problem, 1, layout_strategies(problem)[0])
                    if (
                        found is not None
                        and found.offer.operation.kind is fault.kind
                        and fault.when(problem, found.offer.operation)
                    ):
                        assert fault.name not in found.implementation


@wide_vectors
def test_a_plan_with_channels_last_data_executes_one_primitive_and_no_reorder() -> None:
    code = (
        "import numpy as np, upconv\n"
        "from upconv.engines.onednn import selftest\n"
        "selftest.run = lambda *_: None\n"
        "rng = np.random.default_rng(0)\n"
        "x = rng.standard_normal((2, 9, 11, 32), np.float32)\n"
        "w = rng.standard_normal((32, 48, 4, 4), np.float32)\n"
        "plan = upconv.plan(x.shape, w, stride=2, padding=1, layout='NXC', engine='onednn')\n"
        "for _ in range(5): plan(x)\n"
        "g = rng.standard_normal(plan.output_shape, np.float32)\n"
        "upconv.conv_transpose_backward(g, x, w, stride=2, padding=1, layout='NXC',\n"
        "                               engine='onednn', needs=('x', 'weight'))\n"
    )
    told = printed(code, ONEDNN_VERBOSE="profile_exec")
    executed = [line.split(",") for line in told.splitlines() if ",exec," in line]
    data = [line for line in executed if line[3] != "reorder"]
    assert [line[3] for line in data] == ["deconvolution"] * 5 + ["convolution"] * 2
    # Weights alone: packed once for the plan, once for the input gradient; their gradient unpacked.
    reorders = [line for line in executed if line[3] == "reorder"]
    assert len(reorders) <= 3
    assert all(re.search(r"\b(48x32|32x48)x4x4\b", ",".join(line)) for line in reorders)


REFUSED = {
    "float64": PROBLEM.replace(dtype=DType.FLOAT64),
    "one to three spatial axes": PROBLEM.replace(axes=(Axis(2, 2),) * 4),
    "32 bits": PROBLEM.replace(axes=(Axis(1 << 20, 3), Axis(1 << 20, 3))),
    "unrolls kernels": PROBLEM.replace(axes=(Axis(3, 5000),)),
    "set the gradient of taps": PROBLEM.replace(
        direction=Direction.WEIGHT_GRAD, axes=(fitted(2, 3, 3, 2, 3, 2),)
    ),
}


class TestRefusals:
    @pytest.mark.parametrize("words", REFUSED)
    def test_say_why(self, words: str) -> None:
        reason = ENGINE.refuses(REFUSED[words])
        assert reason is not None
        assert words in reason

    @pytest.mark.parametrize("words", REFUSED)
    def test_are_told_in_the_documentation(self, words: str) -> None:
        page = ROOT / "docs" / "onednn.md"
        assert words in page.read_text(encoding="utf-8")

    def test_reference_loops_are_refused(self) -> None:
        dilated = PROBLEM.replace(axes=(Axis(5, 3, 2, 2),), dtype=DType.FLOAT16)
        reason = ENGINE.refuses(dilated)
        if reason is None:  # a processor or a version that has more
            testing.check(ENGINE, dilated)
        else:
            assert "reference loops" in reason


def test_what_only_the_library_cannot_do_is_done() -> None:
    """Begin crops below zero, output padding of a stride or more, arrays without elements."""
    x, w = np.ones((1, 4, 5, 5), np.float32), np.ones((4, 2, 3, 3), np.float32)
    for keywords in ({"padding": -2}, {"output_padding": 7, "stride": 2}, {"padding": (3, -4)}):
        got = upconv.conv_transpose(x, w, engine="onednn", **keywords)
        wanted = upconv.conv_transpose(x, w, engine="reference", **keywords)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    empty = upconv.conv_transpose(x[:, :, :0], w, engine="onednn")
    assert empty.shape == (1, 2, 2, 7)
    assert not empty.any()
    assert upconv.conv_transpose(x[:0], w, engine="onednn").shape == (0, 2, 7, 7)
