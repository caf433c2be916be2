"""Native steps of all operations stay inside their arrays, on every processor."""

import pytest

from tests.support.native_steps import WAYS
from tests.support.processes import python, require_feature
from upconv.engines.jit.cpu import VARIABLE

COUNTS = {"test_pointwise": 14, "test_norms": 14, "test_windows": 24, "test_recurrent": 32}
"""Test module that draws cases -> the number of cases for each processor."""


@pytest.mark.parametrize(("cpu", "feature"), WAYS)
def test_steps_stay_inside_their_arrays(cpu: str, feature: str) -> None:
    """Each processor computes cases of its own."""
    if feature:
        require_feature(feature)
    first = 1000 * (1 + WAYS.index((cpu, feature)))
    seeds = {name: range(first, first + count) for name, count in COUNTS.items()}
    code = f"from tests.support import native_steps; native_steps.main({seeds})"
    done = python(code, **{VARIABLE: cpu})
    assert done.returncode == 0, done.stdout[-600:] + done.stderr[-2000:]
    assert done.stdout.endswith("done\n")


def test_a_write_beside_an_array_is_seen() -> None:
    """The fence of the test above must be able to fail."""
    code = """
from tests.support import native_steps
from upconv.network.matrices import Matrices
drawn = Matrices.pieces
def pieces(self, *given):
    result = drawn(self, *given); result['length'][-1] += 1; return result
Matrices.pieces = pieces
native_steps.main({"test_pointwise": range(100, 130)})
"""
    assert python(code).returncode != 0
