"""Text of others becomes one short line that a terminal can be shown."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.text import LONGEST_REASON, clean_fields, error_text, plain


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("as it is, ä and 字", "as it is, ä and 字"),
        ("two\nlines\r\n\tand  spaces ", "two lines and spaces"),
        ("\x1b[2J\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("a\x00b\x7fc\x85d", "abc d"),
        ("\u202egnp.exe\u2066 \u200bhidden\ufeff", "gnp.exe hidden"),
        ("half an escape \x1b[", "half an escape"),
        ("\ud800surrogate", "surrogate"),
    ],
)
def test_what_moves_a_cursor_hides_or_turns_the_writing_is_dropped(text: str, kept: str) -> None:
    assert plain(text) == kept


@given(st.text(alphabet=st.characters(exclude_categories=())), st.integers(3, 100))
def test_it_is_always_one_printable_line_of_bounded_length(text: str, most: int) -> None:
    kept = plain(text, most)
    assert len(kept) <= most
    assert kept.isprintable()
    assert plain(kept, most) == kept


def test_a_text_of_three_million_characters_is_cut_and_says_so() -> None:
    kept = plain("x" * 3_000_000)
    assert len(kept) == LONGEST_REASON and kept.endswith("...")
    assert plain("\x1b[m" * 1_000_000 + "end").endswith("...")


def test_an_error_that_cannot_say_what_it_is_has_its_type() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert error_text(Mute()) == "Mute: it cannot be shown (RuntimeError)"
    assert error_text(ValueError("a\x1b[2J\nb")) == "ValueError: a b"
    assert error_text(ValueError()) == "ValueError"


class _Told(msgspec.Struct, frozen=True):
    reason: str
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        clean_fields(self, "reason", "others")


def test_a_message_is_cleaned_as_it_is_read() -> None:
    raw = msgspec.msgpack.encode({"reason": "\x1b[2Jgone", "others": ["a\nb", "c"]})
    assert msgspec.msgpack.decode(raw, type=_Told) == _Told("gone", ("a b", "c"))
