"""Who takes part on a market: what each trains on and needs to the target, from runs that are kept,
and how fast it goes with any number of spot nodes.

A rival's samples and updates do not depend on how long things take, so its kept runs are timed
again by the clocks of `benchmarks.exploration.clocks`. What Spotlight trains on does depend on the
spot GPUs that there are, so its paces are those of its own runs with 0, 2, 4, 8 and 16 of them, on
straight lines between these. The target and what counts as having arrived are those of
`benchmarks.exploration`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean

import msgspec

from benchmarks.exploration.cases import FIRST_SEED, PROFILES, SOL_RL_SPLIT, Case
from benchmarks.exploration.clocks import (
    Fleet,
    Work,
    beside,
    denoised_at,
    elastic,
    in_turn,
    in_turn_with_previous_weights,
    spot_waits,
    work_of,
)
from benchmarks.exploration.kept_runs import Run
from benchmarks.exploration.ladder import LADDER
from benchmarks.exploration.ratios import Arrival, arrival
from benchmarks.exploration.rivals import OURS, RESERVED_GPUS
from benchmarks.exploration.settings import GPUS_OF_SPOT_NODE
from benchmarks.exploration.testbed_runs import VirtualRuns, curve_of
from benchmarks.markets.paces import best_paces, between, faster, fleets, less_trainers, timed
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
"""The numbers of spot nodes that there may be runs of Spotlight with."""
_NODES_OF_TESTBED = 4
NEVER = 2.0
"""A run of Spotlight that never arrives counts as one that takes twice its iterations."""

NO_MARKET = Schedule(market="none", is_held=True, pool=1, seconds=1.0, stays=())
"""A schedule for those whom none concerns."""

SPOTLIGHT = "spotlight"
ALL_ON_SPOT = "spotlight-on-spot-alone"
RESERVED = "reserved"


class Learned(msgspec.Struct, frozen=True):
    """What came of the runs of one job, by seed."""

    work: Work
    """What there is to do in an iteration."""
    iterations: Mapping[int, Arrival]
    """When each was at the target, in iterations instead of seconds."""
    ways: Mapping[int, Curve]
    """The share of the way to the target by iterations, smoothed."""


class Entrant(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train."""

    title: str
    learned: Learned
    with_system: System | Callable[[Schedule], System]
    """The system, or what it is with the best settings for a schedule."""
    is_ours: bool = False
    """Whether it is Spotlight, whose run that never arrives counts as late, not as arriving."""

    @property
    def name(self) -> str:
        """The name of its system."""
        return self.system(NO_MARKET).name

    def system(self, schedule: Schedule) -> System:
        """The system, with the best settings for a schedule."""
        return (
            self.with_system if isinstance(self.with_system, System) else self.with_system(schedule)
        )

    def iterations(self, seed: int) -> float:
        """How many it takes to the target; at least so many where a rival never arrived."""
        at = self.learned.iterations[seed]
        return at.seconds * (NEVER if self.is_ours and not at.arrived else 1.0)


class Measured(msgspec.Struct, frozen=True):
    """A pace of Spotlight, and of how many seeds it is."""

    pace: Pace
    seeds: int


class Kept:
    """All that was learned on a task, read from the runs that are kept."""

    def __init__(self, folder: Path, task: str, split: str = SOL_RL_SPLIT) -> None:
        """`split` is the name of the profile by which runs are timed again."""
        self._runs = VirtualRuns(folder, quick=False)
        self._market_runs = MarketRuns(folder)
        self.task = task
        self._profile = load_profile(PROFILES[split])
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
            ways[seed] = way(curve, levels)
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

    def paces_by_formula(self, work: Work, nodes: int) -> list[Pace]:
        """The same on the split of the profile: with as many previews of those that runs had as are
        best, which training waits for where they are not made beside it."""
        measured = [one.pace for one in self.measured().values()]
        return best_paces(beside, work, measured, fleets(nodes))

    def late(self, run: Run, seed: int) -> float:
        """How many iterations a run of Spotlight takes to the target."""
        curve = [(float(version), score) for _, version, score in run["validation"]]
        at = arrival(curve, self.levels(seed)[LEVELS[-1]])
        return at.seconds * (1.0 if at.arrived else NEVER)


