"""What a family of models says of itself, in one file that imports no torch.

The classes of its parts are names, so that a checkpoint is checked without loading anything; what
computes gets its tensors, its transformer and its encoders handed in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec

from spotlight.diffusion.activations import Activations, Pass
from spotlight.diffusion.checkpoint_files import Shape, read_index, read_json, read_weights, wrong
from spotlight.diffusion.geometry import Geometry, Grid
from spotlight.diffusion.vocabulary import TokenVocabulary
from spotlight.errors import JobError
from spotlight.jobs import LoraSpec

if TYPE_CHECKING:
    from torch import Tensor

    from spotlight.diffusion.images import SourceImage


T = TypeVar("T")

GREATEST = 1_000_000
"""The greatest size that a configuration may name: a thousand times that of known models."""
Size = Annotated[int, msgspec.Meta(ge=1, le=GREATEST)]

INDEX = "model_index.json"
"""The file of a checkpoint that names its parts."""
SECOND = "transformer_2"
"""The part of the transformer for less noise, where there are two."""
_TRANSFORMERS = ("transformer", SECOND)
TOKEN_ENCODER = "TokenTextEncoder"
"""Our own text encoder, a table lookup for tiny checkpoints."""


class _Named(msgspec.Struct, frozen=True):
    """What a configuration of diffusers, or of transformers, says of its class."""

    class_name: str | None = msgspec.field(default=None, name="_class_name")
    architectures: tuple[str, ...] | None = None
    quantization_config: dict[str, Any] | None = None


@dataclass(frozen=True)
class CheckpointFolder:
    """A checkpoint in diffusers layout, read without loading it."""

    path: Path
    parts: Mapping[str, str]
    """The class of each part that it has."""
    boundary: float | None = None
    """The flow time from which on the first of two transformers denoises, and below which the
    second; None where there is one."""

    @property
    def transformers(self) -> dict[str, str]:
        """What the names of its weights begin with in the model, by the part of each transformer:
        the part where there are two, the first one for more noise; else nothing.
        """
        found = [part for part in _TRANSFORMERS if part in self.parts]
        return {part: f"{part}." if len(found) > 1 else "" for part in found}

    def transformer_shapes(self) -> dict[str, Shape]:
        """Shape of every tensor of its transformers, by its name in the model; raises as
        `shapes`."""
        return {
            prefix + name: shape
            for part, prefix in self.transformers.items()
            for name, shape in self.shapes(part).items()
        }

    def config(self, part: str, kind: type[T]) -> T:
        """config.json of a part; raises `CheckpointError` naming the file, also where it is of
        another class than model_index.json says, or of quantised weights.
        """
        path, expected = self.config_path(part), self.parts[part]
        named = read_json(path, _Named)
        classes = named.architectures or (named.class_name or expected,)
        if not any(_holds(each, expected) for each in classes):
            raise wrong(path, f"is not of a {expected}; copy the {part} of this very checkpoint")
        if named.quantization_config is not None:
            raise wrong(
                path,
                "is of quantised weights (quantization_config), which are not supported; give them"
                " in bfloat16, float16 or float32",
            )
        return read_json(path, kind)

    def config_path(self, part: str) -> Path:
        """Where that stands, for errors."""
        return self.path / part / "config.json"

    def shapes(self, part: str) -> dict[str, Shape]:
        """Shape of every tensor of a part; raises `CheckpointError` for absent or cut-off files."""
        return read_weights(self.path / part).shapes


def _holds(saved: str, expected: str) -> bool:
    """Whether the files of a class have what another one loads: a `Qwen3ForCausalLM` of
    transformers is a `Qwen3Model` and a head, which is left out.
    """
    stem = expected.removesuffix("Model")
    return saved == expected or (stem != expected and saved.startswith(f"{stem}For"))


class TransformerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What transformer/config.json says in most families; its defaults are those of diffusers."""

    in_channels: Size
    out_channels: Size | None = None
    """None: as many as it is given."""
    num_layers: Size
    num_attention_heads: Size
    attention_head_dim: Size

    @property
    def width(self) -> int:
        """Channels of a token inside the transformer."""
        return self.num_attention_heads * self.attention_head_dim

    def require(self, path: Path, field: str, other: str, wanted: int) -> None:
        """Raise the `CheckpointError` of a field that does not fit another part."""
        require_equal(path, field, getattr(self, field), other, wanted)

    def require_channels(self, path: Path, other: str, wanted: int) -> None:
        """Raise the `CheckpointError` of channels that do not fit another part, or each other."""
        self.require(path, "in_channels", other, wanted)
        produced = self.out_channels or self.in_channels
        require_equal(path, "out_channels", produced, "in_channels", self.in_channels)


