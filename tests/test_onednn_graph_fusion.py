"""What is fused becomes one plan and computes the same; what must not be fused is not.

Fusion is proven twice: by values against operations run one by one, and by counting plans, steps
and packed weights.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from upconv import ArgumentError, EngineError, fold_batch_norm, plans
from upconv.onednn_graph import Graph, LogicalTensor, Op, fusion
from upconv.onednn_graph.fusion import Chain
from upconv.onednn_graph.operations import Operation

X, W, N = (2, 5, 7, 4), (3, 2, 3, 4), (2, 11, 14, 3)  # NXC, XOI, the result
WINDOW = {
    "strides": [2, 2],
    "pads_begin": [0, 1],
    "pads_end": [0, 0],
    "dilations": [1, 1],
    "auto_pad": "None",
}
WINDOW["pads_begin"] = [0, 0]


class Chained:
    """A graph being written: a deconvolution and what follows, with data for every input."""

    def __init__(self, kind="ConvTranspose", weights="constant", bias=None, **attributes) -> None:
        self.rng = np.random.default_rng(7)
        self.graph, self.data, self.ids = Graph(), {}, 0
        groups = attributes.get("groups", 1)
        self.layout = attributes.get("data_format", "NXC")
        channels = W[2] * groups
        shape = (X[0], X[3] * groups, *X[1:3]) if self.layout == "NCX" else (*X[:3], X[3] * groups)
        w = (*W[:3], X[3] * groups)
        if kind == "Convolution":  # as many output channels
            w = (*W[:2], X[3], channels)
        self.x = self.fresh(shape, "variable")
        self.w = self.fresh(w, weights, scale=0.3)
        inputs = [self.x, self.w]
        if bias:
            inputs.append(self.fresh((channels,), bias))
        self.channels = channels
        self.last = self.put(kind, inputs, {**WINDOW, **attributes})
        size = self.infer()
        self.shape = (X[0], channels, *size) if self.layout == "NCX" else (X[0], *size, channels)

    def infer(self) -> tuple[int, int]:
        kind = self.graph.operations[0].kind
        if kind == "Convolution":
            return tuple((n - k) // 2 + 1 for n, k in zip(X[1:3], W[:2], strict=True))
        return tuple(2 * (n - 1) + k for n, k in zip(X[1:3], W[:2], strict=True))

    def fresh(self, shape, property_type="undef", scale=1.0, positive=False, data_type="f32"):
        values = self.rng.standard_normal(shape) * scale
        values = np.abs(values) + 0.5 if positive else values
        tensor = LogicalTensor(self.ids, data_type, shape, property_type)
        self.data[self.ids] = values.astype(np.float32)
        self.ids += 1
        return tensor

    def put(self, kind, inputs, attributes=None):
        made = LogicalTensor(self.ids, "f32")
        self.ids += 1
        self.graph.add_op(Op(len(self.graph.operations), kind, inputs, [made], attributes or {}))
        return made

    def bias(self, property_type="constant", layout=None):
        vector = self.fresh((self.channels,), property_type)
        words = {"data_format": layout or self.layout}
        self.last = self.put("BiasAdd", [self.last, vector], words)
        return self

    def norm(self, property_type="constant"):
        vectors = [self.fresh((self.channels,), property_type, positive=i == 3) for i in range(4)]
        words = {"epsilon": 1e-3, "data_format": self.layout}
        self.last = self.put("BatchNormInference", [self.last, *vectors], words)
        return self

    def add(self, shape=None, first=False):
        other = self.fresh(shape or self.shape)
        self.last = self.put("Add", [other, self.last] if first else [self.last, other])
        return self

    def relu(self, kind="ReLU", **words):
        self.last = self.put(kind, [self.last], words)
        return self

    def outcome(self, policy="fusion"):
        """(partitions, steps, plans), and outputs by id, executed twice."""
        if not self.graph.is_finalized:
            self.graph.finalize()
        shapes = [
            LogicalTensor(id_, "f32", self.data[id_].shape, self.graph.tensors[id_].property_type)
            for id_ in self.graph.inputs
        ]
        with self.graph.compile(shapes, policy=policy) as compiled:
            assert compiled.plans == 0
            first = compiled.execute(self.data)
            again = {
                id_: array
                for id_, array in self.data.items()
                if not self.graph.tensors[id_].constant
            }
            second = compiled.execute(again)
            counts = (
                len(compiled.partitions),
                sum(one.steps for one in compiled.partitions),
                compiled.plans,
            )
        for id_, array in first.items():
            np.testing.assert_array_equal(array, second[id_])
        return counts, first


def same(chain: Chained) -> tuple[int, int, int]:
    """The counts of a fused graph whose values are those of the operations one by one."""
    counts, fused = chain.outcome()
    _, single = chain.outcome("debug")
    assert fused.keys() == single.keys()
    for id_, array in fused.items():
        np.testing.assert_allclose(array, single[id_], rtol=2e-5, atol=2e-5)
        assert np.abs(array).max() > 0.1
    return counts


ONE_PLAN, ONE_CALL = (1, 1, 1), (1, 1, 0)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize("kind", ["ConvTranspose", "ConvolutionBackwardData"])
def test_the_whole_chain_is_one_plan(kind: str, layout: str, groups: int) -> None:
    chain = Chained(kind, data_format=layout, groups=groups).bias().norm().add().relu()
    assert same(chain) == ONE_PLAN
    assert len(chain.outcome("debug")[1]) == 1


CHAINS = {
    "own bias": lambda: Chained(bias="constant").norm().relu(),
    "norm before bias": lambda: Chained().norm().bias(),
    "two of each": lambda: Chained(bias="constant").bias().norm().bias().norm().add(first=True),
    "leaky": lambda: Chained().norm().add().relu("LeakyReLU", alpha=0.3),
    "sigmoid": lambda: Chained().bias().relu("Sigmoid"),
    "tanh": lambda: Chained().bias().relu("Tanh"),
    "gelu": lambda: Chained(groups=2).norm().relu("GELU"),
    "nothing": lambda: Chained(),
    "a vector added to every position": lambda: Chained().add((3,)).relu(),
    "one row added to all": lambda: Chained().norm().add((1, 1, 14, 1)).relu(),
}


@pytest.mark.parametrize("name", CHAINS)
def test_any_part_of_the_chain_is_one_plan(name: str) -> None:
    if name == "one row added to all":
        chain = Chained().norm()
        chain.add((1, 1, chain.shape[2], 1)).relu()
    else:
        chain = CHAINS[name]()
    assert same(chain) == ONE_PLAN


def test_relu_before_add_is_not_what_upconv_ends_with() -> None:
    """relu(conv) + r is not relu(conv + r): the addition is left to itself."""
    chain = Chained().bias().relu().add()
    assert same(chain) == (2, 2, 1)
    other = Chained().bias().add().relu()
    apart = chain.outcome()[1][chain.last.id] - other.outcome()[1][other.last.id]
    assert np.abs(apart).max() > 0.1


def test_norm_after_add_is_not_folded() -> None:
    assert same(Chained().add().norm().relu()) == (3, 3, 1)


def test_weights_that_may_change_are_packed_in_every_call() -> None:
    assert same(Chained(weights="variable").bias().add().relu()) == ONE_CALL
    assert same(Chained(weights="undef").bias("variable").relu()) == ONE_CALL
    assert same(Chained(bias="variable").relu()) == ONE_CALL


def test_a_norm_is_folded_into_constants_only() -> None:
    assert same(Chained(weights="variable").norm().relu()) == (3, 3, 0)
    assert same(Chained().norm("variable").relu()) == (3, 3, 1)
    assert same(Chained(bias="variable").norm()) == (2, 2, 0)
    assert same(Chained().bias("variable").norm().relu()) == (3, 3, 0)
    assert same(Chained().norm().bias("variable").relu()) == (3, 3, 1)


def test_a_convolution_is_one_call() -> None:
    assert same(Chained("Convolution").bias().add().relu()) == ONE_CALL
    assert same(Chained("Convolution", groups=3, bias="constant").relu()) == ONE_CALL
    assert same(Chained("Convolution").norm()) == (2, 2, 0)


def test_a_bias_for_other_channels_is_not_fused() -> None:
    """data_format of BiasAdd is its own: by default the last axis, whatever the convolution's."""
    chain = Chained(data_format="NCX")
    chain.channels = chain.shape[-1]
    assert same(chain.bias(layout="NXC").relu()) == (3, 3, 1)


