"""NumPy's memory with one failing allocation.

NumPy asks a handler for the memory of every array (NEP 49). This one counts allocations, fails at
one of them, and counts live blocks. It is native code, because NumPy frees arrays while an error
propagates, and Python code would lose that error.
"""

from __future__ import annotations

import ctypes
import gc
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import llvmlite.binding as llvm
import numpy as np

import upconv
from tests.support.guarded import Allocator, handler, set_handler
from upconv.engines import workspace

HANDLER = """
%State = type { i64, i64, i64 }  ; allocations so far, the one that fails, live blocks

declare ptr @malloc(i64)
declare ptr @calloc(i64, i64)
declare ptr @realloc(ptr, i64)
declare void @free(ptr)

define i1 @fails(ptr %state) {
  %old = load i64, ptr %state
  %count = add i64 %old, 1
  store i64 %count, ptr %state
  %place = getelementptr %State, ptr %state, i32 0, i32 1
  %at = load i64, ptr %place
  %same = icmp eq i64 %count, %at
  ret i1 %same
}
define void @live(ptr %state, ptr %block, i64 %change) {
  %none = icmp eq ptr %block, null
  br i1 %none, label %end, label %some
some:
  %place = getelementptr %State, ptr %state, i32 0, i32 2
  %old = load i64, ptr %place
  %new = add i64 %old, %change
  store i64 %new, ptr %place
  br label %end
end:
  ret void
}
define ptr @take(ptr %state, i64 %n) {
  %fails = call i1 @fails(ptr %state)
  br i1 %fails, label %none, label %some
some:
  %block = call ptr @malloc(i64 %n)
  call void @live(ptr %state, ptr %block, i64 1)
  ret ptr %block
none:
  ret ptr null
}
define ptr @take_zeros(ptr %state, i64 %n, i64 %each) {
  %fails = call i1 @fails(ptr %state)
  br i1 %fails, label %none, label %some
some:
  %block = call ptr @calloc(i64 %n, i64 %each)
  call void @live(ptr %state, ptr %block, i64 1)
  ret ptr %block
none:
  ret ptr null
}
define ptr @move(ptr %state, ptr %old, i64 %n) {
  %fails = call i1 @fails(ptr %state)
  br i1 %fails, label %none, label %some
some:
  %block = call ptr @realloc(ptr %old, i64 %n)
  ret ptr %block
none:
  ret ptr null
}
define void @give_back(ptr %state, ptr %block, i64 %n) {
  call void @live(ptr %state, ptr %block, i64 -1)
  call void @free(ptr %block)
  ret void
}
"""


class FailingMemory:
    """Memory of this thread's NumPy arrays inside `with memory:`; they may outlive the block."""

    def __init__(self) -> None:
        self._state = (ctypes.c_int64 * 3)()
        llvm.initialize_native_target()  # the JIT does so too, if a test has used it
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._code = llvm.create_mcjit_compiler(llvm.parse_assembly(HANDLER), machine)
        names = ("take", "take_zeros", "move", "give_back")
        addresses = map(self._code.get_function_address, names)
        state = ctypes.addressof(self._state)
        self._allocator = Allocator(b"failing", 1, state, *addresses)
        self._capsule = handler(self._allocator)

        self._before: list[Any] = []
        _forever.append(self)  # its code frees arrays that others still hold

    def __enter__(self) -> FailingMemory:
        self._before.append(set_handler(self._capsule))
        return self

    def __exit__(self, *_: object) -> None:
        set_handler(self._before.pop())

    def fail_at(self, number: int) -> None:
        """Fail at this allocation, counted from 1 from now on; 0 never fails."""
        self._state[0], self._state[1] = 0, number

    @property
    def count(self) -> int:
        """Allocations since `fail_at`."""
        return self._state[0]

    @property
    def live(self) -> int:
        """Blocks that are not freed."""
        return self._state[2]


_forever: list[FailingMemory] = []


def forget() -> None:
    """Release everything that upconv keeps between calls."""
    upconv.cache_clear()
    workspace._free.clear()
    gc.collect()


def faults(call: Callable[[FailingMemory], list[np.ndarray]], most: int) -> Iterator[str]:
    """Yield faults when each allocation of a first call fails in turn, or `most` of them.

    The call must give the right result or an error that names the cause, the next call the right
    result, and neither may leave memory allocated.
    """
    with FailingMemory() as memory:
        forget()
        memory.fail_at(0)
        wanted, count = bits(call(memory)), memory.count
        forget()
        live, numbers = memory.live, range(1, count + 1)
        for number in numbers if count <= most else random.Random(count).sample(numbers, most):
            memory.fail_at(number)
            try:
                if bits(call(memory)) != wanted:
                    yield f"allocation {number}: another result"
            except upconv.UpconvError as error:  # ONNX Runtime passes on our message
                if not re.search("does not fit|Unable to allocate", str(error)):
                    yield f"allocation {number}: {error}"
            except Exception as error:  # what the test looks for
                yield f"allocation {number}: {error!r:.100}"
            memory.fail_at(0)
            if bits(call(memory)) != wanted:
                yield f"allocation {number}: the next call has another result"
            forget()
            if memory.live > live:
                yield f"allocation {number}: {memory.live - live} blocks are left"
                live = memory.live
        if not count:
            yield "nothing was allocated"


def bits(results: list[np.ndarray]) -> list[bytes]:
    return [result.tobytes() for result in results]
