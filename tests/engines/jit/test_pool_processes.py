"""The pool in processes of its own: forks, exits, signals, places, and older processors."""

import os
import signal
import sys

import pytest

from tests.support.processes import python
from upconv.engines.jit.cpu import host

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
linux = pytest.mark.skipif(sys.platform != "linux", reason="places are of Linux")
KINDS = {"native sleep": "", "sleep in Python": "pool._FUTEX = {}\n"}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)

CHILD = """
import os, signal, sys, threading, time
def child(body):
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException as error:
            print("child:", repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    end = time.monotonic() + 120
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, status
            return
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError("the child hangs")
        time.sleep(0.001)
"""
PRELUDE = """
from tests.support.pool_jobs import Work, asleep, counts, until
from upconv.engines.jit import pool
def works(threads, runs=50):
    work = Work(40)
    for _ in range(runs):
        work.start(threads, 100)
        work.check(threads)
def meets(threads):
    Work().all_meet(threads)
"""


def script(body, timeout=300, prelude=PRELUDE, **variables):
    """The finished process of a script, which must not hang."""
    flags = ["ignore::DeprecationWarning"]
    return python(CHILD + prelude + body, flags=flags, seconds=timeout, **variables)


def passes(body, **variables):
    done = script(body, **variables)
    assert done.returncode == 0, done.stderr + done.stdout
    assert not done.stderr
    return done.stdout


@forks
class TestForks:
    @kinds
    def test_have_helpers_of_their_own(self, kind):
        passes(
            kind
            + """
works(3), meets(3)
def body():
    assert pool._pool.helpers == 0
    works(3), meets(3)
    child(lambda: meets(2))
for _ in range(3):
    child(body)
    works(3), meets(3)
"""
        )

    @kinds
    def test_come_while_others_run_and_start_helpers(self, kind):
        passes(
            kind
            + """
stop = False
def lead(number):
    while not stop:
        works(2 + number, 5)
leaders = [threading.Thread(target=lead, args=(number,)) for number in range(3)]
for leader in leaders: leader.start()
for _ in range(6):
    child(lambda: (works(2), works(5), meets(3)))
stop = True
for leader in leaders: leader.join()
works(4)
"""
        )

    def test_come_before_the_first_run_is_ready(self):
        passes("""
for _ in range(2):
    pool._pool = None
    first = threading.Thread(target=works, args=(3,))
    first.start()
    for _ in range(6):
        child(lambda: works(3))
    first.join()
""")


class TestEnds:
    # Every state of the helpers with a plain end, every end with helpers at work; the rest is long.
    @pytest.mark.parametrize(
        ("helpers", "end"),
        [
            pytest.param(
                helpers,
                end,
                marks=() if end == "return" or helpers == "working" else pytest.mark.long,
            )
            for helpers in ("asleep", "polling", "working", "waiting", "leaving")
            for end in ("return", "exit", "exception", "signal")
        ],
    )
    def test_are_quiet(self, helpers, end):
        first, then = {
            "asleep": ("", "until(asleep(3))"),
            "polling": ("pool._POLL_SECONDS = 1e6", "assert counts()[0] == 3"),
            "working": ("", "threading.Thread(target=works, args=(4, 10**9), daemon=True).start()"),
            "waiting": (KINDS["sleep in Python"], "until(asleep(3))"),
            "leaving": (KINDS["sleep in Python"], ""),
        }[helpers]
        last, code = {
            "return": ("", 0),
            "exit": ("sys.exit(3)", 3),
            "exception": ("raise SystemError", 1),
            "signal": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(30)", -signal.SIGINT),
        }[end]
        done = script(f"{first}\nmeets(4); works(4)\n{then}\nprint('here', flush=True)\n{last}")
        assert done.stdout == "here\n", done
        if sys.platform != "win32" or end != "signal":
            assert done.returncode == code, done
        assert ("Traceback" in done.stderr) == (end in ("exception", "signal")), done

    def test_may_run_work_themselves(self):
        told = passes("""
import atexit
atexit.register(lambda: (works(2), works(6), print("worked")))
works(3)
""")
        assert told == "worked\n"


def test_ctrl_c_comes_after_a_whole_run():
    told = passes("""
hits = 0
for attempt in range(50):
    work = Work(2000)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 * (attempt % 5 + 1))
        while True:
            work.start(3, 200)
    except KeyboardInterrupt:
        hits += 1
    if work.words[0]:  # else it came before the run, or within numpy's zeros
        work.check(3)
    works(3, 5)
print(hits)
""") if hasattr(signal, "setitimer") else "50\n"  # fmt: skip
    assert told == "50\n"


@pytest.mark.parametrize("name", ["x86-64", "haswell"])
def test_work_for_an_older_processor(name):
    if not host().triple.startswith("x86_64"):
        pytest.skip("x86 only")
    passes("works(3, 300); meets(3)", UPCONV_JIT_CPU=name)


@linux
class TestPlaces:
    def test_are_not_the_leaders(self):
        passes("""
cpus = sorted(os.sched_getaffinity(0))
meets(2)
(helper,) = (t.native_id for t in threading.enumerate() if t.name == "upconv-1")
for cpu in cpus * 3:
    os.sched_setaffinity(0, {cpu})
    works(2)
    until(lambda: not counts()[0])
    rest = set(cpus) - {cpu} or {cpu}
    assert os.sched_getaffinity(helper) == rest, (cpu, os.sched_getaffinity(helper))
""")

    def test_stay_within_what_others_set(self):
        passes("""
cpus = sorted(os.sched_getaffinity(0))
meets(2)
(helper,) = (t.native_id for t in threading.enumerate() if t.name == "upconv-1")
until(lambda: not counts()[0])
# Not the set that it has, which nobody could tell from its own.
given = set(cpus) - os.sched_getaffinity(helper) or {cpus[0]}
os.sched_setaffinity(helper, given)
for cpu in cpus * 3:
    os.sched_setaffinity(0, {cpu})
    works(2)
    until(lambda: not counts()[0])
    assert os.sched_getaffinity(helper) == given, (given, os.sched_getaffinity(helper))
""")

    def test_may_be_one_processor_for_all(self):
        passes("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); works(5, 500); meets(5)")


@forks
@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.03, 0.1])
def test_a_fork_while_another_thread_loads_the_engine_and_compiles(seconds):
    """The child would wait for ever for an import, or for a lock, of a thread that it has not."""
    passes(
        f"""
import numpy as np, upconv
x, w = np.ones((1, 3, 9), np.float32), np.ones((3, 4, 3), np.float32)
def computes():
    assert upconv.conv_transpose(x, w, engine="jit").sum() == 3 * 9 * 4 * 3
first = threading.Thread(target=computes)
first.start()
time.sleep({seconds})
child(computes)
first.join()
""",
        prelude="",
    )
