"""The events of a run: one record per line of `events.jsonl`, tagged by the name of its event.
Writers and readers of run folders use these same types, which import nothing of ours but types.

A line may lack the fields that have a default here; older versions of Spotlight did not write them.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from spotlight.record.former_events import as_today, event_today, has_former_names
from spotlight.record.run_event_base import RunEvent as RunEvent
from spotlight.record.trainer_events import TrainerOutOfReach as TrainerOutOfReach
from spotlight.record.trainer_events import TrainersBuilt as TrainersBuilt
from spotlight.record.trainer_events import TrainersFound as TrainersFound
from spotlight.record.trainer_events import TrainersLost as TrainersLost
from spotlight.record.trainer_events import TrainingFailed as TrainingFailed
from spotlight.types import WorkerState

# --- the job ---


class RunStarted(RunEvent, frozen=True, kw_only=True, tag="run_started"):
    """A coordinator starts or continues the run."""

    job: str = ""
    """Name of the job."""
    resumed_from_iteration: int | None = None
    """The first iteration that is not complete yet; None for the first start of the run."""
    term: int = 0
    """How often the journal of the run had been opened by then; 0 in older records."""


class SegmentBegan(RunEvent, frozen=True, kw_only=True, tag="segment_began"):
    """The run goes on with other settings, or with another version of Spotlight, from here on."""

    number: int
    """The number of the segment, counted from 1."""
    iteration: int
    """Its first iteration, counted from 0."""
    changes: tuple[str, ...] = ()
    """The settings that differ from those of the segment before, each as `path: before -> after`.
    """
    version: str = ""
    """The version of Spotlight that began the segment."""
    source: str = ""
    """The run and the iteration that it was forked from; empty if it continues its own run."""


class WeightsTaken(RunEvent, frozen=True, kw_only=True, tag="weights_taken"):
    """The run begins with weights that were trained before."""

    source: str
    """Where they come from, as `model.start` says it."""
    score: float | None = None
    """The validation score that they had in the run that they are from; None if it is not known."""


class JournalTailDropped(RunEvent, frozen=True, kw_only=True, tag="journal_tail_dropped"):
    """The end of the journal was damaged, and the run continues from the part before it."""

    what: str
    """What was dropped."""


class RunFinished(RunEvent, frozen=True, kw_only=True, tag="run_finished"):
    """The job has ended; it may be resumed."""

    outcome: str = "finished"
    """How it ended: finished, cancelled or failed."""
    reason: str = ""
    """Why it was cancelled or failed."""


class PhaseBegan(RunEvent, frozen=True, kw_only=True, tag="phase"):
    """The job is in this phase from now on."""

    phase: str
    """Name of the phase, such as rollout or train."""
    iteration: int = 0
    """Number of completed iterations."""


class TimePassed(RunEvent, frozen=True, kw_only=True, tag="time_passed"):
    """Nothing else was written for a while: a run that is continued goes on counting time from
    here."""


class WeightsPublished(RunEvent, frozen=True, kw_only=True, tag="weights_published"):
    """Nodes can pull a new version of the weights."""

    version: int
    """Number of updates that the weights have had."""


class CheckpointSaved(RunEvent, frozen=True, kw_only=True, tag="checkpoint_saved"):
    """A checkpoint has been saved to disk."""

    iteration: int
    """Number of completed iterations in the checkpoint."""
    path: str
    """Path of the checkpoint."""


class RunMirrored(RunEvent, frozen=True, kw_only=True, tag="run_mirrored"):
    """The copy of the run in object storage is up to date."""

    iteration: int
    """Number of completed iterations in the checkpoint that a restored run continues from."""
    files: int
    """Number of files that were copied; those that were there already do not count."""
    nbytes: int
    """Bytes of these files."""
    seconds: float
    """How long it took to copy them."""


class MirrorFailed(RunEvent, frozen=True, kw_only=True, tag="mirror_failed"):
    """The run could not be copied to object storage; the job was not affected."""

    iteration: int
    """Number of completed iterations in the checkpoint that was to be copied."""
    failures: int
    """How many copies of the run have failed, including this one."""
    retry_s: float
    """Seconds until the next attempt."""
    reason: str
    """What went wrong."""


class ModelExported(RunEvent, frozen=True, kw_only=True, tag="model_exported"):
    """The weights with the best validation are in the folder `export`."""

    iteration: int
    """Number of iterations that these weights were trained for."""
    score: float | None = None
    """Their validation score; None if it is not recorded."""


class CallbackTrouble(RunEvent, frozen=True, kw_only=True, tag="callback_trouble"):
    """A callback or tracker of the run has failed or was too slow; the run was not affected."""

    callback: str
    """The name of the callback."""
    failures: int
    """How many of its calls raised an error."""
    dropped: int
    """Number of records that were dropped for all callbacks, because together they were too
    slow."""
    error: str = ""
    """The last error."""
    traceback: str = ""
    """Where the callback raised it; empty if it raised none."""


class GroupDropped(RunEvent, frozen=True, kw_only=True, tag="group_dropped"):
    """A prompt group is not trained on, because one of its samples failed for good."""

    iteration: int
    """The iteration that lacks the group."""
    prompt: str
    """The prompt of the group."""
    reason: str
    """Why the sample failed."""


class BudgetNear(RunEvent, frozen=True, kw_only=True, tag="budget_near"):
    """Most of a budget of the job is used; when all of it is, the job stops and can be resumed."""

    budget: str
    """The field of the job that names it, such as `budget.usd`."""
    limit: float
    """What the field says."""
    said: str
    """How much is used."""


class NodeUnpriced(RunEvent, frozen=True, kw_only=True, tag="node_unpriced"):
    """The job has a budget of money, which counts priced time only, and this is the first node
    whose time has no price."""

    node: str
    """Name of the node."""
    pool: str = ""
    """The pool of the node."""
    reason: str = ""
    """Why the price that it says does not count; empty if it says none."""


class GradientFailed(RunEvent, frozen=True, kw_only=True, tag="gradient_failed"):
    """A worker could not compute the gradient of a slice: another tries, or the rank does. One that
    could not compute three in a row is given no more until its process is another one; it still
    denoises."""

    worker: str
    """Name of the worker."""
    request: str
    """The request of the slice."""
    error: str
    """What went wrong."""


class GradientsGivenUp(RunEvent, frozen=True, kw_only=True, tag="gradients_given_up"):
    """No worker could compute the gradients of some slices: the trainer ranks do it themselves."""

    request: str
    """The request of the first of them."""
    count: int
    """Number of slices."""
    reason: str
    """Why the last worker could not."""


class SpotTimePlanned(RunEvent, frozen=True, kw_only=True, tag="spot_time_planned"):
    """Another number of workers computes gradients while the ranks train, since that teaches more
    per second by what was measured."""

    iteration: int
    """The iteration that is trained."""
    gradient_workers: int
    """Number of workers that compute gradients; the others preview."""
    why: str
    """What was compared."""


class TrainingWaits(RunEvent, frozen=True, kw_only=True, tag="training_waits"):
    """From now on training waits for previews, since an iteration teaches more per second so; or it
    does not wait any more."""

    iteration: int
    """The iteration that ended."""
    previews: float
    """Previews for each sample that the next training waits for; 0 if it waits for none."""
    why: str
    """What was compared."""


class OtherDevice(RunEvent, frozen=True, kw_only=True, tag="other_device"):
    """A worker computes on another kind of device than the trainer ranks, or with another version
    of torch: it gets no gradients, as sums have other bits there. It still denoises. This is told
    once of each kind."""

    worker: str
    """The first worker with such a device."""
    device: str
    """The kind of its device, and its version of torch."""
    ranks: tuple[str, ...]
    """The kinds on which the ranks compute; gradients are shared where these are all the same."""


class RewardsFlat(RunEvent, frozen=True, kw_only=True, tag="rewards_flat"):
    """All samples of an iteration have the same reward, so there is nothing to learn from them."""

    iteration: int
    """The iteration whose rewards were equal."""
    reward: float
    """The reward of all of them; with several rewards, their weighted mean."""
    in_a_row: int
    """Number of iterations in a row with only equal rewards, including this one."""
    stops_after: int
    """The job stops after this many in a row."""


class RewardFell(RunEvent, frozen=True, kw_only=True, tag="reward_fell"):
    """A reward that is not trained on fell beyond noise while the score rose: the model may game
    the rewards that it is trained on."""

    weights_version: int
    """The version that was validated."""
    reward: str
    """Name of the reward."""
    mean: float
    """Mean of this reward for that version."""
    best: float
    """The best mean of this reward for an earlier version."""
    best_version: int
    """The version that had the best mean."""


class ExplorationReduced(RunEvent, frozen=True, kw_only=True, tag="exploration_reduced"):
    """Previews have gained too little, so fewer of them are made."""

    iteration: int
    """The iteration whose seeds are explored."""
    share: float
    """Share of the job's previews that are made."""
    tau: float
    """Kendall's tau between the rewards of previews and of samples."""
    pairs: float = 0.0
    """Number of probes behind `tau`; older ones count less."""
    realised: float = 0.0
    """Previews promise a gain in spread; the share of it that the samples had."""


class PreviewsMisled(RunEvent, frozen=True, kw_only=True, tag="previews_misled"):
    """Previews of few steps have foretold too little of the samples that were finished with the
    same weights, so they take all steps, and are themselves trained on."""

    iteration: int
    """The iteration whose seeds are explored."""
    agreement: float
    """The correlation of the rewards of previews and of finished samples of a prompt, by Kendall's
    tau of probes."""
    least: float
    """The correlation from which on previews of few steps are made."""
    pairs: float
    """Number of pairs of probes behind `agreement`; older ones count less."""


class SamplesOutdated(RunEvent, frozen=True, kw_only=True, tag="samples_outdated"):
    """Newer weights were published before the samples of an iteration were there, so these can
    never be made. This must not happen."""

    iteration: int
    """The iteration that lacks them."""
    samples: int
    """How many samples it lacks."""


class SamplesRegenerated(RunEvent, frozen=True, kw_only=True, tag="samples_regenerated"):
    """The weights have moved so far that previews are not trained on: their seeds are denoised
    again."""

    iteration: int
    """The iteration whose samples are denoised again."""
    drift: float | None
    """Mean squared change of the velocity in the latest update, divided by its mean square; None if
    it was not measured."""
    most: float
    """The greatest drift up to which previews are trained on."""


class SamplesMadeAgain(RunEvent, frozen=True, kw_only=True, tag="samples_made_again"):
    """Samples that were made ahead are lost with the machine that kept them, or an iteration begins
    again for which they were kept no longer: their seeds are denoised again."""

    iteration: int
    """The iteration whose samples are denoised again."""
    samples: int
    """The number of samples that are denoised again."""
    weights_version: int
    """The weights with which they are denoised: with those before the iteration's own they are the
    same samples, bit for bit; with its own, which are taken if nobody has the others, they are
    not."""


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
    """A node and all its workers are gone or unreachable."""

    node: str
    """Name of the node."""
    pool: str = ""
    """The pool of the node: reserved or spot."""
    reason: str = ""
    """Why the node is gone."""


class NoticeReceived(RunEvent, frozen=True, kw_only=True, tag="notice"):
    """A node will be taken away."""

    node: str
    """Name of the node."""
    source: str
    """Source of the notice: a cloud, a signal or a user."""
    lead_s: float | None
    """Seconds until then; None if that is not known."""


class NoticeWithdrawn(RunEvent, frozen=True, kw_only=True, tag="notice_withdrawn"):
    """The notice of a node was withdrawn."""

    node: str
    """Name of the node."""


class WeightsNotFetched(RunEvent, frozen=True, kw_only=True, tag="weights_not_fetched"):
    """A node could not get weights from where it was told to, and will get them elsewhere."""

    node: str
    """Name of the node."""
    version: int
    """The weights version."""
    source: str
    """Address of the store that did not give them; the node's log says why."""


class WorkerJoined(RunEvent, frozen=True, kw_only=True, tag="worker_joined"):
    """A worker has joined with its node."""

    worker: str
    """Name of the worker."""
    node: str
    """Name of its node."""
    pool: str
    """The pool of its node: reserved or spot."""


class WorkerStateBegan(RunEvent, frozen=True, kw_only=True, omit_defaults=True, tag="worker_state"):
    """A worker is in this state from now on. It is a line of `states.jsonl`, or of
    `states-older.jsonl`, which have the last hour; where it is longer ago, `rollups/` and
    `ledger.json` have the time that the worker spent in its states."""

    worker: str
    """Name of the worker."""
    state: WorkerState
    """What the worker does."""
    node: str = ""
    """Name of its node."""
    pool: str = ""
    """The pool of its node: reserved or spot."""
    scoring_s: float = 0.0
    """Time that the worker spent scoring since its previous event, whatever its state was."""
    again: bool = False
    """Whether it was in this state before, and it is said once more as another file begins."""


class WorkerCannotServe(RunEvent, frozen=True, kw_only=True, tag="worker_cannot_serve"):
    """A worker cannot load the model of the job, or has lost its accelerator, so it takes no
    work."""

    worker: str
    """Name of the worker."""
    reason: str
    """Why it cannot."""


class WorkerFailed(RunEvent, frozen=True, kw_only=True, tag="worker_failed"):
    """A worker's process has ended badly: by itself, before it was ready, or as sick. Another one
    is started after a pause, unless the worker is given up."""

    worker: str
    """Name of the worker."""
    reason: str
    """Why the process ended."""
    tries: int
    """Number of its processes that have ended badly in a row, including this one."""
    given_up: bool
    """Whether no other process is started."""


class WorkerIsSick(RunEvent, frozen=True, kw_only=True, tag="worker_is_sick"):
    """A worker fails what others can do, so it gets nothing more, and its process is ended. Its
    failures count against no request."""

    worker: str
    """Name of the worker."""
    reason: str
    """Its most frequent error."""


class WorkerLost(RunEvent, frozen=True, kw_only=True, tag="worker_lost"):
    """A worker is gone or unreachable, and others take over its requests."""

    worker: str
    """Name of the worker."""
    node: str = ""
    """Name of its node."""
    pool: str = ""
    """The pool of its node: reserved or spot."""
    reason: str = ""
    """Why the worker is gone."""
    requests_handed_on: dict[str, int] = msgspec.field(default_factory=dict)
    """How many requests of the worker wait for another one, by their kind."""


# --- requests ---


class WorkTakenBack(RunEvent, frozen=True, kw_only=True, tag="work_taken_back"):
    """Workers did not say in time that they still work on their requests, and others take these
    over."""

    items: int
    """Number of requests that wait again."""


class ResultsIgnored(RunEvent, frozen=True, kw_only=True, tag="results_ignored"):
    """A worker delivered or returned a batch that had been taken back from it; it does not
    count."""

    worker: str
    """Name of the worker."""
    lease: int
    """The number under which the worker had been given the batch."""


class RequestGivenUp(RunEvent, frozen=True, kw_only=True, tag="request_given_up"):
    """Every node that took a request was lost, so the request is given up."""

    request: str
    """Id of the request."""
    prompt: str
    """The prompt of the request."""


class DenoiseFailed(RunEvent, frozen=True, kw_only=True, tag="denoise_failed"):
    """A worker could not denoise a batch, or could not use the commits that came with it."""

    worker: str
    """Name of the worker."""
    requests: tuple[str, ...]
    """Ids of the requests that failed; empty if that is not known."""
    error: str
    """What went wrong."""


class ScorerFailed(RunEvent, frozen=True, kw_only=True, tag="scorer_failed"):
    """A worker could not score a batch, or an image that was to be compared with others was left
    alone."""

    worker: str = ""
    """Name of the worker; empty if there was nothing to compare with."""
    request: str
    """Id of the first request of the batch."""
    error: str
    """What went wrong."""
    traceback: str = ""
    """Where the scorer raised; empty if it did not, or where it did for the event before, too."""


SEE_EVENTS = "see events.jsonl, which has the traceback of a scorer that raised"
"""Where a job that ends for want of rewards leaves what went wrong."""

_KINDS = sorted(RunEvent.__subclasses__(), key=lambda kind: kind.__module__ != __name__)
"""The kinds of events in the order in which people read of them; those of trainers come last."""
EVENTS: dict[str, type[RunEvent]] = {str(kind.__struct_config__.tag): kind for kind in _KINDS}
"""The types by the names of their events."""


class _Named(msgspec.Struct, frozen=True):
    event: str


_NAMED = msgspec.json.Decoder(_Named)
_ANY: Any = Union[tuple(EVENTS.values())]  # noqa: UP007
_DECODER: msgspec.json.Decoder[RunEvent] = msgspec.json.Decoder(_ANY)


def encode_event(event: RunEvent, time_s: float, at: float | None = None) -> dict[str, Any]:
    """The line of an event that happened at this run time, and at this one in seconds since 1970,
    as data for JSON."""
    date = {} if at is None else {"at": at}
    return {"time_s": time_s, **date, "event": event.name, **event.fields()}


def name_of(line: bytes) -> str:
    """The name of the event of a line; raises `msgspec.MsgspecError` for one that has none."""
    return event_today(_NAMED.decode(line).event)


def decode_event(line: bytes) -> RunEvent:
    """The event of a line that this Spotlight wrote, or an earlier one; raises
    `msgspec.MsgspecError` for others."""
    if has_former_names(line):
        event: RunEvent = msgspec.convert(as_today(msgspec.json.decode(line, type=dict)), _ANY)
        return event
    return _DECODER.decode(line)
