"""Who takes part on a market: what each trains on and needs to the target, from runs that are kept,
and how fast it goes with any number of spot nodes.

A rival's samples and updates do not depend on how long things take, so its kept runs are timed
again by the clocks of `benchmarks.exploration.clocks`. What Spotlight trains on does depend on the
spot GPUs that there are, so its paces are those of its own runs with 0, 2, 4, 8 and 16 of them, on
straight lines between these. The target and what counts as having arrived are those of
`benchmarks.exploration`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean

import msgspec

from benchmarks.exploration.cases import FIRST_SEED, PROFILES, SOL_RL_SPLIT, Case
from benchmarks.exploration.clocks import (
    Clock,
    Fleet,
    Work,
    beside,
    denoised_at,
    elastic,
    in_turn,
    spot_waits,
    work_of,
)
from benchmarks.exploration.kept_runs import Run
from benchmarks.exploration.ladder import LADDER
from benchmarks.exploration.ratios import Arrival, arrival
from benchmarks.exploration.rivals import OURS, RESERVED_GPUS
from benchmarks.exploration.settings import GPUS_OF_SPOT_NODE
from benchmarks.exploration.testbed_runs import VirtualRuns, curve_of
from benchmarks.markets.real_runs import MarketRun, MarketRuns
from benchmarks.time_to_target import LEVELS, Curve, milestones, smoothed
from spotlight.errors import UserError
from spotlight_simulation.market import rivals
from spotlight_simulation.market.batch_model import Pace, System
from spotlight_simulation.market.schedule import Schedule
from spotlight_simulation.profile import load_profile

TASKS = ("ocr", "compositional")
SEEDS = tuple(range(FIRST_SEED, FIRST_SEED + 8))
POOLS = (4, 8)
"""The spot nodes that are asked for: 8 and 16 GPUs, two and four for each reserved one."""
MEASURED_NODES = (0, 1, 2, 4, 8)
"""With so many spot nodes there are runs of Spotlight."""
_NODES_OF_TESTBED = 4
_NEVER = 2.0
"""A run of Spotlight that never arrives counts as one that takes twice its iterations."""

SPOTLIGHT = "spotlight"
RESERVED = "reserved"


class Learned(msgspec.Struct, frozen=True):
    """What came of the runs of one job, by seed."""

    work: Work
    """An iteration."""
    iterations: Mapping[int, Arrival]
    """When each was at the target, in iterations instead of seconds."""
    ways: Mapping[int, Curve]
    """The share of the way to the target by iterations, smoothed."""


class Entrant(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train."""

    title: str
    learned: Learned
    system: Callable[[Schedule], System]
    """The system, with the best settings for a schedule where it has any."""
    is_ours: bool = False
    """Whether it is Spotlight, whose run that never arrives counts as late, not as arriving."""

    def iterations(self, seed: int) -> float:
        """How many it takes to the target; at least so many where a rival never arrived."""
        at = self.learned.iterations[seed]
        return at.seconds * (_NEVER if self.is_ours and not at.arrived else 1.0)


class Measured(msgspec.Struct, frozen=True):
    """A pace of Spotlight, and of how many seeds it is."""

    pace: Pace
    seeds: int


