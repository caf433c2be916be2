"""The tests are tested: an engine with a planted fault must not pass the conformance suite.

Every fault is one that real libraries shipped. If a fault here goes unnoticed, the suite is too
weak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.engines.jit.test_bounds import Way, ran, verdict
from upconv import testing
from upconv.activations import Activation
from upconv.engines import load
from upconv.geometry import Axis, fitted
from upconv.problem import NO_EPILOGUE, DataLayout, Direction, DType, Epilogue, Problem

Run = Callable[[Problem, np.ndarray, np.ndarray, np.ndarray, object, object], None]


def honest(problem: Problem, out, a, b, bias, residual) -> None:
    """What the reference engine does, with the weight not packed."""
    primitive = load("reference").build(problem, 1)
    if problem.direction is not Direction.WEIGHT_GRAD:
        b = primitive.pack(b)
    epilogue = problem.epilogue
    slopes = ENDS.get("slopes") if epilogue.slopes else None
    second = ENDS.get("second") if epilogue.has_second else None
    primitive.run(out, a, b, bias, residual, slopes, second)


ENDS: dict[str, np.ndarray | None] = {}
"""Slopes and second result of the run at hand."""


def is_forward(problem: Problem) -> bool:
    return problem.direction is Direction.FORWARD


def shifted_by_one(problem, out, a, b, bias, residual) -> None:
    """Keras' PyTorch back end until May 2026: the right shape, every pixel one to the side."""
    last = problem.axes[-1]
    moved = fitted(
        last.size, last.kernel, last.stride, last.dilation, last.crop_begin + 1, last.out
    )
    honest(problem.replace(axes=(*problem.axes[:-1], moved)), out, a, b, bias, residual)


def odd_pixel_at_the_other_end(problem, out, a, b, bias, residual) -> None:
    """SAME_UPPER taken for SAME_LOWER: begin and end exchanged where they differ."""
    axes = tuple(
        Axis(x.size, x.kernel, x.stride, x.dilation, x.crop_end, x.crop_begin) for x in problem.axes
    )
    honest(problem.replace(axes=axes), out, a, b, bias, residual)


def flipped_kernel(problem, out, a, b, bias, residual) -> None:
    """JAX's default convention taken for PyTorch's."""
    if problem.direction is not Direction.WEIGHT_GRAD:
        spatial = [i for i, letter in enumerate(_letters(problem)) if letter == "X"]
        b = np.flip(b, spatial)
    honest(problem, out, a, b, bias, residual)


def _letters(problem: Problem) -> str:
    return problem.weight_layout.value.replace("X", "X" * problem.rank)


def transposed_kernel(problem, out, a, b, bias, residual) -> None:
    """Height taken for width, noticed only where kernels are not square."""
    if problem.rank > 1 and problem.direction is not Direction.WEIGHT_GRAD:
        spatial = [i for i, letter in enumerate(_letters(problem)) if letter == "X"]
        if b.shape[spatial[0]] == b.shape[spatial[1]]:
            b = b.swapaxes(spatial[0], spatial[1])
    honest(problem, out, a, b, bias, residual)


