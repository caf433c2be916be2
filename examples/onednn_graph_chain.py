"""A decoder layer in oneDNN Graph's words: five operations, one plan.

    y = relu(batch_norm(conv_transpose(x, w) + b) + skip)          channels last, 2 groups

Claims: the five operations become one partition with one plan; its result is that of the operations
run one by one, and, where libdnnl is installed, that of the library's own Graph API.
"""

from __future__ import annotations

import numpy as np

import upconv
from upconv.onednn_graph import Graph, LogicalTensor, Op, run_by_library

WINDOW = {"strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1]}
X, W, SKIP = (2, 6, 7, 16), (4, 4, 6, 16), (2, 12, 14, 12)  # NXC, XOI, NXC


def chain() -> Graph:
    """The graph. Tensors 0 to 7 are inputs, all but x (0) and skip (7) constant; 12 is y."""
    shapes = [X, W, *[(12,)] * 5, SKIP]
    kinds = ["variable", *["constant"] * 6, "variable"]
    x, w, b, gamma, beta, mean, variance, skip = (
        LogicalTensor(i, "f32", dims, kind)
        for i, (dims, kind) in enumerate(zip(shapes, kinds, strict=True))
    )
    up, biased, normal, joined, y = (LogicalTensor(id_, "f32") for id_ in range(8, 13))
    graph = Graph()
    graph.add_op(Op(0, "ConvTranspose", [x, w], [up], {**WINDOW, "groups": 2}))
    graph.add_op(Op(1, "BiasAdd", [up, b], [biased]))
    statistics = [gamma, beta, mean, variance]
    graph.add_op(Op(2, "BatchNormInference", [biased, *statistics], [normal], {"epsilon": 1e-5}))
    graph.add_op(Op(3, "Add", [normal, skip], [joined]))
    graph.add_op(Op(4, "ReLU", [joined], [y]))
    graph.finalize()
    return graph


def drawn(graph: Graph) -> dict[int, np.ndarray]:
    """Data for all inputs; variances are positive."""
    rng = np.random.default_rng(1)
    data = {
        id_: rng.standard_normal(graph.tensors[id_].dims).astype(np.float32) for id_ in graph.inputs
    }
    data[1] /= 8
    data[6] = np.abs(data[6]) + 0.5
    return data


def main() -> None:
    """Compile the chain, run it, and compare it with itself taken apart and with libdnnl."""
    graph = chain()
    data = drawn(graph)
    constants = {id_: array for id_, array in data.items() if graph.tensors[id_].constant}
    with graph.compile(constants=constants) as compiled:
        (partition,) = compiled.partitions
        print(f"{partition.partition}: {compiled.plans} plan")
        assert compiled.plans == 1
        y = compiled.execute({0: data[0], 7: data[7]})[12]
        again = compiled.execute({0: 2 * data[0], 7: data[7]})[12]
    assert y.shape == SKIP
    assert np.abs(again - y).max() > 0.1

    single = graph.execute(data, policy="debug")[12]
    print(f"one by one:  largest difference {np.abs(y - single).max():.1e}")
    np.testing.assert_allclose(y, single, rtol=1e-4, atol=1e-5)

    try:
        by_library = run_by_library(graph, data)[12]
    except upconv.EngineMissing as missing:
        print(f"no libdnnl: {missing}")
    else:
        print(f"by libdnnl:  largest difference {np.abs(y - by_library).max():.1e}")
        np.testing.assert_allclose(y, by_library, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    main()
