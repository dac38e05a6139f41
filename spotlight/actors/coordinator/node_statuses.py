"""What users are told of the nodes. Pure."""

from __future__ import annotations

from spotlight import __version__
from spotlight.actors.coordinator.fleet import NodeTask
from spotlight.actors.protocol.up import NodeReport
from spotlight.actors.protocol.users import NodeStatus
from spotlight.policies.departure import SHARING
from spotlight.policies.fleet.fleet_rows import GoneNode, NodeRow
from spotlight.policies.fleet.table import FleetTable
from spotlight.report.formatting import duration


def node_statuses(table: FleetTable[NodeReport, NodeTask], now: float) -> tuple[NodeStatus, ...]:
    """The nodes that are there, and the latest that went, by name.

    Args:
        now: on the table's clock.
    """
    there = {name: _there(row, now) for name, row in table.nodes.items()}
    gone = {name: _gone(name, row, now) for name, row in table.gone.items()}
    return tuple(status for _, status in sorted({**gone, **there}.items()))


def became_of(name: str, table: FleetTable[NodeReport, NodeTask], now: float) -> str:
    """Why a node cannot be told anything, of whose name there is, or was lately, one; empty if
    there was none. `now`: on the table's clock."""
    if name in table.nodes:
        return "it has given its work back, and is leaving"
    if (row := table.gone.get(name)) is None:
        return ""
    ago = f"{duration(now - row.at)} ago"
    return f"it left {ago}" if row.state == "left" else f"it was lost {ago} ({row.reason})"


def _there(row: NodeRow[NodeReport, NodeTask], now: float) -> NodeStatus:
    word = row.word
    source, left_s = _notice(row, now)
    return NodeStatus(
        name=word.node,
        pool=word.pool,
        workers=len(word.workers),
        state=row.state,
        since_s=now - row.came_at,
        version=__version__,  # processes of others are not connected
        detail=f"notice by {source}" if source else "",
        notice_left_s=left_s,
        job=row.tenant,
    )


def _notice(row: NodeRow[NodeReport, NodeTask], now: float) -> tuple[str, float | None]:
    """Who gave notice, and how many seconds are left."""
    if (notice := row.word.notice) is not None and notice.source != SHARING:
        if notice.lead_s is None:
            return notice.source, None
        return notice.source, max(0.0, row.noticed_at + notice.lead_s - now)
    if row.state == "has notice" and row.notice is not None:  # it has not heard of it yet
        return "user", max(0.0, row.notice.deadline - now)
    return "", None


def _gone(name: str, row: GoneNode, now: float) -> NodeStatus:
    return NodeStatus(name, row.pool, row.workers, row.state, now - row.at, detail=row.reason)
