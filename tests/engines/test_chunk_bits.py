"""Chunks have the bits of the whole in every direct kernel, and Winograd's algorithm is excluded.

Each processor has a process of its own. `chunk_bits.main(range(500))` compares more layers.
"""

import numpy as np
import pytest

import upconv
from tests.support.processes import printed, require_feature
from upconv.engines import load
from upconv.geometry import Axis
from upconv.problem import Direction, Problem

da = pytest.importorskip("dask.array", reason="needs Dask")
lazy = pytest.importorskip("upconv.dask")

COMPARE = "from tests.support import chunk_bits; chunk_bits.main({})"
FEW = "range(2), {name: chunk_bits.FAMILIES[name] for name in ('plain', 'grouped')}"
FAST_DOTS = "from upconv.engines.jit import cpu; cpu.dots_of = lambda name: 2.0\n"

PROCESSORS = {
    # name: (feature it needs, what is compared, kernels that compute it)
    "skylake-avx512": ("avx512vl", "range(10)", "channels planes positions"),
    "haswell": ("avx2", "range(9)", "channels planes positions"),
    "x86-64": ("sse2", "range(9, 14)", "channels positions"),
    "cooperlake": ("avx512bf16", "range(3), chunk_bits.PAIRS", "dots"),
}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_direct_kernel_has_the_bits_of_the_whole_in_chunks(processor: str) -> None:
    """By Dask and by streams. Dot products count as fast, so that the model takes them."""
    feature, layers, kernels = PROCESSORS[processor]
    require_feature(feature)
    if processor == "cooperlake":
        pytest.importorskip("ml_dtypes")
    code = FAST_DOTS + COMPARE.format(layers)
    assert printed(code, UPCONV_JIT_CPU=processor) == kernels


FAULTS = {
    "a chunk takes the kernel for its own size": (
        "from upconv.engines.ordered_sums import InvariantEngine, load\n"
        "InvariantEngine.build = lambda engine, *given: load('jit').build(*given)\n"
    ),
    "two kernels of different sums promise the same": (
        "from dataclasses import replace\n"
        "from upconv.engines.jit.channels import candidates as channels\n"
        "from upconv.engines.jit.positions import candidates as positions\n"
        "for kernel in (channels, positions):\n"
        "    kernel.direct = lambda *given, direct=kernel.direct: (\n"
        "        replace(direct(*given), sums='alike'))\n"
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str) -> None:
    require_feature("sse2")
    output = printed(FAULTS[fault] + COMPARE.format(FEW), UPCONV_JIT_CPU="x86-64")
    assert "values differ" in output


def test_winograd_promises_no_order_of_sums() -> None:
    axes = (Axis(20, 3, 1, 1, 1, 1), Axis(40, 3, 1, 1, 1, 1))
    problem = Problem(Direction.FORWARD, axes, 1, 32, 32)
    candidates = load("jit").candidates(problem, 1, every=True)
    tiles = [each for each in candidates if each.winograd and each.possible]
    assert tiles
    assert {each.sums for each in tiles} == {None}
    direct = [each for each in candidates if each.engine == "jit" and each not in tiles]
    assert all(each.sums for each in direct if each.possible)


def test_winograd_is_excluded_and_chunks_are_computed_directly() -> None:
    """docs/volumes.md says so. Winograd's rounding depends on where a tile begins."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, np.float32) for s in ((1, 32, 40, 40), (32, 32, 3, 3)))
    direct, winograd = (
        upconv.conv_transpose(x, w, padding=1, engine="jit", algorithm=algorithm)
        for algorithm in ("direct", "winograd")
    )
    chunks = da.from_array(x, chunks=(1, 32, 21, 40))
    assert lazy.conv_transpose(chunks, w, padding=1).compute().tobytes() == direct.tobytes()
    assert direct.tobytes() != winograd.tobytes()
    part = upconv.conv_transpose(
        x[:, :, 1:], w, padding=1, engine="jit", algorithm="winograd"
    )  # from the second row on it has the sums of the whole, in tiles that begin elsewhere
    assert part[:, :, 1:].tobytes() != winograd[:, :, 2:].tobytes()
    np.testing.assert_allclose(part[:, :, 1:], winograd[:, :, 2:], rtol=0, atol=1e-3)
