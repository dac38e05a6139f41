"""A node's files of a checkpoint of the hub: from its cache, from another node, or by its workers.

The other node is a store on this machine, and both caches are real ones.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from huggingface_hub import constants

from spotlight.actors.node import checkpoint_transfer
from spotlight.actors.node.checkpoint_files import CheckpointFiles
from spotlight.actors.node.checkpoint_transfer import fetch_files, offer_files
from spotlight.actors.protocol.down import CheckpointSource
from spotlight.actors.protocol.up import WorkerReport
from spotlight.assets import resolve_checkpoint
from spotlight.diffusion.hub import folder_of
from spotlight.diffusion.hub_cache import shareable
from spotlight.errors import TransferFailed, TransferRefused
from spotlight.jobs.hub_names import HubFile, HubName
from spotlight.timings import CheckpointTimings, Timings
from spotlight.transport.tensors import BundleStore
from tests.diffusion.hub_kit import COMMIT, REPOSITORY, fill_cache

NAME = HubName(REPOSITORY, COMMIT)
TIMINGS = Timings(checkpoints=CheckpointTimings(look_s=0.01, retry_pause_s=0.01))
HUB = CheckpointSource(None)


class Site:
    """A node, and another one that has the checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = BundleStore(folder / "store", token="ours")
        self.peer = BundleStore(folder / "peer", token="theirs")
        self.tasks: list[asyncio.Task[None]] = []
        self.changes = 0
        self.theirs = fill_cache(resolve_checkpoint("builtin:ocr-tiny"), folder / "theirs")

    async def open(self) -> None:
        await self.store.start()
        await self.peer.start()
        actor: Any = SimpleNamespace(run_task=self._run, files_changed=self._changed)
        self.files = CheckpointFiles(actor, self.store, TIMINGS)

    async def close(self) -> None:
        self.files.begin("")
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.store.aclose()
        await self.peer.aclose()

    async def begin(self) -> None:
        self.files.begin(str(NAME))
        await self.until(lambda: self.files.state is not None)

    def source(self, known: Collection[HubFile] = ()) -> CheckpointSource:
        """The other node, with the files that the hub `known` says; by default what it has."""
        files = shareable(self.theirs)
        assert files is not None
        return CheckpointSource(offer_files(self.peer, files), tuple(known or files))

    def damage(self, name: str) -> None:
        path = (self.theirs / name).resolve()
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not true():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    @property
    def is_whole(self) -> bool:
        return self.files.state is not None and self.files.state.is_whole

    @property
    def missed(self) -> CheckpointSource | None:
        return None if self.files.state is None else self.files.state.missed

    def _run(self, work: Any) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "ours"))
    site = Site(tmp_path)
    await site.open()
    yield site
    await site.close()


@pytest.mark.parametrize("name", ["builtin:ocr-tiny", "/a/folder", f"hf:{REPOSITORY}@main"])
async def test_for_any_other_checkpoint_nobody_waits(site: Site, name: str) -> None:
    site.files.begin(name)
    assert site.files.may_begin
    assert site.files.state is None


async def test_what_is_in_the_cache_is_used_and_offered_without_asking(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "theirs"))
    await site.begin()
    assert site.files.may_begin
    assert site.is_whole
    assert site.files.state is not None
    assert site.files.state.listing is not None


async def test_what_is_missing_comes_from_another_node_before_workers_begin(site: Site) -> None:
    await site.begin()
    assert not site.files.may_begin
    site.files.follow(site.source())
    assert not site.files.may_begin
    await site.until(lambda: site.files.may_begin)
    await site.until(lambda: site.is_whole)
    for path in site.theirs.rglob("*"):
        ours = folder_of(NAME).path / path.relative_to(site.theirs)
        if path.is_file() and ours.suffix != ".md" and "prompts" not in ours.parts:
            assert ours.read_bytes() == path.read_bytes()


async def test_a_source_that_is_known_before_the_cache_was_seen_is_followed(site: Site) -> None:
    site.files.begin(str(NAME))
    site.files.follow(site.source())
    await site.until(lambda: site.is_whole)


