"""How well the time of spot workers is shared: `python -m benchmarks.spot_time --json`.

The planner (`spotlight/policies/spot_time.py`) shares it for four reserved GPUs that train and spot
GPUs; what its plans teach per second is compared with that of rivals. Links cost nothing here, and
nothing is lost. Training takes so many per cent of an iteration that chooses nothing and rolls out
on twelve GPUs: that stands in the name of a figure. It follows from r, which is what a rollout of
a sample takes over what training on it takes: 0.08, 0.2, 0.47, 1, 2 and 3.4.

- `split_...`: eight spot GPUs that only preview, over four rivals: the reserved GPUs alone, spot
  GPUs that roll out one step behind, data-parallel training on all GPUs, and all GPUs that train
  and choose. The rivals are plans, too: those without a gain, or with gradients.
- `split_pools`: the first of these with 4, 8, 16 and 32 spot GPUs, at 86 % and on OCR.
- `both_...`: spot GPUs that preview and compute gradients, over the reserved GPUs alone; 8, 16 and
  32 of them, on OCR.
- `cheap_...`: previews that are so many times cheaper, and whose ranks agree so well with those of
  samples (per cent); chosen seeds are finished beside training. Without gradients, on OCR.
- `worth_...`: what choosing is worth among 2, 4, 8 and 16 previews for each sample, of which four
  are kept: on tables of real rewards, half before and half after training, and for pass or fail
  with pass rates Beta(0.6, 0.4).

Each of these is a list of pairs: the figure, and the one that is known from the model in closed
form, which was worked out before without the planner, to two digits. `known_worst` is the largest
deviation of a pair of plans, which have the known worths.

- `link_...`: what the first of `both_97` comes to over links, and with how many gradient workers of
  eight: updates take the ranks 120 s in eight slices, and gradients and weights have so many MB.
- `brute_force_loss`: the largest share that a plan teaches less per second than the best of all
  numbers of workers and finely graded numbers of previews, over random work.
- `changes_in_100`: how often the number of gradient workers changes in 100 plans in a row when each
  measurement is off by up to 5 %; the mean over random work.
- `plan_ms`: a plan for 1,000 spot workers and 64 ranks.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.report import Report
from spotlight.policies.exploration.contrast import best_contrast
from spotlight.policies.spot_time import GradientWork, SpotPlan, SpotWork, plan_spot_time

TABLES = Path(__file__).parent / "reward_tables"
OF_TASK = {
    "ocr": ("ocr-start", "ocr-iteration-22"),
    "compositional": ("compositional-mixed-start", "compositional-mixed-iteration-40"),
}
"""Reward tables of a task: before and after training, which count alike."""
KEEP, CHOICES = 4, (2, 4, 8, 16)
RANKS, SAMPLES, UPDATES, SLICES = 4, 48, 2, 24

KNOWN_WORTHS = {
    "ocr": (1.93, 2.94, 3.83, 4.5),
    "compositional": (1.84, 2.55, 2.97, 3.33),
    "pass_fail": (1.52, 1.98, 2.38, 2.69),
}
"""c(n) at `CHOICES` when the figures below were worked out; the last of each follows from them."""

Gain = Callable[[float], float]
KNOWN_SPLITS: Mapping[float, Mapping[str, Sequence[float]]] = {
    0.08: {
        "ocr": (5.3, 4.9, 1.8, 0.71),
        "compositional": (3.8, 3.5, 1.3, 0.62),
        "pass_fail": (3.1, 2.9, 1.05, 0.64),
    },
    0.2: {
        "ocr": (4.8, 4.0, 1.6, 0.82),
        "compositional": (3.7, 3.1, 1.2, 0.73),
        "pass_fail": (3.0, 2.5, 1.0, 0.74),
    },
    0.47: {
        "ocr": (4.4, 3.0, 1.5, 0.96),
        "compositional": (3.7, 2.5, 1.2, 0.89),
        "pass_fail": (3.0, 2.0, 1.0, 0.86),
    },
    1.0: {
        "ocr": (3.9, 1.9, 1.3, 1.0),
        "compositional": (3.7, 1.8, 1.2, 1.0),
        "pass_fail": (3.0, 1.5, 1.0, 0.97),
    },
    2.0: {
        "ocr": (3.5, 1.2, 1.2, 1.0),
        "compositional": (3.4, 1.1, 1.1, 1.0),
        "pass_fail": (3.0, 1.0, 1.0, 1.0),
    },
    3.4: {
        "ocr": (3.3, 1.1, 1.1, 1.0),
        "compositional": (3.2, 1.1, 1.1, 1.0),
        "pass_fail": (3.0, 1.0, 1.0, 1.0),
    },
}
"""What plans of previews alone are known to be worth, by r and rewards, over the four rivals, where
s is 2."""
KNOWN_POOLS = {1: 3.1, 2: 4.4, 4: 5.7, 8: 6.7}
"""The same by s, over the reserved GPUs alone, where r is 0.47, on OCR."""
KNOWN_BOTH = {0.08: (7.6, 12.6, 22.7), 0.47: (4.6, 7.7, 13.8), 1.0: (3.9, 6.5, 11.6)}
"""What plans with gradients are known to be worth, by r, where s is 2, 4 and 8, on OCR."""
KNOWN_CHEAP = {
    (0.47, 4, 0.9): 5.4,
    (0.47, 8, 0.85): 5.7,
    (0.47, 8, 0.7): 4.3,
    (1.0, 8, 0.85): 6.1,
    (3.4, 8, 0.85): 5.3,
    (3.4, 4, 0.9): 4.4,
}
"""What cheap previews are known to be worth, by r, by how many times cheaper they are, and by their
rank agreement, where s is 2, on OCR."""
LINKS = ((0, 10), (400, 10), (1_700, 10), (400, 1), (1_700, 1), (41_000, 100))
"""Megabytes of a gradient, and of weights, and Gbit/s."""


def main() -> None:
    """Measure and print."""
    report = Report("spot_time", __doc__, minutes=1)
    report.begin()
    figures = known_figures()
    pairs = [pair for found in figures.values() for pair in found]
    report.add(figures)
    report.add({"known_worst": round(max(abs(got / known - 1) for got, known in pairs), 3)})
    worths = _worths()
    report.add(
        {f"worth_{name}": _pairs(found, KNOWN_WORTHS[name]) for name, found in worths.items()}
    )
    ocr = gain_of(worths["ocr"])
    report.add(_links(ocr))
    works = report.times(300, quick=10)
    report.add({"brute_force_loss": round(max(map(_loss, _random_works(works))), 4)})
    report.add({"changes_in_100": _changes(report.times(100, quick=5))})
    report.add({"plan_ms": round(_plan_ms(ocr), 1)})
    report.finish()


# --- what choosing is worth ---


def gain_of(worths: Sequence[float]) -> Gain:
    """c(n), of which these are the values at `CHOICES`; between and beyond them a straight line in
    ln n."""
    points = [(1.0, 1.0), *zip(map(float, CHOICES), worths, strict=True)]

    def gain(previews: float) -> float:
        place = next((i for i, (n, _) in enumerate(points[1:-1], 1) if previews <= n), -1)
        (low, at_low), (high, at_high) = points[place - 1], points[place]
        return at_low + (at_high - at_low) * math.log(previews / low) / math.log(high / low)

    return gain


def _worths() -> dict[str, list[float]]:
    """c(n) at `CHOICES`, by rewards."""
    found = {
        task: [fmean(_worth(name, choices) for name in names) for choices in CHOICES]
        for task, names in OF_TASK.items()
    }
    found["pass_fail"] = [_pass_fail_worth(choices) for choices in CHOICES]
    return found


def _worth(name: str, choices: int, draws: int = 30) -> float:
    """The mean variance of the kept rewards of a table over that of random ones."""
    table = json.loads((TABLES / f"{name}.json").read_text())
    rng = random.Random(choices)
    kept = fmean(
        best_contrast(sorted(rng.sample(row, KEEP * choices)), KEEP) ** 2
        for row in table
        for _ in range(draws)
    )
    return kept / (fmean(map(statistics.variance, table)) * (KEEP - 1) / KEEP)


def _pass_fail_worth(choices: int, passes: float = 0.6, fails: float = 0.4) -> float:
    """Of pass rates that are Beta distributed, exactly: the passes among N images are then
    beta-binomial."""
    images, half = KEEP * choices, KEEP // 2
    kept = 0.0
    for passed in range(images + 1):
        less = min(passed, images - passed, half)
        share = _beta(passes + passed, fails + images - passed) / _beta(passes, fails)
        kept += math.comb(images, passed) * share * less * (KEEP - less) / KEEP**2
    both = passes + fails
    return kept / (passes * fails / (both * (both + 1)) * (KEEP - 1) / KEEP)


def _beta(a: float, b: float) -> float:
    return math.exp(math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))


# --- what is known ---


def known_figures() -> dict[str, list[tuple[float, float]]]:
    """The planner's figures, each with the one that is known."""
    gains = {name: gain_of(worths) for name, worths in KNOWN_WORTHS.items()}
    figures = {}
    for r, by_rewards in KNOWN_SPLITS.items():
        for rewards, known in by_rewards.items():
            figures[f"split_{_training_share(r)}_{rewards}"] = _pairs(
                _over_rivals(r, gains[rewards]), known
            )
    ocr = gains["ocr"]
    figures["split_pools"] = _pairs(
        [_over_reserved(_work(0.47, s, ocr, gradients=False)) for s in KNOWN_POOLS],
        list(KNOWN_POOLS.values()),
    )
    for r, known in KNOWN_BOTH.items():
        figures[f"both_{_training_share(r)}"] = _pairs(
            [_over_reserved(_work(r, s, ocr)) for s in (2, 4, 8)], known
        )
    for (r, cheaper, agreement), one in KNOWN_CHEAP.items():
        work = replace(
            _work(r, 2, ocr, gradients=False),
            samples_from="finished",
            preview_s=r / cheaper,
            finish_s=r,
            agreement=agreement,
        )
        figures[f"cheap_{_training_share(r)}_{cheaper}_{agreement * 100:.0f}"] = _pairs(
            [_over_reserved(work, r)], [one]
        )
    return figures


