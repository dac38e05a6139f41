"""The samples of one iteration while they come in, and how each ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from spotlight.jobs import RewardSpec, TrainingSpec
from spotlight.policies.advantages import mixed_advantages
from spotlight.types import BundleOffer, Request, Result, TrainingSample


class Rollout:
    """Each request is open, finished, or dropped with its prompt group. Probes are finished like
    samples, and not trained on."""

    def __init__(self, requests: Sequence[Request] = (), probes: Sequence[Request] = ()) -> None:
        self._open = {request.id: request for request in (*requests, *probes)}
        self._probes = {request.id for request in probes}
        self._results: dict[str, Result] = {}
        self._bundles: set[BundleOffer] = set()
        self._restored: set[str] = set()
        self.wanted = len(requests)

    @property
    def complete(self) -> bool:
        """Nothing is open any more."""
        return not self._open

    @property
    def finished(self) -> int:
        """Samples that are scored."""
        return len(self._results.keys() - self._probes)

    @property
    def restored(self) -> int:
        """Of these, those that an earlier coordinator of this run had."""
        return len((self._results.keys() & self._restored) - self._probes)

    def expects(self, request: Request) -> bool:
        """Whether the request is open: of this iteration, not finished and not dropped."""
        return request.id in self._open

    def count_outdated(self, kept_versions: Collection[int]) -> int:
        """Open requests that nobody could denoise any more with these weights versions."""
        return sum(request.weights_version not in kept_versions for request in self._open.values())

    @property
    def versions(self) -> frozenset[int]:
        """The weights versions with which open requests are denoised."""
        return frozenset(request.weights_version for request in self._open.values())

    def add(self, results: Sequence[Result], *, restored: bool = False) -> list[Result]:
        """Samples are scored, perhaps by an earlier coordinator; those that are not open (dropped,
        or of another iteration) change nothing. Returns those whose bundles nobody needs.
        """
        for result in results:
            if self._open.pop(result.request.id, None) is not None:
                self._results[result.request.id] = result
                self._bundles.add(result.bundle)
                if restored:
                    self._restored.add(result.request.id)
        return [result for result in results if result.bundle not in self._bundles]

    def drop_group(self, group: int) -> list[Result]:
        """Give a prompt group up; returns those of its samples that were finished."""
        for key in [key for key, request in self._open.items() if request.group == group]:
            del self._open[key]
        finished = [r for r in self._results.values() if r.request.group == group]
        for result in finished:
            del self._results[result.request.id]
        return finished

    def drop_probes(self, requests: Sequence[Request]) -> None:
        """Those of them that are probes are not waited for."""
        for request in requests:
            if request.id in self._probes:
                self._open.pop(request.id, None)

    def samples(self) -> list[Result]:
        """Finished samples in canonical order, whoever finished what when: the update must not
        depend on it.
        """
        return self._sorted(self._results.keys() - self._probes)

    def probes(self) -> list[Result]:
        """Finished probes in canonical order."""
        return self._sorted(self._results.keys() & self._probes)

    def _sorted(self, keys: Collection[str]) -> list[Result]:
        return sorted(
            (self._results[key] for key in keys),
            key=lambda result: (result.request.group, result.request.seed),
        )

    def bundles(self) -> set[BundleOffer]:
        """Where the samples are stored, those of groups that were dropped later included."""
        return set(self._bundles)


def weights_by_group(
    samples: Sequence[Result], rewards: Sequence[RewardSpec]
) -> dict[int, tuple[float, ...]]:
    """The weights of the rewards in each prompt group, by the tag of its prompt; none where no
    reward has a weight of its own for any tag."""
    if not any(reward.weight_by_tag for reward in rewards):
        return {}
    tags = {sample.request.group: _tag(sample.request.metadata) for sample in samples}
    return {
        group: tuple(reward.weight_by_tag.get(tag, reward.weight) for reward in rewards)
        for group, tag in tags.items()
    }


def _tag(metadata: str) -> str:
    """That of a prompt with this metadata; empty if it has none."""
    tag = msgspec.json.decode(metadata).get("tag") if metadata else None
    return tag if isinstance(tag, str) else ""


def training_samples(
    samples: Sequence[Result], rewards: Sequence[RewardSpec], training: TrainingSpec
) -> tuple[TrainingSample, ...]:
    """Samples with their advantages by the job's rewards, in the order given; from fresh rewards
    only."""
    advantages = mixed_advantages(
        [sample.rewards for sample in samples],
        [sample.request.group for sample in samples],
        [reward.weight for reward in rewards],
        by_group=weights_by_group(samples, rewards),
        baseline=training.advantage_baseline,
        std=training.advantage_std,
        clip=training.largest_advantage,
    )
    return tuple(
        TrainingSample(
            sample.request.prompt, sample.bundle, sample.row, advantage, sample.request.seed
        )
        for sample, advantage in zip(samples, advantages, strict=True)
    )
