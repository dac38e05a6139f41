"""What the actors of a simulated cluster log, as far as its invariants need it.

Nothing of an actor is replaced or looked into: what it has accepted, begun, promised and forgotten
it says itself, at the level `debug`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import structlog

from spotlight.actors.protocol.down import Grant, GroupPlan, NodePlan
from spotlight.actors.protocol.up import CommitSteps, Completed, ReturnLease
from spotlight_simulation.ack_log import AckLog
from spotlight_simulation.fake_denoising import FakeDenoising
from spotlight_simulation.freezing import current_process, current_tenant
from spotlight_simulation.history import History
from spotlight_simulation.ledger_watch import LedgerWatch
from spotlight_simulation.logging_for_now import logging_by


@dataclass
class WorkerLog:
    """What one worker process has said."""

    job: str = ""
    """The id of the job or session that its member was last told of."""
    denoises: Grant | None = None
    """The batch for which it takes steps now."""
    told: int = 0
    """Step of the latest commit of that batch that its leader knows of."""
    grants: dict[int, Grant] = field(default_factory=dict)
    """Those that it may take steps for."""
    commits: dict[int, int] = field(default_factory=dict)
    """The step of the latest commit of which the member has told its leader, by lease."""
    delivered: dict[int, int] = field(default_factory=dict)
    """The step of the latest commit that the leader has tried to deliver, by lease."""
    held: set[tuple[int, bool]] = field(default_factory=set)
    """Weights versions that it has reported for the job."""
    order: GroupPlan | None = None
    """The latest of its group that its leader has accepted."""
    formed: bool = True
    """Whether that group has formed, and is whole."""
    draining: bool = False


@dataclass
class TenantLog:
    """What coordinators have said of one job or session, and what its workers were told."""

    acks: AckLog
    granted: set[tuple[str, int]] = field(default_factory=set)
    """Workers and leases."""
    kept: int = 0
    """Iterations in the state of training on record: what they trained on is not needed."""


@dataclass
class NodeLog:
    """What one node process has said."""

    epoch: int = 0
    """The newest that it has planned."""
    groups: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """Its plan: workers, and the epoch of their group."""
    workers: Mapping[str, int] = field(default_factory=dict)
    """Those that it has, with their epochs."""


class ActorLogs:
    """See the module's docstring; by process, given by its identity."""

    def __init__(self, history: History, ledgers: LedgerWatch) -> None:
        self._history = history
        self._ledgers = ledgers
        self._tenants: dict[str, TenantLog] = {}
        self.workers: defaultdict[str, WorkerLog] = defaultdict(WorkerLog)
        self.nodes: defaultdict[str, NodeLog] = defaultdict(NodeLog)
        self.jobs: defaultdict[str, set[str]] = defaultdict(set)
        """Actors that have a job."""
        self.given_up: set[str] = set()
        """Requests that are given up since every node that took them was lost, by their ids."""
        self.abandoned: set[str] = set()
        """Those that the journal says are given up, for whatever reason; a coordinator that is
        killed as soon as that is durable says so nowhere else."""
        self._plans: dict[tuple[str, str], int] = {}
        """The number of the plan that was followed last, by process and who plans."""
        self._jobs_of_nodes: dict[str, str] = {}
        """The latest job of each node's process."""
        self.drains: Counter[str] = Counter()
        """How many drains members heard of, by node."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read all that is logged from now on."""
        with logging_by([self._read]):
            yield

    def _read(self, logger: object, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        accept = getattr(self, f"_on_{event['event']}", None)
        if accept is not None:
            accept(**{name: value for name, value in event.items() if name != "event"})
        raise structlog.DropEvent

    def of(self, tenant: str) -> TenantLog:
        """Of a job or session, given by its id."""
        if tenant not in self._tenants:
            self._tenants[tenant] = TenantLog(AckLog(self._history))
        return self._tenants[tenant]

    @property
    def acks(self) -> AckLog:
        """That of the job or session for which whoever runs now does something."""
        return self._tenant.acks

    def acknowledged(self, delivered: CommitSteps | Completed) -> None:
        """A receipt is with a worker, which may work for another job by now."""
        for tenant in self._tenants.values():
            tenant.acks.acknowledged(delivered)

    @property
    def _tenant(self) -> TenantLog:
        return self.of(current_tenant() or self._worker.job)

    # --- leaders, as they are heard ---

    def delivers(self, message: CommitSteps) -> None:
        """A leader tells the coordinator of a commit."""
        delivered = self._worker.delivered
        delivered[message.lease] = max(message.step, delivered.get(message.lease, 0))

    def gives_back(self, message: ReturnLease) -> None:
        """A leader gives a lease back: others are to go on from the commit that it has."""
        worker, lease = self._worker, message.lease
        if worker.commits.get(lease, 0) > worker.delivered.get(lease, 0):
            self._history.violation(
                f"{message.worker} gives lease {lease} back and keeps its last commit"
            )

    @property
    def _worker(self) -> WorkerLog:
        return self.workers[current_process()]

    # --- the journal ---

    def _on_lease_granted(self, worker: str, lease: int) -> None:
        self._tenant.granted.add((worker, lease))
        self.acks.granted(lease)

    def _on_requests_saving(self, rows: Any) -> None:
        self.abandoned |= {name for name, row in rows.items() if row and row.given_up}
        self.acks.saving(rows)

    def _on_requests_saved(self, rows: Any) -> None:
        self.acks.saved(rows)

    def _on_requests_forgotten(self, prefix: str) -> None:
        kind, iteration, *_ = prefix.split("/")
        if kind == "rollout" and int(iteration) >= self._tenant.kept:
            self._history.violation(
                f"the samples of iteration {iteration} are deleted, though the state on record is"
                f" of {self._tenant.kept} iterations"
            )
        self.acks.forgetting(prefix)

    def _on_state_saving(self, completed: int) -> None:
        # The coordinator may be killed before it says that this is on record.
        self._tenant.kept = max(self._tenant.kept, completed)

    def _on_state_saved(self, completed: int) -> None:
        self._tenant.kept = completed

    def _on_journal_goes_back(self) -> None:
        if any(worker.grants for worker in self.workers.values()):
            self._history.came_about("weights are trained again while a worker has a lease")
        self.acks.going_back()

    def _on_journal_went_back(self, leases_from: int) -> None:
        self.acks.went_back(leases_from)

    def _on_bundles_lost(self, requests: int) -> None:
        self._history.came_about("samples were lost with the node that kept them")

    def _on_samples_made_again(self, iteration: int, weights_version: int, **_: object) -> None:
        whose = "that they had" if weights_version < iteration else "of their iteration"
        self._history.came_about(f"lost samples were made again with the weights {whose}")

    def _on_checkpoint_saved(self, completed: int, validated: tuple[int, ...]) -> None:
        self._history.add_of(
            current_tenant(), "checkpoint", completed=completed, validated=validated
        )
        self._tenant.kept = max(self._tenant.kept, completed)

    def _on_request_given_up(self, request: str, **_: object) -> None:
        self.given_up.add(request)

    # --- plans ---

    def _on_plan_followed(self, number: int) -> None:
        """Of a node's worker."""
        self._note_plan(current_process(), "its node", number)

    def _on_node_plan_followed(self, coordinator: str, number: int) -> None:
        self._note_plan(current_process(), coordinator, number)

    def is_old(self, plan: NodePlan) -> bool:
        """Whether the node that has it now follows a later one of the same coordinator."""
        return plan.number < self._plans.get((current_process(), str(plan.coordinator)), 0)

    def _note_plan(self, process: str, source: str, number: int) -> None:
        if number < self._plans.get((process, source), 0):
            self._history.violation(
                f"{process} follows plan {number} of {source} after a later one"
            )
        self._plans[process, source] = number

    # --- members ---

    def _on_job_begun(self, actor: str, job: str) -> None:
        self.jobs[current_process()].add(actor)
        if actor == "node":
            if self._jobs_of_nodes.setdefault(current_process(), job) != job:
                self._history.came_about("a node goes over to another job")
            self._jobs_of_nodes[current_process()] = job
            self._ledgers.works_for(current_process(), job)
        if actor == "member" and self._worker.job != job:
            self._worker.job = job
            self._worker.commits.clear()
            self._worker.delivered.clear()

    def _on_job_forgotten(self, actor: str, job: str) -> None:
        self.jobs[current_process()].discard(actor)
        if actor == "node":
            self._ledgers.works_for(current_process(), "")
        if actor == "member":
            self._worker.held.clear()

    def _on_held_reported(self, rollout: tuple[int, ...], evaluation: tuple[int, ...]) -> None:
        self._worker.held |= {(version, False) for version in rollout}
        self._worker.held |= {(version, True) for version in evaluation}

    def _on_batch_accepted(self, worker: str, grant: Grant) -> None:
        first = grant.requests[0]
        if (first.weights_version, first.kind == "evaluation") not in self._worker.held:
            self._history.violation(
                f"{worker} was granted {first.id}: it has not reported its weights"
            )
        if (worker, grant.lease) not in self._tenant.granted:
            self._history.violation(
                f"{worker} denoises under lease {grant.lease}, which its job has not granted"
            )
        self.acks.check(grant)
        self._worker.grants[grant.lease] = grant
        commit = grant.commits[0]
        self._history.add_of(
            self._worker.job,
            "denoise",
            worker=worker,
            lease=grant.lease,
            step=commit.step if commit is not None else 0,
            every=grant.commit_every,
            requests=tuple(request.id for request in grant.requests),
        )

    def _on_denoising_begun(self, lease: int, **_: object) -> None:
        grant = self._worker.denoises = self._worker.grants.get(lease)
        commit = grant.commits[0] if grant is not None else None
        self._worker.told = commit.step if commit is not None else 0

    def _on_denoising_left(self, lease: int) -> None:
        grant = self._worker.grants.pop(lease, None)  # another session's may bear its number
        if self._worker.denoises == grant:  # the next batch may have its turn already
            self._worker.denoises = None

    def _on_commit_told(self, lease: int, step: int, **_: object) -> None:
        self._worker.commits[lease] = step
        grant = self._worker.denoises
        if grant is not None and grant.lease == lease:
            self._worker.told = step

    def _on_drain(self, worker: str, stop_in_s: float | None) -> None:
        if stop_in_s is not None:
            self.drains[worker.partition("/")[0]] += 1

    def note_loss(self, process: str, denoising: FakeDenoising | None) -> None:
        """A process is killed; this is what it denoised last."""
        worker = self.workers[process]
        grant = worker.denoises
        if denoising is None or grant is None or denoising.requests != grant.requests:
            return
        self._history.add_of(
            worker.job,
            "lost_work",
            worker=process.partition("#")[0],
            lease=grant.lease,
            step=denoising.steps_taken,
            told=worker.told,
            on_its_way=denoising.copied > worker.told,
            every=grant.commit_every,
            requests=tuple(request.id for request in grant.requests),
        )

    # --- groups ---

    def _on_groups_planned(self, **plan: Any) -> None:
        self.nodes[current_process()] = NodeLog(**plan)

    def _on_group_ordered(self, order: GroupPlan) -> None:
        self._worker.order, self._worker.formed = order, False

    def _on_group_formed(self, epoch: int, **_: object) -> None:
        self._worker.formed = True

    def _on_group_lost(self, epoch: int, **_: object) -> None:
        self._worker.formed = False

    def _on_takes_nothing_more(self, draining: bool, **_: object) -> None:
        self._worker.draining = draining

    # --- trainers ---

    def _on_trainer_failed(self, reason: str, **_: object) -> None:
        worker = current_process().partition("#")[0]
        self._history.add_of(self._worker.job, "trainer_failed", worker=worker, error=reason)
