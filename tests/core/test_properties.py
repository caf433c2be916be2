"""A property computed once: threads and forks find no lock in it."""

import os
import threading

import pytest

from tests.support.processes import printed
from tests.support.racing import in_threads
from upconv.properties import cached_property

FORK = """
import os, signal, threading, time
from upconv.properties import cached_property
begun, forked = threading.Event(), []
class Owner:
    @cached_property
    def value(self):
        begun.set()
        while not forked: time.sleep(0.001)
        return 3
thread = threading.Thread(target=lambda: Owner().value)
thread.start()
assert begun.wait(30)
child = os.fork()
forked.append(True)
if child == 0:
    signal.alarm(20)
    assert Owner().value == 3
    os._exit(0)
thread.join()
print(os.waitpid(child, 0)[1])
"""


class Owner:
    def __init__(self, threads: int) -> None:
        self.barrier, self.computed = threading.Barrier(threads), 0

    @cached_property
    def value(self) -> list[int]:
        """A new list."""
        self.barrier.wait(30)
        self.computed += 1
        return [self.computed]


def test_a_value_is_computed_once() -> None:
    owner = Owner(1)
    assert owner.value is owner.value
    assert owner.computed == 1
    assert Owner.value.__doc__ == "A new list."


def test_threads_that_come_first_together_get_the_same_value() -> None:
    owner = Owner(8)
    values = in_threads(8, lambda: owner.value)
    assert len(set(map(id, values))) == 1
    assert isinstance(values[0], list)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_another_thread_computes_a_value_can_compute_it() -> None:
    assert printed(FORK) == "0"
