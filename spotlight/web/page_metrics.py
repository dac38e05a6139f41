"""`/metrics` and `/readyz`: what those who watch over a cluster ask its page's server.

Names and help of the numbers of iterations and validations are those of the glossary of metrics. Of
the labels `job` is the name of a run's folder, `pool` and `state` are those of the ledger, and
there are no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import msgspec

from spotlight import record
from spotlight.docstrings import field_docstring, read_docstrings
from spotlight.policies.money.bill import Account
from spotlight.record.run_metrics import IterationMetrics, RunMetrics, ValidationMetrics
from spotlight.web.exposition import Family
from spotlight.web.run_summaries import LatestOfRun, is_silent, ledger_of

FRESH_S = 60.0
"""A ledger that was written so long ago says nothing of now: it is written about every 10 s."""
_RECENT_S = 900.0
"""A run that has ended is told of for so long, so that its last numbers are not missed."""
_MOST_RUNS = 100


class PageMetrics(msgspec.Struct, frozen=True):
    """What the page's server says of itself."""

    page_viewers: int
    """How many pages look at a run."""
    page_runs_followed: int
    """How many runs are followed for them."""
    page_told_anew_total: int
    """How often a page was too slow and got the whole view again."""
    page_refused_total: int
    """How many requests were refused."""


def families(latest: Iterable[LatestOfRun], own: PageMetrics, now: float) -> list[Family]:
    """All that is told, at a moment of the wall clock."""
    runs = [each for each in latest if _is_told_of(each, now)][:_MOST_RUNS]
    return [
        *_of_itself(own),
        _running(runs, now),
        *_of_ledgers(runs),
        *_of_records("iteration", IterationMetrics, [(it.name, it.iteration) for it in runs]),
        *_of_records("validation", ValidationMetrics, [(it.name, it.validation) for it in runs]),
    ]


def nodes_there(folder: Path, latest: Iterable[LatestOfRun], now: float) -> set[str]:
    """The nodes whose time a coordinator has accounted for just now, as far as the ledgers of a
    folder of runs tell."""
    ledgers = (ledger_of(folder), *(each.ledger for each in latest))
    return {
        bill.node
        for ledger in ledgers
        if ledger is not None and abs(now - ledger.at) <= FRESH_S
        for bill in ledger.bills
        if bill.is_there
    }


def _is_told_of(latest: LatestOfRun, now: float) -> bool:
    return abs(now - latest.written_at) <= _RECENT_S


def _of_itself(own: PageMetrics) -> Iterator[Family]:
    docs = _docs(__file__)
    for name, value in msgspec.structs.asdict(own).items():
        yield Family(
            f"spotlight_{name}",
            "counter" if name.endswith("_total") else "gauge",
            field_docstring(docs, PageMetrics, name),
            [({}, value)],
        )


def _running(runs: Iterable[LatestOfRun], now: float) -> Family:
    family = Family("spotlight_job_running", "gauge", "Whether somebody works on the job.")
    for each in runs:
        family.add(not is_silent(each, now), job=each.name)
    return family


def _of_ledgers(runs: Iterable[LatestOfRun]) -> list[Family]:
    seconds = Family(
        "spotlight_worker_seconds_total",
        "counter",
        "What the time of workers went to, by the ledger.",
    )
    spent = Family("spotlight_spent_total", "counter", "What was spent, as far as it is priced.")
    for each in runs:
        for (pool, state), milliseconds in _milliseconds(each.account).items():
            seconds.add(milliseconds / 1000, job=each.name, pool=pool, state=state)
        for pool, money in each.account.by_pool().items():
            spent.add(float(money), job=each.name, pool=pool)
    return [seconds, spent]


def _milliseconds(account: Account) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for times in (account.priced_ms, account.unpriced_ms):
        for (pool, _, state), milliseconds in times.items():
            found[pool, state] = found.get((pool, state), 0) + milliseconds
    return found


def _of_records(
    prefix: str, kind: type[RunMetrics], latest: Iterable[tuple[str, RunMetrics | None]]
) -> list[Family]:
    """A gauge for each number of such records: the latest of each run."""
    docs = _docs("run_metrics.py")
    told = {
        field.name: Family(
            f"spotlight_{prefix}_{field.name}", "gauge", field_docstring(docs, kind, field.name)
        )
        for field in msgspec.structs.fields(kind)
    }
    for job, metrics in latest:
        for name, family in told.items():
            value = getattr(metrics, name, None)
            if isinstance(value, int | float):
                family.add(value, job=job)
    return list(told.values())


@cache
def _docs(file: str) -> dict[str, str]:
    """Docstrings of a file of the room of records, or of one by its path."""
    return read_docstrings(Path(next(iter(record.__path__))) / file)