def _training_share(r: float) -> int:
    """Per cent of an iteration, on twelve GPUs of which four train, without a choice."""
    return round(100 / (1 + r / 3))


def _pairs(got: Sequence[float], known: Sequence[float]) -> list[tuple[float, float]]:
    return [(round(one, 2), other) for one, other in zip(got, known, strict=True)]


def _work(r: float, s: int, gain: Gain, *, gradients: bool = True) -> SpotWork:
    """A sample is trained on in a second of one GPU."""
    return SpotWork(
        gradients=GradientWork(
            ranks=RANKS,
            updates=UPDATES,
            slices=SLICES,
            rank_slice_s=SAMPLES / (RANKS * UPDATES * SLICES),
            worker_slice_s=None,
            gradient_bytes=0,
            weights_bytes=0,
            up_bytes_per_s=1e9,
            down_bytes_per_s=1e9,
            may_be_given_away=gradients,
        ),
        spot_workers=s * RANKS,
        samples=SAMPLES,
        preview_s=r,
        gain=gain,
    )


def _speed(work: SpotWork, plan: SpotPlan | None = None) -> float:
    plan = plan or plan_spot_time(work)
    return work.taught(plan.previews) / plan.iteration_s


def _no_gain(previews: float) -> float:
    return 1.0


def _over_reserved(work: SpotWork, rollout_s: float | None = None) -> float:
    alone = replace(work, spot_workers=0, gain=_no_gain, samples_from="previews")
    return _speed(work) / _speed(replace(alone, preview_s=rollout_s or work.preview_s))


