"""What `spotlight logs` prints: the story of a run from its folder, or what a process has
logged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import typer

from spotlight.cli.lines import one_line
from spotlight.cli.run_choice import choose_run
from spotlight.errors import UserError
from spotlight.record.run_events import RunEvent, RunFinished
from spotlight.record.run_metrics import RunMetrics
from spotlight.report.metrics import outcome
from spotlight.report.run_reading import read_run
from spotlight.report.story import StoryLine, line_of
from spotlight.running.record_follower import RecordFollower
from spotlight.store.log_folder import log_base
from spotlight.trackers import IterationRecord, RunRecords

_POLL_S = 0.5
_AT_ONCE = 1024 * 1024
"""Bytes of a log."""


def print_story(run: Path, *, go_on: bool, as_json: bool) -> None:
    """Tell what has happened to a run; with `go_on` until it ends."""
    for line in _following(run) if go_on else _so_far(run)[0]:
        typer.echo(msgspec.json.encode(line).decode() if as_json else one_line(str(line)))


def print_log(worker: str, name: str, join: str, *, go_on: bool) -> None:
    """Print the log of a process whose log is on this machine; with `go_on` for as long as the user
    likes. Raises `UserError` that says where else it is."""
    for line in _log_lines(_log_file(worker, name, join), go_on=go_on):
        typer.echo(one_line(line))


def _so_far(run: Path) -> tuple[list[StoryLine], bool]:
    """The story, and whether it is over."""
    history = read_run(run)
    records: list[RunEvent | RunMetrics] = [*history.iterations, *history.validations]
    records += history.events
    lines = (line_of(record) for record in sorted(records, key=lambda record: record.time_s))
    return [line for line in lines if line is not None], outcome(history)[0] != "unfinished"


def _following(run: Path) -> Iterator[StoryLine]:
    new: list[RunRecords] = []
    follower = RecordFollower(run, new.append)  # from before the story so far was read
    lines, is_over = _so_far(run)
    told = set(lines)
    yield from lines
    while not is_over:
        follower.poll()
        for record in new:
            plain = record.metrics if isinstance(record, IterationRecord) else record
            line = line_of(plain)
            if line is not None and line not in told:
                told.add(line)
                yield line
            is_over = is_over or isinstance(plain, RunFinished)
        new.clear()
        if not is_over:
            time.sleep(_POLL_S)


def _log_file(worker: str, name: str, join: str) -> Path:
    """In the run folder, as `spotlight run` leaves it; else below the folder of all nodes of this
    machine, where the newest counts."""
    file = f"{worker.replace('/', '-')}.log"
    node = worker.partition("/")[0]
    base = log_base()
    of_nodes = sorted(base.glob(f"{node}-*/{file}"), key=lambda path: path.stat().st_mtime)
    try:
        in_run = choose_run(name, join) / "logs" / file
    except UserError:
        if not of_nodes:
            raise
        return of_nodes[-1]
    if in_run.is_file():
        return in_run
    if of_nodes:
        return of_nodes[-1]
    raise UserError(
        f"the log of `{worker}` is not on this machine: it is neither {in_run} nor below {base}."
        f" Look on the machine of the node `{node}`; the first line of that node's own log"
        " (`node_starts`) names the folder"
    )


def _log_lines(path: Path, *, go_on: bool) -> Iterator[str]:
    with path.open("rb") as file:
        rest = b""
        while True:
            data = file.read(_AT_ONCE)
            *lines, rest = (rest + data).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
            if data:
                continue
            if not go_on:
                break
            time.sleep(_POLL_S)
    if rest:
        yield rest.decode(errors="replace")
