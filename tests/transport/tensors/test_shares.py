"""A share of a store: who has its secret says who may read and leave bundles in some folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs
from tensor_kit import elsewhere, files

from spotlight.errors import TransferRefused
from spotlight.transport.tensors import BundleStore, fetch, upload
from spotlight.transport.tensors.shares import Share, SharedFolders
from spotlight.types import StoreEndpoint


@pytest.fixture
def share(store: BundleStore) -> Share:
    return Share(store.share("samples", "commits"))


async def test_what_a_writer_leaves_is_read_with_the_token_of_its_bundle_alone(
    share: Share,
) -> None:
    left = await upload(share.writable_by("a", 1), "samples/a/0/1-1", b"sample")
    assert left.store == share.readable("samples/a/0/1-1")
    assert await fetch(elsewhere(left)) == b"sample"
    other = await upload(share.writable_by("a", 1), "samples/a/0/1-2", b"another")
    with pytest.raises(TransferRefused, match="wrong token"):
        await fetch(elsewhere(structs.replace(other, store=left.store)))


@pytest.mark.parametrize(
    "key", ["samples/b/0/1-1", "samples/a", "weights/a/1", "state/a/1", "samples/ab/1", "a/a/1"]
)
async def test_a_writer_leaves_nothing_outside_of_its_own_folders(
    store: BundleStore, share: Share, key: str
) -> None:
    with pytest.raises(TransferRefused, match="wrong token"):
        await upload(share.writable_by("a", 1), key, b"sample")
    assert files(Path(store.endpoint.root)) == set()


async def test_a_token_to_write_reads_nothing_and_one_to_read_writes_nothing(share: Share) -> None:
    left = await upload(share.writable_by("a", 1), "samples/a/1", b"sample")
    with pytest.raises(TransferRefused, match="wrong token"):
        await fetch(elsewhere(structs.replace(left, store=share.writable_by("a", 1))))
    with pytest.raises(TransferRefused, match="wrong token"):
        await upload(left.store, "samples/a/1", b"other")


async def test_the_secret_itself_is_no_token(share: Share) -> None:
    with pytest.raises(TransferRefused, match="wrong token"):
        await upload(share.endpoint, "samples/a/1", b"sample")


async def test_a_token_is_void_once_the_writer_has_used_a_later_one(share: Share) -> None:
    await upload(share.writable_by("a", 2), "samples/a/1", b"sample")
    with pytest.raises(TransferRefused, match="wrong token"):
        await upload(share.writable_by("a", 1), "samples/a/1", b"of another process")
    await upload(share.writable_by("b", 1), "samples/b/1", b"of another node")


async def test_nobody_voids_tokens_with_a_number_of_his_own_making(share: Share) -> None:
    own = share.writable_by("a", 1)
    forged = structs.replace(own, token=f"9.{own.token.partition('.')[2]}")
    with pytest.raises(TransferRefused, match="wrong token"):
        await upload(forged, "samples/a/1", b"sample")
    await upload(share.writable_by("a", 1), "samples/a/1", b"sample")


async def test_nothing_is_taken_from_a_writer_that_is_revoked(
    store: BundleStore, share: Share
) -> None:
    store.revoke_shared({"a": 2})
    with pytest.raises(TransferRefused, match="wrong token"):
        await upload(share.writable_by("a", 1), "samples/a/1", b"sample")
    await upload(share.writable_by("a", 2), "samples/a/1", b"sample")


async def test_another_share_begins_empty_and_voids_the_tokens_of_the_one_before(
    store: BundleStore, share: Share
) -> None:
    left = await upload(share.writable_by("a", 1), "samples/a/1", b"sample")
    other = Share(store.share("samples", "commits"))
    assert files(Path(store.endpoint.root)) == set()
    with pytest.raises(TransferRefused, match="wrong token"):
        await upload(share.writable_by("a", 2), "samples/a/1", b"sample")
    await upload(other.writable_by("a", 1), "samples/a/1", b"another's")
    with pytest.raises(TransferRefused, match="wrong token"):
        await fetch(elsewhere(left))


async def test_a_store_that_shares_nothing_more_keeps_what_is_its_own(
    store: BundleStore, share: Share
) -> None:
    await upload(share.writable_by("a", 1), "samples/a/1", b"sample")
    store.put("weights/1", b"weights")
    store.share()
    assert files(Path(store.endpoint.root)) == {"weights/1"}
    with pytest.raises(TransferRefused, match="wrong token"):
        await upload(share.writable_by("a", 1), "samples/a/1", b"sample")


async def test_all_that_others_leave_takes_half_of_the_room_at_most(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "store", token="token", quota_nbytes=1000)
    await store.start()
    try:
        share = Share(store.share("samples"))
        await upload(share.writable_by("a", 1), "samples/a/1", bytes(300))
        with pytest.raises(TransferRefused, match="do not fit"):
            await upload(share.writable_by("b", 1), "samples/b/1", bytes(300))
        await upload(store.writable_by("n", "weights"), "weights/1", bytes(600))
    finally:
        await store.aclose()


async def test_the_keys_of_some_folders_are_listed(store: BundleStore, share: Share) -> None:
    await upload(share.writable_by("a", 1), "samples/a/1", b"sample")
    store.put("weights/1", b"weights")
    assert await store.keys("samples", "commits") == ["samples/a/1"]


@pytest.mark.parametrize("token", ["", ".", "1.", "²." + "0" * 64, "-1.x", "1" * 30 + ".x"])
def test_what_is_no_token_opens_nothing(token: str) -> None:
    folders = SharedFolders("secret", ("samples",))
    assert not folders.may_write(token, "samples/a/1")
    assert not folders.may_read(token, "samples/a/1")


def test_without_folders_no_token_is_good() -> None:
    share = Share(StoreEndpoint("127.0.0.1", 1, "", "machine", "/root"))
    folders = SharedFolders("", ())
    assert not folders.may_write(share.writable_by("a", 1).token, "samples/a/1")
    assert not folders.may_read(share.readable("samples/a/1").token, "samples/a/1")
