"""Code of the user's own is looked for, and not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.errors import JobError
from spotlight.own_code import require_module


def test_a_module_in_the_folder_that_spotlight_was_started_in_is_found_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_here.py").write_text("raise SystemExit('it was run')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    require_module("training.loss", "found_here:Loss")
    require_module("training.loss", "spotlight.training.losses.awm:AWM")


def test_a_module_that_is_nowhere_is_one_line_with_the_field() -> None:
    with pytest.raises(JobError) as refused:
        require_module("training.loss", "nowhere_at_all.losses:Loss")
    assert refused.value.path == "training.loss"
    assert "there is no module `nowhere_at_all.losses` on this machine" in refused.value.problem
