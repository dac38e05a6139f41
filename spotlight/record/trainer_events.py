"""The events of a run that tell of its trainers; with all others they are in `run_events`."""

from __future__ import annotations

from typing import Literal

from spotlight.record.run_event_base import RunEvent


class TrainersFound(RunEvent, frozen=True, kw_only=True, tag="trainers_found"):
    """The trainers of an earlier coordinator are still there, with their weights."""

    iteration: int
    """Number of iterations that they have trained."""


class TrainersBuilt(RunEvent, frozen=True, kw_only=True, tag="trainers_built"):
    """Appointed workers hold the weights and the optimizer's state, and can train."""

    iteration: int
    """Number of iterations that they go on after."""
    workers: tuple[str, ...]
    """Names of these workers, in the order of their ranks."""
    source: Literal["model", "state", "checkpoint"]
    """What they began from: the job's model; the state that trainers before them left in stores; or
    the checkpoint in the run folder."""


class TrainerOutOfReach(RunEvent, frozen=True, kw_only=True, tag="trainer_out_of_reach"):
    """The node of a trainer rank is out of reach; the rank itself may still run, and then it trains
    on."""

    worker: str
    """Name of the worker that trains."""
    reason: str
    """Why its node is not there."""
    patience_s: float
    """Seconds without an answer of the rank itself after which other workers take over."""


class TrainingFailed(RunEvent, frozen=True, kw_only=True, tag="training_failed"):
    """A trainer could not do what it was told to."""

    worker: str
    """Name of the worker that trains."""
    error: str
    """What went wrong."""
    traceback: str = ""
    """Where a loss of the user's own, or a library, raised; empty if none did."""


class TrainersLost(RunEvent, frozen=True, kw_only=True, tag="trainers_lost"):
    """Trainers are lost, so others go on from the state that they left."""

    reason: str
    """Which rank is lost, and why."""
    recovery: int
    """How often trainers have gone on from there, including this time."""
    goes_on_from: int
    """Number of completed iterations that the state, or else the checkpoint, holds."""
