"""Code of the user's own is looked for, and not run."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
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


def test_a_module_of_a_package_that_was_installed_as_editable_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "elsewhere" / "editable_losses"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('it was run')\n", encoding="utf-8")
    (package / "mine.py").write_text("", encoding="utf-8")

    class Finder:
        """What installing as editable puts in the interpreter: the package is not on its path."""

        @staticmethod
        def find_spec(name: str, path: object, target: object = None) -> ModuleSpec | None:
            if name != package.name:
                return None
            return spec_from_file_location(name, package / "__init__.py")

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    require_module("training.loss", "editable_losses.mine:Loss")


def test_a_module_that_is_nowhere_is_one_line_with_the_field() -> None:
    with pytest.raises(JobError) as refused:
        require_module("training.loss", "nowhere_at_all.losses:Loss")
    assert refused.value.path == "training.loss"
    assert "there is no module `nowhere_at_all.losses` on this machine" in refused.value.problem
