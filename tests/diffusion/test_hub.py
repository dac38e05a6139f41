"""Checkpoints of the hub: found in its cache, downloaded otherwise, and described without their
weights.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from huggingface_hub import constants, utils

from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.hub import described, downloaded, files_of, pinned
from spotlight.diffusion.hub_cache import shareable
from spotlight.errors import CheckpointError, HubUnreachable, JobError
from spotlight.jobs import ModelSpec, job_from_data, work_from_data
from spotlight.jobs.hub_names import HubName
from spotlight.preflight.checkpoint_facts import inspect_checkpoint
from spotlight.preflight.checks import check, check_work, settled
from spotlight.preflight.trainable import trainable_shapes
from spotlight_simulation.tiny_families import make_tiny_checkpoint
from tests.diffusion.hub_kit import COMMIT, REPOSITORY, Hub, fill_cache, serving

NAME = HubName(REPOSITORY, "main")
FIXED = HubName(REPOSITORY, COMMIT)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "flux"
    make_tiny_checkpoint("flux", folder)
    return folder


@pytest.fixture
def repository(original: Path, tmp_path: Path) -> Path:
    """What the hub has: the checkpoint, and what nobody needs of it."""
    folder = tmp_path / "repository"
    shutil.copytree(original, folder)
    (folder / "flux1-dev.safetensors").write_bytes(b"all of it once more")
    (folder / "README.md").write_text("a model card")
    half = folder / "transformer" / "diffusion_pytorch_model.fp16.safetensors"
    half.write_bytes(b"half of it")
    return folder


@pytest.fixture
def hub(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "our-cache"))
    with serving(repository, tmp_path / "cache", monkeypatch) as hub:
        yield hub
    utils.close_session()


@pytest.fixture
def cached(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that has it, with links as the library makes them, on a machine without a network."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    snapshot = fill_cache(original, tmp_path / "cache")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
    return snapshot


def test_what_the_cache_has_is_used_without_a_network(cached: Path) -> None:
    assert downloaded(FIXED) == downloaded(NAME) == described(NAME) == cached
    assert pinned(NAME) == FIXED
    load_model(ModelSpec(checkpoint=str(NAME)), device="cpu")


def test_what_is_in_the_cache_by_its_commit_is_used_without_asking(
    hub: Hub, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert downloaded(FIXED) == described(FIXED) == cached
    assert hub.asked == 0


@pytest.mark.parametrize(
    "missing",
    ["model_index.json", "vae", "transformer/diffusion_pytorch_model.safetensors", "tokenizer"],
)
def test_offline_a_cache_that_lacks_a_part_is_refused(cached: Path, missing: str) -> None:
    path = cached / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(
        CheckpointError,
        match=rf"^model\.checkpoint: `hf:{REPOSITORY}@{COMMIT}` is "
        r"not whole .*HF_HUB_OFFLINE.*, run `hf download painters/tiny --rev",
    ):
        downloaded(FIXED)


def test_offline_a_checkpoint_that_was_never_there_is_refused(cached: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^model\.checkpoint: `hf:painters/other@main` is"):
        downloaded(HubName("painters/other", "main"))


def test_a_download_takes_what_a_checkpoint_needs_and_nothing_else(hub: Hub) -> None:
    folder = downloaded(NAME)
    assert folder.name == COMMIT
    assert {
        name for name in hub.sent if "README" in name or "flux1" in name or "fp16" in name
    } == set()
    load_model(ModelSpec(checkpoint=str(FIXED)), device="cpu")


def test_what_an_interrupted_download_has_left_is_completed(hub: Hub) -> None:
    folder = downloaded(NAME)
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    weights.resolve().unlink()
    weights.unlink()
    hub.sent.clear()
    assert downloaded(FIXED) == folder
    assert hub.sent == ["vae/diffusion_pytorch_model.safetensors"]


def test_a_job_is_checked_without_downloading_weights(hub: Hub, original: Path) -> None:
    wanted = inspect_checkpoint(ModelSpec(checkpoint=str(original)))
    found = inspect_checkpoint(ModelSpec(checkpoint=str(NAME)))
    assert msgspec.structs.replace(found, folder=wanted.folder) == wanted
    shapes = trainable_shapes(ModelSpec(checkpoint=str(original)))
    assert trainable_shapes(ModelSpec(checkpoint=str(NAME))) == shapes
    whole = [name for name in hub.sent if name.endswith(".safetensors")]
    assert whole == [], "only headers"


def test_a_description_takes_no_more_room_than_headers_and_is_made_once(hub: Hub) -> None:
    folder = described(FIXED)
    weights = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    assert weights.stat().st_blocks * 512 < weights.stat().st_size
    asked = hub.asked
    assert described(FIXED) == folder
    assert hub.asked == asked


def test_a_job_keeps_to_the_commit_that_it_began_with(hub: Hub, tmp_path: Path) -> None:
    for name, count in (("train", 8), ("validation", 1)):
        lines = "".join(f'{name} "{number}"\n' for number in range(count))
        (tmp_path / f"{name}.txt").write_text(lines)
    data = {
        "name": "job",
        "model": {"checkpoint": f"hf:{REPOSITORY}"},
        "prompts": {field: str(tmp_path / f"{field}.txt") for field in ("train", "validation")},
        "sampler": {"height": 32, "width": 48},
    }
    job = job_from_data(data, base=tmp_path)
    chosen = settled(job, check(job, run_folder=tmp_path))
    assert chosen.model.checkpoint == str(FIXED)
    hub.revisions["main"] = "f" * 40
    assert settled(chosen, check(chosen, run_folder=tmp_path)) == chosen


def test_a_session_names_a_commit_so_that_all_nodes_have_the_same(hub: Hub, tmp_path: Path) -> None:
    def work(name: HubName) -> None:
        data = {"model": {"checkpoint": str(name)}, "sampler": {"height": 32, "width": 48}}
        check_work(work_from_data(data))

    work(FIXED)
    with pytest.raises(JobError, match=rf"^model\.checkpoint: .* `hf:{REPOSITORY}@{COMMIT}`: name"):
        work(NAME)


@pytest.mark.parametrize("find", [downloaded, described])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (HubName("painters/other", "main"), "the hub has no `painters/other`"),
        (
            HubName(REPOSITORY, "no-such"),
            f"`{REPOSITORY}` has no revision `no-such`; name a branch",
        ),
    ],
)
def test_what_the_hub_does_not_have_is_refused_by_name(
    hub: Hub, find: object, name: HubName, problem: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"^model\.checkpoint: {problem}") as caught:
        find(name)  # type: ignore[operator]
    assert not isinstance(caught.value, HubUnreachable)


def test_a_gated_checkpoint_says_where_to_agree(hub: Hub) -> None:
    hub.gated = True
    with pytest.raises(CheckpointError, match=r"agreed to its terms; .*painters/tiny .*HF_TOKEN"):
        downloaded(NAME)


def test_a_hub_that_does_not_answer_may_do_so_later(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        for find in (downloaded, described):
            with pytest.raises(HubUnreachable, match="could not be downloaded"):
                find(NAME)


def test_a_hub_that_fails_may_be_well_later(hub: Hub) -> None:
    hub.status = 500
    with pytest.raises(HubUnreachable):
        downloaded(NAME)


def test_a_part_that_is_there_in_another_precision_only_is_named_before_a_download(
    hub: Hub, repository: Path
) -> None:
    usual = repository / "transformer" / "diffusion_pytorch_model.safetensors"
    usual.replace(repository / "transformer" / "diffusion_pytorch_model.fp16.safetensors")
    with pytest.raises(
        CheckpointError,
        match=r"of its transformer, `hf:painters/tiny@.*` has only transformer/diff.*fp16\.safe"
        r"tensors, .*; run `hf download painters/tiny --revision",
    ):
        described(NAME)


def test_a_copy_in_another_precision_does_not_make_a_cache_whole(cached: Path) -> None:
    usual = cached / "transformer" / "diffusion_pytorch_model.safetensors"
    usual.rename(usual.with_name("diffusion_pytorch_model.fp16.safetensors"))
    with pytest.raises(CheckpointError, match="not whole"):
        downloaded(FIXED)


def test_the_checksums_of_a_checkpoint_are_those_of_the_hub(
    hub: Hub, repository: Path, tmp_path: Path
) -> None:
    theirs = fill_cache(repository, tmp_path / "theirs")
    known = files_of(FIXED)
    assert set(known) == set(shareable(theirs) or ())
    assert not hub.sent, "no file was downloaded for it"
    hub.status = 404
    assert files_of(FIXED) == ()
    hub.status = 0
    downloaded(FIXED)
    hub.status = 404
    assert set(files_of(FIXED)) == set(known), "the cache has them from the hub"
