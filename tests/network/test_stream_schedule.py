"""Schedules of streams and their phases, each evaluated by definition."""

import random

import numpy as np
import pytest

from tests.support import random_networks
from tests.support.network_streams import axis_of, cuts
from upconv.errors import EngineRefusal, ShapeError
from upconv.network.compile import resized, simplified
from upconv.network.definitions import evaluate
from upconv.network.graph import with_extent
from upconv.network.reach import Edges, Taps
from upconv.network.stream_schedule import Schedule

_FAR = 1 << 20


def _by_definition(case: random_networks.Case, axis: int, rng: random.Random) -> list[np.ndarray]:
    """The results of the phases of a random cut, each evaluated by definition in float64."""
    graph = simplified(case.graph())
    shapes = {name: with_extent(graph.shapes[v], axis, _FAR) for name, v in graph.inputs.items()}
    try:
        far = resized(graph, shapes)
    except ShapeError:
        raise EngineRefusal("its values fit together at some lengths only") from None
    schedule, arrays = Schedule(far, axis), case.arrays(np.float64)
    inputs = dict(zip(graph.inputs, arrays, strict=True))
    state, start, kept = schedule.begin, 0, dict[int, np.ndarray]()
    parts: list[list[np.ndarray]] = [[] for _ in graph.outputs]
    for count in (*cuts(rng, arrays[0].shape[axis]), None):
        after = schedule.after(state, count or 0, ended=count is None)
        phase = schedule.phase(state, after)
        cut = (*[slice(None)] * axis, slice(start, start + (count or 0)))
        feeds = [inputs[name][cut] for name in phase.graph.inputs if name in inputs]
        feeds += [kept[value] for value in phase.waiting]
        results = evaluate(phase.graph, feeds) if feeds else ()
        for number, result in zip(phase.results, results, strict=False):
            parts[number].append(result)
        kept = dict(zip(phase.kept, results[len(phase.results) :], strict=True))
        state, start = after, start + (count or 0)
    return [np.concatenate(each, axis) for each in parts]


def _check_schedule(seed: int) -> None:
    case = random_networks.case(seed)
    axis = axis_of(case)
    if axis is None:
        return
    try:
        results = _by_definition(case, axis, random.Random(seed))
    except EngineRefusal:
        return
    whole = evaluate(simplified(case.graph()), case.arrays(np.float64))
    for result, expected in zip(results, whole, strict=True):
        scale = 1e-9 * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=scale)


def _check_schedules(seeds: range) -> None:
    for seed in seeds:
        _check_schedule(seed)


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_phases_compute_the_whole_by_definition(first: int) -> None:
    _check_schedules(range(first, first + 20))


@pytest.mark.long
def test_phases_of_many_networks() -> None:
    _check_schedules(range(100, 3000))


FAULTS = {
    "too little is kept": (Taps, "first", lambda self, result, first: first(self, result) + 1),
    "results too early": (Taps, "final", lambda self, taken, final: final(self, taken) + 1),
    "an end is forgotten": (Edges, "total", lambda self, taken, total: total(self, taken) - 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, name, wrong = FAULTS[fault]
    right = getattr(kind, name)
    monkeypatch.setattr(kind, name, lambda self, number: wrong(self, number, right))
    with pytest.raises(Exception):  # noqa: B017, PT011 - values, or shapes that do not fit
        _check_schedules(range(40))
