"""The pool in one process: each job done once, by whoever comes, however late."""

import faulthandler
import random
import threading
import time

import llvmlite.binding as llvm
import pytest

from tests.support.pool_jobs import CODE, PATIENCE, Work, asleep, until
from upconv.engines.jit import pool, protocol
from upconv.engines.jit.affinity import Affinity
from upconv.engines.jit.compile import parsed_for
from upconv.engines.jit.cpu import host, target
from upconv.engines.jit.emit import Module
from upconv.engines.jit.protocol import Futex, System

pytestmark = pytest.mark.usefixtures("own_threads")


@pytest.fixture(autouse=True)
def watchdog():
    """End the process when a test hangs in native code, which nothing else could stop."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=["native sleep", "sleep in Python"])
def fresh(request, monkeypatch):
    """A pool without helpers, of either kind."""
    cpu = host()
    system = pool._system(cpu.triple)
    if request.param == "sleep in Python":
        system = system._replace(futex=None, affinity=None)
    monkeypatch.setattr(pool, "_pool", pool._Pool(cpu, system))
    return pool._pool


class TestRuns:
    @pytest.mark.parametrize("threads", [1, 2, 4, 16])
    def test_do_every_job_once(self, fresh, threads):
        rng = random.Random(threads)
        for jobs in (0, 1, 2, 7, 1000):
            work = Work(jobs)
            for _ in range(40):
                work.start(threads, rng.choice((0, 0, 50, 2000)))
                work.check(threads)
                if rng.random() < 0.1:
                    time.sleep(rng.choice((0.0001, 0.001)))  # some helpers fall asleep meanwhile
        assert fresh.helpers == threads - 1
        until(asleep(threads - 1))

    def test_are_shared_by_threads_at_the_same_time(self, fresh):
        work = Work()
        met = 0
        for _ in range(400):  # until the other one has had a processor meanwhile
            work.meet(2, 2, PATIENCE // 100)
            met += work.met == 2
            if met:
                break
        assert met

    def test_take_no_more_threads_than_asked_for(self, fresh):
        Work(1).start(16)
        work = Work()
        for threads in (2, 3, 5) * 20:
            work.meet(threads, threads + 1, 2000)
            assert work.calls <= threads

    def test_wake_sleepers(self, fresh):
        work = Work()
        work.all_meet(4)
        for threads in (2, 4, 3):
            until(asleep(3))
            work.all_meet(threads)

    def test_start_no_helper_before_it_is_needed(self, fresh):
        for threads, helpers in ((1, 0), (2, 1), (2, 1), (4, 3), (3, 3)):
            Work(1).start(threads)
            assert fresh.helpers == helpers
            until(asleep(helpers))

    def test_go_on_with_the_threads_there_are(self, fresh, monkeypatch):
        tries = []

        def refuse(thread):
            tries.append(thread.name)
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            work = Work(100)
            work.start(4)
            work.check(1)
        assert tries == ["upconv-1"]


class TestLateHelpers:
    def test_find_nothing_to_do(self, fresh, monkeypatch):
        late, help_ = threading.Event(), pool._Pool._help
        monkeypatch.setattr(
            pool._Pool, "_help", lambda self, index: (late.wait(), help_(self, index))
        )
        works = [Work(50) for _ in range(30)]
        for work in works:
            work.start(3)
            work.check(1)
            work.words[:] = 0
        late.set()
        until(asleep(2))
        assert not any(work.words.any() for work in works)
        work.all_meet(3)

    def test_have_slept_through_any_number_of_runs(self, fresh):
        work = Work()
        work.meet(4, 4, PATIENCE)
        until(asleep(3))
        for _ in range(3000):
            work.start(2)
        work.all_meet(4)


class TestManyThreads:
    def test_lead_and_work_alone_in_turn(self, fresh):
        wrong, alone = [], []

        def lead(number):
            rng = random.Random(number)
            work = Work(20)
            try:
                for _ in range(500):
                    threads = rng.choice((1, 2, 3, 4))
                    work.start(threads, rng.choice((0, 100)))
                    work.check(threads)
                    alone.append(work.calls == 1)
            except AssertionError as error:
                wrong.append(error)

        leaders = [threading.Thread(target=lead, args=(number,)) for number in range(8)]
        for leader in leaders:
            leader.start()
        for leader in leaders:
            leader.join(120)
        assert not wrong
        assert len(alone) == 8 * 500
        print(f"{len(alone) - sum(alone)} of {len(alone)} runs had help")
        until(asleep(3))

    def test_do_not_wait_for_one_another(self, fresh):
        inside = Work()
        leader = threading.Thread(target=inside.meet, args=(2, 9, 50 * PATIENCE))
        leader.start()
        until(lambda: inside.calls == 2)
        other = Work(100)
        other.start(2)
        other.check(1)
        assert leader.is_alive()
        inside.raise_flag()
        leader.join(120)
        assert inside.met == 2

    def test_run_python_meanwhile(self, fresh):
        """A flag that is raised too early would be lost: `meet` takes it down before the run."""
        work = Work()

        def raise_flag_inside():
            until(lambda: work.calls)
            work.raise_flag()

        for threads in (1, 2):
            work.words[:] = 0
            python = threading.Thread(target=raise_flag_inside)
            python.start()
            work.meet(threads, 9, 10 * PATIENCE)
            assert work.met == work.calls >= 1
            python.join()


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "arm64-apple-darwin"])
def test_the_code_assembles_for_arm(triple):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    linux = "linux" in triple
    futex, affinity = (
        (Futex("call", 98), Affinity("current", "read", "write")) if linux else (None, None)
    )
    cpu = target(triple, "cortex-a72", "", {"neon"})
    module = Module(cpu)
    protocol.emit(module, System(triple, "switch", futex, affinity))
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu.name, opt=2)
    text = machine.emit_assembly(parsed_for(module, cpu))
    assert "yield" in text
    assert "ldaxr" in text
    assert machine.emit_object(parsed_for(module, cpu))


def test_hot_fork_and_join_cost_little(fresh):
    """Printed, with a bound only against gross faults: 1 to 3 microseconds are usual."""
    work, times = Work(2), []
    for threads in (1, 2):
        work.start(threads)
        laps = []
        for _ in range(3000):
            work.view[0] = 0
            start = time.perf_counter()
            pool.run(CODE.addresses["jobs"], work.address, threads)
            laps.append(time.perf_counter() - start)
        times.append(sorted(laps)[300] * 1e6)  # of those that nobody else disturbed
    print("alone {:.2f} us, of two {:.2f} us".format(*times))
    assert times[1] < 1000