def _over_rivals(r: float, gain: Gain) -> list[float]:
    work = _work(r, 2, gain, gradients=False)
    one_step_behind = replace(work, gain=_no_gain)
    all_train, all_choose = _work(r, 2, _no_gain), _work(r, 2, gain)
    rivals = [_speed(rival) for rival in (one_step_behind, all_train, all_choose)]
    return [_over_reserved(work), *(_speed(work) / rival for rival in rivals)]


# --- links, brute force, noise ---


def _links(gain: Gain) -> dict[str, tuple[float, int]]:
    figures = {}
    for megabytes, gbit_per_s in LINKS:
        work = _work(0.08, 2, gain)
        gradients = replace(
            work.gradients,
            slices=8,
            rank_slice_s=15.0,
            gradient_bytes=megabytes * 10**6,
            weights_bytes=megabytes * 10**6,
            up_bytes_per_s=gbit_per_s * 1e9 / 8,
            down_bytes_per_s=gbit_per_s * 1e9 / 8,
        )
        work = replace(work, gradients=gradients, preview_s=0.08 * 20)
        workers = plan_spot_time(work).gradient_workers
        figures[f"link_{megabytes}_mb_{gbit_per_s}_gbit"] = round(_over_reserved(work), 2), workers
    return figures


def _random_works(number: int) -> Iterator[SpotWork]:
    rng = random.Random(0)
    for _ in range(number):
        ranks = rng.choice([1, 2, 4, 8])
        slice_s = rng.uniform(0.5, 20)
        slope = rng.uniform(0, 1.7)
        yield SpotWork(
            gradients=GradientWork(
                ranks=ranks,
                updates=rng.randint(1, 4),
                slices=rng.choice([2, 4, 8, 16]),
                rank_slice_s=slice_s,
                worker_slice_s=slice_s * rng.uniform(0.7, 2),
                gradient_bytes=round(10 ** rng.uniform(6, 10)),
                weights_bytes=round(10 ** rng.uniform(6, 10)),
                up_bytes_per_s=10 ** rng.uniform(7.5, 10),
                down_bytes_per_s=10 ** rng.uniform(7.5, 10),
                receivers=rng.randint(1, ranks),
            ),
            spot_workers=ranks * rng.randint(0, 8),
            idle_workers=rng.choice([0, 0, 2]),
            samples=rng.choice([16, 24, 48]),
            samples_from=rng.choice(["previews", "finished", "regenerated", "fresh"]),
            preview_s=rng.uniform(0.5, 60),
            finish_s=rng.uniform(0, 60),
            evaluation_s=rng.choice([0.0, 100.0]),
            other_s=rng.uniform(0, 10),
            most_previews=rng.choice([math.inf, 6.0]),
            gain=lambda n, slope=slope: 1 + slope * math.log(n),  # type: ignore[misc]
            agreement=rng.uniform(0.5, 1),
        )


