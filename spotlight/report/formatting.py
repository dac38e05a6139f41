"""How the report says numbers, durations and events in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spotlight.jobs import JobSpec
from spotlight.report.run_reading import Event

NONE = "\N{EN DASH}"
TIMES = "\u202f\N{MULTIPLICATION SIGN}\u202f"


def score(value: float | None) -> str:
    """A reward or score with three digits."""
    return NONE if value is None else f"{value:.3f}"


def number(value: float) -> str:
    """A whole number with commas between thousands."""
    return f"{value:,.0f}"


def percent(share: float) -> str:
    """A share as a whole percentage; a small one does not become nothing."""
    return "<1%" if 0 < share < 0.005 else f"{100 * share:.0f}%"


def duration(seconds: float) -> str:
    """`42 s`, `2 m 47 s`, `3 h 05 m`."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} m"


def times(factor: float, error: float | None = None) -> str:
    """`1.26 times`, or with a standard error `1.26 ± 0.07 times`."""
    return f"{factor:.2f} times" if error is None else f"{factor:.2f} ± {error:.2f} times"


def count(amount: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number(amount)} {noun}{'' if amount == 1 else 's'}"


def natural_order(name: str) -> tuple[str | int, ...]:
    """A sort key under which `spot-2` comes before `spot-10`."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name))


_REWARDS = {"ocr": "OCR", "compositional": "what the images show"}
LOSSES = {"diffusion_nft": "DiffusionNFT", "flow_grpo": "Flow-GRPO"}


def about(job: JobSpec, workers: Mapping[str, int]) -> str:
    """One sentence on what the job asked for, and how many workers of each pool took part."""
    sampler = job.sampler
    tuning = (
        "all weights" if job.model.tuning == "full" else f"adapters of rank {job.model.lora.rank}"
    )
    pool_words = [count(number, f"{pool} worker") for pool, number in workers.items()]
    there = f"{', '.join(pool_words)}; " if pool_words else ""
    prompts = count(job.prompts.per_iteration, "prompt")
    return (
        f"{LOSSES[job.training.loss]} on {tuning} of {checkpoint_name(job)}; "
        f"{sampler.width}{TIMES}{sampler.height} images in {count(sampler.steps, 'step')}; "
        f"{prompts}{TIMES}{job.group_size} samples an iteration, "
        f"rewarded by {_REWARDS[job.reward.kind]}; {there}seed {job.seed}."
    )


def checkpoint_name(job: JobSpec) -> str:
    """The checkpoint without the folders above it."""
    return job.model.checkpoint.rsplit("/", 1)[-1]


def event_words(event: Event) -> tuple[str, str, bool] | None:
    """(what, details, whether it is a loss) of an event that matters; None for the others."""
    fields = event.fields
    match event.name:
        case "run_started":
            iteration = fields.get("resumed_from_iteration")
            where = "the beginning" if iteration is None else f"iteration {iteration}"
            return "Run resumed", f"from {where}", False
        case "node_lost":
            node, pool = _say(fields, "node"), _say(fields, "pool")
            return "Node lost", f"{node} ({pool}): {_say(fields, 'reason')}{_again(event)}", True
        case "worker_lost":
            worker, reason = _say(fields, "worker"), _say(fields, "reason")
            return "Worker lost", f"{worker}: {reason}{_again(event)}", True
        case "node_joined":
            return "Node joined", f"{_say(fields, 'node')} ({_say(fields, 'pool')})", False
        case "requests_lost" | "late_results":
            what = "Requests re-issued" if event.name == "requests_lost" else "Late results"
            return what, _rest(fields), False
        case "scorer_failed":
            return "Scorer failed", _rest(fields), True
        case "group_dropped":
            where = f"iteration {_say(fields, 'iteration')}, {_say(fields, 'prompt')}"
            return "Prompt group dropped", f"{where}: {_say(fields, 'reason')}", True
        case "exploration_reduced":
            where = f"to {_say(fields, 'share')} for iteration {_say(fields, 'iteration')}"
            why = f"previews and rewards agree by {_say(fields, 'tau')} (Kendall's tau)"
            return "Exploration reduced", f"{where}: {why}", False
        case "checkpoint_saved":
            return "Checkpoint saved", "/".join(_say(fields, "path").split("/")[-2:]), False
        case "run_finished":
            reason = f": {fields['reason']}" if fields.get("reason") else ""
            how = _say(fields, "outcome")
            return "Run ended", f"{how}{reason}", how == "failed"
    return None


def _again(event: Event) -> str:
    return f"; {count(event.reissued, 'request')} re-issued" if event.reissued else ""


def _say(fields: dict[str, Any], key: str) -> str:
    value = fields.get(key)
    return NONE if value is None or value == "" else str(value)


def _rest(fields: dict[str, Any]) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in fields.items()) or NONE
