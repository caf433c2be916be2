"""What is imported or made on first use: once however many threads ask, and whole after a fork."""

import os

import pytest

from tests.support.processes import printed

FORK = """
import os, signal, sys, threading, time
from importlib.machinery import PathFinder
import numpy as np, upconv
x, w = np.ones((1, 2, 9), np.float32), np.ones((2, 3, 4), np.float32)
begun = threading.Event()
class Slow:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != {module!r}:
            return None
        spec = PathFinder.find_spec(name, path)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (begun.set(), time.sleep(0.3), load(module))
        return spec
def use():
    {call}
sys.meta_path.insert(0, Slow)
first = threading.Thread(target=use)
first.start()
assert begun.wait(120)
child = os.fork()
if child == 0:
    signal.alarm(120)
    use()
    os._exit(0)
first.join()
sys.exit(os.waitpid(child, 0)[1])
"""


ROOFLINE = "upconv.explain(x.shape, w, engine='reference', roofline=True)"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("upconv.engines.reference", "upconv.conv_transpose(x, w, engine='reference')"),
        ("upconv.normalization", "upconv.batch_norm(x, training=True)"),
        ("upconv.tuning.autotune", "upconv.plan(x.shape, w, engine='reference', tune=True)"),
        ("upconv.engines.jit.roofline", ROOFLINE),
        ("json", ROOFLINE),
    ],
)
def test_a_fork_while_another_thread_imports(module: str, call: str) -> None:
    """The child would wait for ever for an import of a thread that it has not."""
    printed(FORK.format(module=module, call=call))


BARRIER = """
import time
import upconv
from tests.support.racing import in_threads
from upconv.engines import load, reference
from upconv.primitives import PrimitiveCache, shared_cache
class Slow(reference.ReferenceEngine, PrimitiveCache):
    def __init__(self, *_):
        time.sleep(0.1)
        PrimitiveCache.__init__(self)
reference.ReferenceEngine = upconv.primitives.PrimitiveCache = upconv.tuning.TuningStore = Slow
for first in (lambda: load("reference"), shared_cache, upconv.tuning.shared_store):
    found = in_threads(8, first)
    assert len(set(map(id, found))) == 1 and isinstance(found[0], Slow), found
"""


def test_threads_that_come_first_together_get_the_same() -> None:
    printed(BARRIER)
