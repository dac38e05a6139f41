"""What ships with Spotlight: tiny checkpoints and their prompts, addressed as `builtin:NAME`.
Imports no torch.
"""

from __future__ import annotations

from pathlib import Path

from spotlight.errors import CheckpointError, JobError

ASSETS = Path(__file__).parent
BUILTIN = "builtin:"


def resolve_checkpoint(name: str) -> Path:
    """The folder of a checkpoint, given as a path or as `builtin:NAME`.

    Raises `CheckpointError` when it is not there.
    """
    if name.startswith(BUILTIN):
        folder = ASSETS / name.removeprefix(BUILTIN)
        known = sorted(path.parent.name for path in ASSETS.glob("*/model_index.json"))
        if folder.name not in known or folder.parent != ASSETS:
            raise CheckpointError(
                f"model.checkpoint: no checkpoint `{name}` ships with Spotlight; there is "
                + ", ".join(f"`{BUILTIN}{one}`" for one in known)
            )
        return folder
    folder = Path(name)
    if not folder.is_dir():
        raise CheckpointError(
            f"model.checkpoint: {folder} is not a folder; give a checkpoint in diffusers"
            f" layout or `builtin:ocr-tiny`"
        )
    return folder


def read_prompts(name: str | Path) -> list[str]:
    """The prompts of a text file, one a line, blank lines left out.

    `name` is a path or `builtin:CHECKPOINT/LIST`. Raises `JobError` when there is no such file, or
    nothing in it.
    """
    path = _builtin_prompts(name) if str(name).startswith(BUILTIN) else Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise JobError(
            "prompts", f"{path} cannot be read ({error.strerror}); give a text file"
        ) from error
    except UnicodeDecodeError as error:
        raise JobError("prompts", f"{path} is not UTF-8 text; give one prompt a line") from error
    prompts = [line.strip() for line in text.splitlines() if line.strip()]
    if not prompts:
        raise JobError("prompts", f"{path} is empty; give one prompt a line")
    return prompts


def _builtin_prompts(name: str | Path) -> Path:
    checkpoint, _, listing = str(name).removeprefix(BUILTIN).partition("/")
    known = {
        f"{path.parent.parent.name}/{path.stem}": path for path in ASSETS.glob("*/prompts/*.txt")
    }
    if f"{checkpoint}/{listing}" not in known:
        raise JobError(
            "prompts",
            f"no prompts `{name}` ship with Spotlight; there are "
            + ", ".join(f"`{BUILTIN}{one}`" for one in sorted(known)),
        )
    return known[f"{checkpoint}/{listing}"]