@dataclass(frozen=True)
class ModelInput:
    """What a transformer is given in one forward pass."""

    latents: Tensor
    """Packed noisy latents [B, T, C], float32."""
    sigmas: Tensor
    """The noise levels [B] that the transformer is told, float32."""
    next_sigmas: Tensor
    """Those [B] where the step ends, for transformers that predict the average velocity of a step;
    the same as `sigmas` for the velocity of a moment."""
    conditioning: Mapping[str, Tensor]
    """The tensors of `Family.padded`, each with a batch [B, ...]."""
    grid: Grid
    """The tokens of one sample."""
    guidance: float = 1.0
    """The guidance scale, for transformers that embed it."""

    def text(self, name: str, dtype: Any) -> Tensor:
        """One tensor of the conditioning, in the transformer's dtype."""
        return self.conditioning[name].to(dtype)

    def rounded_sigmas(self, dtype: Any) -> Tensor:
        """The sigmas as most pipelines round them: in bfloat16 a time of 1000 sigma keeps other
        digits than sigma itself.
        """
        return (self.sigmas * 1000).to(dtype) / 1000

    def apart(self) -> Iterator[ModelInput]:
        """Every sample by itself, with the tokens of its prompt only: for transformers in which
        padding would move the image, as it never does in a pipeline that draws one prompt.
        """
        for row, tokens in enumerate(self.conditioning["mask"].sum(1).tolist()):
            one = slice(row, row + 1)
            yield replace(
                self,
                latents=self.latents[one],
                sigmas=self.sigmas[one],
                next_sigmas=self.next_sigmas[one],
                conditioning={"embeds": self.conditioning["embeds"][one, :tokens]},
            )


@dataclass(frozen=True)
class Facts:
    """What the files of a checkpoint say, as far as it is the same question for every family."""

    geometry: Geometry
    heads: int
    """Attention heads of the transformer."""
    shared_text: int | None
    """Tokens of text that members of a group share out; None for none, or an unknown number."""
    config: msgspec.Struct
    """The configuration of the transformer: two with the same take the same time for a denoising
    step."""
    vocabulary: TokenVocabulary | None = None
    """What its text encoder reads, if that is a `TokenTextEncoder`."""
    pixel_space: bool = False
    """Whether the model denoises pixels rather than a VAE's latents."""
    embeds_guidance: bool = False
    """Whether the transformer takes the guidance scale as an input, and needs one pass only."""
    conditioning: int = 0
    """Numbers of a prompt's conditioning, in float32."""
    decoded: int = 0
    """Numbers that the VAE has in memory at once, for each pixel of a frame: measured on the meta
    device."""


