"""Turns the coordinator's report of a group into samples with tensors and images."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spotlight.actors.protocol.sessions import DoneGroup, DoneSample
from spotlight.jobs import RewardSpec
from spotlight.policies.exploration.reward_scales import weighted_mean
from spotlight.rollouts.groups import Failure, Group, RolloutRequest, Sample
from spotlight.types import BundleOffer

if TYPE_CHECKING:
    from torch import Tensor

    from spotlight.rollouts.opening import Connection

_KEPT_BUNDLES = 16
"""The samples of one batch are those of several groups, which come one after the other."""


class SampleFetcher:
    """Fetches each bundle once, as long as groups come in about the order of their batches.

    Args:
        connection: fetches bundles, and unpacks them.
        rewards: of the session.
        tensors: whether latents and trajectories are wanted.
    """

    def __init__(
        self,
        connection: Connection,
        rewards: Sequence[RewardSpec],
        *,
        tensors: bool,
    ) -> None:
        self._connection = connection
        self._rewards = rewards
        self._tensors = tensors
        self._bundles: OrderedDict[str, asyncio.Task[Mapping[str, Tensor]]] = OrderedDict()

    async def group(self, done: DoneGroup, request: RolloutRequest, index: int) -> Group:
        """The group with its samples. Raises `TransferFailed`."""
        samples = await asyncio.gather(
            *(self._sample(sample, request.prompt, done.version) for sample in done.samples)
        )
        failed = tuple(Failure(each.seed, each.reason) for each in done.failed)
        return Group(request, index, done.version, tuple(samples), failed)

    async def aclose(self) -> None:
        """Fetch nothing more."""
        for task in self._bundles.values():
            task.cancel()
        await asyncio.gather(*self._bundles.values(), return_exceptions=True)

    async def _sample(self, done: DoneSample, prompt: str, version: int) -> Sample:
        tensors: Mapping[str, Tensor] = {}
        if self._tensors and done.bundle is not None:
            tensors = await self._unpacked(done.bundle)
        specs = self._rewards
        noisy = bool(tensors) and tensors["log_probs"].shape[1] > 0
        return Sample(
            prompt=prompt,
            seed=done.seed,
            policy_version=version,
            rewards={each.name: reward for each, reward in zip(specs, done.rewards, strict=True)},
            reward=weighted_mean(done.rewards, [each.weight for each in specs]) if specs else None,
            latents=tensors["latents"][done.row] if tensors else None,
            states=tensors["window_states"][done.row] if noisy else None,
            log_probs=tensors["log_probs"][done.row] if noisy else None,
            image=await self._connection.fetch(done.picture) if done.picture is not None else None,
            attempts=done.attempts,
            resumed_at_step=done.resumed_at,
        )

    async def _unpacked(self, bundle: BundleOffer) -> Mapping[str, Tensor]:
        known = self._bundles.get(bundle.key)
        if known is None or _failed(known):
            known = self._bundles[bundle.key] = asyncio.create_task(self._read(bundle))
            if len(self._bundles) > _KEPT_BUNDLES:
                self._bundles.popitem(last=False)  # whoever waits for it still has it
        return await asyncio.shield(known)

    async def _read(self, bundle: BundleOffer) -> Mapping[str, Tensor]:
        return await asyncio.to_thread(
            self._connection.unpack, await self._connection.fetch(bundle)
        )


def _failed(task: asyncio.Task[Mapping[str, Tensor]]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
