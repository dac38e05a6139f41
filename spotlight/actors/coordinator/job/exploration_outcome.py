"""What an exploration comes to: the seeds that are chosen, and all that is told of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from spotlight.jobs import JobSpec
from spotlight.policies.exploration.choice_worth import choice_worth
from spotlight.policies.exploration.explored import ExplorationPlan, Explored
from spotlight.policies.exploration.fidelity import contrast_at_random, contrast_of_any, draw_probes
from spotlight.policies.exploration.planners import SeedChoice, derived_seed
from spotlight.policies.exploration.reward_scales import combined, reward_scale
from spotlight.policies.exploration.reward_spread import Knowledge

Rewards = tuple[float, ...]


def outcome(
    job: JobSpec,
    plan: ExplorationPlan,
    choices: Sequence[SeedChoice],
    scored: Mapping[int, Mapping[int, Rewards]],
    *,
    learnt: Knowledge,
    late: int,
    reuses: bool,
    later: tuple[int, ...],
) -> Explored:
    """The record of a choice.

    Args:
        choices: of every group, without seeds for those that are not trained on.
        scored: rewards by seed, by group.
        late: previews that were in work, and of no use.
        reuses: the chosen previews are the samples.
        later: groups that the later updates train on.
    """
    reused = [group for group, choice in enumerate(choices) if choice.is_previewed]
    nothing = ((),) * (job.explored_prompts - len(choices))
    groups = [
        dict(sorted(scored.get(group, {}).items()))  # who was first must not matter
        for group in range(len(choices))
    ]
    scale = reward_scale([[*group.values()] for group in groups], job.reward_weights)
    values = [
        {seed: combined(rewards, scale) for seed, rewards in group.items()} for group in groups
    ]
    previewed = [
        tuple(values[group].get(seed) for seed in choice.seeds)
        for group, choice in enumerate(choices)
    ]
    # Previews that are trained on are what they promise.
    wanted = 0 if reuses else job.exploration.probes
    probes = draw_probes(values, wanted, _rng(job, plan, "probes"))
    return Explored(
        plan.iteration,
        (*(choice.seeds for choice in choices), *nothing),
        (*previewed, *nothing),
        sum(map(len, groups)),
        late,
        learnt,
        (*(probe.seeds for probe in probes), *nothing),
        (*(probe.rewards for probe in probes), *nothing),
        contrast_at_random(
            [[*group.values()] for group in values if group],
            job.group_size,
            _rng(job, plan, "subsets"),
        ),
        contrast_of_any([[*group.values()] for group in values], job.group_size),
        tuple(reused) if reuses else (),
        later,
        tuple(scale) if any(groups) else (),
        choice_worth([[*group.values()] for group in values], job.group_size),
    )


def _rng(job: JobSpec, plan: ExplorationPlan, purpose: str) -> random.Random:
    return random.Random(derived_seed(job.seed, plan.iteration, purpose))
