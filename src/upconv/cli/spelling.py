"""Values as they are written on the command line: shapes, sizes, paddings, lists of names.

The functions here turn text into what the library takes and know nothing of its meaning: whether
a stride of 0 makes sense is for the library to say. Text that cannot be read is a usage error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import typer

_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")


class Shape(tuple[int, ...]):
    """A tuple with a name, for `--help` to show."""


def shape(text: str) -> Shape:
    """A shape.

    >>> shape("1,64,32,32"), shape("1x64x32x32")
    ((1, 64, 32, 32), (1, 64, 32, 32))
    """
    return Shape(_integer(part, text) for part in _parts(text))


def sizes(text: str) -> int | tuple[int, ...]:
    """One integer for all axes, or one per axis.

    >>> sizes("2"), sizes("2,3")
    (2, (2, 3))
    """
    values = shape(text)
    return values[0] if len(values) == 1 else tuple(values)


Ends = int | tuple[int, int]


def padding(text: str) -> int | str | tuple[Ends, ...]:
    """One integer, one per axis, a begin:end pair per axis, or the name of a rule.

    >>> padding("1"), padding("1,2"), padding("0:1,-2:3"), padding("same_upper")
    (1, (1, 2), ((0, 1), (-2, 3)), 'same_upper')
    """
    if text[:1].isalpha() and "," not in text and ":" not in text:
        return text
    ends = tuple(_ends(part, text) for part in _parts(text))
    return ends[0] if len(ends) == 1 and isinstance(ends[0], int) else ends


def names(text: str) -> tuple[str, ...]:
    """Names between commas, each once.

    >>> names("torch, openvino")
    ('torch', 'openvino')
    """
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def require_named(option: str, wanted: Iterable[str] | None, allowed: Iterable[str]) -> None:
    """A usage error for an option that was given and names nothing, saying what it may name."""
    if wanted is not None and not tuple(wanted):
        words = f"it names nothing; expected one or more of {', '.join(allowed)}"
        raise typer.BadParameter(words, param_hint=option)


def _parts(text: str) -> list[str]:
    return re.split(r"[,x]", text.strip())


def _ends(part: str, text: str) -> Ends:
    begin, colon, end = part.partition(":")
    return (_integer(begin, text), _integer(end, text)) if colon else _integer(part, text)


def _integer(part: str, text: str) -> int:
    if not _NUMBER.fullmatch(part.strip()):
        raise typer.BadParameter(f"{part!r} in {text!r} is not an integer")
    return int(part)