def entrants(kept: Kept, nodes: int, *, by_formula: bool = False) -> dict[str, Entrant]:
    """All that take part where so many spot nodes are asked for, by name, Spotlight first, with its
    paces as measured or by formula. Raises `UserError`, which says what is missing."""
    learned = {
        name: kept.of(next(iter(LADDER[name].cases(kept.task).values())))
        for name in ("reserved", "rollouts", "pipelined", "data-parallel")
    }
    learned["published"] = kept.of(Case(task=kept.task, rival="published", seed=0))
    chosen = kept.of(Case(task=kept.task, rival=OURS, seed=0))
    paces = kept.paces_by_formula(chosen.work, nodes) if by_formula else kept.paces(nodes)
    every = [
        *_ours(chosen, paces),
        *_all_choose(chosen, paces),
        _without_exploration(learned["pipelined"], nodes),
        *_on_demand(learned, nodes),
        *_rollouts_on_spot(learned["rollouts"], learned["pipelined"], nodes),
        *_training_on_spot(learned["data-parallel"], nodes),
    ]
    return {one.name: one for one in every}


def _ours(learned: Learned, paces: Sequence[Pace]) -> Iterator[Entrant]:
    """Spotlight, and the same without one of its techniques."""
    preview_s = learned.work.denoise_s
    nodes = len(paces) - 1
    on_demand = RESERVED_GPUS + nodes * GPUS_OF_SPOT_NODE

    def all_on_spot(schedule: Schedule) -> System:
        return rivals.trainers_on_spot(ALL_ON_SPOT, less_trainers(paces), schedule)

    for title, system in (
        ("Spotlight", rivals.elastic(SPOTLIGHT, RESERVED_GPUS, paces)),
        ("Spotlight on the spot nodes alone (by formula)", all_on_spot),
        (
            "Spotlight without elastic SP groups",
            rivals.without_elastic_groups("no-elastic-groups", RESERVED_GPUS, paces),
        ),
        (
            "Spotlight without commits",
            rivals.without_commits("no-commits", RESERVED_GPUS, paces, preview_s=preview_s),
        ),
        (
            "Spotlight whose spot GPUs train, too (by formula)",
            rivals.elastic(
                "training-spot",
                RESERVED_GPUS,
                faster(paces, best_paces(elastic, learned.work, paces, fleets(nodes))),
            ),
        ),
        (
            "Spotlight, all on demand",
            rivals.on_demand("spotlight-on-demand", on_demand, paces[-1]),
        ),
    ):
        yield Entrant(title=title, learned=learned, with_system=system, is_ours=True)


def _all_choose(learned: Learned, paces: Sequence[Pace]) -> Iterator[Entrant]:
    """All GPUs train as one group, and then make previews with the weights from before, on
    Spotlight's samples; no program does that, so it is a formula. The states of training are in
    memory."""
    for name, title, reserved in (
        ("all-choose-on-spot", "all train and choose, on reserved and spot", RESERVED_GPUS),
        ("all-choose-on-spot-alone", "all train and choose, on the spot nodes alone", 0),
    ):
        on = fleets(len(paces) - 1, reserved)
        own = best_paces(in_turn_with_previous_weights, learned.work, paces, on)
        system = rivals.from_memory(name, reserved, own, iteration_s=own[-1].iteration_s)
        title += " (by formula)"
        yield Entrant(title=title, learned=learned, with_system=system, is_ours=True)


def _without_exploration(behind: Learned, nodes: int) -> Entrant:
    """Spot GPUs roll out one step behind, and lose nothing."""
    own = timed(beside, behind.work, fleets(nodes))
    system = rivals.elastic("no-exploration", RESERVED_GPUS, own)
    return Entrant(title="Spotlight without exploration", learned=behind, with_system=system)


