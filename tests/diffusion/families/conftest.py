"""A tiny random checkpoint of every family, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spotlight_simulation.tiny_families import make_flux_without_guidance, make_tiny_checkpoint

FAMILIES = (
    "qwen-image",
    "qwen-image-2.1",
    "sd3",
    "flux",
    "flux2-klein",
    "wan",
    "anyflow",
    "krea2",
    "z-image",
    "qwen-image-edit",
)


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's checkpoint; nobody may change it."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            if name == "flux-without-guidance":
                make_flux_without_guidance(made[name])
            else:
                make_tiny_checkpoint(name, made[name])
        return made[name]

    return make
