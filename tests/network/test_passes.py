"""The passes of networks: each keeps the values of a graph, and does what it is for."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support import random_networks
from upconv.engine_choice import Algorithm
from upconv.keywords import Keywords
from upconv.network import Network, fold, fuse, layout_choice, place
from upconv.network.compile import simplified
from upconv.network.convolutions import candidate, priced, problem_of
from upconv.network.definitions import evaluate
from upconv.network.graph import (
    Concat,
    Convert,
    Convolution,
    Form,
    Graph,
    Input,
    Node,
    Norm,
    Op,
    Operation,
    Pad,
    Permute,
    Pointwise,
    Slice,
)
from upconv.network.kinds import output_shapes
from upconv.problem import DataLayout, DType

LEAKY = Op("leaky_relu", 0.25)


class Sketch:
    """A graph in the making, for tests that need a certain one."""

    def __init__(self, *inputs: tuple[int, ...]) -> None:
        self.random = np.random.default_rng(3)
        self.shapes = dict(enumerate(inputs))
        self.nodes: list[Node] = []

    def add(self, operation: Operation, *inputs: int) -> int:
        """The last output of a new node."""
        results = output_shapes(operation, tuple(self.shapes[value] for value in inputs))
        numbers = tuple(range(len(self.shapes), len(self.shapes) + len(results)))
        self.shapes |= dict(zip(numbers, results, strict=True))
        self.nodes.append(Node(operation, inputs, numbers))
        return numbers[-1]

    def conv(self, x: int, channels: int, groups: int = 1, *, transposed: bool = False) -> int:
        """A convolution by 3 taps per axis, with a bias."""
        rank, before = len(self.shapes[x]) - 2, self.shapes[x][1]
        first, second = (before, channels // groups) if transposed else (channels, before // groups)
        weight = self.random.standard_normal((first, second, *(3,) * rank)).astype(np.float32)
        bias = self.random.standard_normal(channels).astype(np.float32)
        stride, order = (2, "IOX") if transposed else (1, "OIX")
        keywords = Keywords(stride, 1, 0, 1, groups, None, "NCX", order)
        return self.add(Convolution(weight, bias, keywords, transposed), x)

    def chain(self, x: int, *ops: Op, others: Sequence[int] = ()) -> int:
        """A chain on a value."""
        return self.add(Pointwise(ops), x, *others)

    def sum(self, x: int, y: int) -> int:
        """The sum of two values."""
        return self.chain(x, Op("add", Input(1)), others=[y])

    def channels(self, x: int) -> np.ndarray[Any, Any]:
        """A number for each channel of a value."""
        return self.random.uniform(0.5, 2, self.shapes[x][1])

    def graph(self, *outputs: int) -> Graph:
        """The graph whose inputs are the values that no node writes."""
        written = {value for node in self.nodes for value in node.outputs}
        inputs = {f"x{value}": value for value in self.shapes if value not in written}
        return Graph(tuple(self.nodes), inputs, outputs, dict(self.shapes))


def names(graph: Graph) -> list[str]:
    """The names of the operations, with what they end in."""
    texts = []
    for node in graph.nodes:
        chain = fuse.chain_of(node) or ()
        texts.append(" ".join([type(node.operation).__name__, *(op.name for op in chain)]))
    return texts


def same(before: Graph, after: Graph) -> None:
    """Whether two graphs compute the same."""
    generator = np.random.default_rng(5)
    arrays = [generator.standard_normal(before.shapes[value]) for value in before.inputs.values()]
    for expected, result in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def becomes(before: Graph, after: Graph, expected: list[str]) -> None:
    """Whether a graph has these operations now, and computes the same."""
    assert names(after) == expected
    same(before, after)


def test_a_chain_joins_the_convolution_before_it() -> None:
    sketch = Sketch((2, 3, 8))
    graph = sketch.graph(sketch.chain(sketch.chain(sketch.conv(0, 4), LEAKY), Op("mul", 2.0)))
    becomes(graph, fuse.fuse(graph), ["Convolution leaky_relu mul"])


def test_a_value_that_others_read_is_a_second_result() -> None:
    sketch = Sketch((1, 3, 8))
    first = sketch.conv(0, 3)
    graph = sketch.graph(sketch.sum(sketch.conv(sketch.chain(first, LEAKY), 3), first))
    becomes(graph, fuse.fuse(graph), ["Convolution store leaky_relu", "Convolution add"])


def test_snake_by_elementary_functions_is_one_pass() -> None:
    sketch = Sketch((2, 3, 8))
    x = sketch.conv(0, 4)
    a = sketch.channels(x)
    wave = sketch.chain(sketch.chain(x, Op("mul", a)), Op("sin"))
    wave = sketch.chain(sketch.chain(wave, Op("square")), Op("mul", 1 / a))
    graph = sketch.graph(sketch.sum(x, wave))
    becomes(graph, fuse.fuse(graph), ["Convolution", "Pointwise mul sin square mul add"])


def test_a_difference_keeps_its_order_where_operands_are_exchanged() -> None:
    sketch = Sketch((1, 3, 8))
    first = sketch.conv(0, 3)
    second = sketch.conv(first, 3)
    graph = sketch.graph(sketch.chain(first, Op("sub", Input(1)), others=[second]))
    becomes(graph, fuse.fuse(graph), ["Convolution", "Convolution rsub"])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("read_again", [False, True])
def test_a_convolution_writes_its_channels_in_another_order(
    transposed: bool, read_again: bool
) -> None:
    sketch = Sketch((2, 3, 8))
    x = sketch.conv(0, 4, transposed=transposed)
    weight = sketch.nodes[-1].operation
    sketch.nodes[-1] = dataclasses.replace(
        sketch.nodes[-1],
        operation=dataclasses.replace(weight, epilogue=(Op("prelu", sketch.channels(x)),)),
    )
    y = sketch.add(Permute((3, 1, 0, 2, 1)), x)
    graph = sketch.graph(*((y, x) if read_again else (y,)))
    becomes(
        graph, fold.reordered(graph), ["Convolution prelu", *(["Permute"] if read_again else [])]
    )


def test_a_kernel_adds_no_value_that_is_broadcast() -> None:
    sketch = Sketch((2, 3, 8), (2, 4, 1))
    graph = sketch.graph(
        sketch.chain(sketch.conv(0, 4), Op("add", Input(1, True)), Op("relu"), others=[1])
    )
    becomes(graph, fuse.split(fuse.fuse(graph)), ["Convolution", "Pointwise add relu"])


@pytest.mark.parametrize("swapped", [False, True])
def test_a_sum_joins_the_operand_that_is_written_last(swapped: bool) -> None:
    sketch = Sketch((1, 3, 8))
    first = sketch.conv(0, 3)
    second = sketch.conv(first, 3)
    graph = sketch.graph(sketch.sum(*((second, first) if swapped else (first, second))))
    becomes(graph, fuse.fuse(graph), ["Convolution", "Convolution add"])


def test_a_chain_that_reads_something_later_stays() -> None:
    sketch = Sketch((1, 3, 8))
    first = sketch.chain(sketch.conv(0, 3), Op("tanh"))
    square = sketch.chain(first, Op("mul", Input(1)), others=[first])
    becomes(
        sketch.graph(square), fuse.fuse(sketch.graph(square)), ["Convolution tanh", "Pointwise mul"]
    )


def test_equal_chains_are_computed_once() -> None:
    sketch = Sketch((1, 3, 8))
    branches = [sketch.conv(sketch.chain(0, LEAKY), 3) for _ in range(3)]
    graph = sketch.graph(*branches, sketch.chain(0, LEAKY))
    assert names(fuse.fuse(graph)).count("Pointwise leaky_relu") == 2  # the output is its own
    same(graph, fuse.fuse(graph))


def test_relu_beside_a_leaky_relu_is_computed_from_it() -> None:
    sketch = Sketch((1, 3, 8))
    skip = sketch.conv(0, 3)
    down = sketch.conv(sketch.chain(skip, LEAKY), 3)
    both = sketch.chain(sketch.add(Concat(), down, skip), Op("relu"))
    graph = sketch.graph(sketch.conv(both, 3))
    ends = ["Convolution leaky_relu store relu", "Convolution relu", "Concat", "Convolution"]
    becomes(graph, fuse.fuse(graph), ends)


def test_an_activation_of_a_concatenation_joins_what_made_its_parts() -> None:
    sketch = Sketch((1, 3, 8))
    parts = [sketch.conv(0, 2), sketch.conv(0, 4)]
    graph = sketch.graph(sketch.conv(sketch.chain(sketch.add(Concat(), *parts), LEAKY), 3))
    becomes(graph, fuse.fuse(graph), [*["Convolution leaky_relu"] * 2, "Concat", "Convolution"])


def test_slopes_of_a_concatenation_stay_behind_it() -> None:
    sketch = Sketch((1, 3, 8))
    both = sketch.add(Concat(), sketch.conv(0, 2), sketch.conv(0, 4))
    graph = sketch.graph(sketch.chain(both, Op("prelu", sketch.channels(both))))
    assert names(fuse.fuse(graph)) == ["Convolution", "Convolution", "Concat", "Pointwise prelu"]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_becomes_part_of_the_weight(transposed: bool, groups: int) -> None:
    sketch = Sketch((2, 4, 5, 6))
    y = sketch.conv(0, 6, groups, transposed=transposed)
    scale, offset = Op("mul", sketch.channels(y)), Op("add", sketch.channels(y))
    graph = sketch.graph(sketch.chain(y, scale, offset, Op("mul", -0.5), LEAKY))
    becomes(graph, fold.fold(fuse.fuse(graph)), ["Convolution leaky_relu"])


def test_a_positive_factor_moves_into_the_convolutions_that_read_it() -> None:
    sketch = Sketch((1, 3, 8), (1, 3, 8))
    mean = sketch.chain(sketch.sum(0, 1), Op("mul", 1 / 3), LEAKY)
    graph = sketch.graph(sketch.conv(mean, 3), sketch.conv(mean, 4, transposed=True))
    expected = ["Pointwise add leaky_relu", "Convolution", "Convolution"]
    becomes(graph, fold.fold(fuse.fuse(graph)), expected)


@pytest.mark.parametrize("factor", [-1.0, 0.0])
def test_other_factors_stay(factor: float) -> None:
    sketch = Sketch((1, 3, 8))
    graph = sketch.graph(sketch.conv(sketch.chain(0, Op("mul", factor), LEAKY), 3))
    becomes(graph, fold.fold(fuse.fuse(graph)), ["Pointwise mul leaky_relu", "Convolution"])


def test_a_factor_stays_where_something_else_reads_its_value() -> None:
    sketch = Sketch((1, 3, 8))
    scaled = sketch.chain(0, Op("mul", 2.0))
    graph = sketch.graph(sketch.conv(scaled, 3), scaled)
    becomes(graph, fold.fold(graph), ["Pointwise mul", "Convolution"])


@pytest.mark.parametrize("amounts", [((2, 1), (0, 3)), ((0, 0), (1, 0))])
def test_zeros_around_an_input_become_padding(amounts: tuple[tuple[int, int], ...]) -> None:
    sketch = Sketch((2, 3, 7, 8))
    padded = sketch.add(Pad(amounts), 0)
    graph = sketch.graph(sketch.conv(padded, 4))
    becomes(graph, fold.fold(graph), ["Convolution"])
    also_read = sketch.graph(sketch.nodes[-1].outputs[0], padded)
    assert names(fold.fold(also_read)) == ["Pad", "Convolution"]
    for other in (Pad(((1, 1), (2, 2)), "reflect"), Pad(((-1, 2), (1, 1)))):
        sketch = Sketch((2, 3, 7, 8))
        graph = sketch.graph(sketch.conv(sketch.add(other, 0), 4))
        assert names(fold.fold(graph)) == ["Pad", "Convolution"]


ENDS: list[tuple[list[Op], int]] = [
    ([], 0), ([LEAKY], 1), ([Op("add", Input(1)), Op("silu")], 2),
    ([Op("add", Input(1)), Op("store"), Op("relu")], 3), ([Op("store"), Op("tanh")], 2),
    ([Op("store"), Op("elu", 1.0)], 0), ([Op("prelu", np.ones(3)), Op("store"), LEAKY], 3),
    ([LEAKY, Op("store"), Op("relu"), Op("mul", 2.0)], 1), ([Op("elu", 1.0)], 0),
    ([Op("add", Input(1)), Op("add", Input(2)), LEAKY], 3), ([Op("hard_swish")], 1),
]  # fmt: skip


def test_limits_of_0_and_6_are_one_activation_of_a_convolution() -> None:
    network = Network({"x": (1, 3, 8)})
    y = network.conv(network.inputs["x"], np.ones((4, 3, 1)))
    network.output(network.clip(network.clip(y, 0, 6), -1, 6))
    parts = fuse.split(fuse.fuse(network.graph()))
    chains = [[op.name for op in fuse.chain_of(node) or ()] for node in parts.nodes]
    assert chains == [["relu6"], ["maximum", "minimum"]]


@pytest.mark.parametrize(("epilogue", "count"), ENDS)
def test_split_leaves_what_kernels_do(epilogue: list[Op], count: int) -> None:
    sketch = Sketch((1, 3, 8), (1, 3, 8), (1, 3, 8))
    sketch.conv(0, 3)
    (node,) = sketch.nodes
    stores = sum(op.name == "store" for op in epilogue)
    outputs = tuple(range(3, 4 + stores))
    shapes = sketch.shapes | dict.fromkeys(outputs, (1, 3, 8))
    node = fuse.with_chain(node, tuple(epilogue), (0, 1, 2), outputs)
    graph = Graph((node,), {"a": 0, "b": 1, "c": 2}, outputs, shapes)
    parts = fuse.split(graph)
    assert len(parts.nodes[0].operation.epilogue) == count  # type: ignore[attr-defined]
    assert len(parts.nodes) == 1 + (count < len(epilogue))
    same(graph, parts)


def test_norms_take_chains_of_any_length() -> None:
    sketch = Sketch((2, 4, 5, 6))
    norm = sketch.add(Norm(4, 1e-5), sketch.conv(0, 4))
    ops = Op("mul", sketch.channels(norm)), Op("add", Input(1)), Op("prelu", sketch.channels(norm))
    graph = sketch.graph(sketch.chain(norm, *ops, others=[0]))
    becomes(graph, fuse.split(fuse.fuse(graph)), ["Convolution", "Norm mul add prelu"])


def test_parts_of_a_concatenation_lie_in_it() -> None:
    sketch = Sketch((1, 3, 8))
    first, second = sketch.conv(0, 2), sketch.conv(0, 4)
    whole = sketch.add(Concat(), 0, first, second, first)
    graph = sketch.graph(sketch.conv(sketch.add(Slice(1, 5), whole), 3))
    placed = place.place(graph)
    kinds = [type(node.operation) for node in placed.nodes]
    # A copy for the caller's array, and one for the value that lies there twice.
    assert kinds == [Convolution, Convolution, Convert, Convert, Convolution]
    assert place.root(placed, first) == (whole, 3)
    assert place.root(placed, second) == (whole, 5)
    assert place.root(placed, placed.nodes[-1].inputs[0]) == (whole, 1)


@pytest.mark.parametrize("batch", [1, 2])
def test_positions_of_one_channels_last_image_lie_in_a_joined_one(batch: int) -> None:
    sketch = Sketch((batch, 3, 8), (batch, 4, 5))
    first = sketch.conv(0, 4)
    joined = sketch.add(Concat(2), 1, first)
    part = sketch.add(Pad(((-3, -1),)), joined)
    graph = sketch.graph(sketch.conv(part, 3))
    last = Form(DataLayout.NXC)
    placed = place.place(dataclasses.replace(graph, forms=dict.fromkeys(graph.shapes, last)))
    same(graph, placed)
    if batch == 1:  # a copy of the caller's array
        assert names(placed) == ["Convolution", "Convert", "Convolution"]
        assert place.root(placed, first) == (joined, 5)
        assert place.root(placed, part) == (joined, 3)
    else:
        assert len(placed.nodes) == len(graph.nodes)
    assert len(place.place(graph).nodes) == len(graph.nodes)


@pytest.mark.parametrize("read_again", [False, True])
def test_the_second_sum_lies_in_the_result(read_again: bool) -> None:
    sketch = Sketch((1, 3, 8))
    before = sketch.conv(0, 3)
    residual = sketch.conv(0, 3)
    total = sketch.sum(sketch.sum(sketch.conv(0, 3), residual), before)
    outputs = [total, sketch.conv(before, 3)] if read_again else [total]
    placed = place.place(fuse.split(fuse.fuse(sketch.graph(*outputs))))
    writer = placed.writers()[total]
    assert [op.name for op in writer.operation.epilogue] == ["add", "add"]  # type: ignore[attr-defined]
    second = writer.inputs[writer.operation.epilogue[1].operand.number]  # type: ignore[attr-defined]
    assert place.root(placed, second) == (total, 0)
    assert sum(isinstance(node.operation, Convert) for node in placed.nodes) == read_again
    same(sketch.graph(*outputs), placed)


def costs(first: float, last: float) -> Callable[..., float]:
    """A cost by layout alone."""
    return lambda _, __, order: first if order is DataLayout.NCX else last


def chosen_layouts(graph: Graph, cost: layout_choice.Cost) -> Graph:
    """The graph in the layouts of least cost."""
    labels = layout_choice.labels(graph, DType.FLOAT32, 1, cost)
    return layout_choice.laid_out(graph, labels, DType.FLOAT32)


@pytest.mark.parametrize(("last", "converted"), [(0.0, 2), (9.9e5, 0)])
def test_layouts_are_changed_where_that_is_cheaper(last: float, converted: int) -> None:
    sketch = Sketch((1, 64, 1000))
    graph = sketch.graph(sketch.conv(sketch.chain(sketch.conv(0, 64), LEAKY), 64))
    chosen = chosen_layouts(graph, costs(1e6, last))
    assert sum(isinstance(node.operation, Convert) for node in chosen.nodes) == converted
    assert chosen.form(chosen.outputs[0]) == Form()
    same(graph, chosen)


def test_one_conversion_serves_all_readers() -> None:
    sketch = Sketch((1, 64, 1000))
    graph = sketch.graph(*(sketch.conv(0, 64) for _ in range(3)))
    chosen = chosen_layouts(graph, costs(1e9, 0.0))
    assert sum(isinstance(node.operation, Convert) for node in chosen.nodes) == 1 + 3


def test_the_cut_is_the_least_of_all() -> None:
    generator = random.Random(1)
    for _ in range(100):
        count = generator.randint(1, 6)
        first, last = ([generator.randint(0, 9) for _ in range(count)] for _ in range(2))
        edges = [
            (*generator.sample(range(count), 2), generator.randint(0, 9))
            for _ in range(generator.randint(0, 9) if count > 1 else 0)
        ]
        flow = layout_choice._Flow()
        for number in range(count):
            flow.add("first", str(number), last[number])
            flow.add(str(number), "last", first[number])
        for start, end, cost in edges:
            flow.add(str(start), str(end), cost)
            flow.add(str(end), str(start), cost)
        chosen = flow.cut_off("first", "last")

        def total(label: Sequence[bool], first=first, last=last, edges=edges) -> int:  # type: ignore[no-untyped-def]
            own = sum(last[n] if label[n] else first[n] for n in range(len(label)))
            return int(own + sum(cost for a, b, cost in edges if label[a] != label[b]))

        least = min(total(label) for label in itertools.product((False, True), repeat=count))
        assert total([str(number) in chosen for number in range(count)]) == least


@pytest.mark.parametrize("seed", range(20))
def test_layers_that_end_differently_have_the_candidates_of_one(seed: int) -> None:
    """The choice looks at the candidates of `priced` problems only."""
    graph = simplified(random_networks.case(seed).graph())
    for node in graph.nodes:
        if isinstance(node.operation, Convolution):
            for layout in (DataLayout.NCX, DataLayout.NXC):
                shape = graph.shapes[node.inputs[0]]
                problem = problem_of(node.operation, shape, Form(layout, DType.FLOAT32))
                one = candidate(problem, 2, Algorithm.AUTO)
                other = candidate(priced(problem), 2, Algorithm.AUTO)
                assert (one.variant, one.cycles) == (other.variant, other.cycles)
