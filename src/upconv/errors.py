"""Every error that upconv raises.

The class tree (each class also derives from the built-in error that a caller would expect):

    UpconvError
    ├── ArgumentError (ValueError)     an argument has a value that no problem allows
    │   ├── ShapeError                 ... a shape, or a size that follows from shapes
    │   └── DTypeError (TypeError)     ... a dtype, or the type of an object
    ├── TranslationError (ValueError)  the requested dialect cannot express a layer
    ├── EngineError (RuntimeError)     an engine failed
    │   ├── EngineRefusal              the requested engine, or every one, refuses this problem
    │   └── EngineMissing (ImportError)  the engine, or an extra, is not installed here
    ├── FileError (OSError)            a file cannot be read or must not be written
    ├── ModelError (ValueError)        a model is damaged, or violates its format
    └── MemoryLimitError (MemoryError)  arrays do not fit; raised before allocating where possible

A message states the value, the allowed values and the remedy:
"stride[1] is 0; expected an integer >= 1. Use 1 where nothing is to be upsampled."
"""

from __future__ import annotations

from typing import Self

_LONGEST_VALUE = 120


def brief(value: object) -> str:
    """Return `repr(value)` on one line, cut to fit in a sentence. It never raises."""
    try:
        text = joined_lines(repr(value))  # the repr of an array may span several lines
    except Exception as error:  # a third-party __repr__ may fail, an error message must not
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    if len(text) <= _LONGEST_VALUE:
        return text
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"an array of shape {tuple(shape)}"
    return text[: _LONGEST_VALUE - 3] + "..."


def joined_lines(text: str) -> str:
    """Join the lines of a string into one, without their indentation."""
    return " ".join(map(str.strip, text.splitlines()))


class UpconvError(Exception):
    """Base class of all errors that upconv raises on purpose; the message is one line."""

    def __str__(self) -> str:
        return joined_lines(super().__str__())  # some messages quote another library


class ArgumentError(UpconvError, ValueError):
    """An argument has a value that no problem allows.

    Attributes: `argument` (its name, with an index for a single axis), `got` (the value as text),
    `expected` (the allowed values) and `remedy` (advice; may be empty).

    >>> print(ArgumentError("stride[1]", "0", "an integer >= 1"))
    stride[1] is 0; expected an integer >= 1.
    """

    def __init__(self, argument: str, got: str, expected: str, remedy: str = "") -> None:
        super().__init__(argument, got, expected, remedy)  # all four, so that the error pickles
        self.argument, self.got, self.expected, self.remedy = argument, got, expected, remedy

    def renamed(self, name: str, other: str) -> Self:
        """Return the same error with the argument `name` renamed to `other`."""
        argument = other if self.argument == name else self.argument
        return type(self)(argument, self.got, self.expected, self.remedy)

    def __str__(self) -> str:
        sentence = f"{self.argument} is {self.got}; expected {self.expected}."
        return joined_lines(f"{sentence} {self.remedy}" if self.remedy else sentence)


class ShapeError(ArgumentError):
    """A shape, or a size that follows from shapes, does not fit."""


class DTypeError(ArgumentError, TypeError):
    """An element type, or the type of an object, is not supported."""


class TranslationError(UpconvError, ValueError):
    """A layer cannot be expressed in the requested dialect; the message says why."""


class EngineError(UpconvError, RuntimeError):
    """An engine failed while building or running a primitive."""


class EngineRefusal(EngineError):
    """The requested engine, or every engine, cannot compute this problem; the message says why."""


class EngineMissing(EngineError, ImportError):
    """An engine or an extra is not installed; the message ends with the install command."""


class FileError(UpconvError, OSError):
    """A file cannot be read or must not be written; nothing was written."""


class ModelError(UpconvError, ValueError):
    """A model is damaged or violates its format; the message says where."""


class MemoryLimitError(UpconvError, MemoryError):
    """The arrays that a call needs do not fit in memory; the call keeps none of them allocated."""