def test_an_addition_that_broadcasts_the_convolution_is_a_step_of_its_own() -> None:
    chain = Chained()
    chain.add((3, 1, *chain.shape[1:]))
    chain.relu()
    counts, outputs = chain.outcome()
    assert counts == (1, 3, 1)
    assert outputs[chain.last.id].shape == (3, *chain.shape)
    assert same(chain) == (1, 3, 1)


def test_a_result_with_another_reader_is_not_fused_away() -> None:
    chain = Chained().bias()
    shared = chain.last
    chain.relu()
    other = chain.put("Tanh", [shared])
    counts, outputs = chain.outcome()
    assert counts == (3, 3, 1)
    positive = outputs[chain.last.id] > 0
    np.testing.assert_allclose(
        outputs[other.id][positive], np.tanh(outputs[chain.last.id][positive]), rtol=1e-6
    )
    assert (outputs[other.id][~positive] <= 0).all()
    assert not positive.all()
    assert same(chain) == (3, 3, 1)


def test_a_result_that_leaves_the_graph_is_not_fused_away() -> None:
    chain = Chained().bias()
    shared = chain.last
    chain.relu()
    chain.graph.add_op(Op(50, "End", [shared], []))
    counts, outputs = chain.outcome()
    assert counts == (2, 2, 1)
    assert set(outputs) == {shared.id, chain.last.id}
    np.testing.assert_array_equal(outputs[chain.last.id], np.maximum(outputs[shared.id], 0))


