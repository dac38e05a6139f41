"""Checkpoints of the Hugging Face hub, in the hub's own cache on this machine (`HF_HOME`).

Invariants:
- What is whole in the cache is used without asking anybody.
- Only what a checkpoint in diffusers layout needs is downloaded.
- To check a job nobody downloads weights: their headers are asked for, and kept in files that are
  as long as the weights and take no room.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from spotlight.diffusion.checkpoint_files import read_index, read_weights
from spotlight.diffusion.hub_cache import (
    INDEX,
    NOT,
    SMALL,
    WEIGHTS,
    CheckpointFolder,
    is_wanted,
    shareable,
)
from spotlight.errors import CheckpointError, HubUnreachable, MissingDependency
from spotlight.files import cache_folder
from spotlight.jobs.hub_names import HubFile, HubName
from spotlight.text import plain

CONFIG = "config.json"
"""What every model in the layout of transformers has."""
_ASK_LIMIT_S = 10.0
"""The longest that the checksums are waited for: a run can do without them."""


def downloaded(name: HubName) -> Path:
    """The folder of the whole checkpoint; what is not in the cache is downloaded, which may take
    long.

    Raises `CheckpointError`, or its `HubUnreachable` where another try may go better, and
    `MissingDependency`.
    """
    name = pinned(name)
    whole = cached(name)
    if whole is None and is_offline():
        raise _forbidden(name)
    return whole or _snapshot(name, (*SMALL, *WEIGHTS))


def cached(name: HubName) -> Path | None:
    """The folder of a checkpoint, named by its commit, that is whole in the cache; None if it is
    not. Nobody is asked. Raises `MissingDependency`.
    """
    with suppress(CheckpointError):
        folder = _snapshot(name, (*SMALL, *WEIGHTS), offline=True)
        if _is_whole(folder):
            return folder
    return None


def files_of(name: HubName) -> tuple[HubFile, ...]:
    """The files of a checkpoint, named by its commit, with their checksums: as this machine's cache
    has them from the hub, or as the hub says now. Empty where neither can say it. Raises
    `MissingDependency`.
    """
    whole = cached(name)
    known = shareable(whole) if whole is not None else None
    if known is not None:
        return tuple(known)
    if is_offline():
        return ()
    with suppress(CheckpointError), _errors_of(name):
        from huggingface_hub import HfApi

        info = HfApi().model_info(
            name.repository, revision=name.revision, files_metadata=True, timeout=_ASK_LIMIT_S
        )
        found = [
            {"path": file.rfilename, "nbytes": file.size, "blob": _checksum(file)}
            for file in info.siblings or ()
            if is_wanted(file.rfilename)
        ]
        with suppress(msgspec.ValidationError):  # it is no checkpoint that nodes could share
            return msgspec.convert(found, tuple[HubFile, ...])
    return ()


def _checksum(file: Any) -> str:
    """A large file's is that of its bytes, a small one's that of git."""
    return str(file.blob_id if file.lfs is None else file.lfs.sha256)


def require_shown(name: HubName, file: str = CONFIG) -> None:
    """Raise `CheckpointError` unless a model of the hub, in whatever layout, is in this machine's
    cache, where this file says so, or the hub shows it to this user. Raises `MissingDependency`,
    too."""
    with _errors_of(name):
        from huggingface_hub import HfApi, try_to_load_from_cache

        known = try_to_load_from_cache(name.repository, file, revision=name.revision)
        if isinstance(known, str):
            return
        if is_offline():
            raise _forbidden(name)
        HfApi().model_info(name.repository, revision=name.revision, timeout=_ASK_LIMIT_S)


def folder_of(name: HubName) -> CheckpointFolder:
    """Where the files of a checkpoint go that come from other machines."""
    from huggingface_hub import constants

    return CheckpointFolder(Path(constants.HF_HUB_CACHE).expanduser().resolve(), name)


def is_offline() -> bool:
    """Whether nobody may be asked; where the hub's library is."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def described(name: HubName) -> Path:
    """A folder that says of the checkpoint all but its weights. Raises as `downloaded`."""
    name = pinned(name)
    whole = cached(name)
    if whole is not None:
        return whole
    if is_offline():
        raise _forbidden(name)
    small = _snapshot(name, SMALL)
    folder = cache_folder() / "checkpoints" / name.repository.replace("/", "--") / name.revision
    if not folder.is_dir():
        with _errors_of(name):
            _describe(name, small, folder)
    return folder


def pinned(name: HubName) -> HubName:
    """The commit that a name means now, as the hub says, or the cache where nobody can be asked.
    Raises as `downloaded`.
    """
    if name.is_pinned:
        return name
    found = HubName(name.repository, _snapshot(name, (INDEX,)).name)
    assert found.is_pinned, "the hub's cache names a folder by its commit"
    return found