def _loss(work: SpotWork) -> float:
    """Of the plan against every number of workers, and finely graded previews."""
    best = max(
        speed_of(work, workers, 1.01**step)
        for workers in range(allowed(work) + 1)
        for step in range(450)
    )
    plan = plan_spot_time(work)
    return 1 - speed_of(work, plan.gradient_workers, plan.previews) / best


def allowed(work: SpotWork) -> int:
    """How many workers may compute gradients."""
    gradients = work.gradients
    return work.workers if gradients.comes_in_time(gradients.slices) else 0


def speed_of(work: SpotWork, workers: int, previews: float) -> float:
    """What is taught per second, straight from the seconds that every kind of GPU works."""
    gradients = work.gradients
    training_s = gradients.updates * gradients.update_s(workers) + work.other_s
    beside_s = (work.workers - workers) * training_s - work.evaluation_s
    least, before_s, after_s = max(1.0, work.least_previews), 0.0, 0.0
    match work.samples_from:
        case "finished":
            before_s = work.samples * work.finish_s
        case "regenerated":
            least, after_s = work.least_previews, work.samples * work.finish_s
            beside_s = max(0.0, beside_s)
        case "fresh":
            beside_s, before_s = 0.0, work.samples * work.finish_s
    each_s = work.samples * work.preview_s
    fit = min((beside_s - before_s) / each_s, work.most_previews)
    previews = max(min(previews, work.most_previews), fit, least)
    missing_s = max(0.0, previews * each_s + before_s - beside_s)
    gpus = work.workers + gradients.ranks
    return work.taught(previews) / (training_s + (missing_s + after_s) / gpus)


def _changes(works: int) -> float:
    rng = random.Random(1)
    changes = 0
    for work in _random_works(works):
        plan = plan_spot_time(work)
        for _ in range(100):
            before, plan = plan, plan_spot_time(_measured_again(work, rng), plan)
            changes += plan.gradient_workers != before.gradient_workers
    return round(changes / works, 2)


def _measured_again(work: SpotWork, rng: random.Random) -> SpotWork:
    def off(owner: Any, *names: str) -> dict[str, float]:
        return {name: getattr(owner, name) * rng.uniform(0.95, 1.05) for name in names}

    gradients = work.gradients
    seconds = off(gradients, "rank_slice_s", "worker_slice_s", "up_bytes_per_s", "down_bytes_per_s")
    return replace(
        work,
        gradients=replace(gradients, **seconds),  # type: ignore[arg-type]
        **off(work, "preview_s", "finish_s", "evaluation_s", "other_s"),  # type: ignore[arg-type]
    )


def _plan_ms(gain: Gain) -> float:
    work = _work(0.47, 2, gain)
    work = replace(work, spot_workers=1_000, gradients=replace(work.gradients, ranks=64))
    begun = time.perf_counter()
    for _ in range(5):
        plan_spot_time(work)
    return (time.perf_counter() - begun) / 5 * 1e3


if __name__ == "__main__":
    main()