def test_a_result_added_to_itself_is_not_its_own_residual() -> None:
    chain = Chained()
    chain.last = chain.put("Add", [chain.last, chain.last])
    assert same(chain) == (2, 2, 1)


def test_two_convolutions_added_are_two_plans() -> None:
    chain = Chained()
    one = chain.last
    w = chain.fresh((*W[:3], 4), "constant", scale=0.3)
    other = chain.put("ConvTranspose", [chain.x, w], WINDOW)
    chain.last = chain.put("Add", [one, other])
    assert same(chain.relu()) == (2, 2, 2)


def test_a_chain_of_layers_runs_in_order_however_it_was_added() -> None:
    graph, tensors = Graph(), [LogicalTensor(i, "f32") for i in range(4)]
    weights = [LogicalTensor(10 + i, "f32", (2, 3, 3), property_type="constant") for i in range(3)]
    window = {"strides": [2], "pads_begin": [0], "pads_end": [0], "dilations": [1]}
    for i in (2, 0, 1):
        graph.add_op(Op(i, "ConvTranspose", [tensors[i], weights[i]], [tensors[i + 1]], window))
    graph.finalize()
    assert [op.id for op in graph.operations] == [0, 1, 2]
    rng = np.random.default_rng(5)
    data = {10 + i: rng.standard_normal((2, 3, 3)).astype(np.float32) for i in range(3)}
    data[0] = rng.standard_normal((1, 4, 3)).astype(np.float32)
    assert graph.execute(data)[3].shape == (1, 32, 3)


def test_weights_are_folded_and_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = []
    honest = plans.packed
    monkeypatch.setattr(plans, "packed", lambda *given: packed.append(1) or honest(*given))
    chain = Chained().bias().norm().add().relu()
    chain.graph.finalize()
    with chain.graph.compile(
        [LogicalTensor(0, "f32", chain.data[0].shape, "variable")], constants=constants(chain)
    ) as compiled:
        assert compiled.plans == 1
        assert len(packed) == 1
        for _ in range(5):
            compiled.execute(variables(chain))
        assert len(packed) == 1


def constants(chain: Chained) -> dict[int, np.ndarray]:
    known = chain.graph.tensors
    return {id_: array for id_, array in chain.data.items() if known[id_].constant}


def variables(chain: Chained) -> dict[int, np.ndarray]:
    known = chain.graph.tensors
    return {id_: array for id_, array in chain.data.items() if not known[id_].constant}


def ready(chain: Chained):
    chain.graph.finalize()
    (partition,) = chain.graph.partitions()
    x = LogicalTensor(0, "f32", chain.data[0].shape, "variable")
    return partition.compile([x])


def test_constants_are_copied_and_must_stay_what_they_were() -> None:
    chain = Chained().bias()
    with ready(chain) as compiled:
        first = compiled.execute(chain.data)
        kept = chain.data[chain.w.id].copy()
        chain.data[chain.w.id] *= 2
        np.testing.assert_array_equal(
            compiled.execute(variables(chain))[chain.last.id], first[chain.last.id]
        )
        with pytest.raises(ArgumentError, match=r"^data\[1\] is other data than before; "):
            compiled.execute(chain.data)
        chain.data[chain.w.id] = kept
        assert compiled.execute(chain.data).keys() == {chain.last.id}


