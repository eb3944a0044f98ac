"""Names that users gave (files, data sets, samples), made safe to show: no escape codes. Pure."""

from __future__ import annotations

import unicodedata

__all__ = ["printable"]

# Control and formatting characters, lone surrogates, private ones and line separators: a terminal
# may obey them, and a label, a line or a page may end at them.
_OBEYED = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))


def printable(text: object, at_most: int = 200) -> str:
    """`text` with what is not to be shown as ``\\x1b``, and no longer than `at_most`."""
    whole = str(text)
    cut = whole if len(whole) <= at_most else whole[: at_most - 1] + "…"
    if cut.isascii() and cut.isprintable():
        return cut
    return "".join(
        _escaped(character) if unicodedata.category(character) in _OBEYED else character
        for character in cut
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
