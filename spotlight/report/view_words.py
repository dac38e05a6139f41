"""The main figures of a view in words: what can be read of a report without its script."""

from __future__ import annotations

from spotlight.report.formatting import count, duration, percent, score
from spotlight.report.run_view import MoneyPart, PoolPart, RunView

_USEFUL = ("rollout", "explore", "train", "score", "evaluate")


def main_figures(view: RunView) -> list[tuple[str, str]]:
    """(what, its value) in the order of what matters most."""
    job, validation = view.job, view.validation
    why = f": {job.reason}" if job.reason else ""
    said = [
        ("Outcome", f"{job.outcome}{why}"),
        ("Iterations", f"{job.iteration} of {job.iterations} in {duration(job.time_s)}"),
    ]
    if validation.latest is not None:
        best = f"best {score(validation.best)}"
        said.append(
            ("Validation", f"{score(validation.first)} to {score(validation.latest)}, {best}")
        )
    if validation.target is not None:
        left = validation.seconds_left
        when = "" if left is None else f", {duration(left)} left" if left else ", reached"
        said.append(("Target", f"{score(validation.target)}{when}"))
    said.append(("Spent", spent(view.money)))
    said += [(f"{pool.capitalize()} time", _pool(part)) for pool, part in view.pools.items()]
    if view.exploration.sentence:
        said.append(("Exploration", view.exploration.sentence))
    return said


def money(amount: float, currency: str = "USD") -> str:
    """`$347.57`, or `12.00 EUR`; what is less than a cent does not become nothing."""
    digits = 2 if amount >= 1 or amount == 0 else 4
    return f"${amount:,.{digits}f}" if currency == "USD" else f"{amount:,.{digits}f} {currency}"


def spent(part: MoneyPart) -> str:
    """What the run has cost, and of how much time the price is not known."""
    unpriced = f"{duration(part.unpriced_s)} of worker time unpriced" if part.unpriced_s else ""
    if part.spent is None:
        return unpriced or "not priced"
    each = part.per_iteration
    said = [money(part.spent, part.currency)]
    if each is not None:
        said.append(f"{money(each, part.currency)} an iteration")
    said += [
        f"{one.name} {money(one.usd, part.currency)}"
        for one in part.otherwise
        if one.usd is not None
    ]
    return ", ".join([*said, *filter(None, [unpriced])])


def _pool(part: PoolPart) -> str:
    total = sum(part.seconds.values())
    if not total:
        return "none"
    shares = sorted(part.seconds.items(), key=lambda item: -item[1])
    used = sum(part.seconds.get(state, 0.0) for state in _USEFUL)  # type: ignore[call-overload]
    most = ", ".join(f"{percent(seconds / total)} {state}" for state, seconds in shares[:4])
    return f"{percent(used / total)} used ({most}), {count(part.workers, 'worker')}"
