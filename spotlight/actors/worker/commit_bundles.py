"""Commits as bundles: what is written of a batch's progress, and what is checked before a worker
continues from it.

A commit says of what it is the progress: the job, the weights (by their checksum too, for a version
that is trained again may differ), the step, and the whole request of every row. It is used for
exactly these requests or not at all. That of the last step is what training needs of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import msgspec
import torch

from spotlight.actors.worker.engine import Origin
from spotlight.diffusion.finite import rows_not_finite
from spotlight.diffusion.progress import Progress
from spotlight.errors import CommitRefused, NotFinite, TransferFailed
from spotlight.transport.tensors.bundles import metadata_of, pack, unpack
from spotlight.types import Commit, Request

_FORMAT = 2
_KEY = "commit"


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    origin: Origin
    step: int
    requests: tuple[Request, ...]


def pack_commit(origin: Origin, requests: Sequence[Request], progress: Progress) -> bytes:
    """The bundle of a commit; rows are in the order of the requests. Raises `NotFinite`: from NaN
    nobody goes on.
    """
    rows = rows_not_finite(progress.latents, progress.log_probs)
    if rows:
        names = ", ".join(requests[row].id for row in rows)
        raise NotFinite(f"{names}: NaN or infinite after {progress.step} steps", rows)
    record = _Record(_FORMAT, origin, progress.step, tuple(requests))
    return pack(progress.tensors(), {_KEY: msgspec.json.encode(record).decode()})


def unpack_commits(
    origin: Origin,
    requests: Sequence[Request],
    commits: Sequence[Commit],
    bundles: Mapping[str, bytes],
    shape: tuple[int, int],
) -> Progress:
    """The progress of a batch from the commits of its requests; `shape` is that of one sample's
    latents. Raises `CommitRefused` with the reason, of those requests whose commits are at fault.
    """

    @cache  # several requests share a bundle
    def opened(key: str) -> tuple[_Record, Progress]:
        return _open(key, bundles[key], origin, shape)

    rows: list[Progress] = []
    refused: dict[int, CommitRefused] = {}
    for index, (request, commit) in enumerate(zip(requests, commits, strict=True)):
        try:
            rows.append(_row(*opened(commit.bundle.key), commit, request))
        except CommitRefused as error:
            refused[index] = error
    if refused:
        first = next(iter(refused.values()))
        raise CommitRefused(str(first), tuple(refused)) from first
    try:
        return Progress.join(rows)
    except ValueError as error:
        raise CommitRefused(str(error)) from error


def _row(record: _Record, progress: Progress, commit: Commit, request: Request) -> Progress:
    """The progress of one request."""
    key = commit.bundle.key
    if not 0 <= commit.row < len(record.requests):
        raise CommitRefused(f"{key} has no row {commit.row}")
    if record.step != commit.step:
        raise CommitRefused(f"{key} is of step {record.step}, not of step {commit.step}")
    _require_same(key, record.requests[commit.row], request)
    return progress.select([commit.row])


def _open(
    key: str, data: bytes, origin: Origin, shape: tuple[int, int]
) -> tuple[_Record, Progress]:
    try:
        tensors = unpack(data)
        record = msgspec.json.decode(metadata_of(data).get(_KEY, ""), type=_Record)
        progress = Progress.from_tensors(tensors)
    except (TransferFailed, msgspec.MsgspecError, ValueError, RuntimeError) as error:
        raise CommitRefused(f"{key} is not a commit: {error}") from error
    if record.format != _FORMAT:
        raise CommitRefused(f"{key} has format {record.format}; this reads {_FORMAT}")
    if record.origin.job != origin.job:
        raise CommitRefused(f"{key} is of job {record.origin.job}, not of {origin.job}")
    if record.origin != origin:
        raise CommitRefused(f"{key} was made with other weights of the same version")
    _require_consistent(key, record, progress, shape)
    return record, progress


def _require_same(key: str, saved: Request, wanted: Request) -> None:
    there, here = (msgspec.structs.asdict(request.work) for request in (saved, wanted))
    if there == here:
        return
    field = next(name for name in there if there[name] != here[name])
    raise CommitRefused(f"{key} is of {field} {there[field]!r}, not of {here[field]!r}")


def _require_consistent(
    key: str, record: _Record, progress: Progress, shape: tuple[int, int]
) -> None:
    """The tensors are what denoising so many steps of these requests leaves."""
    if not record.requests:
        raise CommitRefused(f"{key} is of no request")
    settings, count = record.requests[0].settings, len(record.requests)
    noisy = sum(settings.in_window(step) for step in range(progress.step))
    states = noisy + 1 if noisy else 0
    expected = {
        "latents": (count, *shape),
        "window_states": (count, states, *shape),
        "log_probs": (count, noisy),
        "foreseen": (count, int(settings.looks_back(progress.step)), *shape),
    }
    for name, wanted in expected.items():
        tensor = getattr(progress, name)
        if tuple(tensor.shape) != wanted or tensor.dtype != torch.float32:
            raise CommitRefused(
                f"{key}: {name} is {tensor.dtype} {tuple(tensor.shape)}, not float32 {wanted}"
            )
    if progress.step != record.step or not 0 < progress.step <= settings.steps:
        raise CommitRefused(
            f"{key}: its tensors are of step {progress.step}, its record of {record.step}, of"
            f" {settings.steps}"
        )
    if rows_not_finite(progress.latents, progress.log_probs):
        raise CommitRefused(f"{key}: its latents are NaN or infinite")
