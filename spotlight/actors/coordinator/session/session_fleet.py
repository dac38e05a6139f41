"""Reports on a session: for its user, and for the coordinator's status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotlight.actors.protocol.sessions import Fleet, NodeCapacity, PoolUse
from spotlight.actors.protocol.up import NodeReport
from spotlight.actors.protocol.users import JobStatus
from spotlight.policies.fleet.fleet_rows import describe

if TYPE_CHECKING:
    from spotlight.actors.coordinator.session.session_runner import SessionRunner


def fleet_of(session: SessionRunner) -> Fleet:
    """Who is there, and what was done so far."""
    now = session.now()
    newest = max(session.publications.versions, default=-1)
    nodes = [session.roster.nodes[name] for name in sorted(session.roster.nodes)]
    totals = session.groups.totals
    return Fleet(
        nodes=tuple(map(_node, nodes)),
        newest_version=newest,
        ready=sum(
            len(node.workers)
            for node in nodes
            if newest in {offer.version for offer in node.weights}
        ),
        waiting=session.groups.open_requests,
        images_per_s=session.pace.images_per_s(now),
        samples=totals.samples,
        previews=totals.previews,
        resumed=totals.resumed,
        handed_on=session.tally.handed_on,
        failed=totals.failed,
        pools=tuple(
            PoolUse(pool, seconds)
            for pool, seconds in sorted(session.roster.seconds_spent(now).items())
        ),
    )


def session_status(session: SessionRunner) -> JobStatus:
    """How the session is; it has no iterations. Nobody knows what an earlier coordinator has
    counted."""
    totals, tally = session.groups.totals, session.tally
    return JobStatus(
        job=session.service.title,
        phase="session",
        weights_version=session.publications.newest,
        elapsed_s=session.now() - session.began_at,
        done=totals.samples,
        wanted=totals.samples + session.groups.open_requests,
        workers=session.membership.statuses(),
        previews=totals.previews,
        handed_on=tally.handed_on,
        results_ignored=tally.results_ignored,
        given_up=tuple(tally.given_up),
        preemptions=tally.preemptions,
        note="counts are since the coordinator came back" if session.came_back else "",
        troubles=tuple(map(describe, session.roster.troubles())),
    )


def _node(node: NodeReport) -> NodeCapacity:
    notice = node.notice
    return NodeCapacity(
        node.node,
        node.pool,
        len(node.workers),
        notice.source if notice is not None else "",
        notice.lead_s if notice is not None else None,
    )
