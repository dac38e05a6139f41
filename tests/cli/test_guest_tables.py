"""What people see of who may come in."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from spotlight.actors.protocol.door import GuestList, KnownNode, KnownToken
from spotlight.cli.door import token_table

OURS, OLD = "0.2.0 (fedcba98)", "0.1.0 (01234567)"
GUESTS = GuestList(
    tokens=(
        KnownToken("k9s8tm", "node", "spot", 4, 60.0, software=OLD),
        KnownToken("p3q4r5", "submitter", None, 1, 60.0),
    ),
    nodes=(
        KnownNode("new", "reserved", "", True),
        KnownNode("old", "spot", "k9s8tm", False, software=OLD),
    ),
    software=OURS,
)


def lines(table: Table) -> list[str]:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_the_tokens_say_by_which_one_came_whose_build_is_another() -> None:
    shown = lines(token_table(GUESTS))
    of_nodes = next(line for line in shown if line.startswith("k9s8tm"))
    assert of_nodes.endswith(f"; Spotlight {OLD}, and the coordinator {OURS}")
    assert "Spotlight" not in next(line for line in shown if line.startswith("p3q4r5"))
