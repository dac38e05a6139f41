"""The data of messages: requests, their saved progress, their results, and the bundles of tensors
that these name. Every package may import this; it imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec

SamplerKind = Literal["ode", "flow_sde", "dance_sde", "cps"]
Solver = Literal["euler", "dpmpp_2m"]
Quantize = Literal["none", "fp8", "nf4"]
QUANTISERS: dict[Quantize, str] = {"fp8": "torchao", "nf4": "bitsandbytes"}
"""The module that quantises, by the kind."""
ExportedWeights = Literal["best", "checked", "ema", "newest"]
ExportFormat = Literal["diffusers", "peft", "comfyui", "pipeline"]
ADAPTER_FORMATS: tuple[ExportFormat, ...] = ("peft", "comfyui")
"""The formats of adapters alone."""
COMFYUI_FILE = "spotlight_lora.safetensors"
"""The file of an export for ComfyUI."""
COMFYUI_FILES_OF_TWO = {
    "transformer": "spotlight_lora_high_noise.safetensors",
    "transformer_2": "spotlight_lora_low_noise.safetensors",
}
"""Its files for a model of two transformers, by the part of each."""
RequestKind = Literal["preview", "rollout", "evaluation", "random", "gradient"]
"""A `random` one is of a group of random seeds, which nobody trains on: it shows what the choice of
seeds is worth. A `gradient` is that of a slice of an update: nothing is denoised for it."""
WorkerState = Literal[
    "starting", "loading", "rollout", "explore", "evaluate", "score", "train", "idle", "gone"
]
"""What a worker does, in one word."""
JobKind = Literal["job", "session"]
"""A session is a job of which another program has the loop."""
JobState = Literal["queued", "running", "finished", "cancelled", "failed"]
"""How far a job of a queue is, in one word."""
HIGHEST_PRIORITY = 100
MOST_WEIGHT = 1000
Weight = Annotated[float, msgspec.Meta(ge=0, le=MOST_WEIGHT)]
"""A job's share of the spot nodes is in proportion to it; with 0 it gets what nobody else wants."""
Priority = Annotated[int, msgspec.Meta(ge=-HIGHEST_PRIORITY, le=HIGHEST_PRIORITY)]
"""Jobs of a higher one begin first."""

NodeState = Literal["there", "moves", "drained", "has notice", "leaving", "left", "lost"]
"""How it is with a node. One that moves gives back its work, to work for another job, and one that
is drained has no more. One that has notice gives back its work as well; one that is leaving has
done so, and only its process is there; it has left when that has ended. One that is lost went
without."""

Pool = Literal["reserved", "spot"]
TokenRole = Literal["node", "operator", "submitter", "observer"]
"""Those for whom a join token can be made."""
Role = Literal[
    "coordinator", "node", "worker", "trainer", "operator", "submitter", "observer", "joiner"
]
"""What the holder of a key is. A `trainer` is a worker of a reserved node; a `joiner` has a token
for nodes and is none yet."""

NAME_OF_NODE = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}"
"""Names go to logs, into the run folder, and into the keys of bundles."""
NodeName = Annotated[str, msgspec.Meta(pattern=rf"^{NAME_OF_NODE}\Z")]
WorkerName = Annotated[str, msgspec.Meta(pattern=rf"^{NAME_OF_NODE}(/[0-9]{{1,9}})?\Z")]
"""The name of a worker is that of its node and a number."""


KEY_LIMIT = 1024
"""Characters of a bundle's key."""
_VISIBLE = r"^[!-~]*\Z"
LONGEST_METRIC = 200
"""Characters of the name of a metric: a loss of the user's own, and `first_` before it, choose
it."""
NO_CONTROLS = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z"


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a message, or of what is kept for later. Unknown fields are refused."""


class Prompt(msgspec.Struct, frozen=True):
    """What an image should show, as scorers get it."""

    text: str
    metadata: Mapping[str, Any] = {}
    """The other fields of its line in a JSONL file; empty for a prompt of a text file."""
    image: bytes = b""
    """The PNG file of the image that is to be changed; empty where a model draws from text."""


class RequestId(NamedTuple):
    """What the id of a request says: `RequestId("rollout", 3, 3, 0, 123)` is of the seed 123 of
    prompt group 0 in iteration 3, `rollout/3/3/0/123` as text.
    """

    kind: RequestKind
    iteration: int
    weights_version: int
    group: int
    seed: int
    """The seed of the initial noise; of an evaluation the number of the seed."""

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> RequestId | None:
        """The inverse of `str`; None for what is no id."""
        kind, *numbers = text.split("/")
        if kind not in get_args(RequestKind) or len(numbers) != 4:
            return None
        if not all(number.isdecimal() for number in numbers):
            return None
        return cls(kind, *map(int, numbers))  # type: ignore[arg-type]

    @staticmethod
    def prefix(kind: RequestKind, iteration: int) -> str:
        """With which the ids of an iteration begin."""
        return f"{kind}/{iteration}/"


class SamplingSettings(Record, frozen=True, kw_only=True):
    """Everything besides weights, prompt and seed that decides a sample."""

    kind: SamplerKind
    steps: int
    shift: float | None = None
    guidance: float = 1.0
    noise_level: float = 0.7
    window: tuple[int, int] | None = None
    """(first step, steps) where noise is added and recorded; None denoises without noise."""
    height: int
    """The height of an image in pixels."""
    width: int
    """The width of an image in pixels."""
    micro_batch: int = 8
    solver: Solver = "euler"
    frames: int = 1
    text_tokens: int | None = None
    """Prompts are padded to so many; None: as many as the encoder reads."""
    preview_model: bool = False
    """Whether the model that the job names for previews denoises it, which is never trained."""

    def in_window(self, step: int) -> bool:
        """Whether `step` adds noise."""
        if self.window is None or self.kind == "ode":
            return False
        start, length = self.window
        return start <= step < start + length

    def looks_back(self, step: int) -> bool:
        """Whether `step` uses what the step before foresaw, should it add no noise."""
        return self.solver == "dpmpp_2m" and 2 <= step < self.steps - 1


class Request(Record, frozen=True):
    """One unit of denoising work; the sample is a function of weights, prompt, seed and settings
    alone.
    """

    id: str
    kind: RequestKind
    iteration: int
    group: int
    """Index of the prompt group in its iteration (of the validation prompt for an evaluation)."""
    prompt: str
    seed: int
    weights_version: int
    settings: SamplingSettings
    is_probe: bool = False
    """Regenerated beside the samples, to see what previews are worth; it is not trained on."""
    in_idle_time: bool = False
    """Whether it waits until nobody has anything else to do."""
    metadata: str = ""
    """What scorers are to know of the prompt: an object in JSON; empty for nothing."""
    image_key: str = ""
    """Where the member leaves the image as PNG in the coordinator's store; empty for nowhere."""
    thumbnail_key: str = ""
    """Where the member leaves a small picture of it there if it is the best or the worst image of
    its batch; empty for nowhere."""
    scored_with: tuple[int, ...] = ()
    """The seeds of its prompt group whose images are scored in one call, its own included; empty if
    its image is scored whatever becomes of others."""

    @property
    def work(self) -> Request:
        """The same whatever it is made for: how far one of two requests is that are equal in this
        holds for the other, too. A choice that is made anew after a kill may want a probe as a
        sample."""
        return msgspec.structs.replace(
            self, is_probe=False, in_idle_time=False, image_key="", thumbnail_key="", scored_with=()
        )


