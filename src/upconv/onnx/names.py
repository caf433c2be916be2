"""Text out of models and foreign libraries, made harmless and short enough to be shown."""

from __future__ import annotations

LONGEST_SENTENCE = 1200  # characters of anything but a name that are shown


def neutral(text: str) -> str:
    r"""The text with everything that acts, rather than shows, as the escape Python has for it.

    >>> neutral("up\x1b[31m\u202eevil")
    'up\\x1b[31m\\u202eevil'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shortened(text: str, longest: int = 72, mark: str = "…") -> str:
    """The text, harmless, with `mark` for its middle where it is too long.

    >>> shortened("abcdefghij", longest=7)
    'abc…hij'
    """
    if len(text) > 2 * longest:  # megabytes are not worth reading before they are cut
        text = text[: longest + 1] + text[-longest:]
    shown, room = neutral(text), max(longest - len(mark), 0)
    if len(shown) <= longest:
        return shown
    return f"{shown[: room - room // 2]}{mark}{shown[len(shown) - room // 2 :]}"


def one_line(error: BaseException) -> str:
    """The message of a foreign error in one line of bounded length, its kind where it has none."""
    return shortened(" ".join(str(error).split()) or type(error).__name__, 500, "...")
