"""What other parts of the package tell of a run's money, exploration and account."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from spotlight.jobs import JobSpec
from spotlight.record.ledger import Ledger, RollupLine, TimeState
from spotlight.record.run_events import RunEvent
from spotlight.record.run_metrics import IterationMetrics, RunMetrics
from spotlight.report.run_view import ExplorationPart, MoneyPart

_MS_PER_HOUR = 3_600_000


def at_of(record: RunEvent | RunMetrics) -> float | None:
    """When a record was written, in seconds since 1970."""
    at = getattr(record, "at", None)
    return at or None


def target_of(job: JobSpec) -> float | None:
    """The score that is aimed at."""
    target: float | None = getattr(job.validation, "target", None)
    return target


def account_of(folder: Path) -> tuple[Ledger | None, Iterable[RollupLine]]:
    """The ledger and the roll-ups of a run folder; None where there is none."""
    path = folder / "ledger.json"
    if not path.exists():
        return None, ()
    return msgspec.json.decode(path.read_bytes(), type=Ledger), ()


def seconds_by_pool(ledger: Ledger) -> dict[str, dict[TimeState, float]]:
    """Seconds of all workers, by pool and state."""
    found: dict[str, dict[TimeState, float]] = {}
    for bill in ledger.bills:
        pool = found.setdefault(bill.pool, {})
        for times in bill.times.values():
            for state, milliseconds in times.items():
                pool[state] = pool.get(state, 0.0) + milliseconds / 1000
    return found


def money_part(
    job: JobSpec,
    ledger: Ledger | None,
    iterations: int,
    to_target: float | None,
    hours: Sequence[tuple[float, float]],
) -> MoneyPart:
    """What the run has cost."""
    if ledger is None:
        return MoneyPart()
    by_pool: dict[str, float] = {}
    by_state: dict[str, dict[str, float]] = {}
    by_node: dict[str, float] = {}
    unpriced = 0
    for bill in ledger.bills:
        for times in bill.times.values():
            if bill.price is None:
                unpriced += sum(times.values())
                continue
            for state, milliseconds in times.items():
                usd = milliseconds / _MS_PER_HOUR * bill.price.usd_per_gpu_hour
                by_pool[bill.pool] = by_pool.get(bill.pool, 0.0) + usd
                states = by_state.setdefault(bill.pool, {})
                states[state] = states.get(state, 0.0) + usd
                by_node[bill.node] = by_node.get(bill.node, 0.0) + usd
    spent = sum(by_pool.values()) if by_pool else None
    before = [0.0, *(value for _, value in hours)]
    return MoneyPart(
        currency=ledger.currency,
        spent=spent,
        unpriced_s=unpriced / 1000,
        per_iteration=spent / iterations if spent is not None and iterations else None,
        to_target=to_target,
        by_pool=by_pool,
        by_state=by_state,
        by_node=by_node,
        by_hour=tuple(
            (hour, value - earlier) for (hour, value), earlier in zip(hours, before, strict=False)
        ),
        sources=tuple(
            sorted({bill.price.source for bill in ledger.bills if bill.price and bill.price.source})
        ),
    )


class Gains:
    """What exploration has brought."""

    def add(self, metrics: IterationMetrics) -> None:
        """The next iteration."""

    def part(self, job: JobSpec) -> ExplorationPart:
        """The verdict."""
        return ExplorationPart()
