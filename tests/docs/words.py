"""The project's rules for prose, and the prose of a page that they are applied to.

Plain, short sentences in the active voice, with the actor named. `RULES` are those that this
project's own texts have broken; proselint has further ones, and `NOT_OURS` are not for these texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count

__all__ = ["NOT_OURS", "RULES", "Rule", "prose", "sentences", "too_long"]

MOST_WORDS = 40
_FEWEST_WORDS = 4
#: checks of proselint
NOT_OURS = (
    "typography",  # straight quotes and three dots are those of code; "resume" has no accents
    "archaism",  # "for ever" is British
    "dates_times",  # takes the "a" and "m" of other words for times of day
    "restricted",  # off by default
)


@dataclass(frozen=True)
class Rule:
    """A pattern that no sentence may match, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str


def _rule(pattern: str, instead: str, flags: int = re.IGNORECASE) -> Rule:
    return Rule(re.compile(pattern, flags), instead)


RULES = (
    _rule(
        r"^(What|Who|Whoever|Whatever|Of which|Which)\b.*[.:;]$",
        "name the thing or the person: 'a late consumer', not 'who comes late'",
        re.UNICODE,  # as written: a lower-case one continues a sentence
    ),
    _rule(r"\b(simply|obviously|basically|of course|needless to say)\b", "leave it out"),
    _rule(r"\b(utili[sz]e[sd]?|leverag(e|es|ed|ing))\b", "use"),
    _rule(
        r"\b(blazing(ly)?|seamless(ly)?|powerful|effortless(ly)?|state[- ]of[- ]the[- ]art)\b",
        "say what it does, with a figure",
    ),
    _rule(r"\b(in order to)\b", "to"),
    _rule(r"\b(wanna|gonna|kinda|gotta)\b", "the whole words"),
    _rule(r"\bthe third of each\b|\bthe other one of\b", "name it"),
    _rule(r"\b(etc\.|e\.g\.|i\.e\.)", "'and others', 'such as', 'that is'"),
    _rule(r"!$", "a full stop"),
)

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_MARKUP = re.compile(r"<!--.*?-->|<(figure|picture)>.*?</\1>|--8<-- .*?$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`]+`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_BULLET = re.compile(r"^ *(?:[-*]|\d+\.) +")


def sentences(markdown: str) -> list[str]:
    """Sentences of paragraphs, bullets, headings and cells; code stands as one word, `X`."""
    text = _MARKUP.sub("", _FENCE.sub("\n", markdown))
    text = _LINK.sub(r"\1", _CODE.sub("X", text)).replace("**", "")
    blocks: list[str] = [""]
    for line in text.splitlines():
        if line.startswith("|"):
            blocks += [cell.strip() for cell in line.strip("|").split("|")] + [""]
        elif not line.strip() or line.startswith(("#", "    :", ":::", "    options", "      ")):
            blocks += [line.lstrip("# ") if line.startswith("#") else "", ""]
        elif _BULLET.match(line):
            blocks.append(_BULLET.sub("", line))
        else:
            blocks[-1] += " " + line.strip()
    parts = (
        re.split(r"(?<=[.!?:;])\s+(?=[A-Z\"(]|swift_loader|macOS)", block.strip())
        for block in blocks
    )
    return [part for some in parts for part in some if part]


def prose(markdown: str) -> str:
    """The sentences, a line each, without cells of a few words.

    Pieces of code are `X1`, `X2`, …, since they are no word that comes twice.
    """
    number = count(1)
    lines = (
        line
        if line.endswith((".", ":", ";", "?"))
        else f"{line}."  # one may begin as this one ends
        for line in sentences(markdown)
        if len(line.split()) >= _FEWEST_WORDS
    )
    return re.sub(r"\bX\b", lambda _: f"X{next(number)}", "\n".join(lines))


def too_long(sentence: str) -> bool:
    """More words than a reader holds at once."""
    return len(sentence.split()) > MOST_WORDS
