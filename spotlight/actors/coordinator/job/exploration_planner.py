"""Which planner explores for a job's iteration."""

from __future__ import annotations

from spotlight.jobs import JobSpec
from spotlight.policies.exploration.bandit import BanditPlanner
from spotlight.policies.exploration.explored import ExplorationPlan
from spotlight.policies.exploration.planners import (
    ExplorationPlanner,
    RandomPlanner,
    UniformPlanner,
)
from spotlight.policies.exploration.reward_spread import ContinuousRewards

_MOST = 2
"""So many times the previews of an average prompt that is trained on may one prompt have."""


def planner_of(job: JobSpec, plan: ExplorationPlan) -> ExplorationPlanner:
    """As the job wants it."""
    candidates = most_candidates(job, plan)
    if job.exploration.mode == "bandit":
        return BanditPlanner(
            job_seed=job.seed,
            iteration=plan.iteration,
            prompts=plan.prompts,
            keep=job.group_size,
            candidates=candidates,
            most=_MOST * max(job.exploration.prompt_pool * candidates, job.group_size),
            rewards=ContinuousRewards(*(reward.limits for reward in job.rewards)),
            trained=job.prompts.per_iteration,
            weights=job.reward_weights,
            categories=plan.categories,
            knowledge=plan.knowledge,
        )
    plain = RandomPlanner if job.exploration.mode == "random" else UniformPlanner
    return plain(
        job_seed=job.seed,
        iteration=plan.iteration,
        groups=len(plan.prompts),
        keep=job.group_size,
        candidates=candidates,
        weights=job.reward_weights,
    )


def most_candidates(job: JobSpec, plan: ExplorationPlan) -> int:
    """Most previews of a prompt group, on average. Where all groups have the same number, that is
    as many as are kept at least: a group of fewer could choose nothing.
    """
    most = job.exploration.candidates * job.samples_per_iteration
    each = int(plan.share * most / len(plan.prompts))
    is_even = plan.share > 0 and job.exploration.mode != "bandit"
    return max(each, job.group_size) if is_even else each
