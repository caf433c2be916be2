"""Measure layers in place for inference, and on random data for training; measure parts.

For inference the model runs alternately with PyTorch's layers and with upconv's. Hooks time each
layer inside the running model, so that caches, threads and memory are as in real use. A layer is
selected if its results agree and it is faster beyond the noise, by the rules of `measuring`. A
`Budget` bounds the time and the runs of the model. A part's network is measured against PyTorch's
functions on random data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import fx

from ..arrays import Array
from ..measuring import (
    NO_TIME,
    Ratio,
    Way,
    choose,
    decide,
    disagreement,
    required_gain,
    undisturbed,
)
from ..terminal import Progress
from ..timing import interleaved
from .compute import ATEN, ATEN_BACKWARD
from .modules import layer_geometry
from .operators import CONVOLUTION, INPUT_GRAD, WEIGHT_GRAD
from .parts import Part
from .problems import ResultMask
from .supported_nodes import value_of
from .swaps import Candidate
from .tensors import Tensor, array, arrays_of, numbers

Example = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(slots=True)
class Budget:
    """The model's remaining runs, and the `time.perf_counter` by which the last may start."""

    deadline: float
    runs: int
    progress: Progress

    @property
    def left(self) -> float:
        """Remaining seconds; 0 after the deadline."""
        return max(0.0, self.deadline - time.perf_counter())

    def run(self, model: Any, example: Example) -> Any:
        """Run the model on an example, and count the run."""
        self.runs -= 1
        return model(*example[0], **example[1])


class Verdict(NamedTuple):
    """Run times in PyTorch and upconv in seconds, and why PyTorch is kept; "" if it is not."""

    before: float | None
    after: float | None
    why: str


@dataclass(slots=True, eq=False)
class Samples:
    """A layer's seconds per model run, in PyTorch and in upconv, and why it is rejected."""

    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    why: str = ""

    @property
    def ratio(self) -> Ratio | None:
        """The layer's speed relative to PyTorch; None if it was not called or not timed."""
        timed = self.before and self.after and all((*self.before, *self.after))
        return Ratio.between(self.before, self.after) if timed else None

    def verdict(self) -> Verdict:
        """Return the layer's times for reports, None if unknown, and why it is not selected."""
        before, after = (undisturbed(s) if s else None for s in (self.before, self.after))
        return Verdict(before or None, after or None, self.why or self._obstacle())

    def _obstacle(self) -> str:
        if not (self.before and self.after):
            return NO_TIME
        if self.ratio is None:
            return "not called"
        _, whys = decide("PyTorch", {"upconv": [self.ratio]}, required_gain(len(self.before)))
        return whys.get("upconv", "")


def measured(
    model: Any, layers: list[Candidate], example: Example, budget: Budget, rounds: int
) -> dict[Candidate, Samples]:
    """Return each layer's samples without gradients on one example; no layer stays installed."""
    table = {layer: Samples() for layer in layers}
    with torch.no_grad():
        if layers and budget.left:
            _check(model, example, table, budget)
        for i in range(rounds if layers else 0):
            if not budget.left or budget.runs < 2:
                break
            budget.progress("measuring the layers, round", i + 1, rounds)
            for by_upconv in (i % 2 == 0, i % 2 == 1):  # the second finds other cache contents
                _timed_run(model, example, table, by_upconv, budget)
    for layer in layers:
        layer.remove()
    return table


def _timed_run(
    model: Any, example: Example, table: dict[Candidate, Samples], by_upconv: bool, budget: Budget
) -> None:
    """Run the model once; a layer's sample is the total time of its calls."""
    totals = dict.fromkeys(table, 0.0)
    starts: list[float] = []

    def stop(candidate: Candidate, *_: Any) -> None:
        totals[candidate] += time.perf_counter() - starts.pop()

    with ExitStack() as hooks:
        for candidate in table:
            start = lambda *_: starts.append(time.perf_counter())  # noqa: E731
            hooks.enter_context(candidate.layer.register_forward_pre_hook(start))
            hooks.enter_context(candidate.layer.register_forward_hook(partial(stop, candidate)))
            candidate.remove()
            if by_upconv:
                candidate.install(inference=True, training=0)
        budget.run(model, example)
    for candidate, total in totals.items():
        samples = table[candidate]
        (samples.after if by_upconv else samples.before).append(total)


