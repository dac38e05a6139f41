"""Brings an export to the Hugging Face hub, or to the server that HF_ENDPOINT names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spotlight.errors import MissingDependency, UserError
from spotlight.text import plain

OPTION = "--push-to-hub"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def require_pushable(repository: str) -> None:
    """Raise the `UserError`, or `MissingDependency`, of what can be known before an export is
    made: the name, the hub's library, a token. Nobody is asked."""
    if _REPOSITORY.fullmatch(repository) is None:
        raise UserError(f"{OPTION}: `{plain(repository)}` is no name; write ORGANISATION/NAME")
    try:
        from huggingface_hub import constants, get_token
    except ImportError as error:
        raise MissingDependency(
            f"{OPTION}: needs what speaks with the hub: pip install huggingface_hub"
        ) from error
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"{OPTION}: HF_HUB_OFFLINE forbids to ask the hub; leave one of them out")
    if get_token() is None:
        raise UserError(
            f"{OPTION}: no token of the hub is here; give one that may write, with `hf auth login`"
            " or HF_TOKEN"
        )


def push(folder: Path, repository: str) -> str:
    """Bring the files of a folder to a repository in one commit, and return its address. A
    repository that does not exist becomes a private one. Raises `UserError`.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    with _explained(repository, folder):
        api.create_repo(repository, private=True, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=f"Add {folder.name}"
        )
    return str(commit.repo_url)


@contextmanager
def _explained(repository: str, folder: Path) -> Iterator[None]:
    from huggingface_hub import errors

    # Their errors of connections are their HTTP library's, which changed between versions.
    theirs = errors.HfHubHTTPError.__bases__
    any_error: tuple[type[Exception], ...] = (
        OSError,
        ValueError,
        *(kind for kind in theirs if issubclass(kind, Exception)),
    )
    try:
        yield
    except any_error as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        advice = (
            "give a token that may write there, with `hf auth login` or HF_TOKEN"
            if status in (401, 403)
            else "see to the connection"
        )
        reason = plain(str(error).strip().partition("\n")[0])
        raise UserError(
            f"{OPTION}: `{repository}` did not take the export ({type(error).__name__}: {reason});"
            f" {advice}, and push what is there: hf upload {repository} {shlex.quote(str(folder))}"
        ) from error
