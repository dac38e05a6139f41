"""What people see of who may come in."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from spotlight.actors.protocol.door import GuestList, KnownNode, KnownToken
from spotlight.cli.door import token_table
from spotlight.cli.fleet import node_table

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


def test_the_nodes_say_whose_build_is_another() -> None:
    shown = lines(node_table(GUESTS))
    assert "new reserved none there" in shown
    misfit = f"Spotlight {OLD}, and the coordinator {OURS}"
    assert f"old spot k9s8tm away; {misfit}" in shown
    assert f"(no name yet) spot k9s8tm not let in; {misfit}" in shown
    assert not any("p3q4r5" in line for line in shown)


def test_the_tokens_say_by_which_one_came_whose_build_is_another() -> None:
    shown = lines(token_table(GUESTS))
    of_nodes = next(line for line in shown if line.startswith("k9s8tm"))
    assert of_nodes.endswith(f"; Spotlight {OLD}, and the coordinator {OURS}")
    assert "Spotlight" not in next(line for line in shown if line.startswith("p3q4r5"))
