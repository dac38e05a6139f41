"""The commands about nodes: who is there, and who is to do nothing more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from spotlight.cli.options import JoinOption, JsonOption, NodeArgument, YesOption
from spotlight.cli.reaching import asking
from spotlight.errors import NotAllowed
from spotlight.policies.departure import LONGEST_NOTICE_S

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spotlight.actors.protocol.door import GuestList, KnownNode
    from spotlight.actors.protocol.users import NodeStatus
    from spotlight.running.client import CoordinatorClient


_MISFIT = "its build does not fit the coordinator's"


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a node: that it may come in, and how it is if it is there, or was lately."""

    name: str
    pool: str
    state: str
    """The state of a `NodeStatus`, or `away`, `revoked` or `not let in`."""
    workers: int = 0
    job: str = ""
    """The name of the job or session that it works for; empty if for none."""
    since_s: float | None = None
    """Seconds for which it is there, or gone; None if nobody knows."""
    version: str = ""
    """The version of Spotlight on it; its build if that does not fit the coordinator's."""
    detail: str = ""
    """Who gave it notice, why it went, or why it cannot come in."""
    notice_left_s: float | None = None
    """Seconds until it is taken, by its notice; None if it has none, or that does not say."""
    token: str = ""
    """The id of the join token by which it came; empty if that is not known."""


def nodes(join: JoinOption = "", as_json: JsonOption = False) -> None:
    """List the nodes: who is there, for which job, with notice or drained; and who is away."""
    from rich.console import Console

    found = asking(join, _look)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    elif found:
        Console().print(node_table(found))
    else:
        typer.echo("no node has joined; `spotlight token new` makes a token by which one can")


async def _look(client: CoordinatorClient) -> list[NodeLine]:
    """Who may come in is for operators and observers to know; submitters see who is there."""
    names = {job.id: job.name for job in (await client.jobs()).jobs}
    there = (await client.status()).nodes
    try:
        guests = await client.guests()
    except NotAllowed:
        guests = None
    return node_lines(there, guests, names)


def node_lines(
    nodes: Iterable[NodeStatus], guests: GuestList | None, jobs: Mapping[str, str]
) -> list[NodeLine]:
    """All nodes, by name; after them tokens by which one came that the coordinator does not
    understand.

    Args:
        guests: who may come in, if that may be known.
        jobs: their names, by id.
    """
    from spotlight.report.formatting import natural_order

    there = {node.name: node for node in nodes}
    known = {node.name: node for node in guests.nodes} if guests is not None else {}
    names = sorted({*there, *known}, key=natural_order)
    lines = [_line(there.get(name), known.get(name), jobs) for name in names]
    strangers = [
        NodeLine(
            name="(no name yet)",
            pool=token.pool or "",
            state="not let in",
            version=token.software,
            detail=_MISFIT,
            token=token.id,
        )
        for token in (guests.tokens if guests is not None else ())
        if token.software
    ]
    return lines + strangers


def _line(node: NodeStatus | None, known: KnownNode | None, jobs: Mapping[str, str]) -> NodeLine:
    """Of a node that is at least one of the two."""
    if node is None:
        assert known is not None
        state = "revoked" if known.revoked else "there" if known.is_connected else "away"
        return NodeLine(
            name=known.name,
            pool=known.pool,
            state=state,
            version=known.software,
            detail=_MISFIT if known.software else "",
            token=known.token,
        )
    return NodeLine(
        name=node.name,
        pool=node.pool,
        state="revoked" if known is not None and known.revoked else node.state,
        workers=node.workers,
        job=jobs.get(node.job, node.job),
        since_s=node.since_s,
        version=node.version,
        detail=node.detail,
        notice_left_s=node.notice_left_s,
        token="" if known is None else known.token,
    )


def node_table(lines: Sequence[NodeLine]) -> RenderableType:
    """Nodes as people see them, and below what is to be said of some."""
    from rich.console import Group
    from rich.text import Text

    from spotlight.cli.tables import coarse, plain_table
    from spotlight.report.formatting import duration

    rows = [
        [
            line.name,
            line.pool,
            line.state,
            str(line.workers or ""),
            line.job,
            "" if line.since_s is None else coarse(line.since_s),
            line.version,
        ]
        for line in lines
    ]
    notes = []
    for line in lines:
        left = line.notice_left_s
        said = [line.detail, "" if left is None else f"{duration(left)} left"]
        if any(said):
            notes.append(Text(f"{line.name}: {', '.join(filter(None, said))}", style="dim"))
    columns = ("node", "pool", "state", "workers", "job", "since", "version")
    table = plain_table(columns, rows, folded=("node", "job", "version"))
    return Group(table, *([Text()] if notes else []), *notes)


def preempt(
    node: NodeArgument,
    notice: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=LONGEST_NOTICE_S,
            help="Seconds until the node would be taken away; at most a day.",
        ),
    ] = 30.0,
    cancel: Annotated[bool, typer.Option("--cancel", help="Withdraw the notice.")] = False,
    yes: YesOption = False,
    join: JoinOption = "",
) -> None:
    """Give a node notice, as its cloud would: it gives its work back and leaves."""
    asking(join, lambda client: client.preempt(node, notice, cancel=cancel, yes=yes))
    typer.echo(f"{node}: " + ("notice withdrawn" if cancel else f"notice of {notice:g} s given"))


def drain(node: NodeArgument, yes: YesOption = False, join: JoinOption = "") -> None:
    """Have a node give its work back and take no more, until `undrain`; it stays there."""
    asking(join, lambda client: client.drain(node, cancel=False, yes=yes))
    typer.echo(f"{node}: takes no more work; give it some again with: spotlight undrain {node}")


def undrain(node: NodeArgument, join: JoinOption = "") -> None:
    """Give a node work again that was drained."""
    asking(join, lambda client: client.drain(node, cancel=True))
    typer.echo(f"{node}: takes work again")
