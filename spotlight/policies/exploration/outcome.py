"""What an exploration comes to: the seeds that are chosen, and all that is told of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from spotlight.policies.exploration.choice_worth import choice_worth
from spotlight.policies.exploration.explored import Explored
from spotlight.policies.exploration.fidelity import contrast_at_random, contrast_of_any, draw_probes
from spotlight.policies.exploration.planners import SeedChoice, derived_seed
from spotlight.policies.exploration.reward_scales import combined, reward_scale
from spotlight.policies.exploration.reward_spread import Knowledge
from spotlight.policies.exploration.settings import ExplorationSettings

Rewards = tuple[float, ...]


def outcome(
    settings: ExplorationSettings,
    iteration: int,
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
    groups = [
        dict(sorted(scored.get(group, {}).items()))  # who was first must not matter
        for group in range(len(choices))
    ]
    scale = reward_scale([[*group.values()] for group in groups], settings.weights)
    values = [
        {seed: combined(rewards, scale) for seed, rewards in group.items()} for group in groups
    ]
    rewards = [[*group.values()] for group in values]
    # Previews that are trained on are what they promise.
    wanted = 0 if reuses else settings.probes
    probes = draw_probes(values, wanted, _rng(settings, iteration, "probes"))
    return Explored(
        iteration,
        seeds=tuple(choice.seeds for choice in choices),
        preview_rewards=tuple(
            tuple(values[group].get(seed) for seed in choice.seeds)
            for group, choice in enumerate(choices)
        ),
        previews=sum(map(len, groups)),
        late=late,
        knowledge=learnt,
        probe_seeds=tuple(probe.seeds for probe in probes),
        probe_rewards=tuple(probe.rewards for probe in probes),
        contrast_at_random=contrast_at_random(
            [group for group in rewards if group],
            settings.keep,
            _rng(settings, iteration, "subsets"),
        ),
        contrast_of_any=contrast_of_any(rewards, settings.keep),
        reused=tuple(reused) if reuses else (),
        later=later,
        scale=tuple(scale) if any(groups) else (),
        worth=choice_worth(rewards, settings.keep),
    )


def _rng(settings: ExplorationSettings, iteration: int, purpose: str) -> random.Random:
    return random.Random(derived_seed(settings.seed, iteration, purpose))
