"""A group leader with its member, its node and its dispatcher, who only record."""

from __future__ import annotations

import asyncio

from job_kit import STORE, Recorder, offer, recorder, requests
from plan_kit import Planner
from runtime_kit import Cluster

from spotlight.actors.protocol.down import (
    Grant,
    GroupPlan,
    Membership,
    Recall,
    Receipt,
    Revoke,
    WorkerPlan,
)
from spotlight.actors.protocol.up import (
    CommitSteps,
    Completed,
    LeaseFailed,
    Pull,
    ReturnLease,
    WorkerReport,
)
from spotlight.actors.runtime import Actor, ActorRef, Message, handles
from spotlight.actors.worker.group_leader import GroupLeader
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.types import Commit

_MEMBERS_WORDS = (CommitSteps, Completed, ReturnLease, LeaseFailed)


class SlowMember(Recorder):
    """Reports the weights of its plan only when told to, and its groups as the test has it."""

    leader: ActorRef

    def __init__(self) -> None:
        super().__init__()
        self.loaded = asyncio.Event()
        self.problem = ""
        self.group: tuple[int, bool, str, tuple[str, ...]] = (0, True, "", ())
        """Epoch, whether it has formed, why it failed, and through whom."""

    @handles(WorkerPlan)
    async def on_plan(self, plan: WorkerPlan) -> None:
        self.inbox.append(plan)
        self.report()
        self.run_task(self._load(plan))

    async def _load(self, plan: WorkerPlan) -> None:
        await self.loaded.wait()
        if plan == self.last(WorkerPlan):
            self.report()

    def report(self) -> None:
        """How it stands."""
        plan = self.last(WorkerPlan)
        self.tell(self.leader, report_of(plan, self.loaded.is_set(), self.problem, self.group))


def report_of(
    plan: WorkerPlan,
    loaded: bool,
    problem: str = "",
    group: tuple[int, bool, str, tuple[str, ...]] = (0, True, "", ()),
) -> WorkerReport:
    """That of a member which has all weights of the plan, if they are loaded."""
    weights = plan.job.weights if plan.job is not None and loaded else ()
    epoch, formed, failure, culprits = group
    return WorkerReport(
        "w",
        7,
        plan=plan.number,
        job_id=plan.job.job_id if plan.job is not None else "",
        rollout=tuple(each.version for each in weights),
        evaluation=tuple(each.version for each in weights if each.evaluation),
        cannot_serve=problem,
        group=epoch,
        formed=formed,
        failure=failure,
        culprits=culprits,
    )


class Crew:
    """A leader on a worker, with its member there and its dispatcher elsewhere."""

    async def open(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.receipt: Receipt | None = Receipt(1)
        """What the dispatcher answers; None for an error."""
        await self.open_coordinator()
        self.system = await cluster.system("worker")
        self.node = await recorder(self.system, "node")
        self.member = SlowMember()
        await self.system.spawn(lambda: self.member, "member")
        self.trainer = await recorder(self.system, "trainer-rank")
        self.context = WorkerContext("w", 7, self.system.address)
        self.planner = Planner()
        self.leader = await self.system.spawn(
            lambda: GroupLeader(self.context, self.member.ref, self.trainer.ref), "leader"
        )
        self.member.leader = self.leader

    async def open_coordinator(self) -> None:
        """The first, or one that came back: new incarnations at the same address."""
        self.coordinator, self.transport = await self.cluster.process("coordinator")
        self.dispatcher = await recorder(self.coordinator, "dispatcher", answer=self._receipt)
        self.runner = await recorder(self.coordinator, "runner")
        self.membership = Membership(self.runner.ref, self.dispatcher.ref, STORE)

    def _receipt(self, message: Message) -> Message | None:
        if isinstance(message, Completed | CommitSteps):
            if self.receipt is None:
                raise RuntimeError("not now")
            return self.receipt
        return None

    async def tell(self, message: Message, sender: Actor | None = None) -> None:
        """Whose message it is says it, unless another sender is named."""
        if isinstance(message, Grant | Revoke | Recall):
            (sender or self.dispatcher).tell(self.leader, message)
        elif isinstance(message, _MEMBERS_WORDS):
            (sender or self.member).tell(self.leader, message)
        else:
            self.system.tell(self.leader, message, sender=sender.ref if sender else None)
        await asyncio.sleep(0.01)

    async def grant(self, lease: int, count: int = 1, commit: Commit | None = None) -> Grant:
        grant = Grant(lease, requests(count), (commit,) * count, 3)
        self.dispatcher.tell(self.leader, grant)
        await asyncio.sleep(0.01)
        return grant

    async def plan(self, plan: WorkerPlan) -> WorkerReport:
        """The node says so; the leader's answer."""
        answer = await self.node.ask(self.leader, plan, timeout_s=1.0)
        assert isinstance(answer, WorkerReport)
        await asyncio.sleep(0.01)
        return answer

    async def asked(self) -> WorkerReport:
        """The answer to the latest plan, which is told again."""
        return await self.plan(self.planner.plan)

    async def prepare(self, version: int | None = 0, job_id: str = "job") -> None:
        await self.plan(self.planner.prepare(self.membership, job_id))
        if version is not None:
            self.member.loaded.set()
            await self.hold(version)

    async def hold(
        self, version: int, *, evaluation: bool = False, keep: tuple[int, ...] = ()
    ) -> None:
        extra = offer() if evaluation else None
        await self.plan(self.planner.hold(version, offer(), extra, keep))

    async def come_back(self) -> None:
        """Another runner has the job by now, at another process of the coordinator."""
        await self.plan(self.planner.prepare(self.membership, runner_is_new=True))

    async def drain(self, stop_in_s: float | None) -> None:
        await self.plan(self.planner.drain(stop_in_s))

    async def end_job(self) -> None:
        await self.plan(self.planner.end())

    async def group_stands(self, group: GroupPlan) -> None:
        """The node plans a group, and it forms."""
        await self.plan(self.planner.group(group))
        await self.group_is(group.epoch, formed=True)

    async def group_is(
        self, epoch: int, *, formed: bool, failure: str = "", culprits: tuple[str, ...] = ()
    ) -> None:
        """The member says so."""
        self.member.group = (epoch, formed, failure, culprits)
        self.member.report()
        await asyncio.sleep(0.01)

    def drained(self) -> list[bool]:
        """What the node was told of that, each time that it changed."""
        told = [report.drained for report in self.node.all(WorkerReport)]
        return [now for before, now in zip([False, *told], told, strict=False) if now != before]

    async def working(self, *leases: int) -> None:
        """Prepared, and with these leases."""
        await self.prepare()
        for lease in leases:
            await self.grant(lease)

    def held(self) -> tuple[int, ...]:
        """The leases that the latest pull renews."""
        return tuple(lease.lease for lease in self.dispatcher.last(Pull).leases)


def completed(lease: int, count: int = 1) -> Completed:
    ids = tuple(each.id for each in requests(count))
    return Completed("w", 7, lease, ids, offer(f"samples/{lease}"), ((0.5,),) * count, 5, 1.5)


def committed(lease: int, step: int) -> CommitSteps:
    return CommitSteps("w", 7, lease, (), step, offer(f"commits/{lease}-{step}"), 0.25)


def returned(lease: int) -> ReturnLease:
    return ReturnLease("w", 7, lease)
