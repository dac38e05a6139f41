"""Where on this machine the checkpoint is that a job names: a folder, one that ships with
Spotlight, or one of the hub.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from spotlight.assets import resolve_checkpoint
from spotlight.diffusion import hub
from spotlight.errors import CheckpointError, MissingDependency
from spotlight.jobs.hub_names import HubFile, HubName


def find_checkpoint(name: str) -> Path:
    """The folder of the whole checkpoint; one of the hub is downloaded first if need be.

    Raises `CheckpointError` or `MissingDependency`.
    """
    on_hub = HubName.parse(name)
    return hub.downloaded(on_hub) if on_hub is not None else resolve_checkpoint(name)


def find_description(name: str) -> Path:
    """A folder that says all of a checkpoint that can be known without its weights. Raises as
    `find_checkpoint`.
    """
    on_hub = HubName.parse(name)
    return hub.described(on_hub) if on_hub is not None else resolve_checkpoint(name)


def folder_here(name: str) -> Path | None:
    """The folder of a checkpoint that is whole on this machine; None if it is not. Nobody is
    asked."""
    on_hub = HubName.parse(name)
    with suppress(CheckpointError, MissingDependency):
        return hub.cached(on_hub) if on_hub is not None else resolve_checkpoint(name)
    return None


def files_on_hub(name: str) -> tuple[HubFile, ...]:
    """The files of a checkpoint of the hub with their checksums, as far as these can be known here;
    of another checkpoint none. Raises `MissingDependency`.
    """
    on_hub = HubName.parse(name)
    return hub.files_of(on_hub) if on_hub is not None and on_hub.is_pinned else ()


def pinned(name: str) -> str:
    """A name that means the same checkpoint for ever, as far as there is one. Raises as
    `find_checkpoint`.
    """
    on_hub = HubName.parse(name)
    return str(hub.pinned(on_hub)) if on_hub is not None else name
