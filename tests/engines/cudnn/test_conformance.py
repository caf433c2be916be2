"""The suite of all engines, on a GPU that is made up and, where there is one, on a real one."""

from __future__ import annotations

from functools import partial
from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.engines import test_conformance as suite
from tests.engines.test_conformance import (  # noqa: F401 (collected here)
    able,
    problems,
    test_any_strides,
    test_blocks_and_slabs_meet,
    test_nothing_outside_the_output_is_touched,
    test_output_and_residual_may_lie_differently,
    test_special_values_stay_where_they_belong,
    test_the_three_directions_are_one_form,
    test_values,
)
from tests.support.made_up_gpu import MadeUpEngine
from tests.support.real_gpu import GpuEngine, reason_without
from upconv import testing
from upconv.engines.cudnn.operation import Convolution
from upconv.problem import DataLayout, Problem


def least(convolution: Convolution) -> bool:
    """What a library lacks that fuses no ends and takes equal paddings only."""
    return convolution.pre != convolution.post or bool(convolution.ends)


MACHINES = {"made up": MadeUpEngine, "made up, the least": partial(MadeUpEngine, least)}
MACHINES |= {
    library: partial(GpuEngine, library)
    for library in ("cupy", "torch")
    if not reason_without(library)
}


@pytest.fixture(params=MACHINES)
def engine(request: pytest.FixtureRequest):
    return MACHINES[request.param]()


def test_a_gpu() -> None:
    """The whole file runs on it, too, where there is one."""
    if reason_without("cupy") and reason_without("torch"):
        pytest.skip(reason_without("torch"))


@pytest.mark.parametrize("name", MACHINES)
def test_a_result_is_the_same_every_time(name: str) -> None:
    """On a GPU where that is asked for: the library's default is to add up in any order."""
    settings = {"deterministic": True} if name in ("cupy", "torch") else {}
    suite.test_a_result_is_the_same_every_time(MACHINES[name](**settings))


@pytest.mark.parametrize("layout", DataLayout)
def test_every_variant(engine, layout: DataLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few sizes where the GPU is made up, which has no tiles."""
    if isinstance(engine, MadeUpEngine):
        monkeypatch.setattr(suite, "VARIED", suite.VARIED[::3])
    suite.test_every_variant(engine, layout)


def test_few_cases_are_refused(engine) -> None:
    refused = [str(problem) for problem in suite.CASES if not able(engine, problem)]
    assert len(refused) <= 0.1 * len(suite.CASES), refused


@settings(max_examples=100)
@given(problem=problems(), seed=st.integers(0, 9))
def test_random_problems(problem: Problem, seed: int) -> None:
    assume(prod(problem.size) * prod(problem.kernel) <= 4000)
    for made in MACHINES.values():
        engine = made()
        if engine.refuses(problem) is None:
            testing.check(engine, problem, seed)
