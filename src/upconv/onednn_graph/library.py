"""The same graph by libdnnl's own Graph API, for comparison, in a child process: it can abort.

What lives here: `run_by_library` and the process it needs. What never does: ctypes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any

import numpy as np

from ..arrays import Array
from ..engines.onednn.library import runtime
from ..errors import EngineError
from ..threads import checked, get_num_threads
from .graph import Graph
from .library_child import receive, send
from .operations import Operation
from .schemas import Form

_MAIN = f"from {__package__}.library_child import serve; serve()"


class LibraryProcess:
    """A child process in which libdnnl runs graphs, one after the other; a new one after it died.

    path: of libdnnl.so.3, or None for the one that engine "onednn" uses; `EngineMissing` says so
        where there is none. seconds: how long one graph may take. threads: of the library's OpenMP
        (default: `upconv.get_num_threads()`).

    One thread at a time may use it. `close`, or the end of a `with` block, ends the child.
    """

    def __init__(
        self, path: str | None = None, *, seconds: float = 60.0, threads: int | None = None
    ) -> None:
        self.path = path or runtime().library.path
        self._seconds, self._slow = seconds, False
        self._threads = get_num_threads() if threads is None else checked(threads)
        self._child: subprocess.Popen[bytes] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self.partitions = 0
        """Into how many partitions the library cut the last graph."""

    def run(
        self, graph: Graph, data: Mapping[int, Any], policy: str = "fusion"
    ) -> dict[int, Array]:
        """The graph's outputs by id, computed by the library.

        Raises `EngineError` where the library refuses the graph, which says how, and where it ends
        the process, which says by what; and what `Graph.execute` raises for `data`.
        """
        graph.partitions(policy)  # refuses what is not finalized, and policies unknown
        arrays = graph.arrays(data)
        child = self._started()
        request = {"path": self.path, "graph": _described(graph, policy)}
        watch = Timer(self._seconds, self._kill)
        watch.start()
        try:
            send(child.stdin, request, arrays)  # type: ignore[arg-type]  # it is a pipe
            reply = receive(child.stdout)  # type: ignore[arg-type]  # likewise
        except BrokenPipeError:
            reply = None
        except BaseException:  # Ctrl-C in the middle of a message: the rest of it is of no use
            self._end(kill=True)
            raise
        finally:
            watch.cancel()
        if reply is None:
            raise EngineError(self._epitaph())
        message, found = reply
        if "error" in message:
            raise EngineError(f"libdnnl refuses the graph: {message['error']}.")
        self.partitions = int(message["partitions"])
        return {id_: _typed(array, graph.tensors[id_].dtype) for id_, array in found.items()}

    def close(self) -> None:
        """End the child."""
        self._end()
        self._said.close()

    def _kill(self) -> None:
        self._slow = True
        if self._child is not None:
            self._child.kill()

    def __enter__(self) -> LibraryProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            self._said.seek(0)
            self._said.truncate()
            source = str(Path(__file__).parents[2])
            path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
            command = [sys.executable, "-c", _MAIN]
            self._child = subprocess.Popen(  # noqa: S603  # this interpreter, no shell
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(self._threads)},
            )
        return self._child

    def _end(self, *, kill: bool = False) -> int:
        child, self._child = self._child, None
        if child is None:
            return 0
        if kill:
            child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # what was not yet written cannot be
                    continue
        return child.wait()

    def _epitaph(self) -> str:
        """How the child died, and the last it said."""
        code, slow, self._slow = self._end(), self._slow, False
        if slow:
            return f"libdnnl did not answer within {self._seconds:g} seconds and was ended."
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        words = f' after "{" / ".join(lines[-2:])[:300]}"' if lines else ""
        return f"libdnnl ended its process by {how}{words}. upconv's own result is not affected."


def run_by_library(
    graph: Graph, data: Mapping[int, Any], *, path: str | None = None, policy: str = "fusion"
) -> dict[int, Array]:
    """A finalized graph by libdnnl's own Graph API: `LibraryProcess.run` in a process of its own.

    data: arrays for all inputs, by id. Raises what `LibraryProcess` and its `run` raise.
    """
    with LibraryProcess(path) as library:
        return library.run(graph, data, policy)


def _described(graph: Graph, policy: str) -> dict[str, Any]:
    """A graph as JSON has it; attributes as they were written."""
    ops = [
        {
            "id": op.id,
            "kind": op.kind,
            "name": op.name,
            "attributes": {name: _plain(op, name) for name in op.given},
            "inputs": [asdict(tensor) for tensor in op.inputs],
            "outputs": [asdict(tensor) for tensor in op.outputs],
        }
        for op in graph.operations
    ]
    return {"policy": policy, "ops": ops, "outputs": list(graph.outputs)}


def _plain(op: Operation, name: str) -> object:
    value = op.attributes[name]
    return float(value) if op.schema.attributes[name].form is Form.F32 else value


def _typed(array: Array, dtype: np.dtype[Any]) -> Array:
    return array.view(dtype) if array.dtype != dtype else array