async def test_workers_begin_when_they_are_to_download_and_what_they_get_is_offered(
    site: Site, tmp_path: Path
) -> None:
    await site.begin()
    site.files.follow(HUB)
    assert site.files.may_begin
    assert not site.is_whole
    fill_cache(resolve_checkpoint("builtin:ocr-tiny"), tmp_path / "ours")
    await site.until(lambda: site.is_whole)
    assert site.files.state is not None
    assert site.files.state.listing is not None


async def test_a_worker_that_cannot_download_is_reported(site: Site) -> None:
    await site.begin()
    site.files.follow(HUB)
    site.files.note(WorkerReport("n/0", 1))
    assert site.missed is None
    site.files.note(WorkerReport("n/0", 1, cannot_serve="the hub is away"))
    assert site.missed == HUB
    site.files.follow(site.source())
    await site.until(lambda: site.is_whole)


async def test_a_list_with_checksums_of_its_own_is_refused_although_its_bytes_fit(
    site: Site, tmp_path: Path
) -> None:
    hubs = shareable(site.theirs)
    assert hubs is not None
    forged = tmp_path / "forged"
    shutil.copytree(resolve_checkpoint("builtin:ocr-tiny"), forged)
    (forged / "model_index.json").write_text("{}", encoding="utf-8")
    site.theirs = fill_cache(forged, tmp_path / "forgers")
    source = site.source(tuple(hubs))
    await site.begin()
    site.files.follow(source)
    await site.until(lambda: site.missed == source)
    assert not list(folder_of(NAME).path.rglob("*"))


async def test_wrong_bytes_are_refused_and_what_was_right_stays(site: Site) -> None:
    source = site.source()
    site.damage("transformer/diffusion_pytorch_model.safetensors")
    await site.begin()
    site.files.follow(source)
    await site.until(lambda: site.missed == source)
    assert not site.files.may_begin
    assert (folder_of(NAME).path / "model_index.json").exists()
    assert not list((folder_of(NAME).path).rglob("diffusion_pytorch_model.safetensors"))
    site.files.follow(HUB)
    assert site.files.may_begin


async def test_a_source_that_is_gone_is_reported(site: Site) -> None:
    source = site.source()
    await site.peer.aclose()
    await site.begin()
    site.files.follow(source)
    await site.until(lambda: site.missed == source)


async def test_a_transfer_that_breaks_off_goes_on_where_it_was(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    stream = checkpoint_transfer.stream

    async def flaky(
        offer: Any, first: int, write: Callable[[memoryview], None], *rest: Any
    ) -> None:
        asked.append((offer.key, first))

        def write_some(part: memoryview) -> None:
            write(part[:1000])
            raise TransferFailed("the connection broke")

        await stream(offer, first, write_some if not first else write, *rest)

    monkeypatch.setattr(checkpoint_transfer, "stream", flaky)
    source = site.source()
    assert source.listing is not None
    await fetch_files(source.listing, source.files, folder_of(NAME), TIMINGS)
    large = "checkpoint/transformer/diffusion_pytorch_model.safetensors"
    assert [first for key, first in asked if key == large] == [0, 1000]
    assert shareable(folder_of(NAME).path) is not None


async def test_after_the_job_nobody_gets_the_files_any_more(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "theirs"))
    await site.begin()
    assert site.files.state is not None
    listing = site.files.state.listing
    assert listing is not None
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "ours"))
    known = shareable(site.theirs) or {}
    await fetch_files(listing, known, folder_of(NAME), TIMINGS)
    site.files.begin("")
    other = folder_of(HubName(REPOSITORY, "f" * 40))
    with pytest.raises(TransferRefused, match="no such bundle"):
        await fetch_files(listing, known, other, TIMINGS)


@pytest.mark.parametrize("path", ["../outside.json", "/etc/passwd"])
async def test_a_list_that_names_a_file_outside_is_refused(site: Site, path: str) -> None:
    data = msgspec.json.encode([{"path": path, "nbytes": 1, "blob": "0" * 40}])
    listing = site.peer.put("checkpoint/files.json", data)
    with pytest.raises(TransferFailed, match="malformed"):
        await fetch_files(listing, (), folder_of(NAME), TIMINGS)