class Family(ABC):
    """One family of flow-matching transformers. Every sign and scale that differs between families
    is hidden here: outside, sigma runs from 1 (noise) to 0, and v = eps - x0.
    """

    name: ClassVar[str]
    pipeline: ClassVar[str]
    """Class of its pipeline in diffusers; adapters are exported for it."""
    transformer: ClassVar[str]
    """Class of its transformer in diffusers: by this a checkpoint is known to be of the family."""
    has_experts: ClassVar[bool] = False
    """Whether a checkpoint may have a second transformer of this class, for less noise."""
    vae: ClassVar[str]
    """Class of its autoencoder in diffusers."""
    schedulers: ClassVar[tuple[str, ...]] = ("FlowMatchEulerDiscreteScheduler",)
    """Classes of schedulers in diffusers whose sigmas can be used."""
    text_encoders: ClassVar[Mapping[str, str]]
    """Class in transformers of each text encoder, by its part."""
    tokenizers: ClassVar[tuple[str, ...]]
    """Parts that hold the tokenizers."""
    image_processor: ClassVar[str] = ""
    """Class in transformers of the part `processor`, which brings an image that is to be changed to
    the text encoder; empty where pictures are drawn from text alone."""
    in_pixel_space: ClassVar[bool] = False
    """Whether a checkpoint may do without VAE, and with a `TokenTextEncoder`."""
    lora_targets: ClassVar[tuple[str, ...]]
    """Modules that get an adapter unless the job names others."""
    untrained: ClassVar[frozenset[str]] = frozenset()
    """Tensors among the transformer's weights that are no parameters."""
    own_spacing: ClassVar[bool] = False
    """Whether the scheduler spaces the sigmas itself; else they are spaced evenly from 1 to 1 / n.
    """
    most_tokens: ClassVar[int]
    """Tokens of the longest prompt that its text encoders read."""
    text_lengths: ClassVar[tuple[int, ...]] = ()
    """Tokens that its prompts can be padded to, rising, where padding is hidden from the
    transformer; the last are `most_tokens`. None where padding means something to it."""
    one_by_one: ClassVar[bool] = False
    """Whether each forward pass is of one sample, with the tokens of its own prompt only."""
    any_step: ClassVar[bool] = False
    """Whether the transformer predicts the average velocity of a whole step, with guidance in its
    weights. Then it makes previews of few steps for other models, and cannot be trained."""
    attention: ClassVar[Mapping[str, tuple[str, ...]]]
    """The token sequences that the queries, keys and values of a module are made of, for sequence
    parallelism. A module with none has whole keys on every member."""
    image: ClassVar[str] = "hidden_states"
    """The sequence of the image tokens, as the transformer names it."""
    leading: ClassVar[str | None] = None
    """The sequence whose tokens stand before those of the image in every sequence that is cut;
    members have it whole."""
    heads: ClassVar[str] = "num_attention_heads"
    """The number of attention heads, as config.json names it."""
    cuts: ClassVar[Mapping[str, Mapping[str | int, int]] | None] = None
    """Which arguments of a module, by name, and which of its outputs, by index, are cut along which
    dimension; None for diffusers' own plan."""
    gathers: ClassVar[Mapping[str, int]] = {}
    """Modules whose output becomes whole again, along which dimension; with `cuts` only."""
    joined: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The sequences, cut before them, that lie one behind the other in an argument; of one that is
    not here there is one sequence."""

    def targets(self, lora: LoraSpec) -> tuple[str, ...]:
        """The modules that get an adapter."""
        return lora.targets or self.lora_targets

    def name_in_comfyui(self, module: str) -> str | None:
        """What files of adapters call a module of the transformer that ComfyUI loads; None where
        that is not known."""
        return None

    @abstractmethod
    def inspect(self, folder: CheckpointFolder) -> Facts:
        """What a checkpoint says of itself; raises `CheckpointError` naming the file in which parts
        do not fit each other.
        """

    @abstractmethod
    def too_long(self, folder: Path, prompts: Sequence[str], most: int) -> dict[int, int]:
        """Tokens of each prompt that has more than `most`, which are `most_tokens` or one of the
        `text_lengths`, by its place in the list.

        Raises `CheckpointError` naming the file that is wrong, and `MissingDependency`.
        """

    @abstractmethod
    def encode(self, parts: Mapping[str, Any], prompt: str) -> dict[str, Tensor]:
        """The conditioning of one prompt, as its pipeline makes it, by name and without a batch.

        `parts` are its tokenizers and text encoders. A tensor is float32, and has the same shape
        for every prompt unless `padded` makes it so. Raises `JobError` for a prompt that is too
        long.
        """

    def encode_with(
        self, parts: Mapping[str, Any], prompt: str, image: SourceImage
    ) -> dict[str, Tensor]:
        """The same of a prompt and the image that it comes with. Raises `JobError` also in
        families that draw from text alone.
        """
        raise JobError("prompts", f"prompt {prompt!r} has an image, which this model does not take")

    def padded(self, encoded: dict[str, Tensor], tokens: int) -> dict[str, Tensor]:
        """The conditioning of one prompt, of the same shapes for every prompt: padded to `tokens`,
        if it has `text_lengths`, by zeros, and with a mask that says which are real. Raises
        `JobError` for a prompt that has more.
        """
        if not self.text_lengths:
            return encoded
        hidden = encoded["embeds"]
        if len(hidden) > tokens:
            raise JobError(
                "sampler.text_tokens",
                f"a prompt has {len(hidden)} tokens, but is padded to {tokens}; raise it"
                " or shorten the prompt",
            )
        embeds = hidden.new_zeros(tokens, *hidden.shape[1:])
        embeds[: len(hidden)] = hidden
        mask = hidden.new_zeros(tokens).bool()
        mask[: len(hidden)] = True
        return {**encoded, "embeds": embeds, "mask": mask}

    @abstractmethod
    def velocity(self, transformer: Any, given: ModelInput) -> Tensor:
        """One forward pass: v [B, T, C] in the transformer's dtype."""

    @abstractmethod
    def activations(self, facts: Facts, step: Pass) -> Activations:
        """The bytes of a forward pass of the transformer that `facts` describe."""

    def told(self, scheduler: Any, sigmas: Tensor) -> Tensor:
        """The sigmas that the transformer is told, of those at which the latents are."""
        return sigmas

    def dynamic_shift(self, scheduler: Any, tokens: int, steps: int) -> float:
        """mu of dynamic shifting: linear in the number of image tokens (`calculate_shift` in
        diffusers' pipelines).
        """
        config = scheduler.config
        slope = (config.max_shift - config.base_shift) / (
            config.max_image_seq_len - config.base_image_seq_len
        )
        return float(tokens * slope + config.base_shift - slope * config.base_image_seq_len)

    def embeds_guidance(self, transformer: Any) -> bool:
        """Whether the transformer takes the guidance scale as an input, and needs one pass only."""
        return False

    def guide(self, positive: Tensor, negative: Tensor, scale: float | Tensor) -> Tensor:
        """Classifier-free guidance, as its pipeline combines the two velocities; the scale may be
        one for each sample [B, 1, 1].
        """
        return negative + scale * (positive - negative)

    @abstractmethod
    def decode(self, vae: Any, latents: Tensor) -> Tensor:
        """Frames [1, 3, F, H, W] in [-1, 1] of the unpacked latents [1, C, f, h, w] of one
        sample, in the VAE's dtype.
        """


def require_equal(path: Path, field: str, value: int, other: str, wanted: int) -> None:
    """Raise the `CheckpointError` of a configuration at `path` that does not fit another part."""
    if value != wanted:
        raise wrong(path, f"has {field} {value}, but {other} is {wanted}; they must be equal")


def refuse_distilled(index: Path) -> None:
    """Raise the `CheckpointError` of a model_index.json that says `is_distilled`."""
    if read_index(index).get("is_distilled"):
        raise wrong(
            index, "is of the distilled checkpoint (is_distilled); give the base one to be trained"
        )


def require_axes(path: Path, axes: Sequence[int], head: int) -> None:
    """Raise the `CheckpointError` of positions that do not fill the channels of a head."""
    if any(axis < 2 or axis % 2 for axis in axes):
        raise wrong(path, f"has axes_dims_rope {list(axes)}; each must be even and positive")
    if sum(axes) != head:
        raise wrong(
            path,
            f"has attention_head_dim {head}, but its axes_dims_rope {list(axes)} add up to"
            f" {sum(axes)}; they must be equal",
        )