def are_scored_now(requests: Sequence[Request]) -> bool:
    """Whether a batch can be scored: no image that its own are compared with is elsewhere."""
    together = requests[0].scored_with
    groups = {(request.group, request.scored_with) for request in requests}
    return not together or (len(groups) == 1 and len(requests) == len(together))


class StoreEndpoint(Record, frozen=True):
    """Where a store is reached."""

    host: Annotated[str, msgspec.Meta(max_length=255, pattern=r"^[A-Za-z0-9._:%-]+\Z")]
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    token: Annotated[str, msgspec.Meta(max_length=200, pattern=_VISIBLE)]
    """What it lets its holder do: read, or leave bundles as well."""
    machine: Annotated[str, msgspec.Meta(max_length=400, pattern=_VISIBLE)]
    """Identity of the machine: receivers with the same one read the files themselves."""
    root: Annotated[str, msgspec.Meta(max_length=4096, pattern=NO_CONTROLS)]
    fingerprint: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    """SHA-256 of its certificate, in hexadecimal digits; empty where it speaks no TLS."""
    ucx: bool = False
    """Whether it sends by UCX to whoever asks for that."""

    @property
    def place(self) -> tuple[str, int, str, str]:
        """The same for two endpoints of one store, whatever their holders may do."""
        return self.host, self.port, self.machine, self.root


class BundleOffer(Record, frozen=True):
    """A bundle that can be pulled."""

    key: Annotated[str, msgspec.Meta(max_length=KEY_LIMIT, pattern=_VISIBLE)]
    nbytes: Annotated[int, msgspec.Meta(ge=0)]
    checksum: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    """CRC-32 of the bytes."""
    store: StoreEndpoint
    keeper: Annotated[str, msgspec.Meta(pattern=rf"^({NAME_OF_NODE})?\Z")] = ""
    """The reserved node that keeps it for the coordinator; empty for a bundle of another store."""


class Commit(Record, frozen=True):
    """The saved progress of one request: `row` of a bundle that holds its latents after `step`
    denoising steps, and what the loss needs of these steps.
    """

    step: int
    bundle: BundleOffer
    row: int


class TrainingSample(Record, frozen=True):
    """One sample of a training batch."""

    prompt: str
    bundle: BundleOffer
    row: int
    advantage: float
    seed: int
    """Errors name the sample by it."""


class Slice(Record, frozen=True):
    """A part of a rank's share of an update, whose gradient anybody may compute: consecutive rows
    of forward passes, in whole micro-batches."""

    index: Annotated[int, msgspec.Meta(ge=0)]
    """Its place among the slices of the update, which are added in this order."""
    samples: tuple[int, ...]
    """The samples that its rows are of: rows of the training batch, in order."""
    draws: tuple[int, ...]
    """The samples whose keys draw the flow times and the noise, one for each of these samples."""
    first: Annotated[int, msgspec.Meta(ge=0)]
    """The first of its rows, among all rows of these samples."""
    rows: Annotated[int, msgspec.Meta(ge=0)]
    """How many rows it has."""


class UpdateSlices(Record, frozen=True):
    """A rank's share of an update, divided into slices."""

    iteration: int
    update: Annotated[int, msgspec.Meta(ge=0)]
    """The number of the update within the iteration."""
    rank: Annotated[int, msgspec.Meta(ge=0)]
    """Whose share it is."""
    size: Annotated[int, msgspec.Meta(ge=1)]
    """Rows of a micro-batch; the last one may be short."""
    scale: float
    """The weight of each row's loss in the loss of the update."""
    slices: tuple[Slice, ...]
    """None of them if the rank has no samples."""


class Result(Record, frozen=True):
    """A denoised and scored request."""

    request: Request
    rewards: tuple[float, ...]
    """One of each reward that the job names, in its order; of an evaluation those that are only
    measured stand behind."""
    bundle: BundleOffer
    row: int
    attempts: int = 0
    """Leases that it took; 0 if an earlier coordinator had it done."""
    resumed_at: int = 0
    """Steps that it had when the last of them was granted."""
