"""What a run may cost, and how it stands with that. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from spotlight.policies.money.words import money

WARNS_AT = 0.8


class Standing(NamedTuple):
    """One of the budgets, of which much or all is used."""

    field: str
    """The field of the job, such as `budget.usd`."""
    is_spent: bool
    text: str


@dataclass(frozen=True)
class Budget:
    """Limits of a run; None: there is none."""

    usd: float | None = None
    hours: float | None = None
    currency: str = "USD"

    def limit(self, field: str) -> float:
        """That of a field, such as `budget.usd`."""
        return (self.usd if field == "budget.usd" else self.hours) or 0.0

    def standings(self, spent: float | None, time_s: float) -> list[Standing]:
        """The budgets of which much or all is used, those that are spent first.

        Args:
            spent: what the priced time has cost; None if nothing is priced.
            time_s: run time.
        """
        found = sorted(self._used(spent, time_s), key=lambda used: -used[1])
        return [
            Standing(
                field,
                share >= 1,
                f"{said} of `{field}` {'are spent' if share >= 1 else 'are used'}",
            )
            for field, share, said in found
            if share >= WARNS_AT
        ]

    def _used(self, spent: float | None, time_s: float) -> Iterator[tuple[str, float, str]]:
        if self.usd is not None and spent is not None:
            limit = money(self.usd, self.currency)
            yield "budget.usd", spent / self.usd, f"{money(spent, self.currency)} of the {limit}"
        if self.hours is not None:
            hours = time_s / 3600
            yield "budget.hours", hours / self.hours, f"{hours:.3g} h of the {self.hours:g} h"


def _used_up(share: float) -> str:
    return "spent" if share >= 1 else "used"


def how_to_go_on(field: str, run: str) -> str:
    """What to type to go on with a run that has spent a budget."""
    return f"raise it to go on: spotlight resume {run} --set {field}=..."
