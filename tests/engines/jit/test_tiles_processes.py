"""Tile registers belong to a thread, and the permission to use them to a process."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

import upconv
from tests.support.processes import printed, require_feature
from upconv import testing
from upconv.engines import load
from upconv.engines.jit import cpu as cpus
from upconv.engines.jit.cpu import AMX, VARIABLE
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Problem

PROBLEM = Problem(
    Direction.FORWARD, (Axis(12, 4, 2, 1, 1, 1),) * 2, 1, 64, 64, dtype=DType.BFLOAT16,
    layout=DataLayout.NXC,
)  # fmt: skip
SAPPHIRE_RAPIDS = "x86_64-unknown-linux-gnu", "sapphirerapids", "", cpus._KNOWN["sapphirerapids"]


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine makes code for AMX, whatever the test run is held to."""
    require_feature("amx-bf16")
    monkeypatch.setenv(VARIABLE, "sapphirerapids")
    if not cpus.permitted():
        pytest.skip("the system does not permit tiles")


@pytest.mark.parametrize("answer", [True, False])
def test_a_processor_has_tiles_where_they_are_permitted(
    answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpus, "permitted", lambda: answer)
    assert cpus.target(*SAPPHIRE_RAPIDS).tiles == (AMX if answer else "")
    triple, _, features, _ = SAPPHIRE_RAPIDS
    cooperlake = cpus.target(triple, "cooperlake", features, cpus._KNOWN["cooperlake"])
    assert cooperlake.tiles == ""


@pytest.mark.parametrize(
    ("platform", "result", "permitted"),
    [("linux", 0, True), ("linux", -1, False), ("darwin", 0, False), ("win32", 0, False)],
)
def test_linux_is_asked(
    platform: str, result: int, permitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Library:
        def __init__(self, name: object) -> None:
            pass

        def syscall(self, *arguments: int) -> int:
            asked.append(arguments)
            return result

    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setattr(cpus.sys, "platform", platform)
    assert cpus.permitted.__wrapped__() is permitted
    assert asked == [(158, 0x1023, 18)] * (platform == "linux")


REFUSED = """
from upconv.engines.jit import cpu; cpu.permitted = lambda: False
from tests.engines.jit.test_tiles_processes import PROBLEM
from upconv import testing
from upconv.engines import load
jit = load("jit")
testing.check(jit, PROBLEM)
print("tiles" in jit.variants(PROBLEM, 1), "tiles" in jit.fingerprint())
listed = jit.candidates(PROBLEM, 1, every=True)
print(*(each.reason for each in listed if each.variant == "tiles"))
"""


def test_refused_permission_is_a_processor_without_tiles() -> None:
    require_feature("amx-bf16")
    first, second = printed(REFUSED, **{VARIABLE: "sapphirerapids"}).splitlines()
    assert first == "False False"
    assert second == "this processor has no tile registers"


def result(threads: int = 1) -> bytes:
    return testing.compute(load("jit"), PROBLEM, testing.operands(PROBLEM), threads).tobytes()


@pytest.mark.usefixtures("amx")
def test_threads_of_the_caller() -> None:
    assert load("jit").build(PROBLEM, 2).description.startswith("tiles")
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(result, [1, 2] * 20))
    assert set(results) == {result()}


FORKED = """
import os, sys
from tests.engines.jit.test_tiles_processes import result
before = result(2) if {first} else None
child = os.fork()
mine = result(2)
if child == 0:
    sys.stdout.write(mine.hex() + "\\n")
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert before in (None, mine)
print(mine.hex())
"""


@pytest.mark.usefixtures("amx")
@pytest.mark.parametrize("first", [True, False])
def test_a_forked_child(first: bool) -> None:
    """Whether or not its parent has asked for the permission, and used tiles, before."""
    parent, child = printed(FORKED.format(first=first)).splitlines()
    assert parent == child == result().hex()


@pytest.mark.usefixtures("amx", "one_torch_thread")
@pytest.mark.parametrize("threads", [1, 2])
def test_pytorch_may_use_tiles_between_our_calls(threads: int) -> None:
    """oneDNN configures the registers of the same threads in its own way."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    x, w = (torch.from_numpy(rng.standard_normal(shape, np.float32)).bfloat16()
            for shape in ((1, 64, 12, 12), (64, 64, 4, 4)))  # fmt: skip
    mine, weight = (array.view(torch.int16).numpy().view(DType.BFLOAT16.numpy) for array in (x, w))
    plan = upconv.plan(mine.shape, weight, stride=2, padding=1, engine="jit", threads=threads)
    exact = upconv.conv_transpose(
        mine.astype("f8"), weight.astype("f8"), stride=2, padding=1, engine="reference"
    )

    def theirs() -> np.ndarray:
        with torch.no_grad():
            y = torch.nn.functional.conv_transpose2d(x, w, stride=2, padding=1)
        return y.view(torch.int16).numpy().view(DType.BFLOAT16.numpy)

    first = plan(mine), theirs()
    for array in first:
        assert (abs(array - exact) <= 2**-7 * abs(exact).max()).all()
    for _ in range(1000):
        for array, compute in zip(first, (lambda: plan(mine), theirs), strict=True):
            assert np.array_equal(array, compute())
