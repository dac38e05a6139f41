"""The commands of whoever runs a coordinator: join tokens, the nodes that joined, and who is shown
out.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.cli.durations import seconds_of
from spotlight.cli.options import JoinOption
from spotlight.cli.reaching import reaching
from spotlight.errors import UserError
from spotlight.types import Pool, TokenRole

if TYPE_CHECKING:
    from rich.table import Table

    from spotlight.actors.protocol.door import GuestList

token = typer.Typer(
    help="Make and list join tokens, by which nodes and users come to a coordinator.",
    no_args_is_help=True,
)
_LONGEST_TTL_S = 10 * 366 * 86_400.0
_JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@token.command()
def new(
    role: Annotated[TokenRole, typer.Option(help="For whom it is.")] = "node",
    pool: Annotated[
        Pool | None,
        typer.Option(help="Pool of the nodes that join by it; for nodes, default spot."),
    ] = None,
    uses: Annotated[
        int,
        typer.Option(min=1, max=1_000_000, help="How many nodes may join by it."),
    ] = 1,
    ttl: Annotated[str, typer.Option(help="How long it lasts: 30m, 24h, 7d.")] = "24h",
    join: JoinOption = "",
) -> None:
    """Make a join token, and print it: whoever has it can join with --join TOKEN."""
    from spotlight.running.client import make_token

    ttl_s = seconds_of("--ttl", ttl, most_s=_LONGEST_TTL_S)
    if role != "node" and pool is not None:
        raise UserError(f"--pool: a token for {_people(role)} has none; leave it out")
    if role != "node" and uses != 1:
        raise UserError(
            f"--uses: a token for {_people(role)} is used for as long as it lasts; leave it out"
        )
    pool = (pool or "spot") if role == "node" else None
    made = reaching(join, lambda by: make_token(by, role, pool, uses, ttl_s))
    typer.echo(made)
    name = made.split(".")[-2]
    whom = f"{uses:,} {pool} node{'s' if uses > 1 else ''}" if pool else f"a user ({role})"
    sys.stderr.write(
        f"join token `{name}` for {whom}, for {ttl}; it is shown only once. End it with: spotlight"
        f" revoke {name}\n"
    )


@token.command(name="list")
def list_tokens(join: JoinOption = "", as_json: _JsonOption = False) -> None:
    """List the join tokens that the coordinator knows, without their secrets."""
    from spotlight.running.client import get_guests

    _show(reaching(join, get_guests), "tokens", as_json=as_json)


def nodes(join: JoinOption = "", as_json: _JsonOption = False) -> None:
    """List the nodes that have joined, and say which of them are there."""
    from spotlight.running.client import get_guests

    _show(reaching(join, get_guests), "nodes", as_json=as_json)


def revoke(
    name: Annotated[str, typer.Argument(help="Name of a node, or id of a join token.")],
    join: JoinOption = "",
) -> None:
    """Let a node, or whoever has a join token, in no more; its connections end now."""
    from spotlight.running.client import revoke_access
    from spotlight.running.join_option import resolve

    if resolve("--join", join).id == name:
        raise UserError(
            f"`{name}` is the join token that you use; make another with `spotlight token new"
            " --role operator`, and revoke this one by that"
        )
    done = reaching(join, lambda by: revoke_access(by, name))
    typer.echo(f"{name}: revoked")
    for still in done.tokens:
        typer.echo(
            f"the node came by the join token `{still}`, which would let it in under another name:"
            f" spotlight revoke {still}"
        )
    if done.nodes:
        typer.echo(f"nodes that came by it stay: {', '.join(done.nodes)}")


def _show(guests: GuestList, what: str, *, as_json: bool) -> None:
    import msgspec
    from rich.console import Console

    if as_json:
        typer.echo(msgspec.json.encode(getattr(guests, what)).decode())
    else:
        Console().print(token_table(guests) if what == "tokens" else node_table(guests))


def token_table(guests: GuestList) -> Table:
    """The join tokens of a coordinator."""
    from spotlight.report.formatting import duration

    table = _table("token", "for", "pool", "nodes left", "state")
    for each in guests.tokens:
        left_s = each.expires_in_s
        if each.revoked:
            state = "revoked"
        elif left_s is not None and left_s <= 0:
            state = f"expired {duration(-left_s)} ago"
        elif each.role == "node" and not each.uses_left:
            state = "used up"
        else:
            state = "does not expire" if left_s is None else f"for {duration(left_s)}"
        state += _misfit(each.software, guests)
        uses = f"{each.uses_left:,}" if each.role == "node" else ""
        table.add_row(each.id, each.role, each.pool or "", uses, state)
    return table


def node_table(guests: GuestList) -> Table:
    """The nodes that a coordinator knows, and the tokens by which one came that it does not
    understand."""
    table = _table("node", "pool", "token", "state")
    for each in guests.nodes:
        there = "there" if each.is_connected else "away"
        state = "revoked" if each.revoked else there
        state += _misfit(each.software, guests)
        table.add_row(each.name, each.pool, each.token or "none", state)
    for token in guests.tokens:
        if token.software:
            state = f"not let in{_misfit(token.software, guests)}"
            table.add_row("(no name yet)", token.pool or "", token.id, state)
    return table


def _misfit(software: str, guests: GuestList) -> str:
    return f"; Spotlight {software}, and the coordinator {guests.software}" if software else ""


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _people(role: TokenRole) -> str:
    return f"{role}s"
