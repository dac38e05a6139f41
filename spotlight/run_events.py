"""The events of a run: one record per line of `events.jsonl`, tagged by the name of its event. Who
writes a run folder and who reads one use these very types; they use nothing of ours but types.

A line may lack what has a default here; an older Spotlight did not write it.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from spotlight.types import WorkerState


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Something that happened in a run."""

    time_s: float = 0.0
    """Seconds of run time when it happened; whoever writes the line fills them in."""

    @property
    def name(self) -> str:
        """The name of the event in its line."""
        return str(self.__struct_config__.tag)

    def fields(self) -> dict[str, Any]:
        """What the event says, without its name and its time, as data for JSON."""
        said: dict[str, Any] = msgspec.to_builtins(self)
        return {key: value for key, value in said.items() if key not in ("event", "time_s")}


# --- the job ---


class RunStarted(RunEvent, frozen=True, kw_only=True, tag="run_started"):
    """A coordinator begins or goes on with the run."""

    job: str = ""
    """Name of the job."""
    resumed_from_iteration: int | None = None
    """The first iteration that is not complete yet; None for the first start of the run."""


class JournalTailDropped(RunEvent, frozen=True, kw_only=True, tag="journal_tail_dropped"):
    """The end of the journal was damaged, and the run goes on from what is before it."""

    what: str
    """What was dropped."""


class RunFinished(RunEvent, frozen=True, kw_only=True, tag="run_finished"):
    """The job has ended, for now at least."""

    outcome: str = "finished"
    """How it ended: finished, cancelled or failed."""
    reason: str = ""
    """Why it was cancelled or failed."""


class PhaseBegan(RunEvent, frozen=True, kw_only=True, tag="phase"):
    """The job is in this phase from now on."""

    phase: str
    """Name of the phase, such as rollout or train."""
    iteration: int = 0
    """Number of the iterations that are complete."""


class WeightsPublished(RunEvent, frozen=True, kw_only=True, tag="weights_published"):
    """Nodes can pull a new version of the weights."""

    version: int
    """Number of the updates that the weights have had."""


class CheckpointSaved(RunEvent, frozen=True, kw_only=True, tag="checkpoint_saved"):
    """A checkpoint is durable."""

    iteration: int
    """Number of the iterations that the checkpoint holds."""
    path: str
    """Where the checkpoint is."""


class ModelExported(RunEvent, frozen=True, kw_only=True, tag="model_exported"):
    """The weights with the best validation are in the folder `export`."""

    iteration: int
    """Number of the iterations that these weights were trained."""
    score: float | None = None
    """Their validation score; None if there is none on record."""


class CallbackTrouble(RunEvent, frozen=True, kw_only=True, tag="callback_trouble"):
    """A callback or tracker of the run has failed, or was too slow; the run went on without it."""

    callback: str
    """Its name."""
    failures: int
    """How many of its calls raised an error."""
    dropped: int
    """Number of the records that no callback was told of, as all of them together were too slow."""
    error: str = ""
    """The last error."""


class GroupDropped(RunEvent, frozen=True, kw_only=True, tag="group_dropped"):
    """A prompt group is not trained on, because one of its samples failed for good."""

    iteration: int
    """The iteration that lacks the group."""
    prompt: str
    """The prompt of the group."""
    reason: str
    """Why the sample failed."""


class RewardsFlat(RunEvent, frozen=True, kw_only=True, tag="rewards_flat"):
    """All samples of an iteration have the same reward, so there is nothing to learn from them."""

    iteration: int
    """The iteration."""
    reward: float
    """What all of them have; of several rewards the mean by their weights."""
    in_a_row: int
    """So many iterations in a row had nothing but equal rewards, this one included."""
    stops_after: int
    """After so many in a row the job stops."""


class RewardFell(RunEvent, frozen=True, kw_only=True, tag="reward_fell"):
    """A reward that is not trained on fell beyond noise while the score rose: the model may game
    what it is trained on."""

    weights_version: int
    """The version that was validated."""
    reward: str
    """Name of the reward."""
    mean: float
    """What the version has of it."""
    best: float
    """The most that a version before had."""
    best_version: int
    """That version."""


class ExplorationReduced(RunEvent, frozen=True, kw_only=True, tag="exploration_reduced"):
    """Previews have earned too little, so fewer of them are made."""

    iteration: int
    """The iteration that is explored for."""
    share: float
    """Share of the previews that the job allows."""
    tau: float
    """Kendall's tau between the rewards of previews and of samples."""
    pairs: float = 0.0
    """Number of the probes that say so; older ones count less."""
    realised: float = 0.0
    """Share of the promised gain in spread that samples had."""


# --- nodes and workers ---


class NodeMustWait(RunEvent, frozen=True, kw_only=True, tag="node_must_wait"):
    """A node keeps coming and going, and may join again only later."""

    node: str
    """Name of the node."""
    seconds: float
    """How long the node has to wait."""


class NodeJoined(RunEvent, frozen=True, kw_only=True, tag="node_joined"):
    """A node has joined, or its workers have changed."""

    node: str
    """Name of the node."""
    pool: str
    """The pool of the node: reserved or spot."""
    workers: tuple[str, ...] = ()
    """Names of the workers that the node has."""


