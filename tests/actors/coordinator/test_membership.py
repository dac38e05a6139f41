"""What a job writes down of its workers, and what it says of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from job_kit import STORE

from spotlight.actors.coordinator.fleet import Fleet
from spotlight.actors.coordinator.tenant.membership import NodeMembership
from spotlight.actors.protocol.up import NodeReport, WorkerRefs, WorkerReport
from spotlight.actors.runtime import ActorRef
from spotlight.policies.fleet.fleet_events import Terms
from spotlight.record.run_events import RunEvent, WorkerStateBegan

REF = ActorRef("somewhere", "leader", 1)


class Office:
    """A job with one worker."""

    async def open(self) -> None:
        self.events: list[RunEvent] = []
        self.scoring_s = 0.0
        anything: Any = SimpleNamespace(
            ref=REF,
            add_workers=lambda *_: None,
            revoke=lambda _: None,
            another_process=lambda _: None,
            groups=SimpleNamespace(of=lambda worker: ("n/1", 2)),
            counters=SimpleNamespace(pop_scoring_s=lambda worker: self.scoring_s),
        )
        nodes = Fleet(anything, anything).begin("job", Terms())
        tenant: Any = SimpleNamespace(
            nodes=nodes,
            roster=nodes.roster,
            requests=anything,
            table=anything,
            store=anything,
            keepers=anything,
            event=self.events.append,
        )
        self.membership = NodeMembership(tenant)
        refs = WorkerRefs("n/0", 1, REF, REF, REF)
        assert self.membership.take_in(NodeReport(1, "n", "spot", REF, (refs,), STORE))


async def test_scoring_beside_a_state_is_written_with_the_next_one() -> None:
    office = Office()
    await office.open()
    office.scoring_s = 1.5
    office.membership.note(WorkerReport("n/0", 1, state="rollout"))
    office.scoring_s = 0.25
    office.membership.note(WorkerReport("n/0", 1, state="idle"))
    found = [event for event in office.events if isinstance(event, WorkerStateBegan)]
    assert [(each.state, each.scoring_s) for each in found] == [
        ("starting", 0.0),
        ("rollout", 1.5),
        ("idle", 0.25),
    ]


async def test_a_status_says_who_leads_a_group_of_several() -> None:
    office = Office()
    await office.open()
    (status,) = office.membership.statuses()
    assert (status.name, status.leader, status.members) == ("n/0", "n/1", 2)
