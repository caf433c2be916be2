"""Text out of models and foreign libraries, made harmless and short enough to be shown.

Nothing here is trusted. What could drive a terminal or turn the order of a line around (control
characters, separators, invisible characters, surrogates, marks that stand on nothing or are more
than two on one letter) becomes the escape that Python would write for it. For terminals
(`on_terminal`) so do letters that are written from right to left: they are lawful, but a terminal
would turn the numbers beside them around too. HTML's own escapes are the template's to write.
"""

from __future__ import annotations

import unicodedata

LONGEST = 72
"""Characters of a name that are shown; more are cut from its middle."""

LONGEST_SENTENCE = 1200
"""Characters of anything else that are shown."""

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"})
_MARKS = frozenset({"Mn", "Me"})
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})
_MOST_MARKS = 2


def neutral(text: str, *, one_way: bool = False) -> str:
    r"""The text with everything that acts, rather than shows, as an escape.

    >>> neutral("up\x1b[31m\u202eevil")
    'up\\x1b[31m\\u202eevil'
    """
    if text.isascii() and text.isprintable():
        return text
    shown, marks = [], _MOST_MARKS
    for character in text:
        is_mark = unicodedata.category(character) in _MARKS
        marks = marks + 1 if is_mark else 0
        unsafe = _acts(character, one_way) or marks > _MOST_MARKS
        shown.append(_escape(character) if unsafe else character)
    return "".join(shown)


def on_terminal(text: str) -> str:
    r"""The text for a terminal, without letters that are written from right to left.

    >>> on_terminal("\u05d0 = 1")
    '\\u05d0 = 1'
    """
    return neutral(text, one_way=True)


def shortened(text: str, longest: int = LONGEST, mark: str = "…") -> str:
    """The text, harmless, with `mark` for its middle where it is too long.

    >>> shortened("abcdefghij", longest=7)
    'abc…hij'
    """
    room = max(longest - len(mark), 0)
    head, tail = room - room // 2, room // 2
    if len(text) > 2 * longest:  # megabytes are not worth reading before they are cut
        text = text[: longest + 1] + text[-longest:]
    shown = neutral(text)
    return shown if len(shown) <= longest else f"{shown[:head]}{mark}{shown[len(shown) - tail :]}"


def clipped(text: str, longest: int = LONGEST_SENTENCE) -> str:
    """The text, harmless, with its end cut off where it is too long, and how much that was.

    >>> clipped("abcdefghij", longest=4)
    'abcd… (10 characters)'
    """
    shown = neutral(text[:longest])
    return shown if len(text) <= longest else f"{shown}… ({len(text):,} characters)"


def _acts(character: str, one_way: bool) -> bool:
    category = unicodedata.category(character)
    if category in _UNSAFE or (category == "Zs" and character != " "):
        return True
    return one_way and unicodedata.bidirectional(character) in _RIGHT_TO_LEFT


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
