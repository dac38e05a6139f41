"""What ships with Spotlight: tiny checkpoints and their prompts, addressed as `builtin:NAME`.
Imports no torch.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from spotlight.assets.prompt_lines import parse_prompts
from spotlight.errors import CheckpointError, JobError, UnreadableFile
from spotlight.files import MEBIBYTE, Lines, read_text
from spotlight.jobs.hub_names import HubName
from spotlight.types import Prompt

ASSETS = Path(__file__).parent
BUILTIN = "builtin:"

_LARGEST_PROMPTS = 64 * MEBIBYTE
"""Bytes of a file of prompts: half a million long ones."""


def is_builtin(name: str) -> bool:
    """Whether a checkpoint ships with Spotlight."""
    return name.startswith(BUILTIN)


def resolve_checkpoint(name: str) -> Path:
    """The folder of a checkpoint, given as a path or as `builtin:NAME`.

    Raises `CheckpointError` when it is not there.
    """
    if is_builtin(name):
        folder = ASSETS / name.removeprefix(BUILTIN)
        known = sorted(path.parent.name for path in ASSETS.glob("*/model_index.json"))
        if folder.name not in known or folder.parent != ASSETS:
            raise CheckpointError(
                f"model.checkpoint: no checkpoint `{name}` ships with Spotlight; there is "
                + ", ".join(f"`{BUILTIN}{one}`" for one in known)
            )
        return folder
    folder = Path(name)
    try:
        there = stat.S_ISDIR(os.stat(folder).st_mode)
    except (OSError, ValueError):
        there = False
    if not there:
        on_hub = HubName.meant(name) if not os.path.isdir(folder.parent) else None
        hub = f"write `{on_hub}` for that of the Hugging Face hub, or " if on_hub else ""
        raise CheckpointError(
            f"model.checkpoint: {folder} is not a folder that can be read; {hub}give a checkpoint"
            f" in diffusers layout or `builtin:ocr-tiny`"
        )
    return folder


def read_prompts(name: str | Path) -> list[str]:
    """The texts of a file's prompts; see `read_prompt_lines`."""
    return [prompt.text for prompt in read_prompt_lines(name).items]


def read_prompt_lines(name: str | Path) -> Lines[Prompt]:
    """The prompts of a text file, one a line, or of JSON lines; blank lines are left out.

    `name` is a path or `builtin:CHECKPOINT/LIST`. Raises `JobError` when there is no such file, or
    nothing in it, when it is written in another format, and naming a line that is not as it should
    be.
    """
    path = _prompts_file(name)
    lines = parse_prompts(_read(path), str(path))
    if not lines.items:
        raise JobError("prompts", f"{path} is empty; give one prompt a line")
    return lines


def _read(path: Path) -> str:
    try:
        return read_text(path, most=_LARGEST_PROMPTS)
    except UnreadableFile as error:
        raise JobError(
            "prompts", f"{error}; give a text file in UTF-8 with one prompt a line"
        ) from error


def _prompts_file(name: str | Path) -> Path:
    if not str(name).startswith(BUILTIN):
        return Path(name)
    known = {f"{path.parent.parent.name}/{path.stem}": path for path in ASSETS.glob("*/prompts/*")}
    listing = str(name).removeprefix(BUILTIN)
    if listing not in known:
        raise JobError(
            "prompts",
            f"no prompts `{name}` ship with Spotlight; there are "
            + ", ".join(f"`{BUILTIN}{one}`" for one in sorted(known)),
        )
    return known[listing]
