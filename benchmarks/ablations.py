"""What changes to the update rule and its optimizer are worth when a run trains on its previews:
`python -m benchmarks.ablations --json`.

Every run is one process that trains as `benchmarks.direct_training` says, on the job of an example
with 4 prompts of 4 samples an iteration, by the clock of `profiles/sol-rl-split.yaml`. Variants
that train on fewer rows have shorter iterations, and fewer previews in each; those that denoise in
fewer steps have more previews.

A variant is compared with `base` at the same seed: the time that base takes to 50, 75 and 95 % of
its way, over that of the variant. The way leads from base's first score to the one after 2,400 s;
all runs go on to 3,000 s, and whoever has not arrived then counts as arriving then, so that a
variant which is worse looks a little better than it is. Curves are smoothed as in `time_to_target`,
and read between their points.

Runs are kept in `--results`, a small file each, and not made again while job, profile and clock are
the same, nor on another machine: a run takes about two minutes of one core.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import yaml

from benchmarks.direct_training import Clock, train_on_previews
from benchmarks.exploration.ratios import student_margin
from benchmarks.exploration.rival_jobs import with_changes
from benchmarks.report import Report, at_least_one
from benchmarks.time_to_target import Curve, smoothed
from spotlight.jobs import JobSpec, job_from_data
from spotlight_simulation.profile import Profile, load_profile

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
PROFILE = HERE / "profiles" / "sol-rl-split.yaml"
VERSION = 1
"""The version of what a run computes: it is raised when that changes, so that kept runs are made
again."""

TASKS = ("ocr", "compositional")
LEVELS = (50, 75, 95)
"""Levels in per cent of base's way."""
_LEAST = 11
"""Iterations of a job: more than a warm-up."""

_SECTIONS = ("model", "prompts", "rewards", "sampler", "training", "validation")
_COMMON: dict[str, Any] = {
    "group_size": 4,
    "prompts.per_iteration": 4,
    "sampler.micro_batch": 16,
    "validation.seeds": 4,
}
_TASK: dict[str, dict[str, Any]] = {
    "ocr": {"training.ema_decay": 0.8},
    "compositional": {"training.ema_decay": 0.9},
}
_SECOND_ORDER: dict[str, Any] = {"sampler.solver": "dpmpp_2m", "sampler.steps": 4}  # of 8
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "noisiest half": {"training.options.noisiest": 0.5},
    "warm-up": {"training.warmup_updates": 20},  # 10 iterations
    "betas": {"training.adam_betas": [0.9, 0.99]},
    "second order": _SECOND_ORDER,
    "together": {"training.options.noisiest": 0.5, "training.warmup_updates": 20} | _SECOND_ORDER,
    "shared noise": {"training.loss": "benchmarks.ablation_losses:SharedNoise"},
    "cool-down": {"training.learning_rate_schedule": "cosine"},
    "four times": {"training.options.times": 4},
    "four times, stratified": {
        "training.options.times": 4,
        "training.loss": "benchmarks.ablation_losses:StratifiedTimes",
    },
}

Key = tuple[str, str, int]
"""Task, variant, seed."""


@dataclass(frozen=True)
class Scale:
    """How long runs are, in seconds of the test-bed's time."""

    way_s: float = 2_400
    """The end of base's way."""
    until_s: float = 3_000
    validate_s: float = 255
    validated: int | None = None
    """Prompts; all when absent."""


QUICK = Scale(way_s=250, until_s=250, validate_s=60, validated=2)


def main() -> None:
    """Make the runs that are missing, and print what came of them."""
    report = Report("ablations", __doc__, minutes=1, proviso=" where all runs are kept")
    made = report.options
    made.add_argument("--task", choices=TASKS, action="append", help="default: both; quick: ocr")
    made.add_argument("--variant", choices=VARIANTS, action="append", help="default: all")
    made.add_argument("--seeds", type=at_least_one, default=8)
    made.add_argument("--results", type=Path, default=HERE / "ablation_runs")
    _measure(report, report.begin())
    report.finish()


def _measure(report: Report, options: argparse.Namespace) -> None:
    tasks = options.task or TASKS[: 1 if options.quick else None]
    all_of_them = list(VARIANTS)[: 2 if options.quick else None]
    variants = list(dict.fromkeys(["base", *(options.variant or all_of_them)]))
    seeds = range(1, 2 if options.quick else options.seeds + 1)
    scale, results = (QUICK, None) if options.quick else (Scale(), options.results)
    report.add({"quick": options.quick, "seeds": len(seeds)})
    for task in tasks:
        curves: dict[tuple[str, int], Curve] = {}
        for seed in seeds:  # whole sets, should it be ended early
            for variant in variants:
                curves[variant, seed] = run((task, variant, seed), scale, results)
            if report.is_time_up():
                break
        for variant in variants[1:]:
            made = [seed for name, seed in curves if name == "base"]
            pairs = [(curves["base", seed], curves[variant, seed]) for seed in made]
            figures = compared(pairs, scale)
            report.add({f"{name}[{task}, {variant}]": value for name, value in figures.items()})


