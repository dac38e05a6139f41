"""Signs as people write them in prompts, and as a recogniser reads them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.users.case import Check, case, require
from spotlight.rewards.ocr import ocr_reward
from spotlight.rewards.quotes import quoted_text

_SAME = {
    "an accent of its own": ("cafe\u0301", "café"),
    "full width": ("\uff2f\uff30\uff25\uff2e", "OPEN"),
    "zero width": ("OP\u200bEN\ufeff", "open"),
    "a percent sign of full width": ("50\uff05", "50%"),
    "a narrow space before a percent sign": ("50\u202f%", "50%"),
    "a curly apostrophe": ("Joe\u2019s", "Joe's"),
    "a dash": ("9\u201317", "9-17"),
    "a ligature": ("\ufb01sh", "fish"),
}
"""What a prompt asks for, and what is read."""

_ASKED = {
    "curly quotes": ("a sign that says \u201cOPEN\u201d", "open"),
    "German quotes": ("ein Schild mit \u201eOFFEN\u201c", "offen"),
    "guillemets": ("une enseigne \u00ab OUVERT \u00bb", "ouvert"),
    "corner brackets": ("\u300c\u8425\u4e1a\u4e2d\u300d\u7684\u724c\u5b50", "\u8425\u4e1a\u4e2d"),
    "inches before the text": ('a 5" disk that says "OPEN"', "open"),
    "inches twice before the text": ('a 4" x 6" photo of "HI"', "hi"),
    "inches in the text": ('a sign that says "PIZZA 12""', 'pizza12"'),
    "nothing but inches": ('a 5" by 7" photo', ""),
}
"""A prompt, and the text that it asks for."""


def _is_read(written: str, read: str) -> Check:
    def check(folder: Path) -> None:
        reward = ocr_reward(read, quoted_text(f'a sign that says "{written}"'))
        require(reward == 1.0, f"a reward of {reward}")

    return check


def _is_asked(prompt: str, text: str) -> Check:
    def check(folder: Path) -> None:
        found = quoted_text(prompt)
        require(found == text, f"{found!r} instead of {text!r}")

    return check


for _name, (_written, _read) in _SAME.items():
    case(f"a sign with {_name}", quick=_name == "full width")(_is_read(_written, _read))
for _name, (_prompt, _text) in _ASKED.items():
    case(f"a prompt with {_name}")(_is_asked(_prompt, _text))


@case("another letter is another letter")
def _other_letter(folder: Path) -> None:
    require(ocr_reward("cafe", "café") == 0.75, ocr_reward("cafe", "café"))
