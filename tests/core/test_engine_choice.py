"""Which engine does a problem: the table, refusals, the environment, and those that defer."""

import re
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

import upconv
from tests.support.counting_engine import BASE, CountingEngine
from upconv import engine_choice
from upconv.engine_choice import Algorithm, choose, select
from upconv.engines import ENGINES, load
from upconv.engines.base import Candidate, ranked
from upconv.engines.jit.cpu import Cpu, target
from upconv.engines.jit.kernel_choice import table
from upconv.errors import ArgumentError, EngineMissing, EngineRefusal
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, Problem

X, W = np.ones((1, 2, 5), np.float32), np.ones((2, 3, 4), np.float32)


class ShyEngine(CountingEngine):
    name = "shy"

    def refuses(self, problem: Problem) -> str:
        return f"it is shy of {problem.rank} spatial axes"


def missing_engine() -> None:
    raise EngineMissing("it is not here; pip install 'upconv[missing]'")


class TestChoice:
    def test_walks_the_table_and_keeps_each_refusal(self, fresh_cache) -> None:
        reference = ENGINES["reference"]
        ENGINES.clear()
        ENGINES.update({"shy": f"{__name__}:ShyEngine", "missing": f"{__name__}:missing_engine"})
        ENGINES["reference"] = reference
        upconv.cache_clear()
        choice = choose(BASE)
        assert choice.engine is load("reference")
        assert [str(refusal) for refusal in choice.refusals] == [
            "shy: it is shy of 2 spatial axes",
            "missing: it is not here; pip install 'upconv[missing]'",
        ]
        told = upconv.explain((1, 2, 5), (2, 3, 4))
        assert told.refusals[0].reason == "it is shy of 1 spatial axes"
        assert [s.reason for s in upconv.engines() if not s.available] == [
            "it is not here; pip install 'upconv[missing]'"
        ]

    @pytest.fixture(autouse=True)
    def table(self):
        before = dict(ENGINES)
        yield
        ENGINES.clear()
        ENGINES.update(before)
        upconv.cache_clear()

    def test_an_engine_asked_for_by_name_is_never_replaced(self) -> None:
        engine = CountingEngine()
        with pytest.raises(EngineRefusal, match=r"'counting' cannot do input_grad .*forward only"):
            select(BASE.replace(direction=Direction.INPUT_GRAD), engine)
        with pytest.raises(ArgumentError, match=r"engine is 'fast'; expected one of .*reference"):
            select(BASE, "fast")

    def test_nobody_left_is_said_with_all_reasons(self, fresh_cache) -> None:
        ENGINES.clear()
        ENGINES["shy"] = f"{__name__}:ShyEngine"
        upconv.cache_clear()
        with pytest.raises(EngineRefusal, match=r"No engine supports .* shy: it is shy of 2"):
            select(BASE, None)

    def test_the_environment_names_an_engine(self, monkeypatch, fresh_cache) -> None:
        monkeypatch.setenv("UPCONV_ENGINE", "nonsense")
        for call in (lambda: upconv.conv_transpose(X, W), lambda: upconv.explain(X.shape, W)):
            with pytest.raises(ArgumentError, match="UPCONV_ENGINE is 'nonsense'"):
                call()
        monkeypatch.setenv("UPCONV_ENGINE", "reference")
        assert select(BASE, None) is load("reference")

    @pytest.mark.parametrize(
        ("name", "reason"),
        [("ShyEngine", "shy of 1 spatial axes"), ("missing_engine", "'upconv\\[missing\\]'$")],
    )
    def test_where_the_environments_engine_cannot_another_is_taken_and_told(
        self, monkeypatch, fresh_cache, name: str, reason: str
    ) -> None:
        ENGINES["wanted"] = f"{__name__}:{name}"
        monkeypatch.setenv("UPCONV_ENGINE", "wanted")
        x, w, how = X, W, {"stride": 2}
        with pytest.warns(
            RuntimeWarning, match=f"though UPCONV_ENGINE asks for wanted: .*{reason}"
        ):
            told = upconv.explain(x.shape, w, **how)
        monkeypatch.delenv("UPCONV_ENGINE")
        del ENGINES["wanted"]
        upconv.cache_clear()
        without = upconv.explain(x.shape, w, **how)
        assert told.engine == without.engine
        assert told.refusals[1:] == without.refusals
        assert told.refusals[0].engine == "wanted"
        assert re.search(reason, told.refusals[0].reason)

    def test_gradients_are_computed_where_the_environment_names_the_jit(
        self, monkeypatch, fresh_cache
    ) -> None:
        x, w = X, W
        y = upconv.conv_transpose(x, w, engine="reference")
        wanted = upconv.conv_transpose_backward(y, x, w, engine="reference")
        monkeypatch.setenv("UPCONV_ENGINE", "jit")
        found = upconv.conv_transpose_backward(y, x, w)
        for name in ("x", "weight"):
            np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-5)


# An engine that expects another to be faster: passed over, and taken where it is alone.

PLANE = (Axis(20, 3, 1, 1, 1, 1),) * 2
CONVOLUTION = Problem(Direction.INPUT_GRAD, PLANE, 1, 64, 64)
LAST = CONVOLUTION.replace(layout=DataLayout.NXC)
STEPPED = CONVOLUTION.replace(axes=(Axis(20, 3, 2, 1, 1, 1),) * 2)
POINTWISE = LAST.replace(axes=(Axis(20, 1),) * 2)
DEFERRED = (
    POINTWISE,
    STEPPED.replace(out_channels=3),
    STEPPED.replace(groups=8),
    STEPPED.replace(in_channels=12),
)


