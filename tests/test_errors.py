"""Errors keep their types and fields on the way between processes of a user's framework."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from spotlight.errors import (
    JobError,
    NotFinite,
    RemoteError,
    SpotlightError,
    UnreadableFile,
    WeightsRefused,
)

ERRORS = [
    JobError("sampler.steps", "must be at least 1"),
    NotFinite("2 of 4 are not finite", (1, 3)),
    RemoteError("ValueError", "no such thing", "Traceback ..."),
    UnreadableFile(Path("job.yaml"), "is a folder"),
    WeightsRefused("version: 1 is not above 2"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_copy_of_an_error_has_its_type_its_message_and_its_fields(error: SpotlightError) -> None:
    found = copy.copy(error)  # by the protocol that every serializer of Python objects uses
    assert type(found) is type(error)
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))
