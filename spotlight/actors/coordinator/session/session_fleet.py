"""Reports on a session: for its user, and for the coordinator's status."""

from __future__ import annotations

from spotlight.actors.coordinator.session.session_parts import SessionParts
from spotlight.actors.protocol import Fleet, FleetNode, JobStatus, NodeReport, Outcome, PoolUse
from spotlight.policies.fleet.fleet_rows import describe


def fleet_of(parts: SessionParts, now: float) -> Fleet:
    """Who is there, and what was done so far."""
    newest = max(parts.publications.versions, default=-1)
    nodes = [parts.roster.nodes[name] for name in sorted(parts.roster.nodes)]
    totals = parts.groups.totals
    return Fleet(
        nodes=tuple(map(_node, nodes)),
        newest_version=newest,
        ready=sum(
            len(node.workers)
            for node in nodes
            if newest in {offer.version for offer in node.weights}
        ),
        waiting=parts.groups.open_requests,
        images_per_s=parts.pace.images_per_s(now),
        samples=totals.samples,
        previews=totals.previews,
        resumed=totals.resumed,
        reissued=parts.tally.reissued,
        failed=totals.failed,
        pools=tuple(
            PoolUse(pool, seconds)
            for pool, seconds in sorted(parts.roster.seconds_spent(now).items())
        ),
    )


def session_status(
    parts: SessionParts,
    name: str,
    elapsed_s: float,
    dead_letters: int,
    *,
    outcome: Outcome,
    reason: str,
    came_back: bool,
) -> JobStatus:
    """How the session is; it has no iterations. `came_back`: an earlier coordinator began with it,
    and nobody knows what that one counted."""
    totals, tally = parts.groups.totals, parts.tally
    return JobStatus(
        job=name,
        phase="finished" if outcome else "session",
        weights_version=parts.publications.newest,
        elapsed_s=elapsed_s,
        done=totals.samples,
        wanted=totals.samples + parts.groups.open_requests,
        workers=parts.membership.statuses(),
        previews=totals.previews,
        reissued=tally.reissued,
        late_results=tally.late_results,
        quarantined=tuple(tally.quarantined),
        preemptions=tally.preemptions,
        dead_letters=dead_letters,
        outcome=outcome,
        reason=reason,
        note="counts are since the coordinator came back" if came_back else "",
        troubles=tuple(map(describe, parts.roster.troubles())),
    )


def _node(node: NodeReport) -> FleetNode:
    notice = node.notice
    return FleetNode(
        node.node,
        node.pool,
        len(node.workers),
        notice.source if notice is not None else "",
        notice.lead_s if notice is not None else None,
    )
