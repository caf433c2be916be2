"""What a runtime is: something that runs an ONNX model on arrays, asked for by name.

A runtime is not an engine of upconv: it runs whole models, and is measured against. `Runtime` makes
a `Session` of a model, once; the session runs it. Whatever a runtime raises leaves here as

    EngineRefusal     it would not take the model (an operator it has not, a type, a bad graph)
    EngineError       it took the model and failed on these arrays
    MemoryLimitError  memory was short

with the runtime's own message in one line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType
from typing import Any, Protocol, Self

import onnx

from ... import memory
from ...arrays import Array
from ...errors import EngineError, EngineRefusal, UpconvError
from ..names import neutral
from .values import Interface, Value

_LONGEST_MESSAGE = 500


class Runtime(Protocol):
    """One way to run models."""

    @property
    def name(self) -> str:
        """What it is called in `RUNTIMES`."""

    def missing(self) -> str | None:
        """None where it can be used; else one sentence that ends in the command to install it."""

    def session(self, model: onnx.ModelProto, *, threads: int) -> Session:
        """`model`, ready to run on `threads` threads; the model is not changed.

        Raises `EngineRefusal` where the runtime does not take it, `ModelError` where it points
        outside itself, `MemoryLimitError`.
        """


class Session(ABC):
    """A model in a runtime. Close it, or use it in a `with`."""

    def __init__(self, runtime: str, interface: Interface) -> None:
        self.runtime = runtime
        self._interface = interface
        self._closed = False

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What the model takes, in its order."""
        return self._interface.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        """What the model gives, in its order."""
        return self._interface.outputs

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, the caller's own: arrays (a sequence is a list of them).

        feeds: an array for every input, of its dtype and shape.

        Raises `ArgumentError` for feeds that do not fit, `EngineError` if the runtime fails.
        """
        arrays = self._checked(feeds)
        with reported(self.runtime, "failed", EngineError):
            return self._run(arrays)

    def bind(self, feeds: Mapping[str, Any]) -> Callable[[], None]:
        """A call that runs the model on `feeds` again and again, for timing: nothing is copied.

        The arrays of `feeds` are read anew by each call. Raises what `run` raises; the runtime has
        run once when it returns.
        """
        arrays = self._checked(feeds)
        with reported(self.runtime, "failed", EngineError):
            again = self._bind(arrays)

        def call() -> None:
            try:
                again()
            except Exception:  # a `with` around each call would be timed along
                with reported(self.runtime, "failed", EngineError):
                    raise

        return call

    def close(self) -> None:
        """Give the model's memory back; a closed session raises `EngineError`."""
        if not self._closed:
            self._closed = True
            self._release()

    def _checked(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        if self._closed:
            raise EngineError(f"This session of {self.runtime} is closed. Make another one.")
        return self._interface.arrays(feeds)

    @abstractmethod
    def _run(self, feeds: dict[str, Array]) -> dict[str, Any]: ...

    @abstractmethod
    def _bind(self, feeds: dict[str, Array]) -> Callable[[], None]: ...

    @abstractmethod
    def _release(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def reported(runtime: str, what: str, kind: type[EngineError]) -> Iterator[None]:
    """Turn whatever a runtime raises into an error of the library, with its message in one line."""
    try:
        yield
    except UpconvError:
        raise
    except MemoryError as error:
        raise memory.refused(f"Running the model in {runtime}", error) from None
    except Exception as error:  # foreign code, which raises what it likes
        raise kind(f"{runtime} {what}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """The message of a foreign error in one line of bounded length, its kind where it has none.

    >>> one_line(ValueError("two", "lines"))
    "('two', 'lines')"
    """
    text = " ".join(str(error).split()) or type(error).__name__
    shown = neutral(text[:_LONGEST_MESSAGE])
    return shown if len(text) <= _LONGEST_MESSAGE else f"{shown[: _LONGEST_MESSAGE - 3]}..."


def lacking(module: str, command: str) -> str | None:
    """Why `module` cannot be imported, with the command that installs it; None where it can."""
    try:
        import_module(module)
    except (ImportError, OSError) as error:  # OSError: a library of it that does not load
        return f"The runtime {module} is not here ({one_line(error)}): {command}"
    return None


REFUSED = ("does not take the model", EngineRefusal)
"""What `reported` says of a model while a session is made."""
