"""Which pictures a view points to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotlight.report.view_pictures import MOST_PROMPTS, MOST_VERSIONS, ViewPictures


def _listing(run: Path, name: str, version: int, files: list[str], **said: Any) -> None:
    folder = run / name / f"v{version:06d}"
    folder.mkdir(parents=True)
    lines = [{"prompt": f"of {file[:4]}", "reward": version / 10, "file": file} | said
             for file in files]  # fmt: skip
    (folder / "prompts.json").write_text(json.dumps(lines))


def test_the_wall_has_the_same_prompts_and_seeds_over_versions(tmp_path: Path) -> None:
    for version in (0, 5, 10):
        _listing(tmp_path, "thumbnails", version, ["p000.webp", "p001.webp"], seed=7)
    for version in (0, 10):
        _listing(tmp_path, "validation", version, ["p000.png", "p001.png"])
    wall = ViewPictures(tmp_path).part().wall
    assert [[one.weights_version for one in row] for row in wall] == [[0, 5, 10]] * 2
    assert [one.thumb for one in wall[1]] == [
        f"thumbnails/v{version:06d}/p001.webp" for version in (0, 5, 10)
    ]
    assert [one.full for one in wall[0]] == [
        "validation/v000000/p000.png",
        "",
        "validation/v000010/p000.png",
    ]
    assert {one.seed for row in wall for one in row} == {7}


def test_a_run_without_thumbnails_shows_its_pictures_themselves(tmp_path: Path) -> None:
    _listing(tmp_path, "validation", 3, ["p000.png"])
    ((shown,),) = ViewPictures(tmp_path).part().wall
    assert shown.thumb == shown.full == "validation/v000003/p000.png"


def test_of_many_prompts_and_versions_some_are_shown(tmp_path: Path) -> None:
    for version in range(40):
        _listing(tmp_path, "thumbnails", version, [f"p{one:03d}.webp" for one in range(50)])
    wall = ViewPictures(tmp_path).part().wall
    assert len(wall) == MOST_PROMPTS and len(wall[0]) == MOST_VERSIONS
    assert (wall[0][0].weights_version, wall[0][-1].weights_version) == (0, 39)


def test_a_new_validation_is_found_without_another_reader(tmp_path: Path) -> None:
    pictures = ViewPictures(tmp_path)
    assert pictures.part().wall == ()
    _listing(tmp_path, "thumbnails", 0, ["p000.webp"])
    assert len(pictures.part().wall[0]) == 1
    _listing(tmp_path, "thumbnails", 1, ["p000.webp"])
    assert len(pictures.part().wall[0]) == 2


@pytest.mark.parametrize("text", ['[{"prompt": 1}]', "[{", "\\xff", "{}"])
def test_a_damaged_listing_is_noted_and_left_out(tmp_path: Path, text: str) -> None:
    _listing(tmp_path, "thumbnails", 0, ["p000.webp"])
    _listing(tmp_path, "thumbnails", 1, ["p000.webp"])
    (tmp_path / "thumbnails/v000001/prompts.json").write_text(text)
    pictures = ViewPictures(tmp_path)
    assert [len(row) for row in pictures.part().wall] == [1]
    (note,) = pictures.notes
    assert note.startswith("thumbnails/v000001/prompts.json: ")


def test_no_listing_leads_out_of_its_folder(tmp_path: Path) -> None:
    _listing(tmp_path, "thumbnails", 0, ["../../secret.webp", "p000.webp"])
    pictures = ViewPictures(tmp_path)
    assert [one.thumb for row in pictures.part().wall for one in row] == [
        "thumbnails/v000000/p000.webp"
    ]
    assert "must be a name in the same folder" in pictures.notes[0]


def test_the_best_and_worst_samples_are_shown(tmp_path: Path) -> None:
    folder = tmp_path / "thumbnails/samples"
    folder.mkdir(parents=True)
    sample = {"prompt": "a", "seed": 3, "reward": 0.9, "file": "12-0-3.webp"}
    said = {"weights_version": 12, "best": [sample], "worst": [{**sample, "reward": 0.1}]}
    (folder / "samples.json").write_text(json.dumps(said))
    part = ViewPictures(tmp_path).part()
    assert (part.best[0].thumb, part.best[0].weights_version) == (
        "thumbnails/samples/12-0-3.webp",
        12,
    )
    assert part.worst[0].reward == 0.1
