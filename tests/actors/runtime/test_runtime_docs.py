"""The page on the runtime's promises names a test for each, and the tests are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
PAGE = (TESTS.parent / "docs" / "actors.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    sources = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)", sources))
    assert set(re.findall(r"`(test_\w+)`", PAGE)) <= defined


def test_every_promise_names_a_test() -> None:
    promises = PAGE.partition("## What it does not do")[0]
    for promise in re.split(r"^- |^## ", promises, flags=re.MULTILINE)[1:]:
        heading = promise.strip().count("\n") == 0 and "`" not in promise
        assert heading or "`test_" in promise, promise
