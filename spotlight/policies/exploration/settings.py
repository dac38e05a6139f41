"""What an exploration is asked for, whoever asks: a job, or a training loop of a user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from spotlight.policies.exploration.bandit import BanditPlanner
from spotlight.policies.exploration.explored import ExplorationPlan
from spotlight.policies.exploration.planners import (
    ExplorationPlanner,
    RandomPlanner,
    UniformPlanner,
)
from spotlight.policies.exploration.reward_spread import ContinuousRewards, Limits

PlannerName = Literal["random", "uniform", "bandit"]
"""`bandit` gives more previews to the prompts that it expects to gain the most contrast of rewards;
`uniform` gives every prompt the same number; `random` does so too, but keeps random seeds."""

PLANNERS: tuple[PlannerName, ...] = get_args(PlannerName)

_MOST = 2
"""How many times the previews of an average prompt that is trained on one prompt may have."""


@dataclass(frozen=True, kw_only=True)
class ExplorationSettings:
    """What holds for all iterations that are explored for."""

    seed: int
    """It decides, with the number of the iteration, which candidates there are."""
    keep: int
    """How many seeds are kept of each prompt group that is trained on (K)."""
    trained: int
    """How many prompt groups are trained on."""
    candidates: int
    """How many previews there are at most for each prompt group that is trained on."""
    limits: tuple[Limits, ...]
    """The least and the greatest value of each reward."""
    weights: tuple[float, ...]
    """What each reward counts, as `reward_scales` describes."""
    micro_batch: int
    """How many previews a group of workers denoises at once."""
    planner: PlannerName = "uniform"
    """Who chooses which candidates are previewed, and which seeds are kept."""
    budget: Literal["window", "fixed"] = "window"
    """`window` explores until the choice is asked for; `fixed` makes all previews first."""
    probes: int = 0
    """How many previewed seeds are drawn to be made again, whether or not they are kept."""
    heat: int = 1
    """How many previews of a prompt are asked for at once, because they are compared; a `bandit`
    asks for one at a time."""
    divides: bool = False
    """Whether an iteration whose samples are previews is trained in two parts."""
    finishes: bool = False
    """Whether the kept seeds are denoised in full with the weights of their previews, as long as
    these foretell anything."""
    previews_are_alike: bool = True
    """Whether previews have the steps of samples, so that their rewards have the same scale."""

    @property
    def samples(self) -> int:
        """How many samples are trained on in an iteration."""
        return self.trained * self.keep


def planner_of(settings: ExplorationSettings, plan: ExplorationPlan) -> ExplorationPlanner:
    """The planner that explores for an iteration."""
    groups, candidates = len(plan.prompts), most_candidates(settings, plan)
    if settings.planner == "bandit":
        in_pool = groups // settings.trained
        return BanditPlanner(
            job_seed=settings.seed,
            iteration=plan.iteration,
            prompts=plan.prompts,
            keep=settings.keep,
            candidates=candidates,
            most=_MOST * max(in_pool * candidates, settings.keep),
            rewards=ContinuousRewards(*settings.limits),
            trained=settings.trained,
            weights=settings.weights,
            categories=plan.categories,
            knowledge=plan.knowledge,
        )
    plain = RandomPlanner if settings.planner == "random" else UniformPlanner
    return plain(
        job_seed=settings.seed,
        iteration=plan.iteration,
        groups=groups,
        keep=settings.keep,
        candidates=candidates,
        weights=settings.weights,
        heat=settings.heat,
    )


def most_candidates(settings: ExplorationSettings, plan: ExplorationPlan) -> int:
    """How many previews a prompt group has at most, on average. Where all groups have the same
    number, that is as many as are kept at least: a group of fewer could choose nothing.
    """
    most = settings.candidates * settings.trained
    each = int(plan.share * most / max(1, len(plan.prompts)))
    is_even = plan.share > 0 and settings.planner != "bandit"
    return max(each, settings.keep) if is_even else each
