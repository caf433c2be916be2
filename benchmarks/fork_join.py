"""The overhead of the JIT engine's second thread, in microseconds.

    python benchmarks/fork_join.py [--stay]

`hot` is the time of an empty run on two threads minus a call of the same function on one. The table
shows a run of about 240 us, divided into 100 jobs, after the process has computed (busy) or slept:
the median, the 9th decile, and the share of runs with help. `alone` is the same run on one thread.
With --stay the system places helper threads; otherwise `upconv.engines.jit.affinity` does.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from statistics import median

from upconv.engines.jit import pool
from upconv.engines.jit.compile import Code
from upconv.engines.jit.cpu import host
from upconv.engines.jit.emit import PTR, Function, Module

JOBS, TURNS = 100, 10_000
PAUSES = [("busy", 0), ("busy", 50e-6), ("busy", 1e-3), ("sleep", 1e-3), ("sleep", 10e-3)]


def emit_empty(f: Function) -> None:
    """Emit an empty body."""


def emit_jobs(f: Function) -> None:
    """Emit code that takes jobs, each of them a loop."""
    f.take(f.at(f["work"], 128))  # the number of calls
    x = f.scratch(8)
    with f.forever() as done:
        f.leave(done, f.compare("sge", f.take(f["work"]), JOBS))
        with f.loop(0, TURNS) as loop:
            f.publish(f.add(f.observe(x), loop.index), x)


def compiled(**emitters: Callable[[Function], None]) -> Code:
    """Compile functions of one pointer, by name."""
    module = Module(host().attributes)
    for name, emit in emitters.items():
        with module.function(name, {"work": PTR}) as f:
            emit(f)
    return Code(module, tuple(emitters), host())


def lap(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e6


def pause(how: str, seconds: float) -> None:
    if how == "sleep":
        time.sleep(seconds)
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stay", action="store_true", help="let the system place helpers")
    if parser.parse_args().stay:
        system = pool._system(host().triple)
        pool._pool = pool._Pool(host(), system._replace(affinity=None))
    code = compiled(empty=emit_empty, jobs=emit_jobs)
    empty, jobs = code.addresses["empty"], code.addresses["jobs"]
    words = (ctypes.c_int64 * 64)()
    address = ctypes.addressof(words)

    def run(threads: int) -> None:
        words[0] = 0
        pool.run(jobs, address, threads)

    first = lap(lambda: pool.run(empty, address, 2))
    one = median(lap(lambda: pool.run(empty, address, 1)) for _ in range(20_000))
    two = median(lap(lambda: pool.run(empty, address, 2)) for _ in range(20_000))
    alone = median(lap(lambda: run(1)) for _ in range(100))
    print(f"first {first:.0f}   hot {two - one:.2f}   alone {alone:.0f}")
    print(f"{'pause':>14} {'median':>8} {'decile':>8} {'helped':>8}")
    for how, seconds in PAUSES:
        words[16], laps = 0, []
        for _ in range(200):
            pause(how, seconds)
            laps.append(lap(lambda: run(2)))
        laps.sort()
        helped = (words[16] - len(laps)) / len(laps)
        name = f"{how} {seconds * 1e6:.0f}"
        print(f"{name:>14} {laps[100]:8.0f} {laps[180]:8.0f} {helped:8.0%}")


if __name__ == "__main__":
    main()
