"""A store of byte bundles: files under one folder, served over HTTP, read directly by processes of
the same machine.

Whoever holds a bundle offers it; the receiver pulls and picks the cheapest way (the file itself on
the same machine, HTTP otherwise). Whoever must hand something to a holder that outlives it uploads.
Every transfer has a deadline, a checksum and a token; a key can never leave the folder. Nothing is
parsed here, so nothing received can run.

Tokens are of two kinds. One that is in an offer lets its holders read that bundle, or those of one
folder, and is the same for all of them: it gives nothing that they were not offered, and lasts as
long as the bundle does. One with which somebody leaves bundles is his alone, for his folders alone,
and ends when it is revoked. In some folders another process may say who has which (`shares`).

Files are never changed, only replaced or deleted as a whole: whoever has one open or mapped keeps
the bytes that it had. What arrives goes to disk as it comes, and takes its place when it is whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from aiohttp import web
from isal.isal_zlib import crc32
from msgspec import structs

from spotlight.errors import TransferFailed, TransferRefused
from spotlight.timings import TransferTimings
from spotlight.transport.tensors.client import download
from spotlight.transport.tensors.data_port import DataPort
from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.incoming import Incoming, in_thread
from spotlight.transport.tensors.joining import join
from spotlight.transport.tensors.keys import checked, folder_of, is_below, within
from spotlight.transport.tensors.offers import BASE, UCX, machine_identity, measured, nbytes_of
from spotlight.transport.tensors.quota import Quota
from spotlight.transport.tensors.serving import (
    alike,
    announced_checksum,
    announced_nbytes,
    body_of,
    key_of,
    send_by_ucx,
    send_delta,
    send_file,
    starts_a_chunk,
    token_of,
    written_name,
)
from spotlight.transport.tensors.shares import SharedFolders
from spotlight.types import KEY_LIMIT, BundleOffer, StoreEndpoint

_READERS = ""
"""Who fetches bundles is not told apart."""
_SHARED = " of a share"
"""Whose all bundles count as that are left in shared folders, so that they never take the room of
what the store is for. No owner has a name with a space."""
_OF_FREE_SPACE = 0.9
"""The rest is for whoever else writes to the disk."""
_DELTA_BYTES_PER_S = 1e9
"""Bytes of a bundle that a store compares in a second: where whole bundles come faster, a delta is
no help."""
_MOST_BEGUN = 2
"""Copies that broke off and are kept to be gone on with."""


class BundleStore:
    """Bundles by key in a folder of this machine, served to others.

    The folder is private to its owner (mode 0700). `aclose` stops serving; the folder stays. A
    `durable` store has what it acknowledges on disk.

    Args:
        token: a secret that never leaves this process; what readers and those who leave something
            must show is derived from it. With the same secret, offers of an earlier process are
            good still.
        term: of this process, which no other has had; what an earlier one gave somebody to leave
            bundles with is void in another term.
        port: where it is served, which others may share and somebody else closes; by default one
            of its own on the loopback interface.
        max_nbytes: of one upload.
        quota_nbytes: of all that others may leave here; by default as much as the disk has room
            for.
        timings: how long it waits for others.
    """

    def __init__(
        self,
        root: Path,
        *,
        token: str,
        term: str = "",
        port: DataPort | None = None,
        max_nbytes: int = 2**40,
        quota_nbytes: int | None = None,
        durable: bool = False,
        timings: TransferTimings = TransferTimings(),
    ) -> None:
        self._timings = timings
        self._folder = Folder(root)
        self._secret = token.encode()
        self._term = term
        self._port = port or DataPort(timings=timings)
        self._has_own_port = port is None
        self._max_nbytes = max_nbytes
        self._quota = Quota(quota_nbytes, self._free)
        self._durable = durable
        self._issued = itertools.count(1)
        self._tokens: dict[tuple[str, tuple[str, ...]], str] = {}
        """The tokens of those who may leave bundles, by their names and the folders that it is for.
        """
        self._folders: dict[bytes, tuple[str, ...]] = {}
        """The folders in which a token lets its holder leave bundles, by its digest; any folder if
        none is named."""
        self._owners: dict[bytes, str] = {}
        """Whose a token is, by digests: how long it takes to look one up tells nothing about the
        others."""
        self._shared = SharedFolders("", ())
        """The folders in which another process says who may do what; none if none are named."""
        self._lent: Mapping[str, Path] = {}
        """Files outside of the folder, by key."""
        self._begun: dict[tuple[str, int, int], Incoming] = {}
        """Copies that broke off, by key, size and checksum."""
        self._whole_bytes_per_s = float("inf")
        """How fast the latest bundle came that came whole."""
        self._endpoint: StoreEndpoint | None = None

    async def start(self) -> StoreEndpoint:
        """Create the folder, without what a killed process left unfinished, and serve it."""
        await in_thread(self._folder.create)
        self._folder = Folder(self._folder.root.resolve())
        self._quota.found(await in_thread(self._folder.sizes))
        if self._has_own_port:
            await self._port.start()
        self._endpoint = StoreEndpoint(
            self._port.host,
            self._port.port,
            "",
            machine_identity(),
            str(self._folder.root),
            self._port.fingerprint,
            self._port.ucx,
        )
        self._port.attach(self)
        return self._endpoint

    @property
    def endpoint(self) -> StoreEndpoint:
        """Where this store is, for whoever may do nothing there; only after `start`."""
        if self._endpoint is None:
            raise RuntimeError("the store is not started")
        return self._endpoint

    def readable(self, prefix: str) -> StoreEndpoint:
        """Where a bundle is read, or all that are in a folder, and nothing else."""
        return structs.replace(self.endpoint, token=self._derive(f"read {prefix}"))

    def writable_by(self, owner: str, *folders: str) -> StoreEndpoint:
        """Where somebody may leave bundles, below these folders alone if any are named (`*` stands
        for any one name), with a token of his own for them; the same until `revoke`."""
        if (owner, folders) not in self._tokens:
            token = self._derive(f"write {self._term}{next(self._issued)} {owner}")
            self._tokens[owner, folders] = token
            self._folders[_digest(token)] = folders
            self._owners[_digest(token)] = owner
        return structs.replace(self.endpoint, token=self._tokens[owner, folders])

    def revoke(self, owner: str) -> None:
        """Take nothing more that comes with a token of this one, nor the rest of what is coming;
        what is there stays."""
        for whose in [each for each in self._tokens if each[0] == owner]:
            digest = _digest(self._tokens.pop(whose))
            del self._owners[digest], self._folders[digest]
        self._port.break_off(self, owner)

    def share(self, *folders: str) -> StoreEndpoint:
        """Drop what is in these folders, and let whoever gets this endpoint say who may read and
        leave bundles there, and nobody whom the one before let in; without folders, nobody."""
        for folder in (*self._shared.folders, *folders):
            self.delete(folder)
        secret = self._derive(f"share {self._term}{next(self._issued)}")
        self._shared = SharedFolders(secret, folders)
        self._port.break_off(self, _SHARED)
        return structs.replace(self.endpoint, token=secret)

    def revoke_shared(self, revoked: Mapping[str, int]) -> None:
        """In shared folders, take nothing from these writers with a token of a lower number."""
        self._shared.revoked = dict(revoked)

    async def keys(self, *folders: str) -> list[str]:
        """The bundles in these folders."""
        found = await in_thread(self._folder.sizes)
        return [key for key in found if key.partition("/")[0] in folders]

    def put(self, key: str, data: bytes) -> BundleOffer:
        """Keep a bundle of this process's own; an older one of the same key is replaced at once,
        never half.

        Raises `TransferFailed` when the file system refuses.
        """
        with self._incoming(key) as incoming:
            incoming.write([data])
            incoming.keep()
        self._quota.forget(key)
        return self._offer(key, len(data), crc32(data))

    async def offer(self, key: str) -> BundleOffer:
        """A bundle that somebody has left here, to be fetched. Raises `TransferFailed` if there is
        none.
        """
        try:
            nbytes, checksum = await in_thread(lambda: self._measure(key))
        except OSError as error:
            raise TransferFailed(f"no bundle {key}: {error.strerror}") from error
        return self._offer(key, nbytes, checksum)

    def _offer(self, key: str, nbytes: int, checksum: int) -> BundleOffer:
        return BundleOffer(key, nbytes, checksum, self.readable(key))

    def _measure(self, key: str) -> tuple[int, int]:
        with self._folder.open(key) as file:
            return measured(file)

    async def copy(
        self,
        offer: BundleOffer,
        key: str,
        *,
        limit_s: float | None = None,
        base: BundleOffer | None = None,
    ) -> BundleOffer:
        """Keep the bundle of another store, verified, under a key of ours. On one machine the file
        becomes ours too, and its bytes are not copied. What has come of a copy that broke off, or
        was cancelled, does not come again with the next, whoever offers the rest. It may take as
        long as any transfer, unless `limit_s` says how long. Where bundles come slowly, and a copy
        of ours is the `base`, which the other store has too, only what differs comes.

        Raises `TransferFailed` if it cannot be had intact in time, or not be kept. When it is
        cancelled no bundle of that key is left.
        """
        wanted = (checked(key), offer.nbytes, offer.checksum)
        incoming = self._begun.pop(wanted, None) or self._incoming(key)
        try:
            beside = offer.store.machine == self.endpoint.machine
            if not (beside and await in_thread(lambda: incoming.link(offer))):
                with self._quota.under_way("", offer.nbytes, alone=True):
                    within_s = limit_s or self._timings.transfer_limit_s
                    await self._download(offer, incoming, within_s, base)
            try:
                await in_thread(incoming.keep)
            except asyncio.CancelledError:
                self._folder.delete(key)  # it came too late to stop it, and nobody will use it
                raise
        except (TransferFailed, asyncio.CancelledError):
            if 0 < incoming.nbytes < offer.nbytes:
                self._begun[wanted] = incoming
                while len(self._begun) > _MOST_BEGUN:
                    self._begun.pop(next(iter(self._begun))).close()
            else:
                incoming.close()
            raise
        incoming.close()
        self._quota.forget(key)
        return self._offer(key, offer.nbytes, offer.checksum)

    async def _download(
        self, offer: BundleOffer, incoming: Incoming, within_s: float, base: BundleOffer | None
    ) -> None:
        if base is not None and self._whole_bytes_per_s < _DELTA_BYTES_PER_S:
            return await download(offer, incoming, self._timings, within_s, base)
        loop, had = asyncio.get_running_loop(), incoming.nbytes
        began = loop.time()
        await download(offer, incoming, self._timings, within_s)
        if took_s := loop.time() - began:
            self._whole_bytes_per_s = (offer.nbytes - had) / took_s

    async def hand_out(self, key: str, path: Path) -> None:
        """Have a file be the bundle as well, on the disk when this returns; on another disk it is a
        copy.

        Raises `TransferFailed` when the file system refuses; what was there before then stays.
        """
        await self._doing(key, lambda: self._folder.hand_out(key, path))

    async def join(self, keys: Sequence[str], key: str) -> None:
        """Have a bundle of all rows of which these have a part each (see `joining`). Raises
        `TransferFailed`."""
        await self._doing(key, lambda: join(self._folder, keys, self._incoming(key)))

    async def take_in(self, path: Path, key: str) -> BundleOffer:
        """Have a bundle be a file as well. Raises `TransferFailed`."""
        await self._doing(key, lambda: self._folder.take_in(path, key))
        return await self.offer(key)

    async def _doing(self, what: str, work: Callable[[], None]) -> None:
        try:
            await in_thread(work)
        except OSError as error:
            where = error.filename or self._folder.root
            raise TransferFailed(f"{what}: {where}: {error.strerror}") from error

    def lend(self, files: Mapping[str, Path]) -> None:
        """Have readers get these files by their keys, too, wherever they lie; and none that were
        lent before."""
        self._lent = {checked(key): path for key, path in files.items()}

    def delete(self, prefix: str) -> None:
        """Drop a bundle or a folder of bundles; nothing happens if it is not there."""
        self._folder.delete(prefix)
        self._quota.drop(prefix)

    async def aclose(self) -> None:
        """Stop serving; the bundles stay. Idempotent."""
        self._port.detach(self)
        for owner in {owner for owner, _ in self._tokens}:
            self.revoke(owner)  # so uploads that are under way on a port of several stores end, too
        if self._has_own_port:
            await self._port.aclose()
        while self._begun:
            self._begun.popitem()[1].close()

    # --- on the thread of the port ---

    def owner_of(self, request: web.BaseRequest) -> str | None:
        """Who has the token of a request; None if it is none of this store's, or not one for the
        bundle that is meant."""
        token, key = token_of(request), key_of(request)
        owner = self._owners.get(_digest(token))
        if owner is None and len(key) <= KEY_LIMIT:
            return self._guest(token, key)
        return owner

    def _guest(self, token: str, key: str) -> str | None:
        """Whoever has no token that is his alone."""
        if self._shared.may_write(token, key):
            return _SHARED
        prefixes = (self._derive(f"read {prefix}") for prefix in within(key))
        may_read = any(hmac.compare_digest(token.encode(), each.encode()) for each in prefixes)
        return _READERS if may_read or self._shared.may_read(token, key) else None

    async def answer(self, owner: str, request: web.BaseRequest) -> web.StreamResponse:
        """Do what is asked; raises `TransferFailed` with the reason why it cannot."""
        if request.method == "GET" and owner == _READERS:
            return await self._send(request)
        if request.method == "PUT" and owner != _READERS:
            return await self._receive(owner, request)
        if request.method in ("GET", "PUT"):
            raise TransferRefused(HTTPStatus.UNAUTHORIZED, "wrong token")
        raise TransferFailed("bundles are read with GET and left with PUT")

    async def _receive(self, owner: str, request: web.BaseRequest) -> web.Response:
        key, checksum, written = checked(key_of(request)), announced_checksum(request), ""
        self._require_own_folder(token_of(request), key)
        try:
            written = written_name(request)
            nbytes = self._written_nbytes(written) if written else announced_nbytes(request)
            if nbytes > self._max_nbytes:
                raise TransferRefused(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    f"{nbytes} bytes are more than {self._max_nbytes}",
                )
            alone = self._has_one_writer and owner != _SHARED
            announcing = self._quota.under_way(owner, nbytes, alone=alone)
            with announcing, self._incoming(key) as incoming:
                if written:
                    await in_thread(lambda: incoming.adopt(written, checksum))
                else:
                    await self._read_body(request, nbytes, incoming)
                if incoming.checksum != checksum:
                    raise TransferFailed("checksum differs")
                await in_thread(lambda: self._keep(incoming, token_of(request), owner, key))
        finally:
            if written:
                self._folder.abandon(written)
        read_token = self.readable(key).token
        return web.Response(text=self._shared.read_token(key) if owner == _SHARED else read_token)

    @property
    def _has_one_writer(self) -> bool:
        return len({owner for owner, _ in tuple(self._tokens)}) == 1

    def _require_own_folder(self, token: str, key: str) -> None:
        folders = self._folders.get(_digest(token), ())
        if folders and not any(is_below(key, folder) for folder in folders):
            raise TransferRefused(
                HTTPStatus.FORBIDDEN, f"this token is not for {key}, only for {', '.join(folders)}"
            )

    async def _read_body(self, request: web.BaseRequest, nbytes: int, incoming: Incoming) -> None:
        async for part in body_of(request, nbytes, self._timings.idle_limit_s):
            await in_thread(lambda part=part: incoming.write([part]))  # type: ignore[misc]

    def _written_nbytes(self, name: str) -> int:
        try:
            with self._folder.begun(name) as file:
                return nbytes_of(file)
        except OSError as error:
            raise TransferFailed(f"no such file: {error.strerror}") from error

    async def _send(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            file = self._open(key_of(request))
        except OSError as error:
            raise TransferRefused(HTTPStatus.NOT_FOUND, "no such bundle") from error
        with file:
            if self._port.ucx and UCX in request.headers:
                idle_s, broke = self._timings.idle_limit_s, self._port.broke_by_ucx
                return await send_by_ucx(request, file, idle_s, broke)
            base = request.headers.get(BASE)
            # What differs tells of both: who may read one of a folder may have that of the others.
            if base is not None and folder_of(base) == folder_of(key_of(request)):
                pair = await in_thread(lambda: alike(self._folder, base, file))
                if pair is not None and starts_a_chunk(request, file):
                    return await send_delta(request, *pair, self._timings.idle_limit_s)
            return await send_file(request, file, self._timings.idle_limit_s)

    def _open(self, key: str) -> BinaryIO:
        lent = self._lent.get(key)
        return self._folder.open(key) if lent is None else lent.open("rb", buffering=0)

    # --- on any thread ---

    def _keep(self, incoming: Incoming, token: str, owner: str, key: str) -> None:
        is_good = self._shared.may_write(token, key) or _digest(token) in self._owners
        if not is_good:  # it was revoked meanwhile
            raise TransferRefused(HTTPStatus.UNAUTHORIZED, "wrong token")
        incoming.keep()
        self._quota.keep(owner, key, incoming.nbytes)

    def _incoming(self, key: str) -> Incoming:
        return Incoming(self._folder, checked(key), durable=self._durable)

    def _free(self) -> int:
        try:
            return round(_OF_FREE_SPACE * self._folder.free())
        except OSError as error:
            raise TransferFailed(f"{self._folder.root}: {error.strerror}") from error

    def _derive(self, what: str) -> str:
        return hmac.new(self._secret, what.encode(), hashlib.sha256).hexdigest()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
