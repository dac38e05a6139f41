"""A whole run of a checkpoint that is named as on the hub, from the hub's cache of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from spotlight.assets import resolve_checkpoint
from spotlight.running.worker_template import VARIABLE
from tests.integration.conftest import Workplace

pytestmark = pytest.mark.slow

COMMIT = "89abcdef" * 5


@pytest.fixture
def cached(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the cache keeps `painters/tiny`."""
    place = workplace.folder / "hub" / "models--painters--tiny"
    shutil.copytree(resolve_checkpoint("builtin:ocr-tiny"), place / "snapshots" / COMMIT)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    monkeypatch.setenv("HF_HUB_CACHE", str(place.parent))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv(VARIABLE, raising=False)  # its workers would look where others look
    return place


def test_a_run_notes_the_commit_that_a_branch_meant_and_is_resumed_with_it(
    workplace: Workplace, cached: Path
) -> None:
    run = workplace.folder / "run"
    job = workplace.job(model={"checkpoint": "hf:painters/tiny"}, iterations=1)
    done = workplace.spotlight("run", job, "--run-folder", run)
    assert done.code == 0, done.output + done.errors
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["checkpoint"] == f"hf:painters/tiny@{COMMIT}"
    assert list((run / "export").rglob("*.safetensors"))
    (cached / "refs" / "main").write_text("0" * 40)
    resumed = workplace.spotlight("run", "--resume", run)
    assert resumed.code == 0, resumed.output + resumed.errors


def test_a_checkpoint_that_the_cache_lacks_is_refused_before_anything_starts(
    workplace: Workplace, cached: Path
) -> None:
    job = workplace.job(model={"checkpoint": "hf:painters/other@main"})
    refused = workplace.spotlight("run", job, "--run-folder", workplace.folder / "run")
    assert refused.code == 2
    assert "model.checkpoint: `hf:painters/other@main` is not whole" in refused.errors
    assert not (workplace.folder / "run").exists()