class NodeLost(RunEvent, frozen=True, kw_only=True, tag="node_lost"):
    """A node is gone or out of reach, with all its workers."""

    node: str
    """Name of the node."""
    pool: str = ""
    """The pool of the node: reserved or spot."""
    reason: str = ""
    """Why the node is gone."""


class NoticeReceived(RunEvent, frozen=True, kw_only=True, tag="notice"):
    """A node will be taken."""

    node: str
    """Name of the node."""
    source: str
    """Who says so: a cloud, a signal or a user."""
    lead_s: float | None
    """Seconds until then; None if that is not known."""


class NoticeWithdrawn(RunEvent, frozen=True, kw_only=True, tag="notice_withdrawn"):
    """A node is not taken after all."""

    node: str
    """Name of the node."""


class WorkerJoined(RunEvent, frozen=True, kw_only=True, tag="worker_joined"):
    """A worker has joined with its node."""

    worker: str
    """Name of the worker."""
    node: str
    """Name of its node."""
    pool: str
    """The pool of its node: reserved or spot."""


class WorkerStateBegan(RunEvent, frozen=True, kw_only=True, omit_defaults=True, tag="worker_state"):
    """A worker is in this state from now on."""

    worker: str
    """Name of the worker."""
    state: WorkerState
    """What the worker does."""
    node: str = ""
    """Name of its node."""
    pool: str = ""
    """The pool of its node: reserved or spot."""
    scoring_s: float = 0.0
    """Time that scoring took the worker since its event before, whatever its state was."""


class WorkerCannotServe(RunEvent, frozen=True, kw_only=True, tag="worker_cannot_serve"):
    """A worker cannot load the model of the job, so it takes nothing."""

    worker: str
    """Name of the worker."""
    reason: str
    """Why it cannot."""


class WorkerLost(RunEvent, frozen=True, kw_only=True, tag="worker_lost"):
    """A worker is gone or out of reach, and others do what it held."""

    worker: str
    """Name of the worker."""
    node: str = ""
    """Name of its node."""
    pool: str = ""
    """The pool of its node: reserved or spot."""
    reason: str = ""
    """Why the worker is gone."""
    requests_reissued: dict[str, int] = {}
    """Number of the requests that the worker held and that wait again, by their kind."""


# --- requests ---


class LeasesExpired(RunEvent, frozen=True, kw_only=True, tag="leases_expired"):
    """Workers did not renew their leases, and others do what they held."""

    items: int
    """Number of the requests that wait again."""


class LateResults(RunEvent, frozen=True, kw_only=True, tag="late_results"):
    """A worker delivered something without a valid lease; it does not count."""

    worker: str
    """Name of the worker."""
    lease: int
    """Number of the lease that the worker named."""


class RequestQuarantined(RunEvent, frozen=True, kw_only=True, tag="request_quarantined"):
    """Every node that took a request was lost, so it is given up."""

    request: str
    """Id of the request."""
    prompt: str
    """Its prompt."""


class DenoiseFailed(RunEvent, frozen=True, kw_only=True, tag="denoise_failed"):
    """A worker could not denoise a batch, or could not use the commits that came with it."""

    worker: str
    """Name of the worker."""
    requests: tuple[str, ...]
    """Ids of the requests that cannot be done; empty if that is not known."""
    error: str
    """What went wrong."""


class ScorerFailed(RunEvent, frozen=True, kw_only=True, tag="scorer_failed"):
    """A worker could not score a batch."""

    worker: str = ""
    """Name of the worker."""
    request: str
    """Id of the first request of the batch."""
    error: str
    """What went wrong."""


# --- trainers ---


class TrainersFound(RunEvent, frozen=True, kw_only=True, tag="trainers_found"):
    """The trainers of an earlier coordinator are still there, with their weights."""

    iteration: int
    """Number of the iterations that they have trained."""


class TrainerOutOfReach(RunEvent, frozen=True, kw_only=True, tag="trainer_out_of_reach"):
    """The node of a trainer rank is out of reach; the rank may be well."""

    worker: str
    """Name of the worker that trains."""
    reason: str
    """Why its node is out of reach."""
    patience_s: float
    """Seconds after which others take over."""


class TrainersLost(RunEvent, frozen=True, kw_only=True, tag="trainers_lost"):
    """The job begins again from its last checkpoint, because trainers are lost."""

    reason: str
    """Which rank is lost, and why."""
    recovery: int
    """How often the job has begun again from this checkpoint, this time included."""
    goes_on_from: int
    """Number of the iterations in the checkpoint."""


EVENTS: dict[str, type[RunEvent]] = {
    str(kind.__struct_config__.tag): kind for kind in RunEvent.__subclasses__()
}
"""The types by the names of their events."""
_DECODER: msgspec.json.Decoder[RunEvent] = msgspec.json.Decoder(Union[tuple(EVENTS.values())])  # noqa: UP007


def encode_event(event: RunEvent, time_s: float) -> dict[str, Any]:
    """The line of an event that happened at this run time, as data for JSON."""
    return {"time_s": time_s, "event": event.name, **event.fields()}


def decode_event(line: bytes) -> RunEvent:
    """The event of a line that this Spotlight wrote; raises `msgspec.MsgspecError` for others."""
    return _DECODER.decode(line)
