"""What one exploration leaves for the next: the seeds of the iteration, how they were chosen, how
well previews predict samples, and what was learnt of prompts.

Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

from spotlight.policies.exploration.choice_worth import ChoiceWorth
from spotlight.policies.exploration.explored import ExplorationPlan, Explored
from spotlight.policies.exploration.fidelity import (
    Agreement,
    Gain,
    Pair,
    agreement,
    exploration_share,
)
from spotlight.policies.exploration.planners import SeedChoice
from spotlight.policies.exploration.ranking import median_or_none, spearman
from spotlight.policies.exploration.reward_scales import combined
from spotlight.policies.exploration.reward_spread import Knowledge
from spotlight.policies.exploration.settings import ExplorationSettings
from spotlight.record.run_events import ExplorationReduced
from spotlight.record.run_metrics import IterationMetrics
from spotlight.types import Result


class ExplorationRecord:
    """See the module's docstring.

    Args:
        latest: how the seeds of the iteration were chosen.
        learnt: what the iterations before taught.
        categories: of training prompts.
        agreement: of previews with samples, in the iterations before.
        gain: what the kept seeds contrasted in the iterations before.
        worth: of a choice among previews, without the latest one.
    """

    def __init__(
        self,
        settings: ExplorationSettings,
        latest: Explored,
        learnt: Knowledge,
        *,
        categories: Mapping[str, str],
        agreement: Agreement,
        gain: Gain,
        worth: ChoiceWorth,
    ) -> None:
        self._settings = settings
        self._categories = categories
        self._prompts_known = dict(learnt.prompts)
        self._categories_known = dict(learnt.categories)
        self.latest = latest
        """The outcome of the iteration's exploration."""
        self.agreement = agreement
        self.gain = gain
        self.worth_before = worth
        """What a choice among previews was worth, as far as was told before the latest one."""

    @property
    def worth(self) -> ChoiceWorth:
        """What a choice among previews was worth, with the latest one."""
        return self.worth_before.faded() + self.latest.worth

    def accept(self, explored: Explored) -> None:
        """The seeds of the next iteration are chosen, or some of them once more."""
        if explored.iteration != self.latest.iteration:
            self.worth_before = self.worth
        self.latest = explored
        self._prompts_known |= explored.knowledge.prompts
        self._categories_known |= explored.knowledge.categories

    @property
    def choices(self) -> list[SeedChoice]:
        """The seeds of the iteration, per prompt group."""
        latest = self.latest
        return [
            SeedChoice(*pair) for pair in zip(latest.seeds, latest.preview_rewards, strict=True)
        ]

    def plan(
        self, iteration: int, prompts: Sequence[str], window_s: float, least: int = 0
    ) -> ExplorationPlan:
        """What to explore for an iteration.

        Args:
            prompts: all that may be explored, those of the prompt pool included.
            window_s: how many seconds training is predicted to take.
            least: how many previews it would pay to wait for, if all that are allowed are worth
                making.
        """
        categories = tuple(self._categories[prompt] for prompt in prompts)
        return ExplorationPlan(
            iteration,
            tuple(prompts),
            categories,
            window_s,
            Knowledge(
                {p: self._prompts_known[p] for p in prompts if p in self._prompts_known},
                dict(self._categories_known),
            ),
            self.share,
            int(self.share * least),
        )

    @property
    def share(self) -> float:
        """The share of the previews of an iteration that is worth making, as far as is known. Where
        cheap ones are worth nothing, others are made in their place."""
        return 1.0 if self._settings.finishes else exploration_share(self.agreement, self.gain)

    def reduction(self, plan: ExplorationPlan) -> ExplorationReduced | None:
        """The event that tells why not all previews of a plan are worth making, if they are not."""
        if plan.share >= 1:
            return None
        return ExplorationReduced(
            iteration=plan.iteration,
            share=plan.share,
            tau=round(self.agreement.tau or 0.0, 3),
            pairs=round(self.agreement.pairs, 1),
            realised=round(self.gain.realised_share or 0.0, 3),
        )

    def evaluate(
        self, results: Sequence[Result], metrics: IterationMetrics, scale: Sequence[float] = (1.0,)
    ) -> None:
        """Compare the previews of the iteration with these results, among which those of its probes
        are. The metrics know the contrast of the samples already; the rest is filled in.

        Args:
            scale: what each reward is multiplied with before they are summed, as for the previews.
        """
        latest = self.latest
        previews = {
            (group, seed): reward
            for group, (seeds, rewards) in enumerate(
                zip(latest.probe_seeds, latest.probe_rewards, strict=True)
            )
            for seed, reward in zip(seeds, rewards, strict=True)
        }
        by_group: defaultdict[int, list[Pair]] = defaultdict(list)
        for result in results:
            group, seed = result.request.group, result.request.seed
            if (group, seed) in previews:
                by_group[group].append((previews[group, seed], combined(result.rewards, scale)))
        self.agreement = self.agreement.faded() + agreement(by_group.values())
        metrics.probes = sum(map(len, by_group.values()))
        if latest.reused and not latest.finished:  # some previews of each prompt are random seeds
            metrics.contrast_at_random = latest.contrast_of_any
            metrics.contrast_beside_random = metrics.contrast
            metrics.random_groups = latest.random_groups
        metrics.probe_tau = self.agreement.tau
        self._tell_worth(metrics)
        metrics.probe_correlation = median_or_none(
            [spearman([p for p, _ in pairs], [r for _, r in pairs]) for pairs in by_group.values()]
        )
        self._evaluate_contrast(metrics)

    def _tell_worth(self, metrics: IterationMetrics) -> None:
        worth = self.worth
        if self.latest.previews and worth.is_known:
            curve, previews = worth.curve(), self.latest.previews / self._settings.samples
            metrics.choice_worth = curve(previews)
            metrics.choice_worth_doubled = curve(2 * previews)

    def _evaluate_contrast(self, metrics: IterationMetrics) -> None:
        latest, promised = self.latest, metrics.preview_group_std_mean
        # Previews in other steps have rewards on another scale: only their order means something.
        alike = self._settings.previews_are_alike
        self.gain = self.gain.faded()
        if alike and promised is not None and latest.contrast_at_random > 0:
            one = Gain(1.0, latest.contrast_at_random, promised, metrics.explored_std_mean)
            metrics.realised_share = one.realised_share
            self.gain += one


class WindowPredictor:
    """A lower quantile of the last durations: better to stop a little early than to delay
    publication.

    Before the first measurement no end is predicted: the time is infinite, and exploration goes on
    until it is told that training is over.
    """

    def __init__(
        self, durations: Iterable[float] = (), *, quantile: float = 0.25, memory: int = 8
    ) -> None:
        self._quantile = quantile
        self._durations: deque[float] = deque(durations, maxlen=memory)

    @property
    def durations(self) -> tuple[float, ...]:
        """What the prediction rests on, oldest first."""
        return tuple(self._durations)

    def record(self, seconds: float) -> None:
        """A training step took this long."""
        self._durations.append(seconds)

    def predict(self) -> float:
        """Seconds."""
        if not self._durations:
            return math.inf
        ordered = sorted(self._durations)
        return ordered[int(self._quantile * (len(ordered) - 1))]