class Kept:
    """All that was learned on a task, read from the runs that are kept."""

    def __init__(self, folder: Path, task: str) -> None:
        self._runs = VirtualRuns(folder, quick=False)
        self._market_runs = MarketRuns(folder)
        self.task = task
        self._profile = load_profile(PROFILES[SOL_RL_SPLIT])
        self.samples = Case(task=task, rival=OURS, seed=FIRST_SEED).job().samples_per_iteration
        """How many samples Spotlight trains on in an iteration."""

    def of(self, case: Case) -> Learned:
        """The runs of all seeds. Raises `UserError` if there are none."""
        found = {}
        for seed in SEEDS:
            run = self._runs.read(msgspec.structs.replace(case, seed=seed))
            if run is not None:
                found[seed] = run
        return self._learned(case, found)

    def with_nodes(self, nodes: int) -> dict[int, Run]:
        """The runs of Spotlight with so many spot nodes, by seed; none may be kept."""
        runs = {seed: self._run(seed, nodes) for seed in SEEDS}
        return {seed: run for seed, run in runs.items() if run is not None}

    def _run(self, seed: int, nodes: int) -> Run | None:
        case = Case(task=self.task, rival=OURS, seed=seed, spot_gpus=nodes * GPUS_OF_SPOT_NODE)
        made = self._runs.read(case)
        if made is not None or nodes == _NODES_OF_TESTBED:
            return made
        return self._market_runs.read(MarketRun(task=self.task, seed=seed, nodes=nodes))

    def levels(self, seed: int) -> dict[int, float]:
        """The scores at the levels of the reference's way."""
        reference = self._runs.read(Case(task=self.task, rival=OURS, seed=seed).reference)
        return milestones(curve_of(reference)) if reference else {}

    def _learned(self, case: Case, runs: Mapping[int, Run]) -> Learned:
        if not runs:
            raise UserError(f"{case.name}: no run is kept")
        iterations, ways = {}, {}
        for seed, run in runs.items():
            levels = self.levels(seed)
            curve = [(float(version), score) for _, version, score in run["validation"]]
            iterations[seed] = arrival(curve, levels[LEVELS[-1]])
            ways[seed] = _way(curve, levels)
        made = fmean(map(previews, runs.values()))
        job = msgspec.structs.replace(case, seed=min(runs)).job()
        return Learned(work_of(job, self._profile, made), iterations, ways)

    def measured(self) -> dict[int, Measured]:
        """Spotlight's paces, by spot nodes, of those that there are runs with. What an iteration is
        worth is how many fewer it takes to the target than on the test-bed, in the seeds of which
        there are both; geometric means."""
        usual = self.with_nodes(_NODES_OF_TESTBED)
        found = {}
        for nodes in MEASURED_NODES:
            runs = self.with_nodes(nodes)
            both = sorted(runs.keys() & usual.keys())
            if not both:
                continue
            worths = [self.late(usual[seed], seed) / self.late(runs[seed], seed) for seed in both]
            pace = Pace(
                geometric_mean([iteration_s(runs[seed]) for seed in both]),
                geometric_mean(worths),
                fmean(previews(runs[seed]) for seed in both) / self.samples,
            )
            found[nodes] = Measured(pace, len(both))
        return found

    def paces(self, nodes: int) -> list[Pace]:
        """Spotlight's, with no spot node up to so many. Raises `UserError` if the ends were not
        measured."""
        measured = {count: one.pace for count, one in self.measured().items()}
        for end in (0, nodes):
            if end not in measured:
                raise UserError(
                    f"{self.task}: no run with {end} spot nodes is kept; make one with `python -m"
                    f" benchmarks.markets.real_runs --task {self.task} --nodes {end}"
                    f" --seed {FIRST_SEED}`"
                )
        return [between(measured, count) for count in range(nodes + 1)]

    def late(self, run: Run, seed: int) -> float:
        """How many iterations a run of Spotlight takes to the target."""
        curve = [(float(version), score) for _, version, score in run["validation"]]
        at = arrival(curve, self.levels(seed)[LEVELS[-1]])
        return at.seconds * (1.0 if at.arrived else _NEVER)


