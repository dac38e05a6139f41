"""The commands about nodes: who is there, and who is to do nothing more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.cli.options import JoinOption, JsonOption, NodeArgument, YesOption
from spotlight.cli.reaching import asking
from spotlight.policies.departure import LONGEST_NOTICE_S

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spotlight.actors.protocol.door import GuestList


def nodes(join: JoinOption = "", as_json: JsonOption = False) -> None:
    """List the nodes that have joined, and say which of them are there."""
    import msgspec
    from rich.console import Console

    guests = asking(join, lambda client: client.guests())
    if as_json:
        typer.echo(msgspec.json.encode(guests.nodes).decode())
    else:
        Console().print(node_table(guests))


def node_table(guests: GuestList) -> RenderableType:
    """The nodes that a coordinator knows, and the tokens by which one came that it does not
    understand."""
    from spotlight.cli.tables import misfit, plain_table

    rows = []
    for node in guests.nodes:
        state = "revoked" if node.revoked else "there" if node.is_connected else "away"
        state += misfit(node.software, guests.software)
        rows.append([node.name, node.pool, node.token or "none", state])
    for token in guests.tokens:
        if token.software:
            state = f"not let in{misfit(token.software, guests.software)}"
            rows.append(["(no name yet)", token.pool or "", token.id, state])
    return plain_table(("node", "pool", "token", "state"), rows, folded=("node", "state"))


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