# --- runs, each made once ---


def run(key: Key, scale: Scale, results: Path | None) -> Curve:
    """The curve of a run, from `results` if it is there."""
    import torch  # not for --help

    profile = load_profile(PROFILE)
    data = _settings(key, scale)
    job = _job(data, scale, profile)
    clock = Clock.of(job, profile)
    words = json.dumps([VERSION, data, asdict(clock), asdict(scale)], sort_keys=True)
    made = hashlib.blake2b(words.encode(), digest_size=8).hexdigest()
    file = None if results is None else results / f"{_slug(key)}.json"
    if file is not None and file.exists():
        kept = json.loads(file.read_text())
        if kept["made"] == made:
            return [(time_s, score) for time_s, score in kept["curve"]]
    torch.set_num_threads(1)  # of such small tensors several threads would only get in their way
    curve = [
        (round(time_s, 1), round(score, 5))
        for time_s, score in train_on_previews(
            job, clock, until_s=scale.until_s, validate_s=scale.validate_s
        )
    ]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"made": made, "clock": asdict(clock), "curve": curve}) + "\n")
    return curve


def _slug(key: Key) -> str:
    return "-".join(map(str, key)).replace(",", "").replace(" ", "-")


def _settings(key: Key, scale: Scale) -> dict[str, Any]:
    """What the job says of samples and training: all that a run depends on."""
    task, variant, seed = key
    example = yaml.safe_load((EXAMPLES / f"{task}-tiny.yaml").read_text())
    data: dict[str, Any] = {name: example[name] for name in _SECTIONS if name in example}
    own = {"name": _slug(key), "seed": seed, "validation.prompts": scale.validated}
    return with_changes(data, own | _COMMON | _TASK[task] | VARIANTS[variant])


def _job(data: dict[str, Any], scale: Scale, profile: Profile) -> JobSpec:
    """With as many iterations as the run has, since a rate may fall over them."""
    job = job_from_data(data)
    iterations = math.ceil(scale.until_s / Clock.of(job, profile).iteration_s)
    return msgspec.structs.replace(job, iterations=max(iterations, _LEAST))


# --- what they come to ---


def compared(pairs: Sequence[tuple[Curve, Curve]], scale: Scale) -> dict[str, float]:
    """Of a variant against base, one pair of curves for each seed, base's first.

    `speedup` is the geometric mean over seeds and levels, `_low` and `_high` its 90 % interval by
    Student's t over seeds, where they are enough; `_LEVEL` the same of one level; `unreached` how
    many levels of seeds it did not arrive at.
    """
    logs: list[list[float]] = []
    unreached = 0
    for base, variant in pairs:
        way, own = smoothed(base), smoothed(variant)
        first = way[0][1]
        last = max([point for point in way if point[0] <= scale.way_s] or way[:1])[1]
        times: list[float] = []
        for level in LEVELS:
            target = first + level / 100 * (last - first)
            arrived = reached(target, own)
            unreached += arrived is None
            expected = reached(target, way) or scale.way_s  # base does arrive
            times.append(math.log(expected / (arrived or scale.until_s)))
        logs.append(times)
    figures = _with_interval("speedup", [fmean(times) for times in logs])
    for index, level in enumerate(LEVELS):
        figures |= _with_interval(f"speedup_{level}", [times[index] for times in logs])
    return figures | {"unreached": unreached}


def reached(target: float, curve: Curve) -> float | None:
    """When a curve is at the target for the first time, read between its points; None if never."""
    if curve[0][1] >= target:
        return curve[0][0]
    for (before_s, before), (after_s, after) in pairwise(curve):
        if after >= target:
            return before_s + (target - before) / (after - before) * (after_s - before_s)
    return None


def _with_interval(name: str, logs: Sequence[float]) -> dict[str, float]:
    values, margin = {"": fmean(logs)}, student_margin([logs])
    if margin is not None:
        values |= {"_low": values[""] - margin, "_high": values[""] + margin}
    return {f"{name}{end}": round(math.exp(value), 3) for end, value in values.items()}


if __name__ == "__main__":
    main()
