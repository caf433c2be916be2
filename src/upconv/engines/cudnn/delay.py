"""A kernel that waits, so that work queued after it runs without gaps.

Tuning compares plans by their time on the device. The time between two events also includes the
launch overhead if that is longer than the kernels. With a wait, all calls are queued before the
first one begins.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from .driver import Kernel, driver
from .elementwise import to_ptx

_TIMER = "@llvm.nvvm.read.ptx.sreg.globaltimer"
_IR = f"""
declare i64 {_TIMER}()
define ptx_kernel void @wait(i64 %nanoseconds) {{
entry:
  %begin = call i64 {_TIMER}()
  br label %again
again:
  %now = call i64 {_TIMER}()
  %passed = sub i64 %now, %begin
  %waiting = icmp ult i64 %passed, %nanoseconds
  br i1 %waiting, label %again, label %done
done:
  ret void
}}
"""

_LONGEST = 0.05


@lru_cache(maxsize=16)
def _kernel(device: int, processor: str) -> Kernel:
    return driver().kernel(device, to_ptx(_IR, processor), "wait")


def wait(device: int, processor: str, stream: int, seconds: float) -> None:
    """Make a stream wait for at most 50 ms."""
    nanoseconds = int(min(seconds, _LONGEST) * 1e9)
    _kernel(device, processor)(1, 1, stream, struct.pack("q", nanoseconds))
