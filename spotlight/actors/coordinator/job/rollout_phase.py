"""The samples of an iteration, from their requests until training has used them up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING

import msgspec

from spotlight.actors.coordinator.job.measures import measure_rollout, sample_scale
from spotlight.actors.coordinator.job.rollout import Rollout
from spotlight.actors.coordinator.tenant.request_plans import (
    TrainingPrompts,
    finishing_of,
    preview_of,
    probe_requests,
    rollout_requests,
    unexplored,
)
from spotlight.policies.advantages import all_equal
from spotlight.policies.exploration.reuse import rewards_to_train_on
from spotlight.policies.exploration.reward_scales import weighted_mean
from spotlight.record.run_events import (
    SEE_EVENTS,
    GroupDropped,
    RewardsFlat,
    SamplesMadeAgain,
    SamplesOutdated,
)
from spotlight.types import Request, Result

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner


class RolloutPhase:
    """See the module's docstring."""

    def __init__(self, job: JobRunner, prompts: TrainingPrompts) -> None:
        self._job, self._spec = job, job.spec
        self._prompts = prompts
        self.rollout = Rollout()
        self._to_submit: list[Request] = []
        """Requests of the iteration that is being begun."""
        self._dropped_for = ""
        """Why the latest prompt group failed."""
        self.scale: Sequence[float] = ()
        """What each reward of a sample is multiplied with before they are summed."""

    def begin(self, iteration: int) -> bool:
        """Take what previews have made of the chosen seeds; True if some are to be denoised, which
        `submit` begins."""
        if self._spec.exploration.mode == "none":
            self._job.progress.exploration.accept(unexplored(self._spec, iteration))
        metrics = self._job.progress.open_metrics(iteration)
        publish_s = self._job.phase.pop_duration("publish")
        metrics.explore_s = self._job.phase.pop_duration("explore")
        self._take(iteration)
        metrics.publish_s = publish_s if self._to_submit else None  # else it goes on meanwhile
        self._end_if_complete()
        return bool(self._to_submit)

    def _take(self, iteration: int) -> None:
        """What is chosen, and what is there of it."""
        exploration, metrics = self._job.progress.exploration, self._job.progress.metrics
        latest, choices = exploration.latest, exploration.choices
        metrics.previews, metrics.previews_late = latest.previews, latest.late
        prompts = self._prompts.of(iteration)
        rollouts = rollout_requests(self._spec, iteration, prompts, choices)
        probes = probe_requests(self._spec, iteration, prompts, choices, latest.probe_seeds)
        reused = self._reused(iteration, rollouts)
        groups = {result.request.group for result in reused}
        lacking = [request for request in rollouts if request.group not in groups]
        lacking = self._as_they_were(iteration, lacking)
        probed, to_probe = list[Result](), probes
        if latest.finished:
            probed, to_probe = self._probed(iteration, probes)
        self._to_submit = [*lacking, *to_probe]
        self.rollout = Rollout(
            [*(result.request for result in reused), *lacking],
            [*(result.request for result in probed), *to_probe],
        )
        self.rollout.add([*reused, *probed])
        metrics.samples_reused = len(reused)
        metrics.samples_finished = len(reused) if latest.finished else 0
        metrics.samples_made_again = sum(request.weights_version < iteration for request in lacking)

    def submit(self) -> None:
        """Have the rest denoised: the chosen seeds, and the probes."""
        self._job.requests.submit(self._to_submit)

    def _reused(self, iteration: int, rollouts: Sequence[Request]) -> list[Result]:
        """The samples that were made ahead, or that an earlier runner has made again: of each
        prompt group all of them, or none if one is not there any more."""
        if not self._spec.trains_on_previews:
            return []
        latest = self._job.progress.exploration.latest
        wanted = [request for request in rollouts if request.group in latest.reused]
        results = list[Result]()
        if self._spec.trains_on_older:
            results = _whole_groups(self._there(iteration, map(finishing_of, wanted)), wanted)
        if latest.finished:
            return results
        groups = {result.request.group for result in results}
        others = [request for request in wanted if request.group not in groups]
        previews = (preview_of(self._spec, request) for request in others)
        noisy = self._spec.noisy_rewards
        previewed = [
            msgspec.structs.replace(result, rewards=rewards_to_train_on(result.rewards, noisy))
            for result in self._there(iteration, previews)
        ]
        return [*results, *_whole_groups(previewed, others)]

    def _as_they_were(self, iteration: int, lacking: Sequence[Request]) -> list[Request]:
        """Requests of samples that are not there. Those that had been made ahead, and are lost, are
        made again with the weights that they had, if somebody has these: then they have the same
        bits."""
        reused = self._job.progress.exploration.latest.reused
        lost = {request.id for request in lacking if request.group in reused}
        if not lost or not self._spec.trains_on_older:
            return list(lacking)
        version = iteration - 1 if self._can_make_ahead(iteration) else iteration
        self._job.record.event(
            SamplesMadeAgain(iteration=iteration, samples=len(lost), weights_version=version)
        )
        if version == iteration:
            return list(lacking)
        return [finishing_of(each) if each.id in lost else each for each in lacking]

    def _can_make_ahead(self, iteration: int) -> bool:
        """Whether nodes still have the weights with which samples of an iteration are made
        ahead."""
        version, publications = iteration - 1, self._job.publications
        return version in publications and not publications.is_lost(version)

    def _probed(
        self, iteration: int, probes: Sequence[Request]
    ) -> tuple[list[Result], tuple[Request, ...]]:
        """The finished probes that are there, and requests of those that are lost and can be made
        again: with other weights they would say something else."""
        finished = [finishing_of(probe) for probe in probes]
        probed = self._there(iteration, finished)
        there = {result.request.id for result in probed}
        if not self._can_make_ahead(iteration):
            return probed, ()
        return probed, tuple(
            probe
            for probe in finished
            if probe.id not in there and not self._job.requests.knows(probe)  # given up
        )

    def _there(self, iteration: int, chosen: Iterable[Request]) -> list[Result]:
        """What is there of these, which were done ahead."""
        results = self._job.requests.previewed(iteration, chosen)
        return [result for result in results if result is not None]

    def settle(self, iteration: int, *, changed: bool) -> None:
        """No other samples will be chosen for the later part of the iteration; whether others are
        since it was begun."""
        if changed:
            self._take(iteration)
            assert not self._to_submit, "previews that were chosen since are there"
        self._measure()

    def finished(self, results: Sequence[Result], *, restored: bool) -> None:
        """Samples come in, in any order, each once."""
        if results:
            self._drop(self.rollout.add(results, restored=restored))
            self._end_if_complete()

    def given_up(self, requests: Sequence[Request], reason: str) -> None:
        """Each that could not be denoised or scored costs its prompt group, or the job."""
        if not requests:
            return
        self.rollout.drop_probes(requests)
        failed = [request for request in requests if self.rollout.expects(request)]
        if failed and self._spec.scoring.on_failure == "stop":
            self._job.fail(f"{failed[0].id} failed: {reason}; {SEE_EVENTS}")
            return
        for iteration, group, prompt in sorted({(r.iteration, r.group, r.prompt) for r in failed}):
            dropped = GroupDropped(iteration=iteration, prompt=prompt, reason=reason)
            self._job.record.event(dropped)
            self._dropped_for = reason
            self.rollout.drop_group(group)
        self._end_if_complete()

    @property
    def needs_weights_of(self) -> frozenset[int]:
        """The weights versions before those of the iteration that samples are still made with."""
        return self.rollout.versions - {self._job.progress.metrics.iteration}

    def begin_with_newer(self) -> None:
        """Nobody has the weights any more with which samples are made again."""
        self._job.requests.cancel("rollout")
        self._take(self._job.progress.metrics.iteration)
        self.submit()
        self._end_if_complete()

    def note_outdated(self, versions: Collection[int]) -> None:
        """Only these weights versions are kept: samples of others cannot be made any more."""
        if samples := self.rollout.count_outdated(versions):
            iteration = self._job.progress.metrics.iteration
            self._job.record.event(SamplesOutdated(iteration=iteration, samples=samples))

    def release(self, iteration: int) -> None:
        """Nobody will train on the samples again. What was in work, but of no use, when those of
        the iteration before were released has mostly ended since."""
        for kind, used in product(self._spec.trained_on, (iteration - 1, iteration)):
            bundles = self._job.journal.bundles(kind, used)
            self._job.requests.forget(kind, used)
            for bundle in bundles:
                self._job.discard(bundle)

    def _must_stop(self, samples: Sequence[Result]) -> bool:
        """Whether there was nothing to learn from for too long; an event tells of each time."""
        progress, iteration = self._job.progress, self._job.progress.metrics.iteration
        progress.note_flat(all_equal(sample.rewards for sample in samples))
        in_a_row, most = progress.flat_iterations, self._spec.scoring.flat_iterations
        if not in_a_row:
            return False
        reward = weighted_mean(samples[0].rewards, self._spec.reward_weights)
        self._job.record.event(
            RewardsFlat(iteration=iteration, reward=reward, in_a_row=in_a_row, stops_after=most)
        )
        if in_a_row < most:
            return False
        self._job.fail(
            f"all {len(samples)} samples of iteration {iteration} have the same reward,"
            f" {reward:g}, as in the {in_a_row - 1} iterations before, so there is nothing to learn"
            " from; look at the pictures and at what the scorer says of them, or raise"
            " `scoring.flat_iterations`"
        )
        return True

    def _drop(self, results: Sequence[Result]) -> None:
        """Nobody trains on these: whoever resumes the run must not find them either."""
        gone = [result.request.id for result in results]
        self._job.record.write(lambda: self._job.journal.save_requests(dict.fromkeys(gone)))
        if not self._job.phase.over:
            for bundle in {result.bundle for result in results}:
                self._job.discard(bundle)

    def _end_if_complete(self) -> None:
        if self._job.phase.name != "rollout" or not self.rollout.complete or self._job.phase.over:
            return
        if not self.rollout.finished:
            reason = f"every prompt group of the iteration failed ({self._dropped_for})"
            self._job.fail(f"{reason}; {SEE_EVENTS}")
            return
        metrics = self._job.progress.metrics
        metrics.rollout_s = self._job.phase.seconds
        metrics.samples_restored = self.rollout.restored
        if self._job.progress.exploration.latest.later or self._measure():
            self._job.rolled_out(metrics.iteration)

    def _measure(self) -> bool:
        """The samples of the iteration are chosen for good; False if they end the job."""
        metrics, exploration = self._job.progress.metrics, self._job.progress.exploration
        samples, probes = self.rollout.samples(), self.rollout.probes()
        scale = exploration.latest.scale or sample_scale(samples, self._spec.reward_weights)
        self.scale = scale
        self._job.pictures.choose(metrics.iteration, samples)
        measure_rollout(metrics, samples, exploration.choices, self._spec, scale)
        exploration.evaluate([*samples, *probes], metrics, scale)
        return not self._must_stop(samples)


def _whole_groups(results: Sequence[Result], wanted: Iterable[Request]) -> list[Result]:
    """Those of prompt groups of which all that are wanted are there."""
    lacking = Counter(request.group for request in wanted)
    lacking.subtract(result.request.group for result in results)
    return [result for result in results if not lacking[result.request.group]]
