"""Errors of the PyTorch face: each is an upconv error and one that PyTorch users catch.

PyTorch raises `RuntimeError` for operands that do not fit together and `TypeError` for objects of
the wrong kind, upconv `ShapeError`, `DTypeError` and `ArgumentError`. The classes here are both:

    TensorArgumentError    ArgumentError, RuntimeError
    TensorShapeError       ShapeError, RuntimeError
    TensorTypeError        DTypeError (a TypeError too), RuntimeError

What lives here: those classes. What never does: deciding what is refused.
"""

from __future__ import annotations

from ..errors import ArgumentError, DTypeError, ShapeError


class TensorArgumentError(ArgumentError, RuntimeError):
    """An argument has a value that PyTorch's layer cannot have.

    >>> issubclass(TensorArgumentError, RuntimeError)
    True
    """


class TensorShapeError(ShapeError, RuntimeError):
    """Tensors, or sizes that follow from them, do not fit together.

    >>> print(TensorShapeError("input.shape", "(3,)", "3 or 4 axes"))
    input.shape is (3,); expected 3 or 4 axes.
    """


class TensorTypeError(DTypeError, RuntimeError):
    """A tensor of a dtype, device or layout, or an object of a kind, that is not computed on.

    >>> issubclass(TensorTypeError, TypeError)
    True
    """


def for_tensors(error: ArgumentError) -> ArgumentError:
    """The same error, of the kind that PyTorch users catch too.

    >>> type(for_tensors(ShapeError("x", "1", "2"))).__name__
    'TensorShapeError'
    """
    for kind, twin in _TWINS:
        if isinstance(error, kind):
            return twin(error.argument, error.got, error.expected, error.remedy)
    return error


# From the narrowest kind to the widest.
_TWINS: tuple[tuple[type[ArgumentError], type[ArgumentError]], ...] = (
    (ShapeError, TensorShapeError),
    (DTypeError, TensorTypeError),
    (ArgumentError, TensorArgumentError),
)
