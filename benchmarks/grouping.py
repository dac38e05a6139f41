"""What planning SP groups costs and loses: `python -m benchmarks.grouping --json`.

Seconds to plan 2,000 nodes of 8 members: from nothing, and after one member is lost. And the work
that plans finish before the phase ends, divided by the most that any division of the nodes into
groups finishes, over random small clusters of up to three nodes of 8 members, which are too many
divisions for the policy to compare them all. A plan may be 5 % below the best.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from itertools import product

from benchmarks.report import Report
from spotlight.policies.grouping.partition import Mix, mixes
from spotlight.policies.grouping.plan import SPAN_FACTOR, Place, WorkClass, plan_groups
from spotlight.policies.grouping.throughput import GroupKind, Outlook

DEGREES = (8, 4, 2, 1)


def main() -> None:
    """Measure and print."""
    report = Report("grouping", __doc__, minutes=2)
    report.begin()
    report.add(_ratios(random.Random(0), report.times(60, quick=5)))
    report.add(_plan_times(report.times(5, quick=1)))
    report.finish()


def _plan_times(rounds: int) -> dict[str, float | int]:
    members = [place for number in range(2000) for place in _node(f"n{number:04}", 8)]
    first, again, moved = [], [], 0
    for batches, seconds_left in ((10, None), (3_000, None), (1_000_000, None), (1_000_000, 7.0)):
        work = [_work(batches, 0.1, 20)]
        for _ in range(rounds):
            start = time.perf_counter()
            groups = plan_groups(members, work, seconds_left=seconds_left)
            planned = time.perf_counter()
            after = plan_groups(members[1:], work, seconds_left=seconds_left, current=groups)
            again.append(time.perf_counter() - planned)
            first.append(planned - start)
            moved = max(moved, len(set(groups) - set(after)))
    return {
        "members": len(members),
        "plan_s": round(statistics.median(first), 4),
        "plan_s_most": round(max(first), 4),
        "plan_again_s": round(statistics.median(again), 4),
        "groups_changed_by_one_loss_most": moved,
    }


def _ratios(rng: random.Random, clusters: int) -> dict[str, float | int]:
    ratios = []
    for _ in range(clusters):
        nodes = [rng.randint(4, 8) for _ in range(3)]
        work = [_work(rng.randint(1, 200), rng.choice([0.02, 0.1, 0.3]), rng.randint(10, 40))]
        seconds_left = rng.uniform(2, 100)
        outlook = Outlook(work, seconds_left, SPAN_FACTOR)
        most = max(
            _finished(_kinds(chosen), outlook, seconds_left)
            for chosen in product(*(mixes(count, DEGREES) for count in nodes))
        )
        members = [p for name, count in zip("abc", nodes, strict=True) for p in _node(name, count)]
        plan = plan_groups(members, work, seconds_left=seconds_left)
        home = {place.name: place.node for place in members}
        kinds = Counter(
            GroupKind(len(group), len({home[name] for name in group}) > 1) for group in plan
        )
        if most:
            ratios.append(_finished(kinds, outlook, seconds_left) / most)
    return {
        "small_clusters": len(ratios),
        "finished_vs_exact_mean": round(statistics.fmean(ratios), 4),
        "finished_vs_exact_least": round(min(ratios), 4),
    }


def _finished(kinds: Counter[GroupKind], outlook: Outlook, seconds_left: float) -> float:
    """Work that ends with the phase at the latest; everything at most."""
    return min(outlook.batches, outlook.score(kinds).rate * seconds_left)


def _kinds(chosen: tuple[Mix, ...]) -> Counter[GroupKind]:
    kinds: Counter[GroupKind] = Counter()
    for mix in chosen:
        for degree, count in mix:
            kinds[GroupKind(degree, False)] += count
    return kinds


def _node(name: str, members: int) -> list[Place]:
    return [Place(f"{name}/{index}", name, "spot") for index in range(members)]


def _work(batches: int, share: float, steps: int) -> WorkClass:
    """A step of one member takes 1 s; `share` of it gains nothing from more members."""
    return WorkClass(batches, steps, {d: (1 - share) / d + share for d in DEGREES})


if __name__ == "__main__":
    main()