def _on_demand(learned: Mapping[str, Learned], nodes: int) -> Iterator[Entrant]:
    all_gpus = Fleet(RESERVED_GPUS, nodes * GPUS_OF_SPOT_NODE)
    for name, title, run, clock, fleet in (
        (RESERVED, "the reserved GPUs alone", "reserved", in_turn, Fleet(RESERVED_GPUS, 0)),
        ("published-on-demand", "the published recipe, on demand", "published", in_turn, all_gpus),
        (
            "data-parallel-on-demand",
            "data-parallel training, on demand",
            "data-parallel",
            in_turn,
            all_gpus,
        ),
        ("rollouts-on-demand", "rollouts, on demand", "rollouts", spot_waits, all_gpus),
        (
            "pipelined-on-demand",
            "rollouts one step behind, on demand",
            "pipelined",
            beside,
            all_gpus,
        ),
    ):
        pace = Pace(clock(learned[run].work, fleet))
        system = rivals.on_demand(name, fleet.gpus, pace)
        yield Entrant(title=title, learned=learned[run], with_system=system)


def _rollouts_on_spot(waited: Learned, behind: Learned, nodes: int) -> Iterator[Entrant]:
    """A lost batch that nobody waits for is made again in the time that spot GPUs have to spare,
    and stops everybody only if that is too short."""
    spot_gpus = nodes * GPUS_OF_SPOT_NODE
    batch_s = denoised_at(waited.work, [0.0] * (RESERVED_GPUS + spot_gpus))
    paces = timed(spot_waits, waited.work, fleets(nodes))
    share = batch_s / paces[-1].iteration_s
    system = rivals.lost_batches(
        "rollouts-on-spot", RESERVED_GPUS, paces, batch_s=batch_s, share=share
    )
    yield Entrant(title="rollouts on spot", learned=waited, with_system=system)
    paces = timed(beside, behind.work, fleets(nodes))
    spare_s = paces[-1].iteration_s - 2 * denoised_at(behind.work, [0.0] * spot_gpus)
    system = rivals.lost_batches(
        "pipelined-on-spot",
        RESERVED_GPUS,
        paces,
        batch_s=behind.work.denoise_s,
        share=float(spare_s < rivals.COSTS["torchrun notices"].seconds),
    )
    title = "rollouts one step behind, on spot"
    yield Entrant(title=title, learned=behind, with_system=system)


def _training_on_spot(together: Learned, nodes: int) -> Iterator[Entrant]:
    """Data-parallel training, with each way to recover."""
    work = together.work
    paces, alone = (timed(in_turn, work, fleets(nodes, gpus)) for gpus in (RESERVED_GPUS, 0))
    spot_gpus = nodes * GPUS_OF_SPOT_NODE
    update_s = work.train_s / work.updates

    def by_torchrun(schedule: Schedule) -> System:
        return rivals.torchrun("torchrun-on-spot", RESERVED_GPUS, paces, schedule)

    for title, system in (
        ("data-parallel training on reserved and spot: torchrun", by_torchrun),
        (
            "data-parallel training on reserved and spot: torchft",
            rivals.torchft(
                "torchft-on-spot",
                RESERVED_GPUS,
                paces,
                update_s=update_s / (RESERVED_GPUS + spot_gpus),
            ),
        ),
        (
            "data-parallel training on reserved and spot: state in memory",
            rivals.from_memory(
                "from-memory-on-spot", RESERVED_GPUS, paces, iteration_s=paces[-1].iteration_s
            ),
        ),
        (
            "data-parallel training on the spot nodes alone: torchft",
            rivals.torchft("torchft-on-spot-alone", 0, alone, update_s=update_s / spot_gpus),
        ),
    ):
        yield Entrant(title=title, learned=together, with_system=system)


def way(curve: Curve, levels: Mapping[int, float]) -> Curve:
    """The share of the way to the target, smoothed, by what the curve is over. The levels are a
    quarter, half and so on of the way of the reference, so that any two of them give the score of
    its beginning."""
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
