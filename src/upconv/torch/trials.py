"""Measuring layers in place: the model runs with PyTorch's layers and with upconv's in turn.

Hooks take each layer's time inside the running model, where caches, threads and memory are as they
will be. A layer stays where it takes less than `GAIN` of the time on every example input, and where
its results agree. The best of several rounds counts: other work on the machine only adds time.
A `Budget` bounds the time: a run of the model that has begun is finished, and no other begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..timing import rest
from .compute import ATEN, ATEN_BACKWARD
from .modules import layer_geometry
from .operators import CONVOLUTION, INPUT_GRAD, WEIGHT_GRAD
from .problems import Ours
from .swaps import Candidate
from .tensors import Tensor

GAIN = 0.95
_SECONDS = 15.0
_ROUNDS = (6, 25)
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4, torch.float16: 0.02, torch.bfloat16: 0.1}

Example = tuple[tuple[Any, ...], dict[str, Any]]

Progress = Callable[[str, int, int], object]
"""Called with what begins, its number from 1, and of how many."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Until when, by `time.perf_counter`, measuring may go on, and who is told how far it is."""

    end: float
    progress: Progress

    @property
    def left(self) -> float:
        """Seconds that are left; 0 where none are."""
        return max(0.0, self.end - time.perf_counter())

    def part(self, fraction: float, most: float = float("inf")) -> Budget:
        """A fraction of the time that is left, in seconds at most `most`."""
        return replace(self, end=time.perf_counter() + min(most, fraction * self.left))


@dataclass(slots=True, eq=False)
class Times:
    """A layer's best milliseconds per run of the model, by PyTorch and by upconv.

    wrong: results differ. timed: there was time for a run by each.
    """

    before: float = float("inf")
    after: float = float("inf")
    wrong: bool = False
    timed: bool = False

    @property
    def pays(self) -> bool:
        """Whether upconv is right and faster."""
        return not self.wrong and self.after < GAIN * self.before


def measured(
    model: Any, found: list[Candidate], example: Example, budget: Budget, what: str = "layers"
) -> dict[Candidate, Times]:
    """Each layer's times without gradients on one example; `what` is the name of this work."""
    table = {each: Times() for each in found}
    with torch.no_grad():
        budget.progress(what, 1, _ROUNDS[1])
        _run(model, example)
        start = time.perf_counter()
        _run(model, example)
        seconds = time.perf_counter() - start
        if found and budget.left:
            with _checking(found, table):
                _run(model, example)
        rounds = max(_ROUNDS[0], min(_ROUNDS[1], int(budget.left / max(2 * seconds, 1e-9))))
        for i in range(rounds if found else 0):
            if not budget.left:
                break
            budget.progress(what, i + 1, rounds)
            for ours in (i % 2 == 0, i % 2 == 1):  # who comes second finds other caches
                _timed_run(model, example, found, table, ours)
    for each in found:
        each.remove()
    return table


def _run(model: Any, example: Example) -> Any:
    return model(*example[0], **example[1])


def _timed_run(
    model: Any, example: Example, found: list[Candidate], table: dict[Candidate, Times], ours: bool
) -> None:
    """One run, in which each layer's time is that of all its calls and of what follows it."""
    totals = dict.fromkeys(found, 0.0)
    begun: list[float] = []

    def end(candidate: Candidate) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            totals[candidate] += (time.perf_counter() - begun.pop()) * 1e3

        return hook

    with ExitStack() as hooks:
        for candidate in found:
            for module in candidate.members:
                start = lambda *_: begun.append(time.perf_counter())  # noqa: E731
                hooks.enter_context(module.register_forward_pre_hook(start))
                hooks.enter_context(module.register_forward_hook(end(candidate)))
            candidate.remove()
        for candidate in found if ours else ():  # after the hooks, which the runs' signatures have
            candidate.install(inference=True, training=0)
        _run(model, example)
    for candidate, total in totals.items():
        times = table[candidate]
        times.timed = True
        if ours:
            times.after = min(times.after, total or float("inf"))
        else:
            times.before = min(times.before, total or float("inf"))


@contextmanager
def _checking(found: list[Candidate], table: dict[Candidate, Times]) -> Iterator[None]:
    """While upconv's layers run, each result is compared with PyTorch's on the same input."""

    def hook_of(candidate: Candidate) -> Callable[..., None]:
        def hook(layer: Any, arguments: Any, keywords: Any, result: Tensor) -> None:
            end = keywords.pop("end", None)
            candidate.remove()
            try:
                expected = candidate.original.forward(layer, *arguments, **keywords)
                for follower in () if end is None else end.modules:
                    expected = follower.forward(expected)
            finally:
                candidate.install(inference=True, training=0)
            times = table[candidate]
            times.wrong = times.wrong or _differ(result, expected)

        return hook

    with ExitStack() as hooks:
        for each in found:
            handle = each.layer.register_forward_hook(hook_of(each), with_kwargs=True)
            hooks.enter_context(handle)
            each.install(inference=True, training=0)
        yield


def _differ(result: Tensor, expected: Tensor) -> bool:
    """Whether two results differ by more than rounding."""
    if result.shape != expected.shape or result.dtype is not expected.dtype:
        return True
    finite = expected[expected.isfinite()].abs()
    bound = _TOLERANCE[result.dtype] * (float(finite.max()) if finite.numel() else 1.0)
    return not torch.allclose(result, expected, 0.0, bound, equal_nan=True)


