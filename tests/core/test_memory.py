"""Memory: asked for before it is taken, and never more than `workspace_bytes` says."""

import tracemalloc

import numpy as np
import pytest

import upconv
from tests.support.processes import python
from tests.support.tracing import traced
from upconv import testing
from upconv.activations import Activation
from upconv.engines import load, workspace
from upconv.errors import MemoryLimitError
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem


class TestMemory:
    @pytest.mark.parametrize(
        "call",
        [
            lambda: upconv.conv_transpose(_virtual(0, 1, 2, 2), _virtual(1, 1, 1, 1), stride=2**40),
            lambda: upconv.conv_transpose(_virtual(1, 1, 2**20), _virtual(1, 1, 1), stride=2**42),
            lambda: upconv.conv_transpose(_virtual(1, 10**6, 1), _virtual(10**6, 10**6, 1)),
            lambda: upconv.plan((1, 10**6, 1), _virtual(10**6, 10**6, 1)),
            lambda: upconv.conv(_virtual(1, 1, 10**12), _virtual(1, 1, 1).astype(">f4")),
            lambda: upconv.conv(
                np.broadcast_to(np.array(1, ">f4"), (1, 1, 10**12)),
                _virtual(1, 1, 1),
                stride=10**11,
            ),
            lambda: upconv.plan((1, 10**6, 1), _virtual(10**6, 10**6, 1), dtype="float64"),
        ],
    )
    def test_every_copy_is_asked_for(self, call) -> None:
        with pytest.raises(MemoryLimitError):
            call()

    def test_explaining_the_absurd_is_quick(self) -> None:
        told = upconv.explain((1, 1, 5), (1, 1, 10**9))
        assert told.output_shape == (1, 1, 10**9 + 4)
        assert "over a million EiB" in str(
            upconv.explain((1,) + (2**40,) * 9, (2**40, 1) + (1,) * 8)
        )

    @pytest.mark.parametrize(
        "input_shape", [(1, 1, 2**40), (1, 1, 10**6, 10**6), (2**26, 1, 5), (1, 1, 2**34)]
    )
    def test_tables_of_the_huge_are_small(self, input_shape: tuple[int, ...]) -> None:
        weight = (1, 1) + (3,) * (len(input_shape) - 2)
        with traced():
            upconv.explain(input_shape, weight)
            assert tracemalloc.get_traced_memory()[1] < 256 << 20

    def test_taps_that_reach_nothing_cost_nothing(self) -> None:
        x = np.arange(25.0).reshape(1, 1, 5, 5)
        w = np.arange(9.0).reshape(1, 1, 3, 3)
        y = upconv.conv(x, w, dilation=10**5, padding=10**5)
        np.testing.assert_array_equal(y, x * w[0, 0, 1, 1])
        grads = upconv.conv_backward(y, x, w, dilation=10**5, padding=10**5)
        only = np.zeros_like(w)
        only[0, 0, 1, 1] = (x * y).sum()
        np.testing.assert_array_equal(grads.weight, only)

    @pytest.mark.parametrize("direction", Direction)
    @pytest.mark.parametrize("kind", range(6))
    def test_workspace_bytes_is_an_upper_bound(self, kind: int, direction: Direction) -> None:
        gelu = Epilogue(Activation.GELU)
        plane = (Axis(128, 4, 2, 1, 1, 1),) * 2
        forward = [
            Problem(Direction.FORWARD, (Axis(512, 2, 2),) * 2, 1, 4, 1, epilogue=gelu),
            Problem(Direction.FORWARD, plane, 1, 64, 32, bias=True),
            Problem(Direction.FORWARD, plane, 2, 32, 32, 32, layout=DataLayout.NXC),
            Problem(Direction.FORWARD, (Axis(9, 4, 2),) * 2, 32, 64, 64, dtype=DType.FLOAT16),
            Problem(Direction.FORWARD, (Axis(1, 1), Axis(5_000, 501)), 1, 1, 1),
            Problem(Direction.FORWARD, plane, 2, 8, 16, accumulate=True, dtype=DType.FLOAT64),
        ][kind]
        if direction is Direction.WEIGHT_GRAD:
            forward = forward.replace(bias=False, epilogue=Epilogue())
        problem = forward.replace(direction=direction)
        primitive = load("reference").build(problem, 1)
        given = testing.operands(problem)
        weight_grad = direction is Direction.WEIGHT_GRAD
        b = given.b if weight_grad else primitive.pack(given.b)
        with traced():
            primitive.run(given.before, given.a, b, given.bias, given.residual)
            peak = tracemalloc.get_traced_memory()[1]
        assert peak <= primitive.workspace_bytes + (256 << 10)


def _virtual(*shape: int) -> np.ndarray:
    return np.broadcast_to(np.float32(1), shape)


def test_lent_memory_comes_back_when_nothing_looks_at_it() -> None:
    workspace._free.clear()
    array = workspace.warm(3 << 20)
    start, view = array.ctypes.data, array.view(np.float32)[5:].reshape(-1)[:10]
    del array
    assert not workspace._free
    del view
    assert start % 64 == 0
    assert [buffer.address for buffer in workspace._free] == [start]
    small = workspace.warm(1 << 20)  # which might be kept: not in three times as much
    assert small.ctypes.data != start
    with workspace.Workspace(1 << 20) as address:
        assert address == start


def test_memory_that_is_given_back_at_the_interpreters_end_says_nothing() -> None:
    """PyTorch keeps modules alive till their names are gone: models ended with lines on stderr."""
    code = """if True:
        import ctypes
        from upconv.engines import workspace
        workspace.held = workspace.warm(1000)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(workspace))  # its names are the last to go
    """
    done = python(code)
    assert (done.returncode, done.stderr) == (0, "")
