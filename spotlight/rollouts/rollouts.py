"""`Rollouts`: how another program's training loop uses Spotlight's workers."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from spotlight.actors.protocol.sessions import DoneGroup, Fleet, GroupOrder
from spotlight.errors import SessionEnded, SpotlightError
from spotlight.jobs import ModelSpec, RewardSpec, SamplerSpec, WorkSpec
from spotlight.policies.exploration.reward_spread import Knowledge
from spotlight.policies.exploration.settings import PlannerName
from spotlight.rollouts.exploration import Exploration, settings_for
from spotlight.rollouts.fetching import SampleFetcher
from spotlight.rollouts.groups import Capacity, RolloutRequest, Usage
from spotlight.rollouts.opening import Connection, connected, connected_locally, work_of
from spotlight.rollouts.publication import Kind
from spotlight.rollouts.session_link import SessionLink
from spotlight.rollouts.streams import GroupStream
from spotlight.rollouts.versions import ANY_VERSION, AtLeast, Exactly, choose_version
from spotlight.running.join_option import resolve

if TYPE_CHECKING:
    from torch import Tensor

Model = ModelSpec | Mapping[str, Any] | str
"""A checkpoint's folder or `builtin:NAME`, or all that a job file says of its model."""
Sampler = SamplerSpec | Mapping[str, Any]
Rewards = Sequence[RewardSpec | Mapping[str, Any]]


