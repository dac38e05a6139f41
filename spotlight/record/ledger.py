"""The account of worker time and of money: what every second of every worker went to, which job it
belongs to, and what it cost.

A node counts the time of its workers (`WorkerTimes`) and says so with every report; the coordinator
keeps what all nodes said, for each job and for the time without one, in a `Ledger`. Times are whole
milliseconds, so that they add up exactly.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec

from spotlight.types import Pool, Record, WorkerName

TimeState = Literal[
    "rollout",
    "explore",
    "train",
    "score",
    "evaluate",
    "idle",
    "loading",
    "starting",
    "draining",
    "lost",
]
"""What a second of a worker went to. A worker is `starting` from the start of its machine until its
process is up; it is `draining` while it is idle because its node has notice, and `lost` while no
process of it is there, although its machine is paid for."""
TIME_STATES: tuple[TimeState, ...] = get_args(TimeState)
"""All of them, useful work first."""

Milliseconds = dict[TimeState, Annotated[int, msgspec.Meta(ge=0, le=2**50)]]
"""Time by state; states without any may be absent."""


class WorkerTimes(Record, frozen=True):
    """What a node's workers did while the node worked for one job, or for none. It only grows."""

    number: int
    """Counts the jobs for which the node's process has worked, from 0; none is one, too."""
    job_id: str
    """The job; empty for none."""
    workers: dict[WorkerName, Milliseconds]


class Price(Record, frozen=True):
    """What a GPU costs for an hour. On a machine without one, it is what a worker costs."""

    usd_per_gpu_hour: Annotated[float, msgspec.Meta(ge=0)]
    """What it costs in the currency of the ledger."""
    on_demand: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """What the same GPU costs on demand; None if that is not known."""
    source: str = ""
    """Where the price is from, such as `job`, `node`, or a snapshot with its date."""


class NodeBill(Record, frozen=True, kw_only=True):
    """One process of a node at one price, and what its workers did for one job, or for none."""

    node: str
    pool: Pool
    job: str = ""
    """The id of the job or session; empty for the time without one."""
    process: str
    """The incarnation of the node's process; empty for several that are gone."""
    number: int = 0
    """The number of its `WorkerTimes`."""
    workers: int
    """How many it has."""
    from_at: float
    """When the first of this time began, in seconds since 1970 (UTC)."""
    to_at: float
    """Its time is accounted for until then."""
    is_there: bool = True
    """Whether the process still is, as far as is known."""
    price: Price | None = None
    """None if it is not known: the time is unpriced, which is not free."""
    times: dict[str, Milliseconds] = msgspec.field(default_factory=dict)
    """The time of each worker by state."""


class Ledger(Record, frozen=True, kw_only=True):
    """The file `ledger.json`: of a run in its folder; of sessions, and of the time without either,
    in the folder of all runs. It is replaced as a whole."""

    format: int = 1
    number: int = 0
    """Counts the writes of the file. Lines of the roll-ups with a higher number do not count."""
    at: float = 0.0
    """When it was written, in seconds since 1970 (UTC)."""
    time_s: float = 0.0
    """The run time until which it accounts."""
    currency: str = "USD"
    bills: tuple[NodeBill, ...] = ()


class RollupLine(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers of a run did in a span of run time: a line of the roll-ups."""

    number: int
    """The number of the ledger that accounts for it last."""
    start_s: float
    """When it begins, in run time."""
    end_s: float
    at: float
    """The end, in seconds since 1970 (UTC)."""
    times: dict[str, Milliseconds]
    """The time of each worker by state; workers that were not there are absent."""
    spent: dict[str, float] = {}
    """What the run has cost until then, by pool, as far as prices are known."""
