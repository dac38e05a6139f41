"""`spotlight init`, and the examples that ship with Spotlight."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.cli.init import EXAMPLES, example_lines, example_names, write_job_file
from spotlight.errors import UserError
from spotlight.jobs import load_job
from spotlight.preflight.checks import check

ROOT = Path(__file__).parents[2]


RECIPES = [name for name in example_names() if name.startswith("recipes/")]
"""For checkpoints of the hub, which tests never ask; `tests/jobs/test_recipes.py` checks them."""


@pytest.mark.parametrize("name", sorted({*example_names()} - {*RECIPES}))
def test_every_example_passes_the_checks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file, *_ = write_job_file(tmp_path / "job.yaml", name)
    check(load_job(file), run_folder=tmp_path / "run")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_begun_with(name: str, tmp_path: Path) -> None:
    (file,) = write_job_file(tmp_path / "job.yaml", name)
    assert load_job(file).model.checkpoint.startswith("hf:")


def test_an_example_in_a_folder_of_its_own_comes_with_what_lies_beside_it(tmp_path: Path) -> None:
    written = write_job_file(tmp_path / "job.yaml", "own-reward/own-reward")
    assert [file.name for file in written] == ["job.yaml", "ink.py"]
    with pytest.raises(UserError, match=r"ink\.py already exists"):
        write_job_file(tmp_path / "other.yaml", "own-reward/own-reward")


def test_the_examples_of_the_package_are_those_of_the_repository() -> None:
    assert EXAMPLES.resolve() == ROOT / "examples"
    assert {"ocr-tiny", "compositional-tiny", "ocr-tiny-lora", "own-reward/own-reward"} <= set(
        example_names()
    )


def test_each_example_is_listed_with_what_it_is() -> None:
    head, *lines = example_lines()
    assert "--example" in head
    assert [line.split()[0] for line in lines] == example_names()
    assert all(len(line.split()) > 3 and len(line) < 160 for line in lines)


def test_without_an_example_every_field_is_written(tmp_path: Path) -> None:
    (file,) = write_job_file(tmp_path / "mine.yaml", "")
    assert "#checkpoint_every: 5" in file.read_text()
    check(load_job(file), run_folder=tmp_path / "run")


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("mine")
    with pytest.raises(UserError, match=r"job\.yaml already exists"):
        write_job_file(tmp_path / "job.yaml", "")
    assert (tmp_path / "job.yaml").read_text() == "mine"


def test_an_unknown_example_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no `flux`; there are compositional-tiny, "):
        write_job_file(tmp_path / "job.yaml", "flux")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name a file that can be written"):
        write_job_file(tmp_path / "nowhere" / "job.yaml", "")
