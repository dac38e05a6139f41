"""The interface of a worker's engine. The actors of a worker decide; an engine loads, denoises,
scores, trains, and moves bytes.

`torch_engine` has the one that owns an accelerator; `spotlight_simulation.fake_engine` has one that
sleeps on virtual time and computes fingerprints. What is not a coroutine here runs in one of the
worker's threads (`threads.WorkerThreads`): in the accelerator's, where nothing else is said.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, Self

import msgspec

from spotlight.actors.protocol.gradients import SliceOrder
from spotlight.actors.protocol.trainer import StartTrainer, Train
from spotlight.jobs import ModelSpec, RewardSpec, WorkSpec
from spotlight.types import BundleOffer, Commit, Prompt, Request, StoreEndpoint, UpdateSlices

Images = Any
"""What a model decodes to: of torch's, an array of pixels uint8 [B, H, W, 3]."""
State = Any
"""The state of training, or a part of it, as `Trainer.state` gave it, or `Engine.fetch_state`."""
Weights = Any
"""A weights version, or a part of it, as `Engine.fetch_weights` or `Trainer.weights` gave it:
nobody else looks inside."""
WeightsRole = Literal["current", "old", "reference"]
"""Which weights a gradient needs: those that are trained, those that roll out, and those that the
job began with."""
Fault = Literal["", "accelerator", "memory"]
"""What an error says of the accelerator: nothing; that it is lost, so all later work of this
process on it will fail as well; or that its memory did not suffice this time."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a batch is denoised with, besides its requests."""

    job: str
    weights_checksum: int


class Progress(Protocol):
    """What the steps of a batch have given so far, copied from the accelerator."""

    @property
    def step(self) -> int:
        """Steps taken."""
        ...


class Denoising(Protocol):
    """One batch on its way. A copy (`copy.copy`) goes on by itself from the last completed step,
    also while another thread is in the middle of the next one.
    """

    @property
    def steps(self) -> int:
        """All that it takes."""
        ...

    @property
    def steps_taken(self) -> int:
        """Steps that are completed."""
        ...

    @property
    def done(self) -> bool:
        """Whether all steps are taken."""
        ...

    def step(self) -> None:
        """Take one step."""
        ...

    def progress(self) -> Progress:
        """A copy of what is done so far."""
        ...

    def adopt(self, ahead: Self) -> None:
        """Be where a copy of this denoising is by now."""
        ...


class Model(Protocol):
    """A model that is loaded."""

    @property
    def shares_processor(self) -> bool:
        """Whether packing and delivering slow its steps down."""
        ...

    def use(self, weights: Weights) -> None:
        """Denoise with these from now on."""
        ...

    def begin(self, requests: Sequence[Request], progress: Progress | None) -> Denoising:
        """Begin to denoise a batch, or go on from its progress."""
        ...

    def decode(self, requests: Sequence[Request], progress: Progress) -> Images:
        """The images of a batch after its last step. Raises `NotFinite` with the requests' rows."""
        ...

    def unpack(
        self,
        origin: Origin,
        requests: Sequence[Request],
        commits: Sequence[Commit],
        bundles: Mapping[str, bytes],
    ) -> Progress:
        """In the packer's thread: the progress of a batch from the commits of its requests.
        `bundles` are those of the commits, by key. Raises `CommitRefused` with the reason.
        """
        ...

    def slice_gradient(
        self,
        order: SliceOrder,
        bundles: Mapping[str, bytes],
        use: Callable[[WeightsRole], None],
        wanted: Callable[[], bool],
    ) -> bytes | None:
        """The gradient of a slice, packed; None if it was not `wanted` any more half-way. `bundles`
        are those of its samples, by key; `use` puts weights into the model. Raises
        `SpotlightError`, `ValueError` or `RuntimeError`.
        """
        ...


class Collective(Protocol):
    """One rank's end of the members of an SP group. What goes wrong between ranks is a
    `TransportError`, after which the group is of no use.
    """

    @property
    def rank(self) -> int:
        """Of this member."""
        ...

    @property
    def world(self) -> int:
        """Number of the members."""
        ...

    def send(self, command: tuple[int, int, int]) -> None:
        """Rank 0 tells all others."""
        ...

    def receive(self) -> tuple[int, int, int]:
        """What rank 0 tells."""
        ...

    def send_latents(self, denoising: Denoising) -> None:
        """Rank 0 gives its latents to all others."""
        ...

    def receive_latents(self, model: Model, requests: Sequence[Request], step: int) -> Progress:
        """The latents of rank 0 after so many steps."""
        ...

    def step(self, denoising: Denoising) -> None:
        """Take one step of the same batch on all ranks, each a part of it. The denoising is where
        it was if that fails.
        """
        ...

    def close(self) -> None:
        """Part from a group in which nobody waits; on the loop."""
        ...

    def abandon(self) -> None:
        """Have whoever waits in it fail, now or later; on the loop."""
        ...


