"""Files that the cache gives to other machines, and takes from them."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from huggingface_hub import constants

from spotlight.diffusion.hub import cached, downloaded
from spotlight.diffusion.hub_cache import CheckpointFolder, HubFile, shareable
from spotlight.errors import CheckpointError
from spotlight.jobs.hub_names import HubName
from spotlight_simulation.tiny_families import make_tiny_checkpoint
from tests.diffusion.hub_kit import COMMIT, REPOSITORY, fill_cache

NAME = HubName(REPOSITORY, COMMIT)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "flux"
    make_tiny_checkpoint("flux", folder)
    (folder / "README.md").write_text("a model card")
    (folder / "transformer" / "diffusion_pytorch_model.fp16.safetensors").write_bytes(b"half")
    return folder


@pytest.fixture
def theirs(original: Path, tmp_path: Path) -> dict[HubFile, Path]:
    found = shareable(fill_cache(original, tmp_path / "theirs"))
    assert found is not None
    return found


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointFolder:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "ours"))
    return CheckpointFolder(tmp_path / "ours", NAME)


def take(folder: CheckpointFolder, file: HubFile, data: bytes) -> None:
    with closing(folder.arriving(file)) as arriving:
        arriving.write(memoryview(data)[:7])
        arriving.write(memoryview(data)[7:])
        arriving.keep()


def test_only_what_a_checkpoint_needs_is_given(theirs: dict[HubFile, Path]) -> None:
    names = {file.path for file in theirs}
    assert "model_index.json" in names
    assert not {name for name in names if "README" in name or "fp16" in name}


def test_both_of_two_transformers_are_given(tmp_path: Path) -> None:
    make_tiny_checkpoint("wan-a14b", tmp_path / "wan")
    found = shareable(fill_cache(tmp_path / "wan", tmp_path / "theirs"))
    assert found is not None
    names = {file.path for file in found}
    for part in ("transformer", "transformer_2"):
        assert {f"{part}/config.json", f"{part}/diffusion_pytorch_model.safetensors"} <= names


def test_what_was_taken_is_a_checkpoint_for_the_library(
    theirs: dict[HubFile, Path], ours: CheckpointFolder
) -> None:
    assert cached(NAME) is None
    for file in ours.missing(list(theirs)):
        take(ours, file, theirs[file].read_bytes())
    assert downloaded(NAME) == ours.path
    assert shareable(ours.path) is not None
    assert not list(ours.path.parents[1].rglob("*.incomplete"))


def test_weights_come_last_so_that_half_of_it_never_passes_for_whole(
    theirs: dict[HubFile, Path], ours: CheckpointFolder
) -> None:
    files = ours.missing(list(theirs))
    weights = [file.path.endswith(".safetensors") for file in files]
    assert weights == sorted(weights)
    for file in files[:-1]:
        take(ours, file, theirs[file].read_bytes())
    assert cached(NAME) is None
    assert ours.missing(list(theirs)) == files[-1:]


def test_what_another_commit_has_is_not_fetched_again(
    theirs: dict[HubFile, Path], ours: CheckpointFolder, tmp_path: Path
) -> None:
    other = CheckpointFolder(tmp_path / "ours", HubName(REPOSITORY, "f" * 40))
    for file in other.missing(list(theirs)):
        take(other, file, theirs[file].read_bytes())
    assert ours.missing(list(theirs)) == []
    assert cached(NAME) == ours.path


def test_other_bytes_than_the_hubs_are_refused(
    theirs: dict[HubFile, Path], ours: CheckpointFolder
) -> None:
    for file in ours.missing(list(theirs)):
        data = bytearray(theirs[file].read_bytes())
        data[-1] ^= 1
        for wrong in (bytes(data), bytes(data[:-1])):
            with pytest.raises(CheckpointError, match=rf"^{file.path} came with .* the hub has"):
                take(ours, file, wrong)
    assert len(ours.missing(list(theirs))) == len(theirs)
    assert not [path for path in ours.path.parents[1].rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "path", ["../../secret.json", "/etc/passwd", "transformer/../x.json", ".hidden.json", "a//b"]
)
def test_a_path_that_leads_elsewhere_is_no_file_of_a_checkpoint(path: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"path": path, "nbytes": 1, "blob": "0" * 40}, HubFile)


@pytest.mark.parametrize("path", ["README.md", "transformer/model.py", "other/config.json"])
def test_a_file_that_a_checkpoint_does_not_need_is_refused(
    ours: CheckpointFolder, path: str
) -> None:
    with pytest.raises(CheckpointError, match="is no file of a checkpoint"):
        ours.missing([HubFile(path, 1, "0" * 40)])


def test_more_than_the_disk_has_room_for_is_refused(ours: CheckpointFolder) -> None:
    with pytest.raises(CheckpointError, match=f"{2**40} bytes are missing in .* the disk has room"):
        ours.missing([HubFile("vae/model.safetensors", 2**40, "0" * 64)])


@pytest.mark.parametrize("kind", ["copied without links", "a link that leads elsewhere"])
def test_a_cache_that_cannot_vouch_for_its_files_gives_none(
    original: Path, tmp_path: Path, kind: str
) -> None:
    snapshot = fill_cache(original, tmp_path / "theirs")
    file = snapshot / "model_index.json"
    blob = file.resolve()
    file.unlink()
    if kind == "copied without links":
        shutil.copy(blob, file)
    else:
        file.symlink_to(shutil.copy(blob, tmp_path / blob.name))
    assert shareable(snapshot) is None
