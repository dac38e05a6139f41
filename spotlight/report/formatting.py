"""How the report says numbers, durations and events in words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from spotlight.jobs import JobSpec
from spotlight.jobs.losses import loss_title
from spotlight.record.run_events import (
    BudgetNear,
    CallbackTrouble,
    CheckpointSaved,
    ExplorationReduced,
    GradientsGivenUp,
    GroupDropped,
    NodeJoined,
    NodeLost,
    NodeUnpriced,
    NoticeReceived,
    NoticeWithdrawn,
    OtherDevice,
    PreviewsMisled,
    ResultsIgnored,
    RewardFell,
    RewardsFlat,
    RunEvent,
    RunFinished,
    RunStarted,
    SamplesMadeAgain,
    SamplesRegenerated,
    ScorerFailed,
    SegmentBegan,
    TrainersLost,
    TrainingFailed,
    TrainingWaits,
    WeightsTaken,
    WorkerLost,
    WorkTakenBack,
)

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


def count(amount: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number(amount)} {noun}{'' if amount == 1 else 's'}"


def natural_order(name: str) -> tuple[str | int, ...]:
    """A sort key under which `spot-2` comes before `spot-10`."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name))


def about(job: JobSpec, workers: Mapping[str, int]) -> str:
    """One sentence on what the job asked for, and how many workers of each pool took part."""
    sampler = job.sampler
    tuning = (
        "all weights" if job.model.tuning == "full" else f"adapters of rank {job.model.lora.rank}"
    )
    pool_words = [count(number, f"{pool} worker") for pool, number in workers.items()]
    there = f"{', '.join(pool_words)}; " if pool_words else ""
    names = " and ".join(reward.name for reward in job.rewards)
    prompts = count(job.prompts.per_iteration, "prompt")
    return (
        f"{loss_title(job.training.loss)} on {tuning} of {checkpoint_name(job)}; "
        f"{sampler.width}{TIMES}{sampler.height} images in {count(sampler.steps, 'step')}; "
        f"{prompts}{TIMES}{job.group_size} samples an iteration, "
        f"rewarded by {names}; {there}seed {job.seed}."
    )


def checkpoint_name(job: JobSpec) -> str:
    """The checkpoint without the folders above it."""
    return job.model.checkpoint.rsplit("/", 1)[-1]


def event_words(event: RunEvent) -> tuple[str, str, bool] | None:
    """(what, details, whether it is a loss) of an event that matters; None for the others."""
    match event:
        case RunStarted(resumed_from_iteration=iteration):
            where = "the beginning" if iteration is None else f"iteration {iteration}"
            return "Run resumed", f"from {where}", False
        case SegmentBegan(number=number, iteration=iteration, changes=changes):
            how = f"{'; '.join(changes) or 'the same settings'} (Spotlight {event.version})"
            after = f", forked from {event.source}" if event.source else ""
            return "Segment began", f"{number}, with iteration {iteration}{after}: {how}", False
        case WeightsTaken(source=source, score=before):
            had = "" if before is None else f", which had a validation score of {score(before)}"
            return "Weights taken", f"from {source}{had}", False
        case BudgetNear(said=said):
            return "Budget nearly spent", said, False
        case NodeUnpriced(node=node, reason=reason):
            why = f": {reason}" if reason else ""
            return "Time without a price", f"of {node}, which the budget does not count{why}", False
        case NodeLost(node=node, pool=pool, reason=reason):
            return "Node lost", f"{node} ({pool or NONE}): {reason or NONE}", True
        case WorkerLost(worker=worker, reason=reason, requests_handed_on=kinds):
            again = handed_on(sum(kinds.values())) if any(kinds.values()) else ""
            return "Worker lost", f"{worker}: {reason or NONE}{again and '; '}{again}", True
        case NoticeReceived(node=node, source=source, lead_s=lead_s):
            lead = "" if lead_s is None else f", {duration(lead_s)} before it goes"
            return "Notice", f"{node} ({source}){lead}", False
        case NoticeWithdrawn(node=node):
            return "Notice withdrawn", node, False
        case CallbackTrouble(callback=name, error=error) if event.failures:
            often = f" {count(event.failures, 'time')}" if event.failures > 1 else ""
            return "Tracker failed", f"{name}{often}: {error}", True
        case TrainersLost(reason=reason, goes_on_from=iteration):
            return "Trainers lost", f"{reason}; it goes on from iteration {iteration}", True
        case TrainingFailed(worker=worker, error=error):
            return "Training failed", f"{worker}: {error}", True
        case NodeJoined(node=node, pool=pool):
            return "Node joined", f"{node} ({pool})", False
        case WorkTakenBack(items=items):
            return "Work taken back", handed_on(items), False
        case ResultsIgnored(worker=worker):
            return "Results ignored", f"{worker}: the work had been taken back from it", False
        case ScorerFailed(worker=worker, request=request, error=error):
            return "Scorer failed", f"{worker or NONE}, request {request}: {error}", True
        case GradientsGivenUp(count=slices, reason=reason):
            what = f"{count(slices, 'slice')}, which the trainer ranks compute"
            return "Gradients given up", f"{what}: {reason}", False
        case OtherDevice(worker=worker, device=device, ranks=ranks):
            what = f"{worker} has another device ({device}) than trainer ranks"
            return "Computes no gradients", f"{what} ({', '.join(ranks)})", False
        case TrainingWaits(previews=previews, why=why):
            what = f"for {previews:g} for each sample" if previews else "for none any more"
            return "Training waits for previews", f"{what}: {why}", False
        case GroupDropped(iteration=iteration, prompt=prompt, reason=reason):
            return "Prompt group dropped", f"iteration {iteration}, {prompt}: {reason}", True
        case ExplorationReduced(iteration=iteration, share=share, tau=tau):
            why = f"previews and rewards agree by {tau} (Kendall's tau)"
            return "Exploration reduced", f"to {share} for iteration {iteration}: {why}", False
        case SamplesRegenerated(iteration=iteration, drift=drift, most=most):
            how_far = NONE if drift is None else f"{drift:.3g}"
            why = f"the velocity has moved by {how_far} of its square, at most {most:g} is allowed"
            return "Samples denoised again", f"for iteration {iteration}: {why}", False
        case SamplesMadeAgain(iteration=iteration, samples=samples, weights_version=version):
            bits = "the same bits" if version < iteration else "other bits: nobody has older ones"
            what = f"{samples} of iteration {iteration} that were made ahead are not there"
            return "Samples made again", f"{what}; with weights {version}, so {bits}", False
        case PreviewsMisled(iteration=iteration, agreement=found, least=least):
            why = f"those of few steps agree with finished samples by {found}, less than {least}"
            return "Previews take all steps", f"for iteration {iteration}: {why}", False
        case RewardsFlat(iteration=iteration, reward=reward, in_a_row=number, stops_after=most):
            what = f"all are {score(reward)} in iteration {iteration}"
            return "Rewards equal", f"{what}; {number} of {most} in a row", True
        case RewardFell(reward=name, mean=mean, best=best, best_version=version):
            what = f"{name}, which is not trained on, fell from {score(best)} to {score(mean)}"
            return "Reward fell", f"{what} since version {version}, while the score rose", True
        case CheckpointSaved(path=path):
            return "Checkpoint saved", "/".join(path.split("/")[-2:]), False
        case RunFinished(outcome=outcome, reason=reason):
            why = f": {reason}" if reason else ""
            return "Run ended", f"{outcome}{why}", outcome == "failed"
    return None


def handed_on(requests: int) -> str:
    """`2 requests handed to other workers`."""
    return f"{count(requests, 'request')} handed to other workers"
