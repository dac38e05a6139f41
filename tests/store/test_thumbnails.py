"""The thumbnails of a run folder."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from spotlight.store.thumbnails import (
    LARGEST,
    MOST_PICTURES,
    MOST_VERSIONS,
    ShownSample,
    ShownSamples,
    keep_of_samples,
    keep_of_validation,
    kept_versions,
    validated_in,
)

WEBP = b"RIFF\x04\x00\x00\x00WEBP"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def _validate(run: Path, version: int, count: int = 1, data: bytes = WEBP) -> None:
    left = {}
    for number in range(count):
        file = run.parent / "left" / f"{version}-{number}.webp"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        left[f"p{number:03d}.png"] = file
    listing = [{"prompt": "a", "reward": 0.5, "seed": 1, "file": name} for name in left]
    keep_of_validation(run, version, listing, left)


def test_a_validation_leaves_its_thumbnails_with_their_prompts(run: Path) -> None:
    _validate(run, 5)
    folder = run / "thumbnails" / "v000005"
    assert (folder / "p000.webp").read_bytes() == WEBP
    (line,) = msgspec.json.decode((folder / "prompts.json").read_bytes())
    assert line == {"prompt": "a", "reward": 0.5, "seed": 1, "file": "p000.webp"}


def test_of_many_versions_and_pictures_some_are_kept(run: Path) -> None:
    for version in range(0, 5 * MOST_VERSIONS):
        _validate(run, version)
    _validate(run, 1000, count=2 * MOST_PICTURES)
    versions = validated_in(run)
    assert len(versions) == MOST_VERSIONS and (versions[0], versions[-1]) == (0, 1000)
    assert len(list((run / "thumbnails" / "v001000").glob("*.webp"))) == MOST_PICTURES


def test_those_that_are_kept_are_spread_over_the_run() -> None:
    kept: list[int] = []
    for version in range(1000):
        kept = kept_versions([*kept, version], 11)
    gaps = [later - earlier for earlier, later in pairwise(kept)]
    assert max(gaps) <= 4 * (1000 / 10)


@pytest.mark.parametrize("data", [b"", b"x" * (LARGEST + 1)], ids=["empty", "large"])
def test_what_can_be_no_thumbnail_is_left_out(run: Path, data: bytes) -> None:
    _validate(run, 5, data=data)
    assert validated_in(run) == []


def test_a_thumbnail_behind_a_link_is_left_out(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(WEBP)
    (tmp_path / "link.webp").symlink_to(tmp_path / "secret")
    listing = [{"prompt": "a", "reward": 0.5, "seed": 1, "file": "p.png"}]
    keep_of_validation(run, 1, listing, {"p.png": tmp_path / "link.webp"})
    assert validated_in(run) == []


def test_samples_take_the_place_of_those_before(run: Path, tmp_path: Path) -> None:
    for version in (3, 4):
        left = {f"{version}-{name}.webp": tmp_path / f"{name}.webp" for name in "abc"}
        for name in "ab":
            (tmp_path / f"{name}.webp").write_bytes(WEBP)
        best, gone, worst = (
            ShownSample(prompt="p", seed=1, reward=0.5, file=f"{version}-{name}.webp")
            for name in "acb"
        )
        keep_of_samples(
            run, ShownSamples(weights_version=version, best=(best, gone), worst=(worst,)), left
        )
    folder = run / "thumbnails" / "samples"
    assert sorted(file.name for file in folder.iterdir()) == [
        "4-a.webp",
        "4-b.webp",
        "samples.json",
    ]
    told = msgspec.json.decode((folder / "samples.json").read_bytes(), type=ShownSamples)
    assert [one.file for one in told.best] == ["4-a.webp"]


def test_no_sample_is_among_the_best_and_among_the_worst(run: Path, tmp_path: Path) -> None:
    samples = [
        ShownSample(prompt="p", seed=seed, reward=1 - seed / 10, file=f"{seed}.webp")
        for seed in range(5)
    ]
    left = {one.file: tmp_path / one.file for one in samples}
    for file in left.values():
        file.write_bytes(WEBP)
    shown = ShownSamples(weights_version=1, best=tuple(samples), worst=tuple(samples[::-1]))
    keep_of_samples(run, shown, left)
    told = msgspec.json.decode(
        (run / "thumbnails/samples/samples.json").read_bytes(), type=ShownSamples
    )
    assert [one.seed for one in told.best] == [0, 1]
    assert [one.seed for one in told.worst] == [4, 3]
