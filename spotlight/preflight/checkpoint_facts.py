"""What a model checkpoint says about itself, without loading it.

A checkpoint is a folder in diffusers layout. Only JSON files and the JSON headers of safetensors
files are read. A checkpoint without a VAE works in pixel space.

An error names the file and what is wrong with it, with sizes where they do not fit, but with no
other text of the file: the checkpoint may be one that somebody else named.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from spotlight.diffusion.checkpoint_files import Shape, wrong
from spotlight.diffusion.checkpoint_names import find_description
from spotlight.diffusion.families.base import CheckpointFolder, Facts, Family
from spotlight.diffusion.families.registry import open_checkpoint
from spotlight.diffusion.geometry import Geometry
from spotlight.diffusion.vocabulary import TokenVocabulary
from spotlight.errors import CheckpointError
from spotlight.files import irregularity
from spotlight.jobs import ModelSpec
from spotlight.policies.grouping.degrees import possible_degrees, refusal


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The model of a job, as far as files tell."""

    folder: Path
    family: Family
    facts: Facts
    transformers: int
    """How many transformers it has, of which every sample passes one in a step."""
    parameters: int
    """Parameters of its transformers: two where one follows the other, else one."""
    matrices: tuple[Shape, ...]
    """The shapes of the transformers' matrices, which can be quantised."""
    frozen: dict[str, int]
    """Parameters of each of its text encoders, and of its VAE."""
    trainable: int
    """Parameters that the job trains: all of them, or those of the adapters."""
    geometry: Geometry
    """What its tokens cover."""
    pixel_space: bool
    """Whether the model denoises pixels rather than a VAE's latents."""
    vocabulary: TokenVocabulary | None
    """What its text encoder reads, if that is a `TokenTextEncoder`."""
    text_tokens: int | None
    """Tokens of every prompt that members of a group share out; None for none, or where the files
    do not tell."""
    heads: int
    """Attention heads of the transformer; where another one makes previews, heads that both can be
    cut into."""
    attention: str
    """The kernels that the job asks for."""
    fingerprint: str
    """The same for checkpoints, kernels and quantised weights whose denoising steps take the same
    time."""
    previewer: CheckpointInfo | None = None
    """The model that makes the job's previews instead; None if it makes them itself."""

    @property
    def frozen_parameters(self) -> int:
        """Of its text encoders and its VAE."""
        return sum(self.frozen.values())

    @property
    def needs_transformers(self) -> bool:
        """Whether its text encoder is one of the transformers package."""
        return self.vocabulary is None

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest prompt that it reads."""
        return self.vocabulary.length if self.vocabulary else self.family.most_tokens

    @property
    def text_lengths(self) -> tuple[int, ...]:
        """Tokens that prompts can be padded to, rising; none where there is no choice."""
        return () if self.vocabulary else self.family.text_lengths

    def too_long(self, prompts: Sequence[str], most: int | None = None) -> dict[int, int]:
        """Tokens of each prompt that has more than `most`, one of the `text_lengths`, or than it
        reads, by its place in the list; raises `CheckpointError` and `MissingDependency`.
        """
        if self.vocabulary is not None:
            return self.vocabulary.too_long(prompts)
        return self.family.too_long(self.folder, prompts, most or self.most_tokens)

    def least_length(self, prompts: Sequence[str]) -> int | None:
        """The least of the `text_lengths` that holds all these prompts. None where there is no
        choice, or where nobody can count tokens. Raises `CheckpointError`.
        """
        if not self.text_lengths or find_spec("tokenizers") is None:
            return None
        *lesser, most = self.text_lengths
        return next((each for each in lesser if not self.too_long(prompts, each)), most)

    def tokens(self, height: int, width: int, frames: int = 1) -> int:
        """Tokens of an image or video of that size; raises `JobError` naming the field that does
        not fit.
        """
        return self.geometry.grid(height, width, frames).tokens

    def refusal(self, degree: int, image_tokens: int) -> str | None:
        """Why so many members cannot denoise an image of that many tokens together; None when they
        can.
        """
        if degree > 1 and self.attention != "native":
            return f"attention of `model.attention: {self.attention}` cannot be shared out"
        return refusal(
            degree,
            heads=self.heads,
            image_tokens=image_tokens,
            text_tokens=self.text_tokens,
            ring_possible=True,
        )

    def degrees(
        self, most: int, image_tokens: int, *, wished: int | None = None
    ) -> tuple[int, ...]:
        """Degrees up to `most` at which such images can be denoised, rising; 1 is the first.

        Whether attention can go round in a ring depends on the device, which only a worker knows:
        a degree that needs one is only among them if it is `wished`.
        """
        if self.attention != "native":
            return (1,)
        most = min(most, image_tokens)
        plain = possible_degrees(
            min(most, self.heads),
            heads=self.heads,
            image_tokens=image_tokens,
            text_tokens=self.text_tokens,
            ring_possible=False,
        )
        if wished is None or wished > most or self.refusal(wished, image_tokens):
            return plain
        return tuple(sorted({*plain, wished}))


def inspect_checkpoint(model: ModelSpec) -> CheckpointInfo:
    """Describe a job's checkpoint; raises `CheckpointError` naming the file or the field."""
    family, folder = open_checkpoint(find_description(model.checkpoint))
    for part in folder.parts:
        _check_files(folder.path / part)
    for part in (*folder.transformers, *_frozen(family, folder)):
        folder.config(part, dict[str, Any])
    if model.guidance_2 is not None and folder.boundary is None:
        raise CheckpointError(
            f"model.guidance_2: {folder.path} has one transformer, whose guidance is"
            " `sampler.guidance`; leave it out"
        )
    facts = family.inspect(folder)
    shapes, config = folder.transformer_shapes(), facts.config
    kernels = (model.attention,) if model.quantize == "none" else (model.attention, model.quantize)
    return CheckpointInfo(
        folder=folder.path,
        family=family,
        facts=facts,
        transformers=len(folder.transformers),
        parameters=_numbers(shapes),
        matrices=tuple(shape for shape in shapes.values() if len(shape) == 2),
        frozen={part: _numbers(folder.shapes(part)) for part in _frozen(family, folder)},
        trainable=_trainable(model, family, shapes),
        geometry=facts.geometry,
        pixel_space=facts.pixel_space,
        vocabulary=facts.vocabulary,
        text_tokens=facts.shared_text,
        heads=facts.heads,
        attention=model.attention,
        fingerprint=hashlib.sha256(msgspec.json.encode((config, *kernels))).hexdigest()[:16],
    )


