"""The cases of text as people write it, one by one."""

from __future__ import annotations

import pytest

from benchmarks.unicode_cases import UnicodeCase, reward_of, unicode_cases

CASES = unicode_cases()


def test_there_are_enough_of_them_and_no_two_are_called_alike() -> None:
    assert len({case.what for case in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what.replace(" ", "-"))
def test_a_sign_is_worth_what_a_person_would_say(case: UnicodeCase) -> None:
    assert reward_of(case) == case.reward
