"""Threads: PyTorch's own do the work, from PyTorch's threads and from others."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
import upconv.torch as ut  # noqa: E402
from tests.support.processes import printed  # noqa: E402
from tests.support.small_models import close  # noqa: E402
from upconv import threads  # noqa: E402


def layer_and_input():
    torch.manual_seed(0)
    return ut.ConvTranspose2d(16, 24, 4, 2, 1).eval(), torch.randn(2, 16, 24, 20)


def test_pytorchs_threads_do_the_work(two_torch_threads) -> None:
    if threads.borrowed() is None:
        pytest.skip("this PyTorch has no torch_parallel_for")
    layer, x = layer_and_input()
    with torch.no_grad():
        expected = torch.nn.ConvTranspose2d.forward(layer, x)
        assert threads.borrowed().awake()
        for _ in range(20):
            assert close(layer(x), expected)
        torch.set_num_threads(1)
        assert not threads.borrowed().awake()
        assert close(layer(x), expected)


@pytest.mark.parametrize("count", [2, 7])
def test_more_threads_than_processors_and_many_callers(two_torch_threads, count) -> None:
    torch.set_num_threads(count)
    layer, x = layer_and_input()
    expected = torch.nn.ConvTranspose2d.forward(layer, x).detach()

    @torch.no_grad()
    def call(_: int) -> bool:
        return all(close(layer(x), expected) for _ in range(10))

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(call, range(3)))


_FORK = """
import os, signal, warnings
import torch, upconv.torch as ut
torch.set_num_threads(2)
layer, x = ut.Conv2d(8, 8, 3).eval(), torch.randn(1, 8, 32, 32)
with torch.no_grad():
    expected = layer(x)
    warnings.simplefilter("ignore")
    child = os.fork()
    if not child:
        signal.alarm(120)  # nobody else would end what hangs
        os._exit(0 if torch.equal(layer(x), expected) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no fork, or not a safe one")
def test_the_child_of_a_fork_computes() -> None:
    assert printed(_FORK) == "0"
