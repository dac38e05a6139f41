"""The member of a simulated cluster: it says what a real one says when a real one says it, takes
time, and holds fingerprints in place of tensors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from spotlight.actors.protocol import (
    Completed,
    Follow,
    Grant,
    JobPlan,
    ReturnLease,
    WorkerPlan,
)
from spotlight.actors.runtime import ActorRef
from spotlight.actors.worker.batch_member import (
    STATES,
    BatchMember,
    Scored,
    StepsTaken,
    Unwanted,
)
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import CommitRefused, ScoringError, TransferFailed, WrongWeights
from spotlight.jobs import JobSpec
from spotlight.testing import fingerprints
from spotlight.testing.fake_collectives import Connector, InFakeGroup, StepGroup
from spotlight.testing.fake_hardware import (
    FakeHardware,
    SimulatedBatch,
    fetch_bundle,
    fetch_weights,
)
from spotlight.testing.simulated_steps import Steps, apart, checksum
from spotlight.types import BundleOffer, StoreEndpoint


@dataclass
class _Job:
    id: str
    sink: StoreEndpoint


class SimulatedMember(BatchMember[SimulatedBatch, StepGroup, str]):
    """Stands where a `Member` does."""

    def __init__(self, context: WorkerContext, node: str, plant: FakeHardware) -> None:
        connector = Connector(plant.circles, lambda: self._job.id if self._job else None)
        super().__init__(context, connector)
        self._node = node
        self._plant = plant
        self._job: _Job | None = None
        self._reported: set[tuple[int, bool]] = set()
        """Weights of the job."""

    async def _load_model(self, spec: JobSpec) -> None:
        with self._context.busy("loading", "model"):
            await asyncio.sleep(self._plant.timings.load_s)

    def _begin_job(self, plan: JobPlan, spec: JobSpec) -> None:
        self._job = _Job(plan.job_id, plan.membership.sink)

    def _end_job(self) -> None:
        self._job = None
        self._reported.clear()
        self._forget_batches()

    async def _fetch_weights(self, offer: BundleOffer) -> str:
        return (await fetch_weights(self._plant, offer)).weights

    # --- what it does in its group ---

    def _follower(self, message: Follow) -> Callable[[StepGroup], asyncio.Future[int]]:
        first = message.requests[0]
        weights = self._held((first.weights_version, first.kind == "evaluation"))
        if checksum(weights) != message.checksum:
            raise WrongWeights(f"version {first.weights_version} is not the same here")

        def take_steps(company: StepGroup) -> asyncio.Future[int]:
            assert isinstance(company, InFakeGroup), "nobody follows in a group of one"
            work = company.follow(message.stretch, weights, lambda: step_s(company.members))
            return apart(self, work)

        def step_s(members: int) -> float:
            return self._plant.step_s(self._node, members)

        return take_steps

    # --- batches ---

    def _make_batch(self, message: Grant, leader: ActorRef) -> SimulatedBatch:
        return SimulatedBatch(message, leader)

    async def on_plan(self, message: WorkerPlan) -> None:
        if message.stop_in_s is not None:
            self._plant.drains[self._node] += 1
        await super().on_plan(message)

    def _report(self) -> None:
        for evaluation in (False, True):
            versions = self._holdings.versions(evaluation=evaluation)
            self._reported |= {(version, evaluation) for version in versions}
        super()._report()

    async def _carry_out(self, batch: SimulatedBatch) -> Completed | ReturnLease:
        job, message = self._job, batch.message
        if job is None:
            raise WrongWeights("no job is prepared on this member")
        first = message.requests[0]
        version = (first.weights_version, first.kind == "evaluation")
        if version not in self._reported:
            self._plant.history.violation(
                f"{self._context.name} was granted {first.id}: it has not reported its weights"
            )
        weights = self._held(version)
        batch.latents = await self._begin(batch, weights)
        async with self._context.accelerator_turn():
            self._require_wanted(batch)
            batch.begun, batch.weights = True, self._held(version)
            if batch.weights != weights and batch.first:
                raise CommitRefused("made with other weights of the same version")
            if batch.weights != weights:
                batch.latents = [fingerprints.noise(batch.weights, r) for r in message.requests]
            self._plant.at_work[self._context.name] = batch
            with self._context.busy(STATES[first.kind], f"{len(message.requests)} images"):
                try:
                    done = await self._steps(job, batch).take()
                finally:
                    self._plant.at_work.pop(self._context.name, None)
        if not done:
            if batch.committed < batch.step:
                await self._commit(job, batch, batch.step, tuple(batch.latents))
            return self._returned(batch)
        members = batch.degrees.pop() if len(batch.degrees) == 1 else 0
        return await self._complete(
            batch,
            StepsTaken(batch.step - batch.first, batch.seconds, members),
            deliver=lambda: self._deliver(job, batch),
            score=lambda: self._score(batch),
        )

    async def _begin(self, batch: SimulatedBatch, weights: str) -> list[str]:
        message, plant = batch.message, self._plant
        commits = [commit for commit in message.commits if commit is not None]
        plant.acks.check(message)
        plant.history.add(
            "denoise",
            worker=self._context.name,
            lease=message.lease,
            step=commits[0].step if commits else 0,
            every=message.commit_every,
            weights=weights,
            requests=tuple(request.id for request in message.requests),
        )
        if not commits:
            return [fingerprints.noise(weights, request) for request in message.requests]
        if len({commit.step for commit in commits}) != 1 or len(commits) < len(message.requests):
            plant.history.violation(f"lease {message.lease} mixes requests at different steps")
        latents = []
        for request, commit in zip(message.requests, commits, strict=True):
            try:
                row = (await fetch_bundle(plant, commit.bundle)).rows[commit.row]
            except TransferFailed as error:
                raise CommitRefused(str(error)) from error
            if row.weights != weights:
                raise CommitRefused("made with other weights of the same version")
            if row.request != request or row.step != commit.step:
                plant.history.violation(
                    f"the commit of {request.id} at step {commit.step} holds"
                    f" {row.request.id} at step {row.step}"
                )
                raise CommitRefused("of another request")
            latents.append(row.latents)
        batch.first = batch.step = batch.committed = batch.told = commits[0].step
        return latents

    def _steps(self, job: _Job, batch: SimulatedBatch) -> Steps:
        return Steps(
            self,
            self._context.name,
            self._node,
            self._plant,
            self._seat,
            batch,
            commit=lambda: self._commit(job, batch, batch.step, tuple(batch.latents)),
            stop_at=lambda: self._stop_at,
            is_wanted=lambda: self._is_wanted(batch),
        )

    def _held(self, version: tuple[int, bool]) -> str:
        weights = self._holdings.weights.get(version)
        if weights is None:
            raise WrongWeights(f"version {version[0]} is not held here")
        return weights

    async def _score(self, batch: SimulatedBatch) -> Scored:
        plant, requests = self._plant, batch.message.requests
        await asyncio.sleep(plant.timings.score_s)
        if any(plant.scorer_fails(request) for request in requests):
            worker = self._context.name
            plant.history.took_effect("scorer_error", worker=worker, request=requests[0].id)
            raise ScoringError("the scorer is out of order")
        rewards = plant.numerics.rewards(_rows(batch, batch.step, batch.latents))
        return Scored(rewards, plant.timings.score_s)

    # --- delivery ---

    async def _deliver(self, job: _Job, batch: SimulatedBatch) -> BundleOffer:
        """The pictures that are asked for, and the last commit, unless it was told already."""
        for request in batch.message.requests:
            if request.image_key:
                await self._upload(job, batch, request.image_key, b"picture")
        bundle = await self._upload_progress(job, batch, batch.step, tuple(batch.latents))
        if batch.first < batch.step:
            self._tell(batch, batch.step, bundle)
        return bundle

    async def _commit(
        self, job: _Job, batch: SimulatedBatch, step: int, latents: tuple[str, ...]
    ) -> None:
        try:
            bundle = await self._upload_progress(job, batch, step, latents)
        except (TransferFailed, Unwanted):
            return
        self._tell(batch, step, bundle)

    def _tell(self, batch: SimulatedBatch, step: int, bundle: BundleOffer) -> None:
        if self._is_wanted(batch):
            batch.told = step
        self._tell_commit(batch, step, bundle, self._plant.timings.copy_s)

    async def _upload_progress(
        self, job: _Job, batch: SimulatedBatch, step: int, latents: tuple[str, ...]
    ) -> BundleOffer:
        data = msgspec.msgpack.encode(fingerprints.Bundle(_rows(batch, step, latents)))
        return await self._upload(job, batch, self._key(batch, step), data)

    async def _upload(self, job: _Job, batch: SimulatedBatch, key: str, data: bytes) -> BundleOffer:
        stores = self._plant.stores
        return await self._until_uploaded(batch, key, lambda: stores.upload(job.sink, key, data))


def _rows(batch: SimulatedBatch, step: int, latents: Sequence[str]) -> tuple[fingerprints.Row, ...]:
    return tuple(
        fingerprints.Row(request, batch.weights, step, each)
        for request, each in zip(batch.message.requests, latents, strict=True)
    )