class Meeting(Protocol):
    """One end of a group that forms. Entries of the others are delivered to it."""

    def deliver(self, key: str, value: bytes) -> None:
        """Another member has set this entry."""
        ...

    def close(self, reason: str) -> None:
        """Whoever waits for the group fails with this reason."""
        ...

    async def collective(self) -> Collective:
        """The group, once all have come. Raises `TransportError` if they do not in time."""
        ...


class Scorer(Protocol):
    """See `spotlight.rewards.base.Scorer`; in the scorer's thread."""

    def score(self, images: Any, prompts: Sequence[Prompt]) -> Sequence[float]:
        """Rewards, one per image. Raises `ScoringError`."""
        ...


class Listener(Protocol):
    """Where rank 0 of several trainer ranks waits for the others."""

    @property
    def address(self) -> str:
        """host:port."""
        ...

    def close(self) -> None:
        """Wait no longer."""
        ...


class Trainer(Protocol):
    """One trainer rank."""

    def wants(self, message: Train) -> Sequence[BundleOffer]:
        """The bundles that this rank trains on; on the loop."""
        ...

    def begin(self, message: Train, bundles: Mapping[str, bytes]) -> None:
        """Begin to take the optimizer steps of an iteration, or of a part of it; `bundles` are the
        wanted ones, by key. This and what follows raise `SpotlightError`, `ValueError` or
        `RuntimeError`.
        """
        ...

    @property
    def update(self) -> UpdateSlices | None:
        """This rank's share of the next optimizer step; None once all are taken."""
        ...

    @property
    def updates(self) -> int:
        """How many optimizer steps were taken, in this run."""
        ...

    @property
    def has_reference(self) -> bool:
        """Whether gradients need the weights that the job began with."""
        ...

    @property
    def trains_published(self) -> bool:
        """Whether the weights that the next optimizer step changes are the very ones that were
        published for rollouts: no average of them, and none that were changed since."""
        ...

    @property
    def next_slice(self) -> int:
        """The place of the slice of this rank whose gradient is added next."""
        ...

    def compute(self, wanted: Callable[[], bool]) -> None:
        """Compute the gradient of the next slice, and add it; nothing is added if it is not
        `wanted` any more half-way."""
        ...

    def add(self, gradient: bytes) -> None:
        """Add the gradient of the next slice, as `Model.slice_gradient` gave it."""
        ...

    def step(self) -> None:
        """Take the optimizer step, once all slices are added."""
        ...

    def metrics(self) -> dict[str, float]:
        """Of the whole iteration once all its steps are taken; nothing before its last part."""
        ...

    def weights(self, role: Literal["rollout", "evaluation", "current", "reference"]) -> Weights:
        """A copy of this rank's part of weights: of those for rollouts, of the average that is
        validated, of those that are trained, or of those that the job began with."""
        ...

    def state(self) -> State:
        """A copy of all that a rank needs to go on from here with the same bits; of a sharded
        model, of what this rank holds."""
        ...

    def close(self) -> None:
        """Part from the other ranks; on the loop."""
        ...


