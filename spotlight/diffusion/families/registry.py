"""Which families there are, and of which one a checkpoint is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from spotlight.diffusion.checkpoint_files import read_index, wrong
from spotlight.diffusion.families.anyflow import AnyFlow
from spotlight.diffusion.families.base import (
    INDEX,
    SECOND,
    TOKEN_ENCODER,
    CheckpointFolder,
    Family,
)
from spotlight.diffusion.families.flux import Flux
from spotlight.diffusion.families.flux2 import Flux2Klein
from spotlight.diffusion.families.krea2 import Krea2
from spotlight.diffusion.families.qwen_image import QwenImage
from spotlight.diffusion.families.qwen_image_21 import QwenImage21
from spotlight.diffusion.families.qwen_image_edit import QwenImageEdit
from spotlight.diffusion.families.sd3 import StableDiffusion3
from spotlight.diffusion.families.wan import Wan
from spotlight.diffusion.families.z_image import ZImage
from spotlight.errors import CheckpointError

FAMILIES: Mapping[str, Family] = {
    family.pipeline: family
    for family in (
        QwenImage(),
        QwenImage21(),
        StableDiffusion3(),
        Flux(),
        Flux2Klein(),
        Wan(),
        Krea2(),
        QwenImageEdit(),
        ZImage(),
        AnyFlow(),
    )
}
"""Every family by the class of its pipeline in diffusers."""


def of_transformer(name: str) -> tuple[Family, ...]:
    """The families whose transformers are of this class in diffusers."""
    return tuple(family for family in FAMILIES.values() if family.transformer == name)


_FIRST_ENCODER = "text_encoder"


def family_of(path: Path) -> Family:
    """The family of a checkpoint, by the classes of its transformer and its pipeline in
    model_index.json; raises `CheckpointError` naming the file.
    """
    return _family(path / INDEX, read_index(path / INDEX))


def changes_images(path: Path | None) -> bool:
    """Whether the prompts of a checkpoint come with images, as far as its folder says it."""
    with suppress(CheckpointError):  # whoever opens it says what is wrong with it
        return path is not None and bool(family_of(path).image_processor)
    return False


def open_checkpoint(path: Path) -> tuple[Family, CheckpointFolder]:
    """The family of a checkpoint and its parts, by the classes that model_index.json names.

    Raises `CheckpointError` naming the file, and the part whose class is another.
    """
    family, folder = open_transformers(path)
    index = path / INDEX
    classes, parts = _classes(read_index(index)), {**folder.parts}
    for part, known in _expected(family).items():
        if part in classes and classes[part] in known:
            parts[part] = classes[part]
        elif part in classes or not (part == "vae" and family.in_pixel_space):
            raise wrong(index, f"names no {part} that is known here; known: {', '.join(known)}")
    if parts[_FIRST_ENCODER] != TOKEN_ENCODER:
        parts |= {part: classes.get(part, "") for part in family.tokenizers}
    return family, CheckpointFolder(path, parts, folder.boundary)


def open_transformers(path: Path) -> tuple[Family, CheckpointFolder]:
    """The same of what is trained alone, whatever other parts there are."""
    index, entries = path / INDEX, read_index(path / INDEX)
    family = _family(index, entries)
    boundary = _boundary(index, entries, family)
    parts = ["transformer"] if boundary is None else ["transformer", SECOND]
    return family, CheckpointFolder(path, dict.fromkeys(parts, family.transformer), boundary)


def _boundary(index: Path, entries: Mapping[str, Any], family: Family) -> float | None:
    """See `CheckpointFolder`."""
    ratio, second = entries.get("boundary_ratio"), _classes(entries).get(SECOND)
    if second is None:
        if ratio is not None and family.has_experts:
            raise wrong(index, f"has a boundary_ratio, but names no {SECOND} for less noise")
        return None
    if not family.has_experts:
        raise wrong(index, "names two transformers, of which only one could be trained")
    if second != family.transformer:
        raise wrong(index, f"names no {SECOND} that is known here; known: {family.transformer}")
    if not isinstance(ratio, float) or not 0 < ratio < 1:
        raise wrong(
            index,
            "names two transformers, but no boundary_ratio between 0 and 1, the flow time at which"
            " one follows the other; copy the index of this very checkpoint",
        )
    return ratio


def _classes(entries: Mapping[str, Any]) -> dict[str, str]:
    """The class of each part: an entry is `[library, class]`, or `[null, null]` for none."""
    return {
        part: entry[1]
        for part, entry in entries.items()
        if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], str)
    }


def _family(index: Path, entries: Mapping[str, Any]) -> Family:
    families = of_transformer(_classes(entries).get("transformer", ""))
    if not families:
        trained = {family.transformer for family in FAMILIES.values() if not family.any_step}
        known = ", ".join(sorted(trained))
        raise wrong(index, f"names no transformer that is known here; known: {known}")
    pipeline = entries.get("_class_name", families[0].pipeline)
    for family in families:
        if family.pipeline == pipeline:
            return family
    known = " or ".join(family.pipeline for family in families)
    raise wrong(index, f"is of another pipeline than {known}; give one for it")


def _expected(family: Family) -> dict[str, tuple[str, ...]]:
    """The classes that each part may have."""
    ours = (TOKEN_ENCODER,) if family.in_pixel_space else ()
    encoders = {part: (*ours, known) for part, known in family.text_encoders.items()}
    return {"scheduler": family.schedulers, **encoders, "vae": (family.vae,)}
