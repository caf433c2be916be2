"""PyTorch's own threads doing upconv's work."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import upconv.torch  # noqa: E402
from processes import environment  # noqa: E402
from upconv import threads  # noqa: E402
from upconv.torch import team  # noqa: E402

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or threads.borrowed() is None, reason="PyTorch's threads cannot be had"
)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Watched:
    """PyTorch's team, said to be awake or not, and what it was given."""

    def __init__(self, says: bool) -> None:
        self.own, self.says, self.runs = threads.borrowed(), says, 0

    def awake(self) -> bool:
        return self.says

    def run(self, work: int, argument: int, count: int) -> None:
        self.runs += 1
        self.own.run(work, argument, count)


@pytest.fixture
def borrowed():
    """Borrow a team for a test."""
    own = threads.borrowed()
    yield lambda says: threads.borrow(Watched(says)) or threads.borrowed()
    threads.borrow(own)


def layer() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """One that is worth two threads, its input and its result by PyTorch."""
    torch.manual_seed(0)
    plain, x = nn.ConvTranspose2d(64, 32, 4, 2, 1).eval(), torch.randn(2, 64, 16, 16)
    with torch.no_grad():
        return upconv.torch.from_torch(plain), x, plain(x)


def right(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(got, wanted, atol=1e-4)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("awake", [True, False])
def test_work_is_theirs_while_they_are_awake(awake, borrowed) -> None:
    up, x, wanted = layer()
    watched = borrowed(awake)
    with torch.no_grad():
        for _ in range(5):
            assert right(up(x), wanted)
    assert (watched.runs >= 5) is awake


@pytest.mark.usefixtures("two_threads")
def test_calls_from_many_threads_are_right(borrowed) -> None:
    up, x, wanted = layer()
    borrowed(True)
    found = []

    def calls() -> None:
        with torch.no_grad():
            found.extend(right(up(x), wanted) for _ in range(30))

    callers = [threading.Thread(target=calls) for _ in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert found == [True] * 120


@pytest.mark.usefixtures("two_threads")
def test_the_team_is_the_one_of_pytorchs_operators() -> None:
    own, numbers = threads.borrowed(), []
    work = team._WORK(lambda _: numbers.append(threading.get_native_id()))
    own.run(ctypes.cast(work, ctypes.c_void_p).value, 0, 2)
    assert len(set(numbers)) == 2
    before = tasks()
    torch.randn(512, 512) @ torch.randn(512, 512)
    assert tasks() <= before  # PyTorch needed no others; threads of earlier tests may have ended


def tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_one_thread_of_pytorchs_has_no_team() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert not threads.borrowed().awake()
    finally:
        torch.set_num_threads(before)


def test_threads_are_seen_to_run_to_sleep_and_to_end() -> None:
    numbers, spin, end = [], threading.Event(), threading.Event()

    def body() -> None:
        numbers.append(threading.get_native_id())
        spin.wait()
        while not end.is_set():
            pass

    other = threading.Thread(target=body)
    other.start()
    while not numbers:
        time.sleep(0.001)
    worker = team._Worker(numbers[0])
    assert becomes(worker, False)
    spin.set()
    assert becomes(worker, True)
    end.set()
    other.join()
    assert becomes(worker, False)
    assert worker.gone


def becomes(worker: team._Worker, wanted: bool) -> bool:
    until = time.monotonic() + 20
    while worker.runs() is not wanted and time.monotonic() < until:
        time.sleep(0.001)
    return worker.runs() is wanted


def test_a_thread_that_is_none_never_runs() -> None:
    for number in (None, 2**22 + 5):
        assert not team._Worker(number).runs()


def test_without_openmp_nothing_is_borrowed(monkeypatch) -> None:
    lent = []
    monkeypatch.setattr(team, "borrow", lent.append)
    monkeypatch.setattr(team.ctypes, "CDLL", lambda _: object())
    team.borrow_team()
    assert lent == []


def test_a_forked_child_has_threads_of_its_own() -> None:
    text = """
import os, torch, upconv.torch
from torch import nn
from upconv import threads
torch.set_num_threads(2)
x, up = torch.randn(2, 64, 16, 16), upconv.torch.ConvTranspose2d(64, 32, 4, 2, 1).eval()
with torch.no_grad():
    wanted = up(x)
    for _ in range(3):
        nn.functional.conv2d(x, torch.ones(64, 64, 3, 3))  # wakes PyTorch's threads
        up(x)
        pid = os.fork()
        if pid == 0:
            assert threads.borrowed() is None
            os._exit(int((up(x).numpy() != wanted.numpy()).any()))  # PyTorch's own work would hang
        assert os.waitpid(pid, 0)[1] == 0
print("done")
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=90)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_a_forked_child_that_imports_the_face_itself_has_threads_of_its_own() -> None:
    text = """
import multiprocessing, torch
torch.set_num_threads(2)
torch.randn(400, 400) @ torch.randn(400, 400)
torch.nn.functional.conv2d(torch.ones(1, 64, 64, 64), torch.ones(64, 64, 3, 3))
def body():
    import upconv.torch
    from upconv import threads
    assert threads.borrowed() is None
    with torch.no_grad():
        up = upconv.torch.ConvTranspose2d(64, 32, 4, 2, 1).eval()
        for weight in up.parameters():
            weight.numpy()[...] = 1
        x = torch.from_numpy(__import__("numpy").ones((2, 64, 16, 16), "float32"))
        assert up(x).numpy()[0, 0, 5, 5] == 64 * 4 + 1
child = multiprocessing.get_context("fork").Process(target=body)
child.start()
child.join(60)
print(child.exitcode)
child.kill()
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=90)
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr
