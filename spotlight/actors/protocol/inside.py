"""Inside the coordinator: job runner, dispatcher, explorer, validator and ledger."""

from __future__ import annotations

from typing import Literal

from spotlight.actors.protocol.nodes import WorkerRefs
from spotlight.actors.runtime import ActorRef
from spotlight.policies.exploration.preview_effort import Effort
from spotlight.policies.exploration.reward_spread import Knowledge
from spotlight.transport.control import Message
from spotlight.types import Request, RequestKind, Result, WorkerName

WorkerState = Literal[
    "starting", "loading", "rollout", "explore", "evaluate", "score", "train", "idle", "gone"
]


class SubmitRequests(Message, frozen=True):
    """Queue requests; those already known are ignored, and those already finished are answered at
    once. Results go to `reply_to`.
    """

    requests: tuple[Request, ...]
    reply_to: ActorRef


class CancelRequests(Message, frozen=True):
    """Forget the requests of a kind; leases on them are revoked, and what still comes is late."""

    kind: RequestKind


class ForgetRequests(Message, frozen=True):
    """The results of a kind are used up to this iteration: drop them and their bundles."""

    kind: RequestKind
    iteration: int


class BarWorkers(Message, frozen=True):
    """Grant nothing to these workers until the next `BarWorkers`: they are training."""

    workers: tuple[str, ...]


class AddWorkers(Message, frozen=True):
    """These workers of a node may pull from now on."""

    lane = "system"

    node: str
    pool: str
    workers: tuple[WorkerRefs, ...]


class RemoveWorkers(Message, frozen=True):
    """These workers are gone: re-issue what they held."""

    lane = "system"

    workers: tuple[str, ...]
    reason: str
    announced: bool = False
    """They left after a notice: what they held is not suspected of having ended them."""
    ended: bool = False
    """Their node says that their processes ended; else they are out of reach."""


class RequestsFinished(Message, frozen=True):
    """Denoised and scored."""

    results: tuple[Result, ...]
    restored: bool = False
    """By an earlier coordinator of this run."""


class RequestsGivenUp(Message, frozen=True):
    """These requests failed for good, with the reason."""

    requests: tuple[Request, ...]
    reason: str


class Remind(Message, frozen=True):
    """Job runner to itself, every second: messages may be lost, so say again what matters."""


class StartExploration(Message, frozen=True):
    """Explore the prompts of an iteration with the weights that members hold, for the time that
    training takes.
    """

    iteration: int
    weights_version: int
    prompts: tuple[str, ...]
    categories: tuple[str, ...]
    """Of the prompts: those of one category are about as hard."""
    window_s: float
    """Predicted training time; ignored when the budget is fixed."""
    effort: Effort
    """How previews are made."""
    knowledge: Knowledge = Knowledge()
    """What earlier iterations taught of these prompts and of all categories."""
    share: float = 1.0
    """Of the previews that the job allows."""


class StopExploration(Message, frozen=True):
    """Training is over: select from what is scored (a fixed budget is finished first)."""

    iteration: int


class Explored(Message, frozen=True):
    """The seeds to regenerate for each prompt group."""

    iteration: int
    seeds: tuple[tuple[int, ...], ...]
    preview_rewards: tuple[tuple[float | None, ...], ...]
    """Preview reward of each chosen seed; None where exploration did not reach."""
    previews: int
    late: int
    knowledge: Knowledge = Knowledge()
    """What is known now of the prompts and categories that were explored."""
    probe_seeds: tuple[tuple[int, ...], ...] = ()
    """Seeds to regenerate even if they are not chosen, per prompt group, and their preview
    rewards."""
    probe_rewards: tuple[tuple[float, ...], ...] = ()
    contrast_at_random: float = 0.0
    """That as many previewed seeds would have, had any been taken, of any prompts."""
    effort: Effort | None = None
    """How previews were made; None where none were to be made."""


class StartValidation(Message, frozen=True):
    """Score this weights version on the validation prompts."""

    version: int


class ValidationDone(Message, frozen=True):
    """Mean reward of a weights version, and the images it is made of."""

    version: int
    score: float
    results: tuple[Result, ...]


class ValidationFailed(Message, frozen=True):
    """No image of the version could be scored."""

    version: int


class StateChanged(Message, frozen=True):
    """Worker to ledger: what it does from now on."""

    worker: WorkerName
    state: WorkerState
    detail: str = ""
