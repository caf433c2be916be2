"""Every error upconv raises, and nothing else.

The tree (each kind also derives from the built-in error a caller would expect):

    UpconvError
    ├── ArgumentError (ValueError)     an argument has a value that no problem can have
    │   ├── ShapeError                 ... and it is a shape, or a size that follows from shapes
    │   └── DTypeError (TypeError)     ... and it is a kind of element or of object
    ├── TranslationError (ValueError)  the requested dialect cannot express a layer
    ├── EngineError (RuntimeError)     an engine failed
    │   ├── EngineRefusal              the requested engine, or every one, cannot do this problem
    │   └── EngineMissing (ImportError)  the engine, or an extra, is not installed here
    ├── FileError (OSError)            a file cannot be read or must not be written
    ├── ModelError (ValueError)        a model is damaged, or violates its format
    └── MemoryLimitError (MemoryError)  arrays do not fit; raised before allocating where possible

A message tells the value, the allowed values and the remedy:
"stride[1] is 0; expected an integer >= 1. Use 1 where nothing is to be upsampled."
"""

from __future__ import annotations

from typing import Self

_LONGEST_VALUE = 120


def brief(value: object) -> str:
    """`repr(value)` as one line, cut to fit in a sentence; never raises, whatever the value."""
    try:
        text = joined_lines(repr(value))  # arrays spread over many
    except Exception as error:  # a foreign __repr__ may fail, but error messages must not
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def joined_lines(text: str) -> str:
    """The lines of a text as one, without the spaces that indent them."""
    return " ".join(map(str.strip, text.splitlines()))


class UpconvError(Exception):
    """The base of everything upconv raises on purpose; its message is one line."""

    def __str__(self) -> str:
        return joined_lines(super().__str__())  # some quote what another library says


class ArgumentError(UpconvError, ValueError):
    """An argument has a value that no problem can have.

    Attributes: `argument` (its name, with an index for a single axis), `got` (the value as text),
    `expected` (the allowed values) and `remedy` (advice; may be empty).

    >>> print(ArgumentError("stride[1]", "0", "an integer >= 1"))
    stride[1] is 0; expected an integer >= 1.
    """

    def __init__(self, argument: str, got: str, expected: str, remedy: str = "") -> None:
        super().__init__(argument, got, expected, remedy)  # all four, so that the error pickles
        self.argument, self.got, self.expected, self.remedy = argument, got, expected, remedy

    def renamed(self, name: str, other: str) -> Self:
        """The same error, calling the argument `other` if it was called `name`."""
        argument = other if self.argument == name else self.argument
        return type(self)(argument, self.got, self.expected, self.remedy)

    def __str__(self) -> str:
        sentence = f"{self.argument} is {self.got}; expected {self.expected}."
        return joined_lines(f"{sentence} {self.remedy}" if self.remedy else sentence)


class ShapeError(ArgumentError):
    """A shape, or a size that follows from shapes, does not fit."""


class DTypeError(ArgumentError, TypeError):
    """An element type, or the type of an object, is not one upconv works on."""


class TranslationError(UpconvError, ValueError):
    """A layer cannot be said in the dialect asked for; the message says why."""


class EngineError(UpconvError, RuntimeError):
    """An engine failed while building or running a primitive."""


class EngineRefusal(EngineError):
    """The engine asked for, or every engine, cannot do this problem; the message says why."""


class EngineMissing(EngineError, ImportError):
    """An engine or an extra is not installed; the message ends with the install command."""


class FileError(UpconvError, OSError):
    """A file cannot be read, or must not be written; nothing was written."""


class ModelError(UpconvError, ValueError):
    """A model is damaged, or says what its format does not allow; the message says where."""


class MemoryLimitError(UpconvError, MemoryError):
    """The arrays a call needs do not fit in memory; none of them is left over."""
