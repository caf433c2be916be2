"""Implementations of libdnnl that err on this processor, or would on another, are not taken.

The library is held to instruction sets that this processor has, each in a process of its own.
"""

import pytest

from upconv import testing
from upconv.engines import load
from upconv.errors import EngineMissing
from upconv.problem import Direction

try:
    load("onednn")
except EngineMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)

from tests.support.processes import printed
from upconv.engines.onednn import selftest
from upconv.engines.onednn.candidates import best
from upconv.engines.onednn.primitive import OnednnPrimitive

ISAS = ("SSE41", "AVX2", "AVX2_VNNI", "AVX512_CORE", "DEFAULT")

BIAS = """
import numpy as np
from itertools import product
from upconv.activations import Activation
from upconv.engines import load
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, Epilogue, Problem

engine, seen = load("onednn"), 0
layers = [
    (rank, k, s, i, o)
    for (rank, k, s), (i, o) in product(
        ((1, 16, 8), (2, 4, 2), (2, 8, 4), (2, 16, 8), (3, 2, 2), (3, 4, 2)),
        ((3, 16), (21, 21), (64, 64), (128, 3), (256, 16), (512, 64)),
    )
    if i * o * k**rank < 4e6
]
for (rank, k, s, i, o), layout in product(layers, DataLayout):
    for direction in (Direction.FORWARD, Direction.INPUT_GRAD):
        after = bool(seen % 2)  # both about as often, as layers have one variant or more
        axes = (Axis(5, k, s, 1, (k - s) // 2, (k - s) // 2),) * rank
        epilogue = Epilogue(Activation.LEAKY_RELU, 0.5, residual=True) if after else Epilogue()
        problem = Problem(direction, axes, 1, i, o, layout=layout, bias=True, epilogue=epilogue)
        a, b = (np.zeros(shape, np.float32) for shape in problem.operand_shapes)
        out = np.full(problem.result_shape, np.nan, np.float32)
        bias = np.ones(problem.result_channels, np.float32)
        residual = np.full_like(out, -3) if after else None
        for variant in engine.variants(problem, 1):
            primitive = engine.build(problem, 1, variant)
            primitive.run(out, a, primitive.pack(b), bias, residual)
            wanted = -1 if after else 1
            assert (out == wanted).all(), (str(problem), primitive.description, out.max())
            seen += 1
from upconv.engines.onednn import selftest
for direction in Direction:
    selftest.ensure(engine._runtime, direction)
print(engine._runtime, seen)
"""


@pytest.mark.parametrize("isa", ISAS)
def test_a_bias_is_added_once(isa: str) -> None:
    """By every way, with every instruction set: parts of kernels once added it 28 times."""
    told, _, seen = printed(BIAS, ONEDNN_MAX_CPU_ISA=isa).rpartition(" ")
    assert int(seen) > 100
    assert "self-test: passed" in told


@pytest.mark.parametrize("direction", Direction)
def test_an_implementation_that_errs_here_is_not_taken(
    direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next choice is taken in its place, and told."""
    problem = next(p for p in selftest.problems() if p.direction is direction and p.groups == 1)
    mine = load("onednn")._runtime
    first = best(mine, problem, 1)
    assert first is not None
    wrong = first.implementation
    run = OnednnPrimitive.run

    def erring(self, out, *operands):
        run(self, out, *operands)
        if self._candidate.implementation == wrong:
            out.flat[out.size // 2] += 1

    monkeypatch.setattr(OnednnPrimitive, "run", erring)
    monkeypatch.setattr(mine, "distrusted", frozenset())
    selftest.run(mine, direction)
    assert (first.offer.operation.kind.value, wrong) in mine.distrusted
    assert wrong in str(mine)
    second = best(mine, problem, 1)
    assert second is None or second.implementation != wrong
    if load("onednn").refuses(problem) is None:
        testing.check(load("onednn"), problem)