class Engine(Protocol):
    """What one worker computes with."""

    @property
    def device(self) -> str:
        """See `WorkerUp.device`."""
        ...

    @property
    def device_kind(self) -> str:
        """See `WorkerRefs.device`: workers with equal ones come to the same bits."""
        ...

    def limit_threads(self, threads: int) -> None:
        """Have the calling thread compute with so many CPU threads."""
        ...

    def fault_of(self, error: BaseException) -> Fault:
        """What an error, or what it was raised from, says of the accelerator."""
        ...

    async def fetch_model(self, spec: ModelSpec) -> None:
        """Have the files of a model on this machine, which may take as long as their download.
        Raises `CheckpointError` or `MissingDependency`.
        """
        ...

    async def fetch_images(self, offer: BundleOffer) -> None:
        """Have the images that the prompts of a job come with, in place of those of the last one.
        Raises `TransferFailed`.
        """
        ...

    def image_of(self, prompt: str) -> bytes:
        """The file of the image that a prompt comes with; empty for none."""
        ...

    def load(self, spec: ModelSpec) -> Model:
        """Load a model in place of the last one. Raises `CheckpointError` or `JobError`."""
        ...

    def load_previewer(self, model: Model, spec: ModelSpec | None) -> None:
        """Have a loaded model make previews by another one, with the same text encoder and VAE; or
        by itself again. Raises as `load`.
        """
        ...

    def restore(self, model: Model, spec: ModelSpec) -> None:
        """Have a model that was trained, or denoised with other weights, have those of its
        checkpoint again. Raises as `load`.
        """
        ...

    def step(self, denoising: Denoising) -> None:
        """Take one step alone, to its end."""
        ...

    def meet(
        self,
        model: Model,
        epoch: int,
        workers: Sequence[str],
        rank: int,
        ring: int,
        send: Callable[[str, bytes], None],
    ) -> Meeting:
        """On the loop: begin to form the group of an epoch, whose members are these workers, in the
        order of their ranks. `send` hands an entry to all others; of the degree, `ring` parts are a
        ring.
        """
        ...

    def build_scorer(self, reward: RewardSpec) -> Scorer:
        """In the scorer's thread. Raises whatever its packages and files raise."""
        ...

    def pack(self, origin: Origin, requests: Sequence[Request], progress: Progress) -> bytes:
        """In the packer's thread: the bundle of a commit, rows in the order of the requests. Raises
        `NotFinite`: from NaN nobody goes on.
        """
        ...

    def encode_picture(self, image: Any) -> bytes:
        """In the packer's thread: one of a model's images as a PNG file."""
        ...

    @property
    def makes_thumbnails(self) -> bool:
        """Whether it has pictures that can be shown small."""
        ...

    def encode_thumbnail(self, image: Any) -> bytes:
        """In the packer's thread: one of a model's images as a small picture; empty if this process
        cannot make one."""
        ...

    async def save_weights(self, store: StoreEndpoint, key: str, weights: Weights) -> BundleOffer:
        """Leave a part of a weights version in a store. Raises `TransferFailed`."""
        ...

    async def fetch_weights(self, parts: Sequence[BundleOffer]) -> Weights:
        """A weights version from the node's store. Raises `TransferFailed`."""
        ...

    async def fetch(self, offer: BundleOffer) -> bytes:
        """A bundle. Raises `TransferFailed`."""
        ...

    async def upload(self, store: StoreEndpoint, key: str, data: bytes) -> BundleOffer:
        """Leave a bundle in a store. Raises `TransferFailed`."""
        ...

    async def save_state(
        self, store: StoreEndpoint, key: str, state: State, metadata: dict[str, str]
    ) -> BundleOffer:
        """Leave the state of training in a store, as a checkpoint with this metadata. Raises
        `TransferFailed` or `CheckpointError`.
        """
        ...

    async def fetch_state(self, offer: BundleOffer) -> State:
        """What a checkpoint, or a part of one, holds. Raises `TransferFailed` or
        `CheckpointError`.
        """
        ...

    async def export(
        self, model: ModelSpec, checkpoint: BundleOffer, store: StoreEndpoint
    ) -> tuple[BundleOffer, ...]:
        """Leave the averaged weights of a checkpoint in a store, in files below `export/` that
        other libraries load. Raises `SpotlightError` or `OSError`.
        """
        ...

    def listen(self) -> Listener:
        """On the loop: where the other trainer ranks can come."""
        ...

    def build_trainer(
        self,
        order: StartTrainer,
        model: Model,
        state: Sequence[State],
        rendezvous: str,
        listener: Listener | None,
        require_wanted: Callable[[], None],
    ) -> Trainer:
        """A trainer rank, from the parts of a state of training or, without any, from the weights
        that are in the job's `model`; with several ranks, once all have come to the `rendezvous`,
        at which rank 0 has its `listener`. While it waits for them it calls `require_wanted`, which
        raises `SpotlightError` once nobody needs it. Between its calls the model is used, and given
        other weights, by others; a sharded rank has a transformer of its own. Raises
        `SpotlightError`, `OSError`, `ValueError` or `RuntimeError`.
        """
        ...


def same_model(job_id: str, job: WorkSpec) -> str:
    """A fingerprint: the same in all members that have this job and this model."""
    return f"{job_id}/{zlib.crc32(msgspec.json.encode(job.model)):08x}"
