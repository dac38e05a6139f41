"""`spotlight replay`: what a job would have cost on a spot market, and how far it would have
got."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from spotlight.errors import JobError, UserError
from spotlight.jobs import JobSpec
from spotlight.report.formatting import count
from spotlight_simulation.market.batch_model import unrolled
from spotlight_simulation.market.outcome import Outcome
from spotlight_simulation.market.price_tables import read_prices
from spotlight_simulation.market.readers import read_trace
from spotlight_simulation.market.replay_by_model import replay_by_model
from spotlight_simulation.market.replay_with_actors import replay_with_actors
from spotlight_simulation.market.schedule import Prices, Schedule
from spotlight_simulation.market.trace import Trace
from spotlight_simulation.profile import load_profile

JOB = Path(__file__).parent / "job.yaml"
"""The job that is replayed when none is given."""
Depth = Literal["model", "actors"]
_MOST_ROUNDS = 10_000
"""A trace that would be repeated more often is too short to say anything."""
_HELD = "nodes were held until they were taken"
_PROBES = (
    "nodes were only started to see whether that is possible, which overstates how often they are"
    " taken"
)


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a trace is replayed, and what the trace does not tell."""

    zone: str | None = None
    """The zone, for a trace with several."""
    start_s: float = 0.0
    """Where it begins. [s]"""
    seconds: float | None = None
    """How long it is; a trace that is shorter is repeated. None: up to the end of the trace. [s]"""
    notice_s: float
    """How long before its end a node is told; 0 if never. [s]"""
    boot_s: float
    """The time from the start of a machine until it runs a program. [s]"""
    seed: int = 0
    """The seed of what is drawn: which nodes of the market are the pool's, and which are taken."""
    skips_holes: bool = False
    """Whether stretches without data are left out."""


def replay(
    job: JobSpec,
    *,
    trace: Path,
    prices: str,
    profile: Path,
    stretch: Stretch,
    depth: Depth,
    as_json: bool,
) -> int:
    """Replay a job and print what came of it; returns the exit code."""
    costs, durations = read_prices(prices), load_profile(profile)
    _check_ranks(job)
    _check_currency(job, costs)
    read = read_trace(trace, stretch.zone)
    if stretch.skips_holes:
        read = read.without_holes()
    schedule = market_schedule(read, job.pools.spot.nodes, stretch)
    began = time.monotonic()
    replayed = replay_with_actors if depth == "actors" else replay_by_model
    outcome = replayed(schedule, costs, durations, job, boot_s=stretch.boot_s)
    took_s = time.monotonic() - began
    if as_json:
        data = msgspec.to_builtins(outcome) | {
            "market": schedule.market,
            "is_held": schedule.is_held,
            "remarks": list(read.remarks),
            "prices": msgspec.to_builtins(costs),
            "depth": depth,
            "took_s": round(took_s, 3),
        }
        typer.echo(json.dumps(data))
    else:
        _print(outcome, read, costs, took_s)
    return 1 if outcome.violations else 0


def market_schedule(trace: Trace, pool: int, stretch: Stretch) -> Schedule:
    """The nodes of a pool in a stretch of a trace, which is repeated as often as it takes. Raises
    `UserError`."""
    start_s, generator = stretch.start_s, random.Random(stretch.seed)
    seconds = trace.seconds - start_s if stretch.seconds is None else stretch.seconds
    if not 0 <= start_s < trace.seconds:
        raise UserError(
            f"{trace.market}: has {trace.seconds / 3600:.1f} h; it cannot be begun with at"
            f" {start_s / 3600:g} h"
        )
    if start_s + seconds <= trace.seconds:
        return trace.schedule(
            pool=pool,
            generator=generator,
            start_s=start_s,
            seconds=seconds,
            notice_s=stretch.notice_s,
        )
    rounds = (start_s + seconds) / trace.seconds
    if rounds > _MOST_ROUNDS:
        raise UserError(
            f"{trace.market}: has {trace.seconds:g} s, and would be repeated {rounds:,.0f} times;"
            " replay fewer hours (`--hours`), or a longer trace"
        )
    whole = trace.schedule(pool=pool, generator=generator, notice_s=stretch.notice_s)
    return unrolled(whole, start_s=start_s, seconds=seconds, notice_s=stretch.notice_s)


def _check_ranks(job: JobSpec) -> None:
    reserved, ranks = job.pools.reserved, job.training.ranks
    gpus = reserved.nodes * reserved.workers
    if gpus < ranks:
        raise JobError(
            "pools.reserved",
            f"has {count(gpus, 'worker')}, but `training.ranks` asks for {ranks}, and a replay has"
            " no others that may train; make the pool larger, or train on fewer ranks",
        )


def _check_currency(job: JobSpec, prices: Prices) -> None:
    said = job.prices
    if said.as_list("the job").rows and said.currency != prices.currency:
        raise JobError(
            "prices.currency",
            f"is {said.currency}, but {prices.name} is in {prices.currency}: a replay has one"
            " currency; say prices in the same, or leave `prices` out",
        )


def _print(outcome: Outcome, trace: Trace, prices: Prices, took_s: float) -> None:
    table = Table(title=trace.market, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, figure in _rows(outcome, trace, prices):
        table.add_row(name, figure)
    console = Console()
    console.print(table)
    kind = _HELD if trace.is_held else _PROBES
    for remark in (kind, *trace.remarks):
        console.print(f"{trace.market}: {remark}", markup=False, soft_wrap=True)
    for violation in outcome.violations:
        console.print(f"violated: {violation}", markup=False, soft_wrap=True)
    console.print(f"{outcome.hours:.1f} h of the market, replayed in {took_s:.1f} s")


def _rows(outcome: Outcome, trace: Trace, prices: Prices) -> list[tuple[str, str]]:
    done = "all of the job" if outcome.is_finished else "until the end of the stretch"
    shares = [
        (f"time with {count(nodes, 'spot node')}", f"{share:.1%}")
        for nodes, share in enumerate(outcome.nodes_share)
    ]
    up = [] if trace.is_ever_up else [("spot nodes", "never")]
    return [
        (f"iterations, {done}", f"{outcome.iterations:,.1f}"),
        ("hours", f"{outcome.hours:,.2f}"),
        (f"{outcome.currency}, at {prices.name}", f"{outcome.money:,.2f}"),
        ("previews per sample", f"{outcome.previews_per_sample:.2f}"),
        *(up or shares),
        ("nodes taken", f"{outcome.losses:,}"),
        ("seconds of spot GPUs lost to starting and leaving", f"{outcome.lost_s:,.0f}"),
    ]
