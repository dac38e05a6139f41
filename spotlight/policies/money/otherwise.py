"""What the same run would have cost otherwise, each with what is assumed.

All are kind to the other way: nothing is lost to starting, to losses or to waiting, and it needs no
more iterations than this run did, although exploration is there to need fewer. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from spotlight.policies.money.bill import Account, account, mean_price, on_demand
from spotlight.record.ledger import NodeBill

_MS_PER_HOUR = 3_600_000
_NEEDED = ("rollout", "evaluate")
"""States that a run without exploration has just the same."""


@dataclass(frozen=True)
class Otherwise:
    """What the run would have cost so; None if that cannot be said, for the reason that stands
    there instead of an assumption."""

    name: str
    cost: Fraction | None
    assumption: str


@dataclass(frozen=True)
class Work:
    """What a run has done, by its metrics; sums over its iterations."""

    train_s: float = 0.0
    """Time in which reserved GPUs trained."""
    samples: int = 0
    """Those that were trained on."""
    reused: int = 0
    """How many of these were previews."""
    previews: int = 0

    def plus(self, *, train_s: float, samples: int, reused: int, previews: int) -> Work:
        """This, and one more iteration."""
        return Work(
            self.train_s + train_s,
            self.samples + samples,
            self.reused + reused,
            self.previews + previews,
        )


def otherwise(bills: Sequence[NodeBill], work: Work, time_s: float) -> tuple[Otherwise, ...]:
    """All of them. `time_s` is the run time."""
    paid = account(bills)
    if paid.spent is None:
        return ()
    return (
        _on_demand(bills),
        _reserved_only(bills, paid, work, time_s),
        _data_parallel(bills, paid, work, of_spot=False),
        _data_parallel(bills, paid, work, of_spot=True),
    )


def _on_demand(bills: Sequence[NodeBill]) -> Otherwise:
    cost = on_demand(bills)
    return Otherwise(
        "on demand",
        cost,
        "The same nodes for the same time, each at its price on demand; a run that loses no node"
        " would have been a little shorter."
        if cost is not None
        else _UNKNOWN_DEMAND,
    )


def _reserved_only(
    bills: Sequence[NodeBill], paid: Account, work: Work, time_s: float
) -> Otherwise:
    name, price = "reserved nodes only", mean_price(bills, "reserved")
    if price is None:
        return Otherwise(name, None, "Cannot be said: not all time of reserved GPUs has a price.")
    if not work.samples or time_s <= 0:
        return Otherwise(name, None, _TOO_EARLY)
    reserved_ms = paid.total_ms("reserved")
    training_ms = min(Fraction(work.train_s) / Fraction(time_s), Fraction(1)) * reserved_ms
    cost = price * (training_ms + _needed_ms(paid, work)) / _MS_PER_HOUR
    return Otherwise(
        name,
        cost,
        "The same iterations without exploration: the reserved GPUs train for as long as they did,"
        " and then make all samples and validations themselves as fast as GPUs made them here; that"
        " more iterations are needed without chosen seeds is not counted.",
    )


def _data_parallel(
    bills: Sequence[NodeBill], paid: Account, work: Work, *, of_spot: bool
) -> Otherwise:
    name = "data-parallel on spot" if of_spot else "data-parallel on demand"
    prices = [mean_price(bills, "spot", demand=not of_spot)]
    if not of_spot:
        prices.append(mean_price(bills, "reserved", demand=True))
    known = [price for price in prices if price is not None]
    is_known = len(known) == len(prices) or (not of_spot and _is_of_one_pool(bills, known))
    if not is_known:
        unknown = "Cannot be said: not all time of spot GPUs has a price."
        return Otherwise(name, None, unknown if of_spot else _UNKNOWN_DEMAND)
    if not work.samples:
        return Otherwise(name, None, _TOO_EARLY)
    price = sum(known, Fraction()) / len(known)
    cost = price * (_needed_ms(paid, work) + paid.worked_ms(("train",))) / _MS_PER_HOUR
    where = "spot nodes of which none is lost" if of_spot else "on-demand nodes"
    return Otherwise(
        name,
        cost,
        f"The same iterations without exploration on {where} that all train and roll out, with the"
        " GPU time that training and samples took here divided among them without loss; that more"
        " iterations are needed without chosen seeds is not counted.",
    )


def _is_of_one_pool(bills: Sequence[NodeBill], known: Sequence[Fraction]) -> bool:
    """Whether only one pool was used, whose price is known."""
    pools = {bill.pool for bill in bills if any(map(bool, bill.times.values()))}
    return len(pools) == 1 and len(known) == 1


def _needed_ms(paid: Account, work: Work) -> Fraction:
    """GPU time of samples and validations that a run without exploration needs as well. Of scoring,
    and of previews that are trained on, it is their share."""
    rolled_out = max(work.samples - work.reused, 0)
    made = rolled_out + work.previews
    scored = Fraction(rolled_out + work.reused, made) if made else Fraction(1)
    reused = Fraction(work.reused, work.previews) if work.previews else Fraction(0)
    return (
        Fraction(paid.worked_ms(_NEEDED))
        + min(scored, Fraction(1)) * paid.worked_ms(("score",))
        + min(reused, Fraction(1)) * paid.worked_ms(("explore",))
    )


_UNKNOWN_DEMAND = (
    "Cannot be said: the price on demand of some GPUs is not known; say it as `prices.on_demand`."
)
_TOO_EARLY = "Cannot be said before an iteration is over."
