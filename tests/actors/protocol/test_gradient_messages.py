"""What is said of gradients of slices: numbers that cannot be are no messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from job_kit import offer

from spotlight.actors.protocol.gradients import MOST_SLICES, AddSlices, OpenUpdate, SliceDone
from spotlight.types import UpdateSlices

SHARE = UpdateSlices(0, 0, 0, 1, 1.0, ())


def sent(message: Any) -> Any:
    """As it arrives."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))


def test_what_a_slice_may_be_called_arrives() -> None:
    done = tuple(SliceDone(place, offer()) for place in (0, MOST_SLICES - 1))
    assert sent(AddSlices(0, done)) == AddSlices(0, done)
    assert sent(OpenUpdate(0, SHARE, offer())) == OpenUpdate(0, SHARE, offer())


@pytest.mark.parametrize(
    "nonsense",
    [
        SliceDone(-1, offer()),
        SliceDone(MOST_SLICES, offer()),
        AddSlices(0, tuple(SliceDone(0, offer()) for _ in range(MOST_SLICES + 1))),
        OpenUpdate(-1, SHARE, offer()),
    ],
    ids=["a negative place", "a place beyond the last", "too many slices", "a negative update"],
)
def test_nonsense_does_not_arrive(nonsense: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        sent(nonsense)