def _check(model: Any, example: Example, table: dict[Candidate, Samples], budget: Budget) -> None:
    """Run the model once, and compare the results of upconv's layers with PyTorch's."""

    def compare(
        candidate: Candidate, layer: Any, arguments: Any, keywords: Any, result: Tensor
    ) -> None:
        candidate.remove()
        try:
            expected = candidate.original.forward(layer, *arguments, **keywords)
        finally:
            candidate.install(inference=True, training=0)
        why = disagreement(arrays_of([result]), arrays_of([expected]))
        table[candidate].why = table[candidate].why or why

    with _watched(table, compare):
        for candidate in table:
            candidate.install(inference=True, training=0)
        budget.run(model, example)


@contextmanager
def _watched(layers: Iterable[Candidate], hook: Callable[..., None]) -> Iterator[None]:
    """Call `hook(candidate, layer, arguments, keywords, result)` after each call of a layer."""
    with ExitStack() as hooks:
        for candidate in layers:
            after = partial(hook, candidate)
            hooks.enter_context(candidate.layer.register_forward_hook(after, with_kwargs=True))
        yield


def is_faster(slow: Callable[[], object], fast: Callable[[], object], seconds: float) -> bool:
    """Whether the second call is faster than the first beyond the noise, when interleaved."""
    rounds = interleaved([slow, fast], seconds)
    return Ratio.of(rounds, 1).low > required_gain(len(rounds.again))


def signatures(layers: list[Candidate], step: Callable[[], None]) -> dict[Any, list[Any]]:
    """Return each layer's inputs in a training step, as (shape, strides, dtype, graded)."""
    seen: dict[Candidate, list[Any]] = {candidate: [] for candidate in layers}

    def note(candidate: Candidate, _: Any, arguments: Any, keywords: Any, __: Tensor) -> None:
        x = arguments[0] if arguments else keywords["input"]
        signature = (tuple(x.shape), x.stride(), x.dtype, x.requires_grad)
        if signature not in seen[candidate]:
            seen[candidate].append(signature)

    with _watched(layers, note):
        step()
    return seen


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """The operands of one call in a training step.

    arguments: the six arguments of the operators. flows, trained: whether the gradients of the
    input and of the weight are computed.
    """

    x: Tensor
    weight: Tensor
    flows: bool
    arguments: tuple[Any, ...]
    trained: bool = True

    @property
    def key(self) -> Any:
        """The conditions of the measurement."""
        operands = [(tuple(x.shape), x.stride(), x.dtype) for x in (self.x, self.weight)]
        return *operands, self.flows, self.arguments, self.trained


def choice(cases: list[Case]) -> ResultMask:
    """Return the results of a training step that upconv computes faster in all cases.

    The forward result and both gradients are measured one by one on random data. The chosen ones
    are then measured together, as autograd calls them.
    """
    chosen = ResultMask.ALL
    for case in cases:
        for result, ways in _parts(case).items():
            if result in chosen:
                chosen = chosen if is_faster(*ways, 0.2) else chosen & ~result
    if not cases or not chosen:
        return ResultMask(0)
    for case in cases:
        if not is_faster(_step(case, 0), _step(case, int(chosen)), 0.3):
            return ResultMask(0)
    return chosen


def _step(case: Case, mask: int) -> Callable[[], object]:
    """Return a function that runs one call forward and backward with autograd."""
    x = case.x.detach().requires_grad_(case.flows)
    weight = case.weight.detach().requires_grad_(case.trained)
    g = torch.randn_like(ATEN(case.x, case.weight, None, *case.arguments))
    wanted = [tensor for tensor in (x, weight) if tensor.requires_grad]

    def step() -> object:
        with torch.enable_grad():
            if mask:
                y = CONVOLUTION(x, weight, None, *case.arguments, mask)
            else:
                y = ATEN(x, weight, None, *case.arguments)
            return torch.autograd.grad(y, wanted, g) if wanted else y

    return step


