"""Exit codes and error messages of commands.

    0  success
    1  findings: a wrong result, a difference, a finding of lint
    2  an error: wrong usage, bad input, a missing engine or extra
    130 interrupted (Ctrl-C), 141 closed pipe, 143 terminated: as in shells

Warnings and the errors that upconv raises on purpose are printed as one line on stderr. Every other
exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer

from ..errors import ArgumentError, FileError, UpconvError

FINDINGS, ERROR = 1, 2
_FULL = (errno.ENOSPC, errno.EIO)  # for stdout only: the library reports files by name
_INTERRUPTED, _BROKEN_PIPE, _TERMINATED = 128 + 2, 128 + 13, 128 + 15

_OPTIONS = {"runtimes": "--runtime", "sizes": "--input-shape", "feeds": "--inputs"} | {
    name: f"--{name}"
    for name in ("runtime", "passes", "profile", "engine", "threads", "select", "ignore", "seconds")
}
"""Arguments of the library -> the command's options."""


def say(text: str) -> None:
    """Write one line to stderr, which may be closed."""
    if sys.stderr is not None:
        with suppress(OSError):  # the exit code is enough
            sys.stderr.write(text + "\n")


@contextmanager
def ended(*, traceback: bool) -> Iterator[None]:
    """End a command with its exit code and at most one line on stderr.

    traceback: re-raise the library's errors, so that Python shows the traceback.
    """
    with suppress(ValueError):  # not the main thread: its owner handles signals
        signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _raise_again
    # Print a warning as one line, without its file name and source line.
    warnings.showwarning = lambda words, *_: say(f"warning: {' '.join(str(words).split())}")
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # Discard buffered output, which would fail again while Python shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(_BROKEN_PIPE)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL and not error.filename:
            sys.stdout = None  # flushing it would fail again while Python shuts down
            error = FileError(f"Cannot write to the standard output: {error.strerror}.")
        expected = traceback and isinstance(error, UpconvError | MemoryError)
        message = "" if expected else _message(error)
        if not message:
            raise
        say(f"error: {' '.join(message.split())}")
        sys.exit(ERROR)
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def _message(error: Any) -> str:
    """Return the message of an error; "" for a bug or a request for help."""
    if isinstance(error, ArgumentError):
        name, bracket, index = error.argument.partition("[")  # sizes['x']
        error = error.renamed(error.argument, _OPTIONS.get(name, name) + bracket + index)
    if isinstance(error, UpconvError | MemoryError):
        return str(error) or "out of memory"
    # Typer either contains click or imports it. This finds its UsageError in both cases.
    usage: Any = typer.BadParameter.__base__
    if not isinstance(error, usage) or type(error).__name__ == "NoArgsIsHelpError":
        return ""
    words = error.format_message().replace("Value error, ", "").rstrip(". \n")
    where = error.ctx.command_path if error.ctx is not None else "upconv"
    return f"{words}{'' if words.endswith('?') else '.'} See `{where} --help`."


def _terminate(*_: object) -> None:
    """Unwind on SIGTERM as on Ctrl-C, so that temporary files are removed."""
    if getattr(getattr(sys.modules.get("numpy"), "__spec__", None), "_initializing", False):
        os._exit(_TERMINATED)  # a half-imported NumPy can crash Python at exit
    sys.exit(_TERMINATED)


def _raise_again(lost: Any) -> None:
    """Raise the exception of a signal again if a finalizer or a callback swallowed it."""
    if not isinstance(lost.exc_value, KeyboardInterrupt | SystemExit):
        sys.__unraisablehook__(lost)
    elif hasattr(signal, "setitimer"):
        kind, words = lost.exc_type, lost.exc_value.args

        def again(*_: object) -> None:
            raise kind(*words)

        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # raised here, it would be lost again
