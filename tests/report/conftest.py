"""Run folders to read."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_run import RunWriter, sample_job, write_sample_run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 12 iterations that lost its spot node; not to be changed."""
    return write_sample_run(tmp_path_factory.mktemp("runs") / "finished", iterations=12)


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    """A run folder with a job and nothing else."""
    writer = RunWriter(tmp_path / "run")
    writer.job(sample_job())
    return writer
