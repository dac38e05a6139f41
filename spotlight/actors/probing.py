"""Whether previews predict rewards, as the job runner keeps track of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from spotlight.actors.job_journal import SavedProgress
from spotlight.actors.messages import Explored, Result
from spotlight.actors.run_record import IterationFigures
from spotlight.policies.fidelity import Agreement, Gain, Pair, agreement, exploration_share
from spotlight.policies.statistics import median_or_none, spearman


class Probing:
    """The probes of the iteration, and what all so far have shown.

    Args:
        progress: what the iteration begins with.
        event: writes an event down.
    """

    def __init__(self, progress: SavedProgress, event: Callable[..., Any]) -> None:
        self.seeds = progress.probe_seeds
        """Of the iteration, per prompt group."""
        self.rewards = progress.probe_rewards
        """As the previews were scored."""
        self.agreement: Agreement = progress.agreement
        self.contrast_at_random = progress.contrast_at_random
        """Of the iteration's previews."""
        self.gain: Gain = progress.gain
        self._event = event

    def explored(self, message: Explored) -> None:
        """The probes of the next iteration are drawn."""
        self.seeds, self.rewards = message.probe_seeds, message.probe_rewards
        self.contrast_at_random = message.contrast_at_random

    def judge(self, results: Sequence[Result], figures: IterationFigures) -> None:
        """Of these results, some are of the iteration's probes; fill in what they say. The figures
        know the contrast of the samples already."""
        previews = {
            (group, seed): reward
            for group, (seeds, rewards) in enumerate(zip(self.seeds, self.rewards, strict=True))
            for seed, reward in zip(seeds, rewards, strict=True)
        }
        by_group: defaultdict[int, list[Pair]] = defaultdict(list)
        for result in results:
            group, seed = result.request.group, result.request.seed
            if (group, seed) in previews:
                by_group[group].append((previews[group, seed], result.reward))
        if by_group:
            self.agreement = self.agreement.faded() + agreement(by_group.values())
        figures.probes = sum(map(len, by_group.values()))
        figures.probe_tau = self.agreement.tau
        figures.probe_correlation = median_or_none(
            [spearman([p for p, _ in pairs], [r for _, r in pairs]) for pairs in by_group.values()]
        )

        promised = figures.preview_group_std_mean
        if promised is not None and self.contrast_at_random > 0:
            one = Gain(1.0, self.contrast_at_random, promised, figures.explored_std_mean)
            figures.contrast_at_random = self.contrast_at_random
            figures.realised_share = one.realised_share
            self.gain = self.gain.faded() + one

    def share(self, iteration: int) -> float:
        """How much of the previews for an iteration are worth making; says so when it is less."""
        share = exploration_share(self.agreement, self.gain, iteration)
        if share < 1:
            self._event(
                "exploration_reduced",
                iteration=iteration,
                share=share,
                tau=round(self.agreement.tau or 0.0, 3),
                pairs=round(self.agreement.pairs, 1),
                realised=round(self.gain.realised_share or 0.0, 3),
            )
        return share
