"""A job as whoever looks on sees it, in a terminal and elsewhere."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console
from rich.live import Live

from spotlight.actors.protocol.users import JobStatus
from spotlight.cli.terminal_view import JsonView, QuietView, TerminalView


def at(iteration: int, elapsed_s: float, **more: object) -> JobStatus:
    return JobStatus(  # type: ignore[call-arg]
        job="first", phase="train", iteration=iteration, iterations=9, elapsed_s=elapsed_s, **more
    )


async def test_where_nobody_redraws_there_is_a_line_for_each_change() -> None:
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        view = TerminalView(console, Live(console=console, auto_refresh=False))
        for status in (at(1, 1.0), at(1, 2.0), at(2, 3.0), at(2, 4.0, outcome="finished")):
            await view.progress(status)
    assert captured.get().splitlines() == [
        "first  1/9 iterations  training",
        "first  2/9 iterations  training",
        "first  2/9 iterations  finished",
    ]


async def test_a_terminal_is_redrawn_with_the_time_left() -> None:
    drawn = StringIO()
    console = Console(width=80, force_terminal=True, color_system=None, file=drawn)
    with Live(console=console, auto_refresh=False) as live:
        await TerminalView(console, live).progress(at(3, 60.0))
    assert "first  3 of 9 iterations  training" in drawn.getvalue()
    assert "about 2 m 00 s left" in drawn.getvalue()


async def test_a_long_line_is_not_broken_for_whoever_reads_a_pipe() -> None:
    console = Console(width=20, force_terminal=False)
    with console.capture() as captured:
        view = TerminalView(console, Live(console=console, auto_refresh=False))
        await view.progress(at(1, 1.0, note="waits for reserved workers"))
        view.tell("the coordinator has not answered for 6 s")
    assert len(captured.get().splitlines()) == 2


async def test_programs_get_a_status_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonView()
    for status in (at(1, 1.0), at(1, 2.0), at(2, 3.0)):
        await view.progress(status)
    view.tell("the coordinator has not answered for 6 s")
    output = capsys.readouterr()
    assert [json.loads(line)["iteration"] for line in output.out.splitlines()] == [1, 2]
    assert output.err == "the coordinator has not answered for 6 s\n"


async def test_whoever_only_waits_is_told_what_is_the_matter_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = QuietView()
    await view.progress(at(1, 1.0))
    view.tell("the coordinator answers again")
    assert capsys.readouterr() == ("", "the coordinator answers again\n")


async def test_a_tracker_that_failed_is_told_once_and_stays_when_the_view_is_gone() -> None:
    drawn = StringIO()
    console = Console(width=80, force_terminal=True, color_system=None, file=drawn)
    failed = "tracker wandb failed: ValueError: no network"
    with Live(console=console, auto_refresh=False, transient=True) as live:
        view = TerminalView(console, live)
        for elapsed_s in (60.0, 61.0):
            await view.progress(at(3, elapsed_s, troubles=(failed, "the disk is nearly full")))
    assert drawn.getvalue().count(f"warning: {failed}") == 1
    assert "warning: the disk" not in drawn.getvalue()
