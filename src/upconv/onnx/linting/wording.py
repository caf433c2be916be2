"""Words of a model in words of ours: nothing in a name may move a cursor, or look like our own.

What lives here: making names and numbers fit for a line of text.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import brief


def plain(words: str) -> str:
    r"""`words` with every character that is not printable spelled out.

    >>> print(plain("a\x1b[31m\u202eb"))
    a\x1b[31m\u202eb
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in words)


def quoted(name: object) -> str:
    """A name between quotes, spelled out and cut to a length that fits in a sentence.

    >>> quoted("up")
    "'up'"
    """
    return plain(brief(str(name)))


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
