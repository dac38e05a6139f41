"""What ships with Spotlight: tiny checkpoints and their prompts, addressed as `builtin:NAME`.
Imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from spotlight.errors import CheckpointError, JobError
from spotlight.rewards.geneval import PromptMetadata, parse_metadata

ASSETS = Path(__file__).parent
BUILTIN = "builtin:"

T = TypeVar("T")


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
    """The prompts of a text file, one a line, blank lines left out; or those of GenEval's metadata
    in a file that ends in `.jsonl`.

    `name` is a path or `builtin:CHECKPOINT/LIST`. Raises `JobError` when there is no such file, or
    nothing in it.
    """
    path = _prompts_file(name)
    if path.suffix == ".jsonl":
        return [metadata.prompt for metadata in read_metadata(name)]
    return _filled(path, [line.strip() for line in _read(path).splitlines() if line.strip()])


def read_metadata(name: str | Path) -> list[PromptMetadata]:
    """GenEval's metadata in a file; `name` as for `read_prompts`.

    Raises `JobError` when there is no such file, nothing in it, or a line is not as it should be.
    """
    path = _prompts_file(name)
    return _filled(path, parse_metadata(_read(path), str(path)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise JobError(
            "prompts", f"{path} cannot be read ({error.strerror}); give a text file"
        ) from error
    except UnicodeDecodeError as error:
        raise JobError("prompts", f"{path} is not UTF-8 text; give one prompt a line") from error


def _filled(path: Path, lines: list[T]) -> list[T]:
    if not lines:
        raise JobError("prompts", f"{path} is empty; give one prompt a line")
    return lines


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
