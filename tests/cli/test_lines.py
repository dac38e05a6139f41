"""An error is one line of the terminal, whatever it quotes."""

from __future__ import annotations

import pytest

from spotlight.cli.lines import one_line
from spotlight.errors import UserError


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain: `text`, zw\u00f6lf \u4e2d", "plain: `text`, zw\u00f6lf \u4e2d"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[31mred\x00", r"\x1b[31mred\x00"),
        ("half \ud800", r"half \ud800"),
        ("a\u2028b", r"a\u2028b"),
    ],
)
def test_what_would_leave_the_line_is_written_out(text: str, line: str) -> None:
    assert one_line(UserError(text)) == line


def test_a_long_line_keeps_its_begin_and_its_end() -> None:
    line = one_line(UserError("begin" + "x" * 10**6 + "end"))
    assert line.startswith("begin") and line.endswith("end") and len(line) < 2100
