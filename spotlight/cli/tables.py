"""Tables for people: plain, within the width of the terminal, nothing said by colour alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text


def plain_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, folded: Sequence[str]
) -> Table:
    """Cells are text, and never read as markup.

    Args:
        folded: the columns that go on in the next line where the terminal is too narrow.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column not in folded)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def pairs() -> Table:
    """A grid of names, which are dim, and what is said of each."""
    table = Table.grid(padding=(0, 3))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def misfit(software: str, coordinator: str) -> str:
    """What is said of a build of Spotlight that is not the coordinator's; nothing of an empty
    one."""
    return f"; Spotlight {software}, and the coordinator {coordinator}" if software else ""


def coarse(seconds: float) -> str:
    """A duration in the largest unit of which it is one at least: `5 m`, `2 h`."""
    for name, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {name}"
    return f"{seconds:.0f} s"
