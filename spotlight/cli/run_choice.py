"""The run that a command is to read: one of this machine, or that of a job of the coordinator."""

from __future__ import annotations

from pathlib import Path

from spotlight.cli.reaching import asking
from spotlight.errors import UnknownJob, UserError
from spotlight.running.run_names import LAST, find_run
from spotlight.store.run_folder import is_run


def choose_run(name: str, join: str) -> Path:
    """The folder of a run on this machine, by what `find_run` knows, or by the name or id of a job;
    raises `UserError` that says where else it may be."""
    found = find_run(name)
    if found is not None:
        return found
    if name == LAST:
        raise UserError(
            "there is no run below `runs` in this folder; name a run folder, or a job of the"
            " coordinator"
        )
    try:
        status = asking(join, lambda client: client.status(name))
    except UserError as error:
        raise UnknownJob(
            f"`{name}` is no run folder, and no run below `runs` in this folder; as a job: {error}"
        ) from error
    folder = Path(status.run_folder)
    if not status.run_folder or not is_run(folder):
        place = status.run_folder or "its run folder"
        raise UserError(
            f"the files of `{status.job or name}` are in {place} on the coordinator's machine, and"
            " not on this one; call this there, or copy the folder here and name it"
        )
    return folder
