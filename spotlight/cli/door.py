"""The commands of whoever runs a coordinator: join tokens, the nodes that joined, and who is shown
out.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.cli.durations import seconds_of
from spotlight.cli.options import JoinOption, JsonOption, priority_of_jobs
from spotlight.cli.reaching import asking
from spotlight.errors import UserError
from spotlight.types import Pool, TokenRole

if TYPE_CHECKING:
    from rich.table import Table

    from spotlight.actors.protocol.door import GuestList, KnownToken

token = typer.Typer(
    help="Make and list join tokens, by which nodes and users come to a coordinator.",
    no_args_is_help=True,
)
_LONGEST_TTL_S = 10 * 366 * 86_400.0


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
    priority: Annotated[
        int,
        typer.Option(
            callback=priority_of_jobs, help="The highest that a submitter may give to its jobs."
        ),
    ] = 0,
    join: JoinOption = "",
) -> None:
    """Make a join token, and print it: whoever has it can join with --join TOKEN."""
    ttl_s = seconds_of("--ttl", ttl, most_s=_LONGEST_TTL_S)
    if role != "node" and pool is not None:
        raise UserError(f"--pool: a token for {_people(role)} has none; leave it out")
    if role != "node" and uses != 1:
        raise UserError(
            f"--uses: a token for {_people(role)} is used for as long as it lasts; leave it out"
        )
    pool = (pool or "spot") if role == "node" else None
    if role != "submitter" and priority:
        raise UserError(
            f"--priority: a token for {_people(role)} has none, only a submitter's; leave it out"
        )
    made = asking(join, lambda client: client.new_token(role, pool, uses, ttl_s, priority))
    typer.echo(made)
    name = made.split(".")[-2]
    whom = f"{uses:,} {pool} node{'s' if uses > 1 else ''}" if pool else f"a user ({role})"
    sys.stderr.write(
        f"join token `{name}` for {whom}, for {ttl}; it is shown only once. End it with: spotlight"
        f" revoke {name}\n"
    )


@token.command(name="list")
def list_tokens(join: JoinOption = "", as_json: JsonOption = False) -> None:
    """List the join tokens that the coordinator knows, without their secrets."""
    import msgspec
    from rich.console import Console

    guests = asking(join, lambda client: client.guests())
    if as_json:
        typer.echo(msgspec.json.encode(guests.tokens).decode())
    else:
        Console().print(token_table(guests))


def revoke(
    name: Annotated[str, typer.Argument(help="Name of a node, or id of a join token.")],
    join: JoinOption = "",
) -> None:
    """Let a node, or whoever has a join token, in no more; its connections end now."""
    from spotlight.running.join_option import resolve

    if resolve("--join", join).id == name:
        raise UserError(
            f"`{name}` is the join token that you use; make another with `spotlight token new"
            " --role operator`, and revoke this one by that"
        )
    done = asking(join, lambda client: client.revoke(name))
    typer.echo(f"{name}: revoked")
    for still in done.tokens:
        typer.echo(
            f"the node came by the join token `{still}`, which would let it in under another name:"
            f" spotlight revoke {still}"
        )
    if done.nodes:
        typer.echo(f"nodes that came by it stay: {', '.join(done.nodes)}")


def token_table(guests: GuestList) -> Table:
    """The join tokens of a coordinator."""
    from spotlight.cli.tables import plain_table

    columns = ("token", "for", "pool", "nodes left", "priority", "state")
    rows = (_cells(token, guests.software) for token in guests.tokens)
    return plain_table(columns, rows, folded=("state",))


def _cells(token: KnownToken, software: str) -> list[str]:
    from spotlight.cli.tables import misfit
    from spotlight.report.formatting import duration

    left_s = token.expires_in_s
    if token.revoked:
        state = "revoked"
    elif left_s is not None and left_s <= 0:
        state = f"expired {duration(-left_s)} ago"
    elif token.role == "node" and not token.uses_left:
        state = "used up"
    else:
        state = "does not expire" if left_s is None else f"for {duration(left_s)}"
    uses = f"{token.uses_left:,}" if token.role == "node" else ""
    priority = f"up to {token.priority}" if token.role == "submitter" else ""
    state += misfit(token.software, software)
    return [token.id, token.role, token.pool or "", uses, priority, state]


def _people(role: TokenRole) -> str:
    return f"{role}s"
