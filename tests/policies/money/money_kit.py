"""Bills and roll-ups by hand."""

from __future__ import annotations

from typing import cast

from spotlight.record.ledger import Milliseconds, NodeBill, Price, RollupLine
from spotlight.types import Pool

HOUR_MS = 3_600_000
T0 = 1_764_160_200.0  # twenty-five past an hour


def bill(
    node: str,
    *,
    price: float | None = 1.0,
    on_demand: float | None = None,
    from_at: float = T0,
    to_at: float = T0 + 3600,
    workers: int = 1,
    is_there: bool = True,
    **times: int,
) -> NodeBill:
    """A bill of a node whose pool is the first part of its name; `times` in milliseconds."""
    pool = cast(Pool, node.partition("-")[0])
    return NodeBill(
        node=node,
        pool=pool,
        process=f"process of {node}",
        workers=workers,
        from_at=from_at,
        to_at=to_at,
        is_there=is_there,
        price=None if price is None else Price(price, on_demand, "a test"),
        times={f"{node}/0": cast(Milliseconds, times)},
    )


def line(
    start_s: float, end_s: float, spent: float, *, at: float | None = None, number: int = 1
) -> RollupLine:
    """A line of a run that began at `T0`, unless its end is at another time of the clock."""
    return RollupLine(
        number=number,
        start_s=start_s,
        end_s=end_s,
        at=T0 + end_s if at is None else at,
        times={},
        spent={"spot": spent} if spent else {},
    )
