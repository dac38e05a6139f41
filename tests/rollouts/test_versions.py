"""Which weights version a request gets."""

from __future__ import annotations

import pytest

from spotlight.errors import VersionGone
from spotlight.rollouts.versions import ANY_VERSION, AtLeast, Exactly, choose_version


def test_the_newest_is_taken_that_is_new_enough() -> None:
    assert choose_version(AtLeast(2), [1, 2, 5]) == 5
    assert choose_version(ANY_VERSION, [0]) == 0


def test_the_very_version_is_taken_where_it_is_named() -> None:
    assert choose_version(Exactly(2), [1, 2, 5]) == 2


@pytest.mark.parametrize("wanted", [AtLeast(6), Exactly(6)])
@pytest.mark.parametrize("published", [[], [1, 5]])
def test_what_is_not_published_yet_is_waited_for(
    wanted: AtLeast | Exactly, published: list[int]
) -> None:
    assert choose_version(wanted, published) is None


def test_a_version_that_was_dropped_cannot_be_had_any_more() -> None:
    with pytest.raises(VersionGone, match="version 3 is no longer kept; there are: 4, 5"):
        choose_version(Exactly(3), [5, 4])
