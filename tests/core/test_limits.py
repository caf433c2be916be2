"""What this process may use: threads by call and environment, memory by every limit; and waiting
for the threads of others."""

import os
import sys
from collections.abc import Callable, Iterator
from math import inf

import pytest

import upconv
from tests.support.processes import printed
from upconv import memory, threads, timing


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch, own_threads: None) -> Iterator[Callable[..., str]]:
    """`get_num_threads()` with these variables alone, or the error it ends in."""

    def counted(**variables: str) -> str:
        for name in ("UPCONV_NUM_THREADS", "OMP_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(threads, "_chosen", None)
        monkeypatch.setattr(threads, "_default", None)
        threads._own.cache_clear()
        try:
            return str(upconv.get_num_threads())
        except upconv.UpconvError as error:
            return str(error)

    yield counted
    threads._own.cache_clear()


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"UPCONV_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, "3"),
        ({"OMP_NUM_THREADS": "5"}, "5"),
        ({"OMP_NUM_THREADS": "5,2"}, "5"),
        ({"UPCONV_NUM_THREADS": " 7 "}, "7"),
    ],
)
def test_the_environment_says_how_many_threads(count, variables: dict, wanted: str) -> None:
    assert count(**variables) == wanted


@pytest.mark.parametrize("junk", ["", "0", "-1", "many", "1e3", "9" * 5000])
def test_junk_meant_for_openmp_is_passed_over(count, junk: str) -> None:
    assert count(OMP_NUM_THREADS=junk) == count()


@pytest.mark.parametrize("junk", ["0", "-1", "many", "5000", "9" * 5000])
def test_junk_meant_for_upconv_is_refused(count, junk: str) -> None:
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


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 8),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "1000 100000\n"}, 1),
        ({"cpu.max": "damaged"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "0\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n"}, 8),
    ],
)
def test_the_quota_of_a_container_bounds_the_default(files, wanted, tmp_path, monkeypatch) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(threads, "_GROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    assert threads.processors() == wanted


GIB = 1 << 30
MEMINFO = "/proc/meminfo"
V1, V2 = "/sys/fs/cgroup/memory/memory", "/sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({MEMINFO: "MemTotal: 9 kB\nMemAvailable: 4194304 kB\n"}, 4 * GIB),
        ({MEMINFO: "MemAvailable: 4194304 kB\n", f"{V2}.max": f"{3 * GIB}\n",
          f"{V2}.current": f"{2 * GIB}\n"}, GIB),
        ({f"{V2}.max": f"{3 * GIB}", f"{V2}.current": f"{2 * GIB}",
          f"{V2}.stat": f"anon 5\ninactive_file {GIB}\n"}, 2 * GIB),
        ({MEMINFO: "MemAvailable: 1048576 kB\n", f"{V2}.max": "max\n", f"{V2}.current": "12\n"},
         GIB),
        ({f"{V1}.limit_in_bytes": f"{2 * GIB}", f"{V1}.usage_in_bytes": f"{3 * GIB}"}, 0),
    ],
)  # fmt: skip
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


class Clock:
    """Time in which another thread computes until `busy`: no verdict depends on a real one."""

    def __init__(self, busy: float) -> None:
        self.now, self.used, self._busy = 0.0, 0.0, busy

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.used

    def sleep(self, seconds: float) -> None:
        self.used += seconds if self.now < self._busy else 0.0
        self.now += seconds


@pytest.mark.parametrize(
    ("busy", "least", "most"),
    [(0.08, 0.08, 0.1), (inf, 0.2, 0.5), (0.0, 0.0, 0.02)],
    ids=["others are done", "one never ends and is given up", "nothing computes"],
)
def test_a_rest_lasts_until(
    busy: float, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(busy)
    monkeypatch.setattr(timing, "time", clock)
    timing.rest()
    assert least <= clock.now <= most