class Rollouts:
    """A session with a coordinator. `connect` and `local` make it, and it ends with their context.

    Nothing here prints, handles signals or owns an event loop. Every method is a coroutine of the
    loop that the session was begun in.
    """

    def __init__(
        self, connection: Connection, session: str, work: WorkSpec, *, tensors: bool
    ) -> None:
        """Not for users: see `connect` and `local`."""
        self._work = work
        self._publications = connection.publications
        self._fetcher = SampleFetcher(connection, work.rewards, tensors=tensors)
        self._link = SessionLink(
            connection.system,
            connection.coordinator,
            session,
            work,
            offers=self._publications.offers,
            program=self,
            weight=connection.weight,
            timings=connection.timings,
        )
        self._numbers = itertools.count(1)
        self._wanted: dict[int, tuple[GroupStream, RolloutRequest, int]] = {}
        """Groups by number: whose they are, what was asked for, and as the how manieth."""
        self._streams: dict[GroupStream, None] = {}
        self.knowledge = Knowledge()
        """What explorations have learnt of prompts; it is not for users."""
        self._published = asyncio.Condition()
        self._publishing = asyncio.Lock()
        self._lost: SpotlightError | None = None

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        join: str = "",
        *,
        model: Model,
        sampler: Sampler,
        rewards: Rewards = (),
        threads: int = 1,
        tensors: bool = True,
        host: str = "",
        store: Path | str | None = None,
        weight: float = 1.0,
    ) -> AsyncIterator[Rollouts]:
        """Use the nodes of a coordinator for as long as the context lasts.

        Args:
            join: a join token of the coordinator for a submitter or operator, or `@FILE` with
                one. Without it that of the environment (`SPOTLIGHT_JOIN`), else that of
                `runs/operator.token`.
            model: what denoises; every node must have the checkpoint under this path.
            sampler: how.
            rewards: what scores; none: nothing is scored.
            threads: CPU threads of each worker.
            tensors: whether samples come with latents and trajectories.
            host: address of this machine that nodes reach it by, to pull weights; found out unless
                given.
            store: folder for the weights that are published, instead of shared memory.
            weight: the share of the nodes is in proportion to it where jobs and loops share them.

        Raises `JobError` or `CheckpointError` for what cannot be done, `RequestRefused` if the
        coordinator says no, and `ActorError` if it does not answer: `NotAdmitted` if
        it does not know the token, `NotAllowed` if that is for something else, `OtherVersion` if it
        is of another build of Spotlight.
        """
        work = work_of(model, sampler, rewards, threads)
        token = await asyncio.to_thread(resolve, "join", join)
        async with (
            connected(token, work, host=host, store=store, weight=weight) as connection,
            cls._begun(connection, work, tensors=tensors) as rollouts,
        ):
            yield rollouts

    @classmethod
    @asynccontextmanager
    async def local(
        cls,
        *,
        workers: int = 1,
        model: Model,
        sampler: Sampler,
        rewards: Rewards = (),
        threads: int = 1,
        tensors: bool = True,
        store: Path | str | None = None,
    ) -> AsyncIterator[Rollouts]:
        """The same with a coordinator and a node on this machine, which end with the context.

        Args:
            workers: processes that denoise: one per accelerator or CPU core.
            store: folder for the weights, those of the node included, instead of shared memory.
        """
        work = work_of(model, sampler, rewards, threads)
        async with (
            connected_locally(workers, work, store=store) as connection,
            cls._begun(connection, work, tensors=tensors) as rollouts,
        ):
            yield rollouts

    @classmethod
    @asynccontextmanager
    async def _begun(
        cls, connection: Connection, work: WorkSpec, *, tensors: bool
    ) -> AsyncIterator[Rollouts]:
        rollouts = cls(connection, secrets.token_hex(8), work, tensors=tensors)
        try:
            await rollouts.begin()
            yield rollouts
        finally:
            await rollouts.end()

    async def begin(self) -> None:
        """Not for users: begin the session."""
        tensors = await self._link.begin()
        self._publications.shapes = {tensor.name: tensor.shape for tensor in tensors}

    async def end(self) -> None:
        """Not for users: end the session; whoever still waits for groups is told so."""
        self.lose(SessionEnded("the session was ended while its groups were waited for"))
        await self._link.end()
        for stream in list(self._streams):
            await stream.abandon()
        await self._fetcher.aclose()

    # --- weights ---

    async def publish(
        self, weights: Mapping[str, Tensor], version: int, kind: Kind = "full"
    ) -> None:
        """Have workers denoise with these weights from now on.

        They are copied before this returns, and nodes pull them in the background; what is in work
        is finished with the weights that it began with.

        Args:
            weights: tensors by the names of the transformer's state dict (`full`), or of its
                adapters (`lora`); any float dtype and device.
            version: above all that were published.
            kind: the tuning that the session's model names.

        Raises `WeightsRefused` for other names, shapes or versions, and for values that are not
        finite.
        """
        async with self._publishing:
            publications = self._publications
            offer = await asyncio.to_thread(
                lambda: publications.pack(version, publications.require(version, kind, weights))
            )
            before = self._publications.newest
            keep = {version, *({before} - {-1}), *self._link.versions_in_use}
            self._publications.keep(keep)
            await self._link.offer(offer, keep)
            # Only now: what is asked for meanwhile must not overtake the offer.
            self._publications.offers[version] = offer
        async with self._published:
            self._published.notify_all()

    @property
    def newest_version(self) -> int:
        """The version that was published last; -1 before the first."""
        return self._publications.newest

    @property
    def sampler(self) -> SamplerSpec:
        """How the session denoises."""
        return self._work.sampler

    @property
    def versions(self) -> frozenset[int]:
        """Those that are published and kept."""
        return frozenset(self._publications.offers)

    @property
    def largest_publication(self) -> int:
        """Bytes that a safetensors file with weights for `publish` has at most."""
        return self._publications.largest

    # --- rollouts ---

    def rollout(self, requests: Iterable[RolloutRequest]) -> GroupStream:
        """Have prompt groups denoised and scored, all at once; iterate over what comes back, each
        group once, as it is done.

        Work begins at once. Requests wait for weights that are not published yet. The iterator
        raises `VersionGone` for weights that are not kept, `RequestRefused`, and `SessionEnded`
        when the session is lost; a sample that fails is named in its group.
        """
        asked = tuple(requests)

        async def submit(stream: GroupStream) -> None:
            for version, some in _by_version(asked):
                await self.submit(stream, some, version, kind="rollout")

        return self.stream(submit)

    def explore(
        self,
        prompts: Sequence[str],
        *,
        keep: int,
        candidates: int,
        seed: int = 0,
        steps: int | None = None,
        version: AtLeast | Exactly = ANY_VERSION,
        planner: PlannerName = "uniform",
    ) -> Exploration:
        """Preview candidate seeds of prompts until it is stopped, and choose for each prompt those
        whose rewards contrast most. It goes on while the caller trains:

            exploration = rollouts.explore(prompts, keep=8, candidates=32)
            train(...)  # in a thread, or with awaits in it
            chosen = await exploration.stop()

        Args:
            keep: seeds that are chosen for each prompt.
            candidates: most previews of a prompt; with `bandit` those of an average prompt, and
                one may have up to twice as many.
            seed: decides which candidates there are.
            steps: denoising steps of a preview; the sampler's when absent.
            planner: which prompts get previews and which seeds are kept, by the names of a job's
                `exploration.mode`: `uniform`, `random` or `bandit`. What `bandit` learns of prompts
                is kept until the session ends, for the next exploration that meets them.

        Raises `JobError` naming what does not fit.
        """
        settings = settings_for(
            self._work,
            len(prompts),
            keep=keep,
            candidates=candidates,
            seed=seed,
            planner=planner,
        )
        return Exploration(self, prompts, settings, steps=steps, version=version)

    # --- what there is ---

    async def capacity(self) -> Capacity:
        """What there is to denoise with."""
        return _capacity(await self._link.fleet())

    async def usage(self) -> Usage:
        """What was done so far."""
        fleet = await self._link.fleet()
        return Usage(
            fleet.samples,
            fleet.previews,
            fleet.resumed,
            fleet.handed_on,
            fleet.failed,
            {use.pool: dict(use.seconds) for use in fleet.pools},
        )

    # --- inside ---

    def learn(self, knowledge: Knowledge) -> None:
        """Not for users: what an exploration has learnt of prompts."""
        self.knowledge = self.knowledge.after(knowledge)

    def stream(self, submit: Callable[[GroupStream], Awaitable[None]]) -> GroupStream:
        """Not for users: groups that `submit` asks for."""
        stream = GroupStream(submit, self)
        self._streams[stream] = None
        if self._lost is not None:
            stream.fail(self._lost)
        return stream

    async def submit(
        self,
        stream: GroupStream,
        some: Sequence[tuple[int, RolloutRequest]],
        wanted: AtLeast | Exactly,
        *,
        kind: Literal["rollout", "preview"],
    ) -> None:
        """Not for users: have requests, with their indices, denoised for a stream."""
        version = await self._version(wanted)
        orders = []
        for index, request in some:
            number = next(self._numbers)
            stream.expect(number)
            self._wanted[number] = stream, request, index
            orders.append(_order(number, kind, version, request))
        await self._link.submit(orders)

    async def _version(self, wanted: AtLeast | Exactly) -> int:
        """As soon as it is published."""
        async with self._published:
            while (version := choose_version(wanted, self._publications.offers)) is None:
                await self._published.wait()
            return version

    async def withdraw(self, numbers: Collection[int]) -> None:
        """Not for users: drop groups that nobody wants any more."""
        for number in numbers:
            self._wanted.pop(number, None)
        try:
            await self._link.withdraw(numbers)
        except SessionEnded:
            return  # nobody works on them any more

    def forget(self, stream: GroupStream) -> None:
        """Not for users: nothing more comes of a stream."""
        self._streams.pop(stream, None)

    async def deliver(self, done: DoneGroup) -> None:
        """Not for users: a group is done."""
        wanted = self._wanted.get(done.number)
        if wanted is None:
            return
        stream, request, index = wanted
        group = await self._fetcher.group(done, request, index)
        self._wanted.pop(done.number, None)
        stream.put(done.number, group)

    def lose(self, error: SpotlightError) -> None:
        """Not for users: the session cannot be gone on with."""
        if self._lost is None:
            self._lost = error
            for stream in list(self._streams):
                stream.fail(error)


def _order(
    number: int, kind: Literal["rollout", "preview"], version: int, request: RolloutRequest
) -> GroupOrder:
    return GroupOrder(
        number,
        kind,
        request.prompt,
        tuple(request.seeds),
        version,
        request.steps,
        request.window_start,
        request.images,
        json.dumps(dict(request.metadata)) if request.metadata else "",
    )


def _by_version(
    requests: Sequence[RolloutRequest],
) -> list[tuple[AtLeast | Exactly, list[tuple[int, RolloutRequest]]]]:
    """Requests with their indices; those of earlier versions first, as they need not wait for the
    others.
    """
    found: dict[AtLeast | Exactly, list[tuple[int, RolloutRequest]]] = {}
    for index, request in enumerate(requests):
        found.setdefault(request.version, []).append((index, request))
    return sorted(found.items(), key=lambda each: each[0].version)


def _capacity(fleet: Fleet) -> Capacity:
    return Capacity(
        fleet.nodes,
        fleet.newest_version,
        fleet.ready,
        fleet.waiting,
        fleet.images_per_s,
    )
