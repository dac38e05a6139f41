"""What is shown of a run, on the live page, in `report.html`, by `report --json` and in trackers:
one record, made in one place (`view_building`), so that all of them agree.

It is bounded, however long the run was and however many workers it had. Times are seconds of run
time unless a name ends in `_at`, which is seconds since 1970 (UTC); money is in `currency`. None
stands for what is not known.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from spotlight.record.ledger import TIME_STATES, TimeState

Verdict = Literal["paid", "not shown", "did not pay", "off"]
"""Whether exploration paid: by the interval of its gain, never by its mean alone."""
MOST_ROWS = 1000
"""Rows of the curves; a longer run shows the means of neighbours."""
MOST_LANES = 64
"""Lanes are of workers up to so many, and of nodes above that."""
MOST_BUCKETS = 240
"""Buckets of the areas and lanes."""


class Part(msgspec.Struct, frozen=True):
    """A part of the view."""


class JobPart(Part, frozen=True, kw_only=True):
    name: str
    id: str = ""
    owner: str = ""
    outcome: str = "running"
    """`running`, `finished`, `cancelled`, `failed`, or `unfinished` if nobody works on it."""
    reason: str = ""
    about: str = ""
    """What was asked for, in one sentence."""
    phase: str = ""
    iteration: int = 0
    """How many iterations are done."""
    iterations: int = 0
    time_s: float = 0.0
    started_at: float | None = None
    updated_at: float | None = None
    workers: dict[str, int] = {}
    """How many, by pool."""


class ValidationPart(Part, frozen=True, kw_only=True):
    first: float | None = None
    latest: float | None = None
    best: float | None = None
    target: float | None = None
    """The score that is aimed at; None if the job names none."""
    seconds_left: float | None = None
    """To the target by the trend of the latest validations, else to the last iteration."""
    usd_left: float | None = None
    """The same in money."""


class WhatIf(Part, frozen=True, kw_only=True):
    """What the same run would have cost otherwise."""

    name: str
    """Such as `on demand`."""
    usd: float | None
    assumption: str
    """What is assumed for it, in one sentence."""


class MoneyPart(Part, frozen=True, kw_only=True):
    currency: str = "USD"
    spent: float | None = None
    """None if nothing is priced."""
    unpriced_s: float = 0.0
    """Worker seconds whose price is not known."""
    per_iteration: float | None = None
    to_target: float | None = None
    """What had been spent when the target was reached."""
    by_pool: dict[str, float] = {}
    by_state: dict[str, dict[str, float]] = {}
    """The money by pool and state."""
    by_node: dict[str, float] = {}
    by_hour: tuple[tuple[float, float], ...] = ()
    """(beginning of the hour since 1970, money)."""
    otherwise: tuple[WhatIf, ...] = ()
    advice: str = ""
    """Whether one more spot node is worth it, or why that cannot be said, in one sentence; empty if
    nothing is priced."""
    sources: tuple[str, ...] = ()
    """Where the prices are from."""
    budget_usd: float | None = None
    budget_hours: float | None = None


class PoolPart(Part, frozen=True, kw_only=True):
    workers: int
    seconds: dict[TimeState, float]
    """The time of all its workers, by state."""


class ExplorationPart(Part, frozen=True, kw_only=True):
    verdict: Verdict = "off"
    sentence: str = ""
    """The verdict with its interval, what it cost, and that contrast is not speed."""
    times: float | None = None
    """The spread of the kept seeds over that of random ones."""
    low: float | None = None
    high: float | None = None
    """The 95 % interval of that."""
    groups: int = 0
    """How many groups of random seeds it is measured on."""


class Mark(Part, frozen=True, kw_only=True):
    """Something that happened, drawn across the curves."""

    time_s: float
    usd: float | None
    iteration: float
    kind: Literal["notice", "lost", "restart", "segment", "alert"]
    text: str


CURVES = (
    "iteration",
    "time_s",
    "usd",
    "reward",
    "validation",
    "loss",
    "grad_norm",
    "learning_rate",
    "kl",
    "contrast",
    "contrast_at_random",
    "fidelity",
)
"""The columns of the curves; the first three are what they may be drawn against."""


class Areas(Part, frozen=True, kw_only=True):
    """What each pool's time went to."""

    edges: tuple[float, ...]
    """The edges of the buckets: one more than there are of these."""
    pools: dict[str, dict[TimeState, tuple[float, ...]]]
    """The mean number of workers in a state, by pool and state, one for each bucket."""


class LanePart(Part, frozen=True, kw_only=True):
    name: str
    """The name of a worker or of a node."""
    pool: str
    parts: tuple[tuple[int, float, float], ...]
    """(place in `TIME_STATES`, start, end), in order of time; gaps are times of absence."""


class Shown(Part, frozen=True, kw_only=True):
    """A picture: a thumbnail, and where the whole of it is."""

    weights_version: int
    reward: float | None
    thumb: str
    """The path of the thumbnail in the run folder."""
    full: str
    """The path of the picture in the run folder; empty if it is not kept."""
    prompt: str = ""
    seed: int | None = None


class PicturesPart(Part, frozen=True, kw_only=True):
    wall: tuple[tuple[Shown, ...], ...] = ()
    """One row for each prompt and seed: the same over versions."""
    best: tuple[Shown, ...] = ()
    """The best samples of the latest iteration."""
    worst: tuple[Shown, ...] = ()


class NodePart(Part, frozen=True, kw_only=True):
    name: str
    pool: str
    workers: int
    says: str
    """What there is to say of it, such as `notice: 24 s left`, or `trains`."""
    usd_per_hour: float | None
    """The price of the whole node."""
    usd: float | None
    """What it cost this run."""
    is_there: bool


class Happened(Part, frozen=True):
    time_s: float
    level: Literal["info", "warning", "error"]
    text: str


class RunView(Part, frozen=True, kw_only=True):
    """See the module's docstring."""

    job: JobPart
    validation: ValidationPart = ValidationPart()
    money: MoneyPart = MoneyPart()
    pools: dict[str, PoolPart] = {}
    exploration: ExplorationPart = ExplorationPart()
    columns: tuple[str, ...] = CURVES
    rows: tuple[tuple[float | None, ...], ...] = ()
    """The curves, a row for an iteration or a few, with `columns`."""
    marks: tuple[Mark, ...] = ()
    states: tuple[TimeState, ...] = TIME_STATES
    areas: Areas = Areas(edges=(), pools={})
    lanes: tuple[LanePart, ...] = ()
    pictures: PicturesPart = PicturesPart()
    nodes: tuple[NodePart, ...] = ()
    happened: tuple[Happened, ...] = ()
    """The latest of what an operator wants to know of."""
    alerts: tuple[str, ...] = ()
    """What is wrong now, such as a tracker that failed."""
    notes: tuple[str, ...] = ()
    """What could not be read of the run folder."""
