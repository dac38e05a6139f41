"""The text that a prompt asks for in double quotes. Imports no numpy, so that a job can be checked
without it."""

from __future__ import annotations

import re


def quoted_text(prompt: str) -> str:
    """The first text in double quotes without its white space, lower case; empty if there is
    none."""
    quoted = re.search(r'"([^"]*)"', prompt)
    return plain(quoted[1]) if quoted else ""


def plain(text: str) -> str:
    """Without white space, lower case: what counts of a text."""
    return "".join(text.split()).lower()
