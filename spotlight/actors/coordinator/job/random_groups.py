"""Groups of random seeds, denoised beside training, that show what the choice of seeds is worth.

Nothing waits for them, and nothing depends on them but two figures of the iteration's metrics.
What is not there when the iteration is over is dropped, and counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spotlight.actors.coordinator.tenant.request_plans import TrainingPrompts, random_requests
from spotlight.policies.exploration.random_groups import Credit, RandomContrast, draw_groups
from spotlight.policies.exploration.reward_scales import combined
from spotlight.types import Request, Result

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner


class RandomGroups:
    """See the module's docstring."""

    def __init__(self, job: JobRunner, prompts: TrainingPrompts) -> None:
        self._job, self._spec = job, job.spec
        self._prompts = prompts
        self._iteration = -1
        self._scale: Sequence[float] = ()
        self._open: set[str] = set()
        self._is_due = False
        self._found: RandomContrast | None = None

    def begin(self, iteration: int) -> list[Request]:
        """The iteration is trained: measure what its choice was worth. Returns the requests that
        wait for idle time, to be submitted. Where previews are the samples, they have told already.
        """
        job, spec = self._job, self._spec
        latest = job.progress.exploration.latest
        self._found, self._iteration, self._is_due = None, iteration, False
        self._open.clear()
        if (latest.reused and not latest.finished) or not latest.previews:
            return []
        self._scale = job.rollouts.scale
        kept = self._by_group(job.rollouts.rollout.samples())
        probed = [group for group, seeds in enumerate(latest.probe_seeds) if seeds]
        self._found = RandomContrast(
            spec.group_size,
            kept,
            # The bandit previews more seeds of groups that were unlucky: probes of these vary more.
            {} if spec.exploration.mode == "bandit" else self._probes(latest.probe_seeds),
            of_any_prompt=spec.explored_prompts > spec.prompts.per_iteration,
        )
        prompts = self._prompts.of(iteration)
        able = range(len(prompts)) if self._found.of_any_prompt else kept
        groups = draw_groups(spec.seed, iteration, able, spec.exploration.random_groups, probed)
        self._is_due = bool(groups) and self._credit.is_due
        requests = random_requests(spec, iteration, prompts, groups, is_due=self._is_due)
        self._open = {request.id for request in requests}
        job.requests.submit([request for request in requests if not request.in_idle_time])
        return [request for request in requests if request.in_idle_time]

    def finished(self, results: Iterable[Result]) -> None:
        """Random seeds are scored, in any order, each once."""
        for result in results:
            if self._found is not None and result.request.id in self._open:
                self._open.discard(result.request.id)
                reward = combined(result.rewards, self._scale)
                self._found.rewards[result.request.group].append(reward)

    def given_up(self, requests: Iterable[Request]) -> None:
        """They could not be denoised or scored, which costs nothing."""
        self._open.difference_update(request.id for request in requests)

    def end(self) -> None:
        """The iteration is over: what is not there is too late."""
        metrics, found = self._job.progress.metrics, self._found
        if found is None or metrics.iteration != self._iteration:
            return
        metrics.random_late = len(self._open)
        if contrasts := found.contrasts():
            metrics.random_groups, metrics.contrast_beside_random, metrics.contrast_at_random = (
                contrasts
            )
        asked = max(sum(len(rewards) > 1 for rewards in found.rewards.values()), self._is_due)
        credit = self._credit
        credit.iteration_over(asked, metrics.previews * self._spec.preview_steps)
        self._job.progress.random_credit = credit.left
        self._found = None

    def release(self) -> None:
        """The figures are on record: what made them is used up, and what is late is dropped."""
        if self._iteration >= 0:
            if self._open:
                self._job.requests.cancel("random")
            self._job.requests.forget("random", self._iteration)
            self._open.clear()
            self._iteration = -1

    @property
    def _credit(self) -> Credit:
        group_steps = self._spec.group_size * self._spec.sampler.steps
        return Credit(group_steps, self._job.progress.random_credit)

    def _probes(self, seeds: Sequence[Sequence[int]]) -> dict[int, list[float]]:
        """Their fresh rewards; those of some are those of samples."""
        rollout = self._job.rollouts.rollout
        fresh = [*rollout.samples(), *rollout.probes()]
        return self._by_group(
            one for one in fresh if seeds and one.request.seed in seeds[one.request.group]
        )

    def _by_group(self, results: Iterable[Result]) -> dict[int, list[float]]:
        found: defaultdict[int, list[float]] = defaultdict(list)
        for one in results:
            found[one.request.group].append(combined(one.rewards, self._scale))
        return dict(found)
