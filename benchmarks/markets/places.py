"""The markets that everybody is run on, and the prices.

Traces that may be redistributed ship with Spotlight. Others are read from a folder of public traces
where there is one, laid out as their authors' repositories; without it they are left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from spotlight_simulation.market.batch_model import unrolled
from spotlight_simulation.market.price_tables import read_prices
from spotlight_simulation.market.readers import SHIPPED, read_trace
from spotlight_simulation.market.schedule import Schedule
from spotlight_simulation.market.trace import Trace

SHARED = Path(__file__).parents[3] / "shared" / "data" / "spot-traces"
"""Where public traces lie that state no licence."""
STARTS = 6
"""Runs begin at so many moments of each market, equally far from each other."""
LONGEST_S = 400 * 3600.0
"""Who is not at the target by then never is. [s]"""

PAPER = read_prices("paper-73")
"""The middle of what the paper of Spotlight says; of the price itself no ratio depends."""
NO_DISCOUNT = "no discount"
PRICES = (
    PAPER,
    *map(read_prices, ("aws-p5", "gcp-2025-10", "gcp-2026-09")),
    msgspec.structs.replace(PAPER, name=NO_DISCOUNT, spot_per_gpu_hour=PAPER.reserved_per_gpu_hour),
)
"""The last is what two zones of us-east-1 asked for a p5.48xlarge when the others had discounts."""


class Place(msgspec.Struct, frozen=True):
    """A market."""

    name: str
    trace: Trace

    def schedules(self, nodes: int) -> list[Schedule]:
        """One for each start, of a pool that asks for so many nodes; as many as the market ever had
        where those are fewer."""
        pool = min(nodes, self.trace.places)
        trace = self.trace.without_holes()
        found = []
        for number in range(STARTS):
            if pool:
                drawn = trace.schedule(
                    pool=pool, generator=random.Random(f"{self.name} {number}"), notice_s=0.0
                )
            else:
                drawn = Schedule(
                    market=self.name,
                    is_held=trace.is_held,
                    pool=nodes,
                    seconds=trace.seconds,
                    stays=(),
                )
            start_s = trace.seconds * number / STARTS
            found.append(unrolled(drawn, start_s=start_s, seconds=LONGEST_S))
        return found

    def is_large(self, nodes: int) -> bool:
        """Whether so many nodes could have been had there, or fewer were given of so many."""
        return self.trace.places >= nodes or nodes <= _ASKED_FOR

    @property
    def share(self) -> float:
        """The share of the nodes that were there, on average."""
        trace = self.trace.without_holes()
        asked_for = max(trace.places, _ASKED_FOR)
        return trace.mean_nodes() / asked_for


_ASKED_FOR = 4
"""The smallest number of nodes that a trace asked for, of those that are used here."""
BAMBOO = ("p3-trace", "g4dn-trace", "gcp-a100x1-us-east1b", "gcp-v100x1-us-east1c")
_ZONES = "skynomad/h100_16_launchable_counts.csv"
_NOT_SHIPPED = (
    "spothedge/GCP1/*.json",
    "skypilot/preemption/4-node/*/*.json",
    "skypilot/availability/16-node/*/*.json",
)


def places(shared: Path = SHARED) -> Iterator[Place]:
    """All markets with four nodes or more; first those whose nodes were held until they were taken.
    Parts of other traces, and made-up ones, are left out."""
    probes = []
    for name in BAMBOO:
        yield Place(f"bamboo/{name}", read_trace(SHIPPED / "bamboo" / f"{name}.csv"))
    for pattern in _NOT_SHIPPED:
        for file in sorted(shared.glob(pattern)):
            trace = read_trace(file)
            place = Place("/".join((*Path(pattern).parts[:2], file.stem)), trace)
            if trace.is_held:
                yield place
            else:
                probes.append(place)
    header = (SHIPPED / _ZONES).read_text().partition("\n")[0]
    yield from probes
    for zone in header.split(",")[1:]:
        yield Place(f"skynomad/{zone}", read_trace(SHIPPED / _ZONES, zone))