def test_a_fold_that_would_overflow_is_not_made() -> None:
    """w * gamma / sqrt(variance + eps) is infinite in float16, the result is not."""
    graph = Graph()
    x, w, y, z = (
        LogicalTensor(0, "f16", (1, 2, 2)),
        LogicalTensor(1, "f16", (1, 2, 2), "constant"),
        LogicalTensor(2, "f16"),
        LogicalTensor(3, "f16"),
    )
    vectors = [LogicalTensor(10 + i, "f32", (2,), "constant") for i in range(4)]
    window = {"strides": [1], "pads_begin": [0], "pads_end": [0], "dilations": [1]}
    graph.add_op(Op(0, "ConvTranspose", [x, w], [y], window))
    graph.add_op(Op(1, "BatchNormInference", [y, *vectors], [z], {"epsilon": 0.0}))
    graph.finalize()
    data = {
        0: np.full((1, 2, 2), 0.001, np.float16),
        1: np.full((1, 2, 2), 1000, np.float16),
        **{10 + i: np.full(2, v, np.float32) for i, v in enumerate((1000, 0, 0, 1))},
    }
    fused, single = graph.execute(data), graph.execute(data, policy="debug")
    assert np.isfinite(fused[3]).all()
    np.testing.assert_array_equal(fused[3], single[3])


def test_results_are_written_where_they_are_asked_for() -> None:
    chain = Chained().bias().add().relu()
    with ready(chain) as compiled:
        wanted = compiled.execute(chain.data)[chain.last.id]
        out = np.zeros((*chain.shape, 2), np.float32)[..., 0]
        found = compiled.execute(variables(chain), {chain.last.id: out})
        assert found[chain.last.id] is out
        np.testing.assert_array_equal(out, wanted)
        assert compiled.query_logical_tensor(chain.last.id).dims == chain.shape


def test_many_threads_execute_one_partition_and_plan_once() -> None:
    chain = Chained().bias().norm().relu()
    with ready(chain) as compiled:
        results, start = [], threading.Barrier(8)

        def work() -> None:
            start.wait()
            results.append(compiled.execute(chain.data)[chain.last.id])

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert compiled.plans == 1
    assert len(results) == 8
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_a_closed_partition_says_so() -> None:
    chain = Chained()
    compiled = ready(chain)
    compiled.execute(chain.data)
    compiled.close()
    compiled.close()
    with pytest.raises(EngineError, match=r"^This compiled partition is closed\. Compile it again"):
        compiled.execute(chain.data)


def test_a_plan_takes_part_only_where_the_tables_say() -> None:
    """The order of partitions, and what they hold, as people see it."""
    chain = Chained().bias().norm().add().relu()
    chain.graph.finalize()
    (whole,) = chain.graph.partitions()
    assert str(whole) == ("partition 0: ConvTranspose + BiasAdd + BatchNormInference + Add + ReLU")
    assert whole.op_ids == (0, 1, 2, 3, 4)
    assert [port.id for port in whole.outputs] == [chain.last.id]
    single = chain.graph.partitions("debug")
    assert [part.op_ids for part in single] == [(0,), (1,), (2,), (3,), (4,)]


# ------------------------------------------------------------- planted faults: the tests can fail


def any_order(self: Chain, op: Operation) -> Chain:
    """Add after ReLU taken for Add before it."""
    return Chain(self.anchor, (*self.tail, op))


def ungrouped(weight, *rest, groups, **words):
    """Group by group, the factors of the first group."""
    gamma, beta, mean, var = rest[1:]
    share = len(gamma) // groups
    first = [np.tile(vector[:share], groups) for vector in (gamma, beta, mean, var)]
    return fold_batch_norm(weight, rest[0], *first, groups=groups, **words)


FAULTS = {
    "order": (Chain, "with_next", any_order, lambda: Chained().bias().relu().add()),
    "bias": (fusion, "fold_batch_norm",
             lambda weight, bias, *rest, **words: fold_batch_norm(weight, None, *rest, **words),
             lambda: Chained(bias="constant").norm().relu()),
    "groups": (fusion, "fold_batch_norm", ungrouped, lambda: Chained(groups=3).norm().relu()),
    "epsilon": (fusion, "fold_batch_norm",
                lambda *given, eps, **words: fold_batch_norm(*given, eps=0.1, **words),
                lambda: Chained().bias().norm()),
    "readers": (Graph, "_readers", lambda self: only_first(self), Chained),
}  # fmt: skip


def only_first(graph: Graph) -> dict[int, list[Operation]]:
    """Every tensor's first reader alone."""
    found: dict[int, list[Operation]] = {id_: [] for id_ in graph.tensors}
    for op in graph._operations.values():
        for tensor in op.inputs:
            found[tensor.id] = found[tensor.id] or [op]
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_in_fusion_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, attribute, fault, make = FAULTS[name]
    monkeypatch.setattr(place, attribute, fault)
    if name == "readers":
        with pytest.raises(AssertionError):
            test_a_result_that_leaves_the_graph_is_not_fused_away()
        return
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        same(make())
