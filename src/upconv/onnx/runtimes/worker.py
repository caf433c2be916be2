"""A process that runs models in other runtimes, so that a crash or hang does not reach this one.

If a runtime aborts, the caller gets an `EngineError` with its last line of output; if it hangs, an
`EngineError` after a time limit. A runtime that needs too much memory fails at a limit. The process
exchanges pickles over its standard input and output, and ends when its input ends.

Workers are kept and reused, because starting one takes half a second. `multiprocessing` would not
do: its spawn method runs the caller's main module a second time.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from ... import errors
from ...terminal import shortened

TIME_LIMIT = 300.0  # seconds in which a runtime must create a session, or finish one run
_MAX_IDLE = 2


class Worker:
    """One process, which is usable until it is closed; one call may take `limit` seconds."""

    def __init__(self, limit: float = TIME_LIMIT) -> None:
        self.limit, self.owner = limit, os.getpid()
        self._lock = threading.Lock()
        self._startup = 60.0  # the first call takes longer: the process imports what it needs
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        self._process = subprocess.Popen(  # noqa: S603  # this Python, and our own code
            [sys.executable, "-P", "-c", f"from {__package__}.host import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C reaches only the caller; `kill` ends all children
        )

    @property
    def usable(self) -> bool:
        """Whether the process is still running, and was not started before a fork."""
        return self.owner == os.getpid() and self._process.poll() is None

    def call(self, method: str, *arguments: Any, times: float = 1.0) -> Any:
        """Call a method of the `Host`; raise the errors that it raises.

        Raises `EngineError` if the process ends or takes longer than `times` the limit.
        """
        with self._lock:
            seconds = self.limit * times + self._startup
            to, back = cast("tuple[IO[bytes], Any]", (self._process.stdin, self._process.stdout))
            if self.owner != os.getpid() or to.closed:
                raise errors.EngineError("the process that ran it has ended; open another session")
            if self._process.poll() is not None:
                raise self._ended(None)
            timer = threading.Timer(seconds, kill, [self._process.pid])
            deadline = time.monotonic() + seconds
            timer.start()
            try:
                pickle.dump((method, arguments), to, 5)
                to.flush()
                kind, value = pickle.load(back)  # noqa: S301  # our own process wrote it
            except (EOFError, OSError, pickle.UnpicklingError):
                late = time.monotonic() >= deadline
                raise self._ended(self.limit * times if late else None) from None
            except BaseException:  # Ctrl-C: nobody is waiting for the result any more
                self.close()
                raise
            finally:
                timer.cancel()
            self._startup = 0.0
        if kind != "value":
            raise getattr(errors, kind)(value)
        return value

    def _ended(self, limit: float | None) -> errors.EngineError:
        code = self._process.wait()
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - 400))
        last = self._stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
        self.close()
        if limit is not None:
            return errors.EngineError(f"it did not return within {limit:g} s and was ended")
        cause = f"exit code {code}"
        with suppress(ValueError):
            cause = signal.Signals(-code).name
        return errors.EngineError(f"its process ended ({cause}): {shortened(last, 200)}")

    def close(self) -> None:
        """End the process at once."""
        if self.owner == os.getpid():
            kill(self._process.pid)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            with suppress(OSError):  # unwritten data
                stream.close()  # type: ignore[union-attr]  # both are pipes


def kill(pid: int) -> None:
    """Kill a worker and its child processes, such as OpenVINO's telemetry."""
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            os.kill(pid, signal.SIGTERM)
        else:
            os.killpg(pid, signal.SIGKILL)


_idle: list[Worker] = []
_idle_lock = threading.Lock()


@contextmanager
def borrowed(limit: float = TIME_LIMIT) -> Iterator[Worker]:
    """Lend a worker to the caller, and keep it for reuse if it is still running afterwards."""
    with _idle_lock:
        waiting = [worker for worker in _idle if worker.usable]
        worker = waiting.pop() if waiting else None
        _idle[:] = waiting
    worker = worker or Worker()
    worker.limit = limit
    try:
        yield worker
    finally:
        with _idle_lock:
            keep = worker.usable and len(_idle) < _MAX_IDLE
            if keep:
                _idle.append(worker)
        if not keep:
            worker.close()


@atexit.register
def _close_idle() -> None:
    for worker in _idle:
        worker.close()
    _idle.clear()