def _frozen(family: Family, folder: CheckpointFolder) -> list[str]:
    """Parts with weights that nobody trains."""
    return [part for part in (*family.text_encoders, "vae") if part in folder.parts]


def _numbers(shapes: dict[str, Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _check_files(folder: Path) -> None:
    """Everything that a worker may open is a file: on a named pipe it would wait for ever."""
    try:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            mode = entry.stat().st_mode
            problem = None if stat.S_ISDIR(mode) else irregularity(mode)
            if problem is not None:
                raise wrong(folder / entry.name, f"{problem}; copy the whole checkpoint")
    except FileNotFoundError as error:
        missing = Path(error.filename or folder)
        raise wrong(missing, "is missing; copy the whole checkpoint") from error
    except OSError as error:
        raise wrong(
            folder, f"cannot be read ({error.strerror}); copy the whole checkpoint"
        ) from error


def _trainable(model: ModelSpec, family: Family, shapes: dict[str, Shape]) -> int:
    if model.tuning == "full":
        return sum(
            math.prod(shape) for name, shape in shapes.items() if name not in family.untrained
        )
    rank = model.lora.rank
    return sum(_adapter(target, rank, shapes) for target in family.targets(model.lora))


def _adapter(target: str, rank: int, shapes: dict[str, Shape]) -> int:
    """Parameters of the adapters on one target: rank x (inputs + outputs) of each linear layer."""
    linear = [
        shape
        for name, shape in shapes.items()
        if len(shape) == 2 and f".{name}".endswith(f".{target}.weight")
    ]
    if not linear:
        raise CheckpointError(
            f"model.lora.targets: no linear module `{target}` is in this transformer; "
            "name modules such as `to_q`"
        )
    return sum(rank * (rows + columns) for rows, columns in linear)