def case_of(candidate: Candidate, shape: Any, strides: Any, dtype: Any, graded: bool) -> Case:
    """Return random operands like those of a call."""
    layer = candidate.layer
    x = torch.empty_strided(shape, strides, dtype=dtype).normal_()
    weight = torch.randn(candidate.weight_shape, dtype=dtype)
    if x.dim() == len(layer.kernel_size) + 1:
        x = x.unsqueeze(0)
    return Case(x, weight, graded, layer_geometry(layer, layer.kernel_size))


def _parts(case: Case) -> dict[ResultMask, tuple[Callable[[], object], Callable[[], object]]]:
    """Return, for each result of a training step, its computation by PyTorch and by upconv."""
    x, weight, arguments = case.x, case.weight, case.arguments
    g = torch.randn_like(ATEN(x, weight, None, *arguments))
    x_mask, w_mask = (True, False, False), (False, True, False)
    ways: dict[ResultMask, tuple[Callable[[], object], Callable[[], object]]] = {
        ResultMask.FORWARD: (
            lambda: ATEN(x, weight, None, *arguments),
            lambda: CONVOLUTION(x, weight, None, *arguments, 1),
        )
    }
    if case.trained:
        ways[ResultMask.WEIGHT_GRAD] = (
            lambda: ATEN_BACKWARD(g, x, weight, None, *arguments, w_mask),
            lambda: WEIGHT_GRAD(g, x, weight.shape[2:], *arguments),
        )
    if case.flows:
        ways[ResultMask.INPUT_GRAD] = (
            lambda: ATEN_BACKWARD(g, x, weight, None, *arguments, x_mask),
            lambda: INPUT_GRAD(g, weight, x.shape[2:], *arguments),
        )
    return ways


# Parts --------------------------------------------------------------------------------------------


def measured_part(part: Part, known: Mapping[fx.Node, Tensor], seconds: float) -> Verdict:
    """Measure a part on random data of the sizes in its graph, if these are known.

    known: tensors for the graph's inputs that are weights. seconds: the time for sampling.
    """
    inputs, weights = (list(nodes) for nodes in part.node.args[:2])
    values = [value_of(node) for node in inputs]
    if any(size is None for value in values for size in _hints(value)):
        return Verdict(None, None, "its sizes depend on data")
    operands = [*map(_random, values)]
    constants = [
        known[node] if node in known else attrgetter(str(node.target))(node.graph.owning_module)
        for node in weights
    ]
    with torch.no_grad():
        choice = choose(
            [
                Way("PyTorch", lambda: part.by_pytorch(operands, constants)),
                Way("upconv", lambda: part.run(operands, constants)),
            ],
            seconds=seconds,
            arrays=lambda results: map(array, results),
            truth=lambda: _in_float32(part, operands, constants),
        )
    ours = choice["upconv"]
    return Verdict(choice.baseline.seconds, ours.seconds, part.reason or ours.why)


def _in_float32(part: Part, inputs: list[Tensor], weights: list[Tensor]) -> list[Array]:
    """Return a part's results in float32; no results if PyTorch's functions refuse that."""
    try:
        results = part.by_pytorch(*([x.float() for x in tensors] for tensors in (inputs, weights)))
    except (RuntimeError, TypeError):
        return []
    return [*map(array, results)]


def _hints(value: Tensor) -> list[int | None]:
    """Return the sizes and strides in the trace; None for those that depend on data."""
    entries = (*value.shape, *value.stride())
    return [entry if type(entry) is int else entry.node.hint for entry in entries]


def _random(like: Tensor) -> Tensor:
    """Return random data with the sizes and strides of a fake tensor; elements may overlap."""
    sizes, strides = numbers(like.shape), numbers(like.stride())
    count = 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    return torch.randn(max(0, count)).to(like.dtype).as_strided(sizes, strides)
