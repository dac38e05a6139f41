"""What a run has cost, as rows of the figures at its end."""

from __future__ import annotations

from collections.abc import Iterator

from spotlight.policies.money.words import money
from spotlight.report.formatting import duration
from spotlight.report.run_view import MoneyPart


def money_rows(part: MoneyPart) -> Iterator[tuple[str, str]]:
    """A name and words for each; none where nothing is priced."""
    if part.spent is None:
        return
    yield "spent", ", ".join(_spent(part, part.spent))
    if part.to_target is not None:
        yield "to the target", money(part.to_target, part.currency)
    others = [
        f"{each.name} {money(each.usd, part.currency)}"
        for each in part.otherwise
        if each.usd is not None
    ]
    if others:
        yield "otherwise", f"{', '.join(others)}; the report says what each assumes"


def _spent(part: MoneyPart, spent: float) -> Iterator[str]:
    yield money(spent, part.currency)
    for pool, amount in part.by_pool.items():
        yield f"{pool} {money(amount, part.currency)}"
    if part.per_iteration is not None:
        yield f"{money(part.per_iteration, part.currency)} an iteration"
    if part.unpriced_s > 0:
        yield f"and {duration(part.unpriced_s)} of worker time without a price"