def swapped_groups(problem, out, a, b, bias, residual) -> None:
    """The weight's groups in the wrong order."""
    if problem.groups > 1 and problem.direction is not Direction.WEIGHT_GRAD:
        axis = problem.weight_layout.value.replace("X", "X" * problem.rank).index("I")
        b = np.roll(b, problem.in_channels // problem.groups, axis)
    honest(problem, out, a, b, bias, residual)


def interleaved_groups(problem, out, a, b, bias, residual) -> None:
    """Output channels dealt out group by group instead of in blocks."""
    honest(problem, out, a, b, bias, residual)
    if is_forward(problem) and problem.groups > 1:
        axis = 1 if problem.layout is DataLayout.NCX else -1
        per_group = problem.out_channels // problem.groups
        order = np.arange(problem.out_channels).reshape(problem.groups, per_group).T.ravel()
        out[...] = np.take(out, order, axis)


def dropped_bias(problem, out, a, b, bias, residual) -> None:
    honest(problem.replace(bias=False), out, a, b, None, residual)


def bias_missing_where_nothing_reaches(problem, out, a, b, bias, residual) -> None:
    """Positions beyond the data left at zero: TVM's and others' output padding."""
    honest(problem, out, a, b, bias, residual)
    if is_forward(problem) and problem.axes[0].crop_end < 0 and problem.layout is DataLayout.NCX:
        out[:, :, problem.axes[0].crop_end :] = 0


def error_of_a_hundredth(problem, out, a, b, bias, residual) -> None:
    honest(problem, out, a, b * b.dtype.type(1.01), bias, residual)


def one_wrong_element(problem, out, a, b, bias, residual) -> None:
    """A race, or a loop that ends one early."""
    honest(problem, out, a, b, bias, residual)
    if out.size:
        last = tuple(n - 1 for n in out.shape)
        out[last] = out[last] * out.dtype.type(1.5) + out.dtype.type(0.1)


def residual_after_activation(problem, out, a, b, bias, residual) -> None:
    if residual is None or problem.accumulate:
        honest(problem, out, a, b, bias, residual)
        return
    epilogue = replace(problem.epilogue, residual=False)
    honest(problem.replace(epilogue=epilogue), out, a, b, bias, None)
    out += residual


def activation_forgotten(problem, out, a, b, bias, residual) -> None:
    epilogue = Epilogue(residual=problem.epilogue.residual)
    honest(problem.replace(epilogue=epilogue), out, a, b, bias, residual)


def gelu_by_tanh(problem, out, a, b, bias, residual) -> None:
    """The approximation with tanh where the exact one was asked for: wrong by 5e-4 at most."""
    if problem.epilogue.activation is not Activation.GELU or problem.accumulate:
        honest(problem, out, a, b, bias, residual)
        return
    epilogue = Epilogue(residual=problem.epilogue.residual)
    honest(problem.replace(epilogue=epilogue), out, a, b, bias, residual)
    inner = np.sqrt(2 / np.pi) * (out + 0.044715 * out**3)
    out[...] = 0.5 * out * (1 + np.tanh(inner))


def accumulation_forgotten(problem, out, a, b, bias, residual) -> None:
    honest(problem.replace(accumulate=False), out, a, b, bias, residual)


def accumulation_uninvited(problem, out, a, b, bias, residual) -> None:
    honest(problem.replace(accumulate=True), out, a, b, bias, residual)


def activation_before_accumulation(problem, out, a, b, bias, residual) -> None:
    """What was there is added to the activation's result."""
    before = out.copy()
    honest(problem.replace(accumulate=False), out, a, b, bias, residual)
    if problem.accumulate:
        out += before


def slopes_of_other_channels(problem, out, a, b, bias, residual) -> None:
    if problem.epilogue.slopes:
        ENDS["slopes"] = np.roll(ENDS["slopes"], 1)
    honest(problem, out, a, b, bias, residual)


def second_result_of_the_sum(problem, out, a, b, bias, residual) -> None:
    """The second activation of what the first one got, not of what it made."""
    epilogue, before = problem.epilogue, out.copy()
    honest(problem, out, a, b, bias, residual)
    if epilogue.has_second:
        bare = replace(epilogue, activation=Activation.NONE, slope=0.0, slopes=False)
        honest(problem.replace(epilogue=bare), before, a, b, bias, residual)


def second_result_forgotten(problem, out, a, b, bias, residual) -> None:
    epilogue = replace(problem.epilogue, second=Activation.NONE, second_slope=0.0)
    honest(problem.replace(epilogue=epilogue), out, a, b, bias, residual)


def dilation_ignored(problem, out, a, b, bias, residual) -> None:
    """MXNet 1.x native: the right shape, the taps too close together."""
    axes = tuple(fitted(x.size, x.kernel, x.stride, 1, x.crop_begin, x.out) for x in problem.axes)
    honest(problem.replace(axes=axes), out, a, b, bias, residual)


def last_batch_item_forgotten(problem, out, a, b, bias, residual) -> None:
    if problem.direction is Direction.WEIGHT_GRAD and problem.batch > 1:
        problem = problem.replace(batch=problem.batch - 1)
        a, b = a[:-1], b[:-1]
    honest(problem, out, a, b, bias, residual)


def short_sums(problem, out, a, b, bias, residual) -> None:
    """Sums kept in the storage type: float16 products lose digits."""
    if problem.dtype is DType.FLOAT16 and problem.direction is not Direction.WEIGHT_GRAD:
        half = problem.in_channels // problem.groups // 2
        axis = 1 if problem.layout is DataLayout.NCX else -1
        if is_forward(problem) and half and problem.groups == 1 and not problem.accumulate:
            bare = problem.replace(bias=False, epilogue=NO_EPILOGUE)
            parts = []
            for channels in range(problem.in_channels):
                one = bare.replace(in_channels=1)
                part = np.empty(one.result_shape, np.float16)
                x = np.take(a, [channels], axis)
                honest(one, part, x, b[channels : channels + 1], None, None)
                parts.append(part)
            total = np.zeros_like(parts[0])
            for part in parts:
                total = (total + part).astype(np.float16)
            shape = [1] * total.ndim
            shape[axis] = -1
            out[...] = total + (0 if bias is None else bias.reshape(shape))
            return
    honest(problem, out, a, b, bias, residual)


FAULTS: list[Run] = [
    shifted_by_one, odd_pixel_at_the_other_end, flipped_kernel, transposed_kernel, swapped_groups,
    interleaved_groups, dropped_bias, bias_missing_where_nothing_reaches, error_of_a_hundredth,
    one_wrong_element, residual_after_activation, activation_forgotten, gelu_by_tanh,
    accumulation_forgotten, accumulation_uninvited, activation_before_accumulation,
    slopes_of_other_channels, second_result_of_the_sum, second_result_forgotten, dilation_ignored,
    last_batch_item_forgotten, short_sums,
]  # fmt: skip


class PlantedEngine:
    """An engine whose every run goes through a function that may do wrong."""

    def __init__(self, run: Run) -> None:
        self.name, self._run = run.__name__, run

    def refuses(self, problem: Problem) -> None:
        return None

    def build(self, problem: Problem, threads: int, variant: str = "") -> PlantedPrimitive:
        return PlantedPrimitive(problem, self._run)


class PlantedPrimitive:
    def __init__(self, problem: Problem, run: Run) -> None:
        self._problem, self._run = problem, run

    def pack(self, weight):
        return weight

    def run(self, out, a, b, bias=None, residual=None, slopes=None, second=None) -> None:
        ENDS.update(slopes=slopes, second=second)
        self._run(self._problem, out, a, b, bias, residual)

    def close(self) -> None:
        pass


def first_failure(run: Run) -> Problem | None:
    for problem in testing.cases():
        try:
            testing.check(PlantedEngine(run), problem)
        except AssertionError:
            return problem
    return None


def test_without_a_fault_everything_passes() -> None:
    assert first_failure(honest) is None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_caught(fault: Run) -> None:
    assert first_failure(fault), "no case of the conformance suite notices this fault"


def test_the_message_names_engine_problem_and_element() -> None:
    problem = testing.cases()[0]
    with pytest.raises(AssertionError, match=r"one_wrong_element, seed 3: forward .* 1 of \d+ el"):
        testing.check(PlantedEngine(one_wrong_element), problem, seed=3)


@pytest.mark.parametrize("direction", Direction)
def test_the_adjoint_check_notices_one_direction_gone_wrong(direction: Direction) -> None:
    def lopsided(problem, out, a, b, bias, residual) -> None:
        honest(problem, out, a, b, bias, residual)
        if problem.direction is direction:
            out *= out.dtype.type(1.001)

    problem = testing.cases()[0]
    with pytest.raises(AssertionError, match="the three derivatives give"):
        testing.check_adjoint(PlantedEngine(lopsided), problem)
    testing.check_adjoint(PlantedEngine(honest), problem)


NOTHING = (
    "from upconv import testing; drawn = testing.operands\n"
    "def nothing(problem, seed=0):\n"
    "    given = drawn(problem, seed)\n"
    "    arrays = given.a, given.b, given.bias, given.residual, given.before, given.slopes\n"
    "    for array in arrays:\n"
    "        if array is not None: array[...] = 0\n"
    "    return given\n"
    "testing.operands = nothing"
)


@pytest.mark.parametrize("cases", ["real_sizes(range(6), ('forward',), ", "main(range(4), "])
def test_results_of_one_number_fail_a_random_run(cases: str) -> None:
    """Zeros in, zeros out: whatever the engine does, every value is right."""
    call = f"from tests.support import guarded; guarded.{cases}engine='reference')"
    said = verdict(ran(Way(plant=NOTHING), call))
    assert "results are mostly the same number" in said
    assert " of " in said


def test_what_is_mistrusted() -> None:
    half = np.maximum(np.random.default_rng(0).standard_normal(9999), 0)
    assert not testing.mistrusted(half), "what ReLU leaves of random numbers"
    assert testing.mistrusted(np.maximum(half - 1, 0)), "mostly zeros"
    assert testing.mistrusted(np.full((3, 3), 7.0)), "constant"
    assert not testing.mistrusted(np.ones(1)), "one number may be right"
