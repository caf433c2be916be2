"""Names and numbers as parts of sentences: quoted so that no name looks like words of ours."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import brief
from ..names import neutral


def quoted(name: object) -> str:
    """A name between quotes, spelled out and cut to a length that fits in a sentence.

    >>> quoted("up")
    "'up'"
    """
    return neutral(brief(str(name)))


def listed(words: Sequence[object], last: str = "and") -> str:
    """Words in a row.

    >>> listed([0]), listed([0, 1]), listed([0, 1, 2])
    ('0', '0 and 1', '0, 1 and 2')
    """
    texts = [str(word) for word in words]
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} {last} {texts[-1]}"


def along(axes: Sequence[int]) -> str:
    """Which spatial axes, in words.

    >>> along([1]), along([0, 1])
    ('along spatial axis 1', 'along spatial axes 0 and 1')
    """
    return f"along spatial {'axis' if len(axes) == 1 else 'axes'} {listed(axes)}"


def counted(count: int, noun: str) -> str:
    """A number and its noun.

    >>> counted(1, "note"), counted(2, "note")
    ('1 note', '2 notes')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