class Named:
    """An engine that does everything unless it `refuses`, and may expect a `rival` to be faster."""

    def __init__(self, rival: str = "", refuses: str | None = None) -> None:
        self.refuses = lambda _: refuses
        if rival:
            mine, other = (
                Candidate(self.name, "", 9.0),
                Candidate(rival, "", 8.0, reason="too slow"),
            )
            self.candidates = lambda *_, every: (mine, other)

    name = "a"


def chosen(table: dict[str, Named]) -> tuple[str, list[str]]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine_choice, "ENGINES", table)
        patched.setattr(engine_choice, "load", lambda name, _: table[name])
        question = engine_choice._Question(CONVOLUTION, 1, Algorithm.AUTO, False)
        choice = engine_choice._choose_first_able(question)
    names = {id(engine): name for name, engine in table.items()}
    return names[id(choice.engine)], [str(refusal) for refusal in choice.refusals]


def test_is_passed_over_for_a_rival_that_is_there() -> None:
    slow, able, never = Named("b"), Named(), Named(refuses="it cannot")
    assert chosen({"a": slow, "b": able, "z": Named()}) == ("b", ["a: too slow"])
    assert chosen({"a": slow, "b": never, "z": Named()}) == ("a", [])
    assert chosen({"a": slow, "z": Named()}) == ("a", [])
    assert chosen({"b": never, "a": slow, "z": Named()}) == ("a", ["b: it cannot"])
    assert chosen({"a": never, "b": never, "z": Named()}) == ("z", ["a: it cannot", "b: it cannot"])


def test_is_taken_where_the_variable_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "_requested_variable", lambda: "a")
    assert chosen({"a": Named("b"), "b": Named(), "z": Named()}) == ("a", [])


_AVX2 = {"avx", "avx2", "fma", "f16c"}
AVX2 = replace(target("x86_64", "haswell", "", _AVX2), l2=512 << 10)
AVX512 = replace(target("x86_64", "znver4", "", _AVX2 | {"avx512vl"}), l2=1 << 20)


def rival(problem: Problem, cpu: Cpu = AVX2) -> bool:
    """Whether the JIT engine expects libdnnl to be faster at direct sums."""
    listed = (each for each in table(problem, 1, cpu, every=False) if not each.winograd)
    return ranked(listed)[0].engine == "onednn"


@pytest.mark.parametrize("problem", DEFERRED, ids=str)
def test_the_jit_leaves_some_convolutions_to_libdnnl(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, fresh_cache: None
) -> None:
    monkeypatch.setattr(import_module("upconv.engines.jit"), "host", lambda: AVX2)
    jit = load("jit")
    assert rival(problem)
    assert jit.refuses(problem) is None
    assert not rival(problem.replace(direction=Direction.FORWARD))
    try:
        load("onednn")
    except EngineMissing:
        assert engine_choice.choose(problem).engine is jit
    else:
        assert engine_choice.choose(problem).engine is load("onednn")


def test_the_jit_keeps_the_others() -> None:
    few = LAST.replace(axes=(Axis(8, 3, 1, 1, 1, 1),) * 2)
    basis = CONVOLUTION.replace(axes=(Axis(40, 512, 128),), in_channels=514, out_channels=1)
    depthwise = CONVOLUTION.replace(groups=64)
    narrow = CONVOLUTION.replace(groups=8)
    volume = LAST.replace(axes=PLANE[:1] * 3, groups=64)
    row = LAST.replace(axes=PLANE[:1], groups=64)
    one = CONVOLUTION.replace(in_channels=1)
    kept = CONVOLUTION, LAST, row, few, one, basis, depthwise, narrow, volume
    for problem in kept:
        assert not rival(problem)
    few_channels, planes = STEPPED.replace(out_channels=3), LAST.replace(groups=64)
    for problem in (*kept, POINTWISE, few_channels, planes):
        assert not rival(problem, AVX512)


def test_without_libdnnl_the_jit_does_them(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: place for name, place in engine_choice.ENGINES.items() if name != "onednn"}
    monkeypatch.setattr(engine_choice, "ENGINES", others)
    engine_choice.forget_choices()
    assert engine_choice.choose(POINTWISE).engine is load("jit")
    engine_choice.forget_choices()


# What `explain` says of the candidates.


def test_explain_lists_every_candidate_and_what_each_function_does() -> None:
    answer = upconv.explain((1, 64, 28, 28), (64, 1, 3, 3), padding=1, groups=64, threads=2)
    assert [use.name for use in answer.uses] == [
        "plan",
        "conv_transpose",
        "gradient of x",
        "gradient of weight",
    ]
    first, *others = answer.candidates
    assert first.reason == "taken"
    assert str(answer.uses[0]) == first.name
    names = {each.name for each in answer.candidates}
    assert {"jit positions", "jit channels", "jit planes", "onednn"} <= names
    assert all(each.reason for each in others)
    table = str(answer).partition("\n\n")[2].splitlines()
    assert table[0].split() == ["candidate", "cycles", "packing", "memory"]
    assert max(map(len, table)) <= 80


def test_explain_lists_the_candidates_beside_an_engine_without_a_model() -> None:
    answer = upconv.explain((1, 4, 9), (4, 4, 3), engine="reference", threads=1)
    assert answer.engine == "reference"
    assert not any(each.reason == "taken" for each in answer.candidates)


def test_explain_of_a_gradient_says_what_that_gradient_does() -> None:
    for direction in ("input_grad", "weight_grad"):
        answer = upconv.explain((1, 4, 9), (4, 4, 3), direction=direction, threads=1)
        assert not answer.uses
        assert answer.candidates
