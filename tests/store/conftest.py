"""A new run folder, and a full disk."""

from __future__ import annotations

import errno
import os

import pytest
from run_folder_kit import job

from spotlight.store.run_folder import RunFolder


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def folder(path):
    folder = RunFolder.create(path, job())
    yield folder
    folder.close()


@pytest.fixture
def full_disk(monkeypatch):
    """The disk is full until the list is emptied."""
    full = [True]
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", refuse)
    return full