def best_of(
    calls: list[Callable[[], object]],
    seconds: float,
    last: float = float("inf"),
    switch: Callable[[int], None] = lambda _: None,
) -> list[float]:
    """The best milliseconds of some calls, timed in interleaved rounds.

    last: when, by `time.perf_counter`, no round but the first begins. switch: is called with the
    index of a call before it, and not timed.
    """
    best = [float("inf")] * len(calls)
    for at, call in enumerate(calls):
        switch(at)
        call()
    rest()
    end, i = time.perf_counter() + seconds, 0
    while i < _ROUNDS[0] or (i < 4 * _ROUNDS[1] and time.perf_counter() < end):
        if i and time.perf_counter() > last:
            break
        for at in range(len(calls)):
            at = (at + i) % len(calls)  # each comes first once
            switch(at)
            start = time.perf_counter()
            calls[at]()
            best[at] = min(best[at], (time.perf_counter() - start) * 1e3)
        i += 1
    return best


def signatures(found: list[Candidate], step: Callable[[], None]) -> dict[Any, list[Any]]:
    """The inputs each layer gets in a training step, as (shape, strides, dtype, graded)."""
    seen: dict[Candidate, list[Any]] = {each: [] for each in found}

    def hook_of(candidate: Candidate) -> Callable[..., None]:
        def hook(layer: Any, arguments: Any, keywords: Any, result: Tensor) -> None:
            x = arguments[0] if arguments else keywords["input"]
            how = (tuple(x.shape), x.stride(), x.dtype, x.requires_grad)
            if how not in seen[candidate]:
                seen[candidate].append(how)

        return hook

    with ExitStack() as hooks:
        for each in found:
            handle = each.layer.register_forward_hook(hook_of(each), with_kwargs=True)
            hooks.enter_context(handle)
        step()
    return seen


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Operands of one call in a training step; `flows`: a gradient flows on to the input."""

    x: Tensor
    weight: Tensor
    flows: bool
    how: tuple[Any, ...]
    trained: bool = True


def choice(cases: list[Case]) -> Ours:
    """Which results of a training step upconv computes faster in all cases.

    Forward, gradient of the input and of the weight are each measured alone on random data; then
    those chosen together, as autograd calls them.
    """
    chosen = Ours.ALL
    for case in cases:
        for ours, ways in _parts(case).items():
            if ours in chosen:
                slow, fast = best_of(list(ways), 0.2)
                chosen = chosen if fast < GAIN * slow else chosen & ~ours
    if not cases or not chosen:
        return Ours(0)
    for case in cases:
        slow, fast = best_of([_step(case, 0), _step(case, int(chosen))], 0.3)
        if fast >= GAIN * slow:
            return Ours(0)
    return chosen


def _step(case: Case, ours: int) -> Callable[[], object]:
    """Forward and backward of one call, by autograd."""
    x = case.x.detach().requires_grad_(case.flows)
    weight = case.weight.detach().requires_grad_(case.trained)
    g = torch.randn_like(ATEN(case.x, case.weight, None, *case.how))
    wanted = [each for each in (x, weight) if each.requires_grad]

    def step() -> object:
        with torch.enable_grad():
            if ours:
                y = CONVOLUTION(x, weight, None, *case.how, ours)
            else:
                y = ATEN(x, weight, None, *case.how)
            return torch.autograd.grad(y, wanted, g) if wanted else y

    return step


def case_of(candidate: Candidate, shape: Any, strides: Any, dtype: Any, graded: bool) -> Case:
    """Random operands like those of a call."""
    layer = candidate.layer
    x = torch.empty_strided(shape, strides, dtype=dtype).normal_()
    weight = torch.randn(candidate.weight_shape, dtype=dtype)
    if x.dim() == len(layer.kernel_size) + 1:
        x = x.unsqueeze(0)
    return Case(x, weight, graded, layer_geometry(layer, layer.kernel_size))


def _parts(case: Case) -> dict[Ours, tuple[Callable[[], object], Callable[[], object]]]:
    """Each result that a training step needs, by PyTorch and by upconv."""
    x, weight, how = case.x, case.weight, case.how
    g = torch.randn_like(ATEN(x, weight, None, *how))
    x_mask, w_mask = (True, False, False), (False, True, False)
    ways: dict[Ours, tuple[Callable[[], object], Callable[[], object]]] = {
        Ours.FORWARD: (
            lambda: ATEN(x, weight, None, *how),
            lambda: CONVOLUTION(x, weight, None, *how, 1),
        )
    }
    if case.trained:
        ways[Ours.WEIGHT_GRAD] = (
            lambda: ATEN_BACKWARD(g, x, weight, None, *how, w_mask),
            lambda: WEIGHT_GRAD(g, x, weight.shape[2:], *how),
        )
    if case.flows:
        ways[Ours.INPUT_GRAD] = (
            lambda: ATEN_BACKWARD(g, x, weight, None, *how, x_mask),
            lambda: INPUT_GRAD(g, weight, x.shape[2:], *how),
        )
    return ways
