"""Trackers in a job file: what cannot be one is named by its place in the list."""

from __future__ import annotations

from typing import Any

import pytest

from spotlight.errors import JobError
from tests.small_run import small_job


def test_known_trackers_and_classes_of_ones_own_are_accepted() -> None:
    own = "my_package.my_module:MyTracker"
    job = small_job(
        trackers=[{"kind": "tensorboard"}, {"kind": "wandb", "project": "a"}, {"kind": own}]
    )
    assert [tracker.kind for tracker in job.trackers] == ["tensorboard", "wandb", own]
    assert job.trackers[1].project == "a"


@pytest.mark.parametrize(
    ("trackers", "path", "words"),
    [
        ([{"kind": 3}], "trackers[0].kind", "must be text, not of type `int`"),
        ([{"kind": "mlflow"}], "trackers[0].kind", "must be `tensorboard`, `wandb`, `trackio` or"),
        ([{"kind": "a:b:c"}], "trackers[0].kind", "`package.module:Class`, not `a:b:c`"),
        ([{}], "trackers[0].kind", "is missing"),
        ([{"kind": "wandb", "projct": "x"}], "trackers[0].projct", "did you mean `project`?"),
        ([{"kind": "wandb", "project": "../x"}], "trackers[0].project", "letters, digits"),
        ([{"kind": "wandb"}, {"kind": "wandb"}], "trackers", "`wandb` is there twice"),
        ("wandb", "trackers", "must be a list"),
    ],
)
def test_what_is_no_tracker_is_named(trackers: Any, path: str, words: str) -> None:
    with pytest.raises(JobError) as refused:
        small_job(trackers=trackers)
    assert refused.value.path == path
    assert words in refused.value.problem
