"""Trackers of experiments, which a job may name."""

from __future__ import annotations

import re

from spotlight.jobs.fields import Section, require

KNOWN_TRACKERS = ("tensorboard", "wandb", "trackio")
MOST_TRACKERS = 16


class TrackerSpec(Section, frozen=True, kw_only=True):
    """An experiment tracker. It is told of every iteration and validation, in a thread of the
    coordinator's process. Its errors are logged and counted, and never end the job."""

    kind: str
    """`tensorboard` writes into the run folder; `wandb` logs to Weights & Biases, `trackio` to
    trackio; a class of your own is `package.module:Class`, must be importable where the coordinator
    runs, and its package must be allowed there (`--allow-code`). It is for those who watch several
    runs in one place."""
    project: str = "spotlight"
    """The project of the run in `wandb` and `trackio`. It is for those who keep runs of several
    tasks apart."""

    def __post_init__(self) -> None:
        own = re.fullmatch(r"[A-Za-z_][\w.]{0,199}:[A-Za-z_]\w{0,99}", self.kind)
        require(
            self.kind in KNOWN_TRACKERS or own is not None,
            "kind",
            f"must be {', '.join(f'`{kind}`' for kind in KNOWN_TRACKERS)} or"
            f" `package.module:Class`, not `{self.kind}`",
        )
        require(
            re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.project) is not None,
            "project",
            "use letters, digits, `.`, `_` and `-` only, 100 characters at most",
        )


def require_distinct_trackers(trackers: tuple[TrackerSpec, ...]) -> None:
    """Raise a `ValueError` that `load_job` turns into a `JobError` when one is named twice."""
    kinds = [tracker.kind for tracker in trackers]
    require(len(kinds) <= MOST_TRACKERS, "trackers", f"name at most {MOST_TRACKERS}")
    for kind in kinds:
        require(kinds.count(kind) == 1, "trackers", f"`{kind}` is there twice; name it once")
