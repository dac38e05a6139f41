"""The text that a prompt asks for in quotes, and what counts of a text when two are compared.
Imports no numpy, so that a job can be checked without it.

Quotes are straight, curly (of any language), fullwidth, corner brackets or guillemets; single ones
are none where they are apostrophes as well. A mark after a digit may stand for inches, and one
between Hebrew letters belongs to an acronym.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import zip_longest

_DOUBLE = '"“”„‟⹂❝❞＂〝〞〟״'  # noqa: RUF001
_PAIRS = ("«»", "»«", "‹›", "›‹", "「」", "『』", "｢｣", "﹁﹂", "﹃﹄")  # noqa: RUF001
_QUOTED = re.compile("|".join(f"{opens}([^{opens}{ends}]*){ends}" for opens, ends in _PAIRS))
_OF_ACRONYM = re.compile('(?<=[\u05d0-\u05ea])["״](?=[\u05d0-\u05ea])')
_ALIKE = str.maketrans(
    {
        **dict.fromkeys(f"{_DOUBLE}″", '"'),
        **dict.fromkeys("‘’‚‛′`´＇׳", "'"),  # noqa: RUF001
        **dict.fromkeys("‐‑‒–—―−─", "-"),  # noqa: RUF001
        "⁄": "/",  # noqa: RUF001
        "٪": "%",
    }
)
"""Marks that people, and the models that read signs, write for each other."""
_UNSEEN = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
"""Variation selectors, which nobody sees."""


def quoted_text(prompt: str) -> str:
    """The first text in quotes that has any, as `plain` gives it; empty if there is none."""
    prompt = _seen(prompt)
    found = sorted([*_between_double(prompt), *_between_others(prompt)])
    texts = (plain(text) for _, text in found)
    return next((text for text in texts if text), "")


def plain(text: str) -> str:
    """What counts of a text: the characters that are seen, whatever their code points.

    In Unicode's NFKC (one code point for a letter with its accent; no full width, no ligatures),
    without case, white space and what has no width, and with one kind of apostrophe, quote and dash
    each.
    """
    text = unicodedata.normalize("NFKC", text.translate(_ALIKE)).casefold().translate(_ALIKE)
    seen = _seen("".join(text.split()))
    return unicodedata.normalize("NFKC", seen)  # an accent may stand beside its letter only now


def _seen(text: str) -> str:
    """It without the characters that nobody sees, such as marks of direction."""
    text = _UNSEEN.sub("", text)
    return "".join(
        each for each in text if each.isspace() or unicodedata.category(each) not in ("Cf", "Cc")
    )


def _between_others(prompt: str) -> Iterator[tuple[int, str]]:
    for match in _QUOTED.finditer(prompt):
        yield match.start(), match[match.lastindex or 0]


def _between_double(prompt: str) -> Iterator[tuple[int, str]]:
    """Where each quotation begins, and its text."""
    inside = {match.start() for match in _OF_ACRONYM.finditer(prompt)}
    marks = [at for at, each in enumerate(prompt) if each in _DOUBLE and at not in inside]
    opened: int | None = None
    for mark, following in zip_longest(marks, marks[1:]):
        if opened is None:
            opened = None if _may_be_inches(prompt, mark) else mark
        elif not (_may_be_inches(prompt, mark) and _must_close(prompt, following)):
            yield opened, prompt[opened + 1 : mark]
            opened = None


def _may_be_inches(prompt: str, mark: int) -> bool:
    before = prompt[max(0, mark - 1) : mark]
    return bool(before) and unicodedata.category(before) in ("Nd", "No")  # a fraction is one too


def _must_close(prompt: str, mark: int | None) -> bool:
    """Whether a mark can do nothing but end a quotation; False if there is none."""
    if mark is None or _may_be_inches(prompt, mark):
        return False
    before, after = prompt[mark - 1 : mark], prompt[mark + 1 : mark + 2]
    opens = after.isalnum() or (bool(after.strip()) and (before.isspace() or before in "([{"))
    return not opens