def entrants(kept: Kept, nodes: int) -> dict[str, Entrant]:
    """All that take part where so many spot nodes are asked for, by name, Spotlight first. Raises
    `UserError`, which says what is missing."""
    ours = kept.of(Case(task=kept.task, rival=OURS, seed=0))
    published = kept.of(Case(task=kept.task, rival="published", seed=0))
    learned = {
        name: kept.of(next(iter(LADDER[name].cases(kept.task).values())))
        for name in ("reserved", "rollouts", "pipelined", "data-parallel")
    }
    paces = kept.paces(nodes)
    found = {
        SPOTLIGHT: _ours("Spotlight", ours, rivals.elastic("spotlight", RESERVED_GPUS, paces)),
        "no-elastic-groups": _ours(
            "Spotlight without elastic SP groups",
            ours,
            rivals.without_elastic_groups("no-elastic-groups", RESERVED_GPUS, paces),
        ),
        "no-commits": _ours(
            "Spotlight without commits",
            ours,
            rivals.without_commits(
                "no-commits", RESERVED_GPUS, paces, preview_s=ours.work.denoise_s
            ),
        ),
        "no-exploration": _fixed(
            "Spotlight without exploration",
            learned["pipelined"],
            rivals.elastic(
                "no-exploration", RESERVED_GPUS, _paces(beside, learned["pipelined"].work, nodes)
            ),
        ),
        "training-spot": _ours(
            "Spotlight whose spot GPUs train, too (by formula)",
            ours,
            rivals.elastic("training-spot", RESERVED_GPUS, _training_paces(ours.work, paces)),
        ),
        "spotlight-on-demand": _ours(
            "Spotlight, all on demand",
            ours,
            rivals.on_demand("spotlight-on-demand", _gpus(nodes), paces[-1]),
        ),
        RESERVED: _fixed(
            "the reserved GPUs alone",
            learned["reserved"],
            rivals.on_demand(
                RESERVED,
                RESERVED_GPUS,
                _pace(in_turn, learned["reserved"].work, Fleet(RESERVED_GPUS, 0)),
            ),
        ),
    }
    for name, title, one, clock in (
        ("published-on-demand", "the published recipe, on demand", published, in_turn),
        (
            "data-parallel-on-demand",
            "data-parallel training, on demand",
            learned["data-parallel"],
            in_turn,
        ),
        ("rollouts-on-demand", "rollouts, on demand", learned["rollouts"], spot_waits),
        (
            "pipelined-on-demand",
            "rollouts one step behind, on demand",
            learned["pipelined"],
            beside,
        ),
    ):
        fleet = Fleet(RESERVED_GPUS, nodes * GPUS_OF_SPOT_NODE)
        pace = _pace(clock, one.work, fleet)
        found[name] = _fixed(title, one, rivals.on_demand(name, fleet.gpus, pace))
    return found | _on_spot(learned, nodes)


def _on_spot(learned: Mapping[str, Learned], nodes: int) -> dict[str, Entrant]:
    """Rivals on the market."""
    together = learned["data-parallel"]
    train = _paces(in_turn, together.work, nodes)
    gpus = _gpus(nodes)
    waited, behind = learned["rollouts"], learned["pipelined"]
    batch_s = denoised_at(waited.work, [0.0] * gpus)
    with_spot = _paces(spot_waits, waited.work, nodes)
    pipelined = _paces(beside, behind.work, nodes)
    # A lost batch is made again in the time that spot GPUs have to spare, if that is enough.
    spare_s = pipelined[-1].iteration_s - 2 * denoised_at(behind.work, [0.0] * (gpus - 4))
    late = 1.0 if spare_s < rivals.COSTS["torchrun notices"].seconds else 0.0
    return {
        "rollouts-on-spot": _fixed(
            "rollouts on spot",
            waited,
            rivals.lost_batches(
                "rollouts-on-spot",
                RESERVED_GPUS,
                with_spot,
                batch_s=batch_s,
                share=batch_s / with_spot[-1].iteration_s,
            ),
        ),
        "pipelined-on-spot": _fixed(
            "rollouts one step behind, on spot",
            behind,
            rivals.lost_batches(
                "pipelined-on-spot",
                RESERVED_GPUS,
                pipelined,
                batch_s=behind.work.denoise_s,
                share=late,
            ),
        ),
        "torchrun-on-spot": Entrant(
            title="data-parallel training on reserved and spot, torchrun",
            learned=together,
            system=lambda schedule: rivals.torchrun(
                "torchrun-on-spot", RESERVED_GPUS, train, schedule
            ),
        ),
        "torchft-on-spot": _fixed(
            "the same, torchft",
            together,
            rivals.torchft(
                "torchft-on-spot",
                RESERVED_GPUS,
                train,
                update_s=together.work.train_s / together.work.updates / gpus,
            ),
        ),
        "torchft-on-spot-alone": _fixed(
            "the same, torchft, without reserved GPUs",
            together,
            rivals.torchft(
                "torchft-on-spot-alone",
                0,
                _paces(in_turn, together.work, nodes, reserved=0),
                update_s=together.work.train_s / together.work.updates / (gpus - RESERVED_GPUS),
            ),
        ),
        "from-memory-on-spot": _fixed(
            "the same, state kept in memory by the others",
            together,
            rivals.from_memory(
                "from-memory-on-spot", RESERVED_GPUS, train, iteration_s=train[-1].iteration_s
            ),
        ),
    }