def _snapshot(name: HubName, wanted: tuple[str, ...], *, offline: bool = False) -> Path:
    with _errors_of(name):
        from huggingface_hub import snapshot_download

        folder = snapshot_download(
            name.repository,
            revision=name.revision,
            allow_patterns=list(wanted),
            ignore_patterns=list(NOT),
            local_files_only=offline,
        )
    return Path(folder)


def _is_whole(folder: Path) -> bool:
    """Whether every part is there, with all of its weights: the cache keeps what an interrupted
    download has left."""
    try:
        entries = read_index(folder / INDEX)
        for part, entry in entries.items():
            if isinstance(entry, list) and entry and isinstance(entry[0], str):
                if not (folder / part).is_dir():
                    return False
                has_weights = part == "vae" or part.startswith(("transformer", "text_encoder"))
                if has_weights and read_weights(folder / part).variant is not None:
                    return False  # nobody would download such a copy
    except CheckpointError:
        return False
    return True


def _describe(name: HubName, small: Path, folder: Path) -> None:
    """Copy the small files, and make one for each file of weights that holds its header."""
    from huggingface_hub import HfApi

    api = HfApi()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        draft = Path(scratch) / "checkpoint"
        shutil.copytree(small, draft, ignore=shutil.ignore_patterns("*.safetensors"))
        parts = {path.name for path in draft.iterdir() if path.is_dir()}
        files = api.list_repo_files(name.repository, revision=name.revision)
        for file in sorted(_weights_of(name, parts, files)):
            found = api.parse_safetensors_file_metadata(
                name.repository, file, revision=name.revision
            )
            _write_header(draft / file, found)
        with suppress(OSError):  # another process was first
            os.rename(draft, folder)


def _weights_of(name: HubName, parts: set[str], files: list[str]) -> set[str]:
    """The files of weights that would be downloaded; raises `CheckpointError` naming one of a part
    that has them in another precision only.
    """
    weights = [
        file
        for file in files
        if file.endswith(".safetensors") and file.count("/") == 1 and file.split("/")[0] in parts
    ]
    wanted = {file for file in weights if is_wanted(file)}
    served = {file.split("/")[0] for file in wanted}
    for file in weights:
        if file.split("/")[0] not in served:
            raise CheckpointError(
                f"model.checkpoint: of its {file.split('/')[0]}, `{name}` has only {file}, a copy"
                f" in another precision; run `hf download {name.repository} --revision"
                f" {name.revision}` on every machine, and name the folder that it prints"
            )
    return wanted


def _write_header(path: Path, metadata: Any) -> None:
    tensors = {
        name: {"dtype": info.dtype, "shape": info.shape, "data_offsets": info.data_offsets}
        for name, info in metadata.tensors.items()
    }
    header = msgspec.json.encode(tensors)
    end = max((info.data_offsets[1] for info in metadata.tensors.values()), default=0)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)


def _forbidden(name: HubName) -> CheckpointError:
    return CheckpointError(
        f"model.checkpoint: `{name}` is not whole in the hub's cache of this machine, and"
        " HF_HUB_OFFLINE forbids to download it; where it is allowed, run `hf download"
        f" {name.repository} --revision {name.revision}`, or name a folder"
    )


@contextmanager
def _errors_of(name: HubName) -> Iterator[None]:
    """What the hub's library raises, as our errors."""
    try:
        from huggingface_hub import errors
    except ImportError as error:
        raise MissingDependency(
            f"model.checkpoint: `{name}` is on the hub, but what reads it is not installed here:"
            " pip install huggingface_hub"
        ) from error
    repository, revision = name
    where = "https://huggingface.co/" + repository
    # Their errors of connections are their HTTP library's, which changed between versions.
    theirs = errors.HfHubHTTPError.__bases__
    any_error: tuple[type[Exception], ...] = (
        OSError,
        *(kind for kind in theirs if issubclass(kind, Exception)),
        errors.EntryNotFoundError,
    )
    try:
        yield
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"model.checkpoint: `{repository}` is shown only to those who have agreed to its terms;"
            f" do so at {where} and give a token, with `hf auth login` or HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"model.checkpoint: the hub has no `{repository}`, or does not show it to you; correct"
            " the name, or give a token with `hf auth login` or HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"model.checkpoint: `{repository}` has no revision `{revision}`; name a branch, a tag"
            f" or a commit that {where}/commits/main lists"
        ) from error
    except any_error as error:
        if is_offline():
            raise _forbidden(name) from error
        reason = plain(str(error).partition("\n")[0])
        raise HubUnreachable(
            f"model.checkpoint: `{name}` is not whole in the hub's cache of this machine, and it"
            f" could not be downloaded ({type(error).__name__}: {reason}); see to the connection"
            " and the disk, or name a folder"
        ) from error
