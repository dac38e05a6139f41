"""The text that a prompt asks for, and when two texts are the same."""

from __future__ import annotations

import unicodedata

import pytest

from spotlight.rewards.ocr import ocr_reward
from spotlight.rewards.quotes import plain, quoted_text
from spotlight.rewards.recognition import RapidRecognizer


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ('a sign that says "Hello World" and "bye"', "helloworld"),
        ("a sign that says “OPEN”", "open"),
        ("ein Schild mit „OFFEN“", "offen"),
        ("en skylt med ”ÖPPET”", "öppet"),
        ("une enseigne « OUVERT »", "ouvert"),
        ("ein Schild mit »OFFEN«", "offen"),
        ("写着「营业中」的牌子", "营业中"),
        ("写着『营业中』的牌子", "营业中"),
        ('牌子写着"营业"的店', "营业"),
        ("＂ＯＰＥＮ＂", "open"),  # noqa: RUF001
        ('half "OPEN”, half “CLOSED"', "open"),
        ('the first of "" and "x"', "x"),
        ("the earlier of 「one」 and “two”", "one"),
        ('the earlier of "one" and «two»', "one"),
        ("it’s the dog’s “bowl”", "bowl"),  # noqa: RUF001
        ('"?" on a door', "?"),
    ],
)
def test_the_text_is_the_first_in_quotes_of_any_kind(prompt: str, text: str) -> None:
    assert quoted_text(prompt) == text


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ('a 5" disk that says "OPEN"', "open"),
        ('a 4" x 6" photo of "HI"', "hi"),
        ('a 3.5" floppy labelled “DOS 6.22”', "dos6.22"),
        ('a sign that says "PIZZA 12""', 'pizza12"'),
        ('“PIZZA 12" SPECIAL”', 'pizza12"special'),
        ('a label "5" disk", in blue', '5"disk'),
        ('the number "7" on a 5" disk', "7"),
        ('"12" and "13"', "12"),
        ('a door ("5") and "A"', "5"),
        ('a 5" disk', ""),
        ('a 5" by 7" photo', ""),
    ],
)
def test_a_mark_of_inches_is_no_quotation(prompt: str, text: str) -> None:
    assert quoted_text(prompt) == text


@pytest.mark.parametrize("prompt", ["", "a cat", 'a "cat', '""', '" "', '"\u200b"', "‘a’", "don't"])  # noqa: RUF001
def test_a_prompt_without_text_in_quotes_has_none(prompt: str) -> None:
    assert quoted_text(prompt) == ""


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("cafe\u0301", "café"),
        ("Ｃａｆé", "CAFÉ"),
        ("50％", "50%"),  # noqa: RUF001
        ("50\u202f﹪", "50 %"),
        ("o\u200bp\u2060e\ufeffn", "OPEN"),
        ("e\u200b\u0301", "é"),
        ("don’t", "don't"),  # noqa: RUF001
        ("A–B — C", "a-b-c"),  # noqa: RUF001
        ("12″", '12"'),
        ("straße", "STRASSE"),
        ("m²", "m2"),
        ("½", "1/2"),
        ("ﬁn", "fin"),
        ("❤\ufe0f", "❤"),
        ("한", "\u1112\u1161\u11ab"),
    ],
)
def test_texts_that_look_the_same_are_worth_a_whole_reward(written: str, read: str) -> None:
    assert ocr_reward(read, written) == ocr_reward(written, read) == 1.0


def test_a_letter_without_its_accent_is_another_letter() -> None:
    assert ocr_reward("cafe", "café") == 0.75


def test_every_character_that_the_recogniser_can_write_can_be_asked_for_and_read() -> None:
    recognizer = RapidRecognizer()
    characters = {recognizer.decode([index]) for index in range(1, 6600)}
    for character in characters:
        if character.strip():
            assert ocr_reward(character, unicodedata.normalize("NFD", character)) == 1.0
            assert plain(plain(character)) == plain(character) != ""
