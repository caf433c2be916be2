"""What this process may use: threads by call and environment, memory by every limit; and waiting
for the threads of others."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import pytest

import upconv
from processes import printed
from upconv import memory, threads


def count(**variables: str) -> str:
    """`get_num_threads()` in a process with these variables, or the error it ends in."""
    code = (
        "import upconv\n"
        "try: print(upconv.get_num_threads())\n"
        "except upconv.UpconvError as error: print(error)"
    )
    return printed(code, **({"OMP_NUM_THREADS": ""} | variables))


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"UPCONV_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, "3"),
        ({"OMP_NUM_THREADS": "5"}, "5"),
        ({"OMP_NUM_THREADS": "5,2"}, "5"),
        ({"UPCONV_NUM_THREADS": " 7 "}, "7"),
    ],
)
def test_the_environment_says_how_many_threads(variables: dict, wanted: str) -> None:
    assert count(**variables) == wanted


@pytest.mark.parametrize("junk", ["", "0", "-1", "many", "1e3", "9" * 5000])
def test_junk_meant_for_openmp_is_passed_over(junk: str) -> None:
    assert count(OMP_NUM_THREADS=junk) == count()


@pytest.mark.parametrize("junk", ["0", "-1", "many", "5000", "9" * 5000])
def test_junk_meant_for_upconv_is_refused(junk: str) -> None:
    assert count(UPCONV_NUM_THREADS=junk).startswith("UPCONV_NUM_THREADS is ")


def test_a_call_comes_before_the_environment() -> None:
    before = upconv.get_num_threads()
    upconv.set_num_threads(before + 1)
    assert upconv.get_num_threads() == before + 1
    upconv.set_num_threads(None)
    assert upconv.get_num_threads() == before


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs processor affinity")
def test_affinity_bounds_the_default() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert threads.processors() == 1
    finally:
        os.sched_setaffinity(0, allowed)


GIB = 1 << 30


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4194304 kB\n"}, 4 * GIB),
        (
            {
                "/proc/meminfo": "MemAvailable: 4194304 kB\n",
                "/sys/fs/cgroup/memory.max": f"{3 * GIB}\n",
                "/sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
            },
            GIB,
        ),
        (
            {
                "/sys/fs/cgroup/memory.max": f"{3 * GIB}",
                "/sys/fs/cgroup/memory.current": f"{2 * GIB}",
                "/sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            },
            2 * GIB,
        ),
        (
            {
                "/proc/meminfo": "MemAvailable: 1048576 kB\n",
                "/sys/fs/cgroup/memory.max": "max\n",
                "/sys/fs/cgroup/memory.current": "12\n",
            },
            GIB,
        ),
        (
            {
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}",
            },
            0,
        ),
    ],
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="these files are Linux's")
def test_the_least_limit_counts(files: dict, wanted: int, monkeypatch) -> None:
    monkeypatch.setattr(memory, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(memory, "_address_space", lambda: iter(()))
    assert memory.available_bytes() == wanted


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs RLIMIT_AS")
def test_a_limit_of_the_address_space_counts() -> None:
    code = """
import resource
from upconv import memory
free = memory.available_bytes()
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
print(memory.available_bytes() < (2 << 30) <= free)
"""
    assert printed(code) == "True"


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [(0, "0 B"), (1023, "1.02e+03 B"), (1536, "1.5 KiB"), (3 << 29, "1.5 GiB"), (1 << 60, "1 EiB")],
)
def test_bytes_are_readable(nbytes: int, words: str) -> None:
    assert memory.readable(nbytes) == words


@contextmanager
def spinning(seconds: float) -> Iterator[float]:
    """A thread that computes for so long, or until the block ends; the moment it would end."""
    stop, end = threading.Event(), time.perf_counter() + seconds

    def spin() -> None:
        while time.perf_counter() < end and not stop.is_set():
            pass

    spinner = threading.Thread(target=spin)
    spinner.start()
    try:
        yield end
    finally:
        stop.set()
        spinner.join()


@pytest.mark.skipif(sys.platform == "win32", reason="its clock of processor time is too coarse")
def test_a_rest_lasts_until_others_are_done() -> None:
    with spinning(0.08) as end:
        threads.rest()
        assert time.perf_counter() >= end


def test_a_rest_beside_one_that_never_ends_is_given_up() -> None:
    with spinning(inf):
        start = time.perf_counter()
        threads.rest()
        assert time.perf_counter() - start < 5.0


def test_a_rest_where_nothing_computes_is_short() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        threads.rest()
        return time.perf_counter() - start

    assert min(seconds() for _ in range(20)) < 0.1
