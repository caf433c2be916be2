"""How a command ends: exit codes, and what is said about an error.

    0  fine
    1  findings: a wrong result, a difference, a message of lint
    2  an error: wrong usage, bad input, an engine or an extra that is missing
    130 interrupted (Ctrl-C), 141 the reader of stdout went away, 143 terminated: as in shells

An error upconv raises on purpose, or a warning, is one line on stderr; every other exception is a
bug and keeps its traceback.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Any, NoReturn

from ..errors import ArgumentError, UpconvError


class Ending(IntEnum):
    """The exit codes."""

    FINE = 0
    FINDINGS = 1
    ERROR = 2
    INTERRUPTED = 128 + 2
    BROKEN_PIPE = 128 + 13
    TERMINATED = 128 + 15


def say(text: str) -> None:
    """One line of talk on stderr, which may be closed."""
    if sys.stderr is not None:
        with suppress(OSError):  # nobody listens; the exit code still tells
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


@contextmanager
def ended(*, traceback: bool) -> Iterator[None]:
    """Turn whatever ends a command into its exit code and at most one line on stderr.

    traceback: let errors of the library through, with the place they come from.
    """
    _end_on_termination()
    sys.unraisablehook = _interrupt_again
    warnings.showwarning = _say_warning
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted")
        _exit(Ending.INTERRUPTED)
    except BrokenPipeError:
        _forget_stdout()
        _exit(Ending.BROKEN_PIPE)
    except (UpconvError, MemoryError) as error:
        if traceback or os.environ.get("UPCONV_TRACEBACK", "").strip() not in ("", "0"):
            raise
        say(f"error: {_message(error)}")
        _exit(Ending.ERROR)
    except Exception as error:
        told = _usage(error)
        if not told:
            raise
        say(f"error: {told}")
        _exit(Ending.ERROR)
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def _usage(error: Any) -> str:
    """What click has to say of wrong usage, in one line; "" for all else.

    Typer has click in a package of its own or in itself, so that the class has no one name.
    """
    if not any(kind.__name__ == "UsageError" for kind in type(error).__mro__):
        return ""
    if type(error).__name__ == "NoArgsIsHelpError":  # the help itself
        return ""
    words = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    where = error.ctx.command_path if error.ctx is not None else "upconv"
    return f"{words}. See `{where} --help`."


def _exit(ending: Ending) -> NoReturn:
    sys.exit(int(ending))


_OPTIONS = {"runtimes": "--runtime", "runtime": "--runtime", "sizes": "--input-shape"}
"""Arguments of the library -> the options that give them, where the words differ."""


def _message(error: BaseException) -> str:
    if isinstance(error, ArgumentError):
        error = error.renamed(error.argument, _OPTIONS.get(error.argument, error.argument))
    return " ".join(str(error).split()) or "out of memory"


def _end_on_termination() -> None:
    """SIGTERM unwinds like Ctrl-C does, so that temporary files are removed."""
    with suppress(ValueError):  # not the main thread: whoever runs us there has the signals
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(*_: object) -> None:
    """End the command; again after a while, as what is raised inside a callback is lost."""
    if getattr(getattr(sys.modules.get("numpy"), "__spec__", None), "_initializing", False):
        os._exit(int(Ending.TERMINATED))  # half imported, NumPy can crash Python when that ends
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _terminate)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    _exit(Ending.TERMINATED)


def _interrupt_again(lost: Any) -> None:
    """Ctrl-C while an object was being finalised, where what is raised is lost: once more."""
    if isinstance(lost.exc_value, KeyboardInterrupt) and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # not here: it would be lost again
    else:
        sys.__unraisablehook__(lost)


_AGAIN = 5.0
"""Seconds in which temporary files are removed."""


def _say_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning in one line, without the place in the library that it comes from."""
    say(f"warning: {' '.join(str(message).split())}")


def _forget_stdout() -> None:
    """What is still buffered goes nowhere, instead of failing again while Python shuts down."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