def _ours(title: str, learned: Learned, system: System) -> Entrant:
    return Entrant(title=title, learned=learned, system=lambda _: system, is_ours=True)


def _fixed(title: str, learned: Learned, system: System) -> Entrant:
    return Entrant(title=title, learned=learned, system=lambda _: system)


def _gpus(nodes: int) -> int:
    return RESERVED_GPUS + nodes * GPUS_OF_SPOT_NODE


def _pace(clock: Clock, work: Work, fleet: Fleet) -> Pace:
    return Pace(clock(work, fleet))


def _paces(clock: Clock, work: Work, nodes: int, *, reserved: int = RESERVED_GPUS) -> list[Pace]:
    """With no spot node up to so many; without any GPU nothing is done."""
    fleets = [Fleet(reserved, count * GPUS_OF_SPOT_NODE) for count in range(nodes + 1)]
    return [_pace(clock, work, fleet) if fleet.gpus else Pace(math.inf) for fleet in fleets]


def _training_paces(work: Work, paces: Sequence[Pace]) -> list[Pace]:
    """With as many previews as a pool of some smaller number of nodes makes, whichever is best,
    while the others compute gradients."""
    samples = work.rows * work.updates // _ROWS_OF_A_SAMPLE
    found = list(paces[:1])
    for nodes in range(1, len(paces)):
        fleet = Fleet(RESERVED_GPUS, nodes * GPUS_OF_SPOT_NODE)
        choices = [paces[nodes]]
        for pace in paces[1 : nodes + 1]:
            has = msgspec.structs.replace(work, denoised=pace.previews * samples)
            choices.append(Pace(elastic(has, fleet), pace.worth, pace.previews))
        found.append(max(choices, key=lambda pace: pace.rate))
    return found


_ROWS_OF_A_SAMPLE = 4
"""Flow times that a sample is trained at in all jobs of Spotlight here."""


def between(measured: Mapping[int, Pace], nodes: int) -> Pace:
    """On straight lines between those that were measured."""
    below = max(count for count in measured if count <= nodes)
    above = min((count for count in measured if count >= nodes), default=below)
    share = (nodes - below) / (above - below) if above > below else 0.0
    low, high = measured[below], measured[above]
    return Pace(
        *(
            getattr(low, name) + share * (getattr(high, name) - getattr(low, name))
            for name in ("iteration_s", "worth", "previews")
        )
    )


def _way(curve: Curve, levels: Mapping[int, float]) -> Curve:
    """The levels are a quarter, half and so on of the way of the reference, so that any two of them
    give the score of its beginning."""
    lowest, target = levels[LEVELS[0]], levels[LEVELS[-1]]
    first = lowest - (target - lowest) * LEVELS[0] / (LEVELS[-1] - LEVELS[0])
    return smoothed([(at, (score - first) / (target - first)) for at, score in curve])


def iteration_s(run: Run) -> float:
    """The mean time of its iterations. [s]"""
    (began_s, first, _), (ended_s, last, _) = run["validation"][0], run["validation"][-1]
    return float((ended_s - began_s) / (last - first))


def previews(run: Run) -> float:
    """How many there are in an iteration; the first one has none."""
    return float(run["totals"]["previews"] / max(1, run["iterations"] - 1))


def job_s(learned: Learned, system: System) -> float:
    """The time to the target with all nodes, a geometric mean over seeds. [s]"""
    at = [each.seconds for each in learned.iterations.values()]
    return geometric_mean(at) * system.paces[-1].iteration_s


def seeds_of(everybody: Iterable[Entrant]) -> Sequence[int]:
    """Those of which all have runs."""
    return sorted(set.intersection(*(set(each.learned.iterations) for each in everybody)))
