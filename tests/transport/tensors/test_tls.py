"""A data port with TLS: receivers know its certificate by the fingerprint in offers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import pytest
from raw_requests import put
from tensor_kit import BIG, TOKEN, elsewhere, files, remote, sockets, until

from spotlight.errors import TransferFailed, WrongCertificate
from spotlight.timings import TransferTimings
from spotlight.transport.tensors import BundleStore, DataPort, data_port, fetch, upload
from spotlight.transport.tensors.certificates import Certificate, new_certificate
from spotlight.transport.tensors.connections import exchange
from spotlight.types import BundleOffer, StoreEndpoint

LIMIT = 4


@pytest.fixture
async def port(
    monkeypatch: pytest.MonkeyPatch, timings: TransferTimings
) -> AsyncIterator[DataPort]:
    monkeypatch.setattr(data_port, "connection_limit", lambda: LIMIT)
    port = DataPort(timings=timings, certificate=new_certificate())
    await port.start()
    yield port
    await port.aclose()


def pinned(offer: BundleOffer, fingerprint: str) -> BundleOffer:
    """The same offer, which names another certificate."""
    store = msgspec.structs.replace(offer.store, fingerprint=fingerprint)
    return msgspec.structs.replace(offer, store=store)


@contextmanager
def impostor(certificate: Certificate) -> Iterator[tuple[int, list[bytes]]]:
    """The port of somebody with this certificate, and what he is told."""
    told: list[bytes] = []

    def listen() -> None:
        connection, _ = listener.accept()
        with connection, certificate.context.wrap_socket(connection, server_side=True) as secured:
            told.append(secured.recv(1000))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen)
        thread.start()
        yield listener.getsockname()[1], told
        thread.join(10)


async def test_the_offer_of_a_store_with_tls_names_its_certificate(
    store: BundleStore, port: DataPort
) -> None:
    assert store.put("a", b"data").store.fingerprint == port.fingerprint
    assert store.writable_by("w").fingerprint == port.fingerprint
    assert len(port.fingerprint) == 64


def test_no_two_processes_have_the_same_certificate() -> None:
    assert new_certificate().fingerprint != new_certificate().fingerprint


async def test_another_certificate_is_refused_by_name(store: BundleStore) -> None:
    offer = elsewhere(store.put("a", b"data"))
    with pytest.raises(WrongCertificate, match=r"get a at .* the offer names 0000"):
        await fetch(pinned(offer, "0" * 64))
    sink = msgspec.structs.replace(remote(store.writable_by("w")), fingerprint="0" * 64)
    with pytest.raises(WrongCertificate, match=r"put a at .* the offer names 0000"):
        await upload(sink, "a", BIG)


async def test_who_has_another_certificate_is_told_nothing() -> None:
    with impostor(new_certificate()) as (number, told):
        endpoint = StoreEndpoint("127.0.0.1", number, TOKEN, "else", "/none", "0" * 64)
        with pytest.raises(WrongCertificate):
            await fetch(BundleOffer("a", 1, 0, endpoint))
    assert told == [b""]


async def test_a_store_that_speaks_no_tls_where_its_offer_says_so_gets_nothing(
    tmp_path: Path,
) -> None:
    plain = BundleStore(tmp_path / "plain", token=TOKEN)
    await plain.start()
    with pytest.raises(TransferFailed, match="get a at"):
        await fetch(pinned(elsewhere(plain.put("a", b"data")), "0" * 64))
    await plain.aclose()


async def test_without_tls_a_port_with_tls_is_silent(store: BundleStore) -> None:
    with pytest.raises(TransferFailed, match="get a at"):
        await fetch(pinned(elsewhere(store.put("a", b"data")), ""))


async def test_beyond_the_bound_the_oldest_who_has_not_agreed_on_tls_goes(
    store: BundleStore, port: DataPort
) -> None:
    strangers = []
    for _ in range(3 * LIMIT):
        strangers.append(socket.create_connection((port.host, port.port)))
        await asyncio.sleep(0.01)
    for stranger in strangers[: 2 * LIMIT]:
        await until(lambda stranger=stranger: is_closed(stranger))  # type: ignore[misc]
    assert not any(map(is_closed, strangers[2 * LIMIT :]))
    assert await fetch(elsewhere(store.put("a", BIG))) == BIG
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize("timings", [TransferTimings(header_limit_s=0.05)])
@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01"], ids=["nothing", "a part of a greeting"])
async def test_who_does_not_agree_on_tls_goes_soon(port: DataPort, said: bytes) -> None:
    with socket.create_connection((port.host, port.port)) as stranger:
        stranger.sendall(said)
        await until(lambda: is_closed(stranger))


def is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1000, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


async def test_closing_leaves_no_connection_open_that_has_not_agreed_on_tls() -> None:
    before = sockets()
    port = DataPort(certificate=new_certificate())
    await port.start()
    with socket.create_connection((port.host, port.port)) as silent:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        agreed = await asyncio.to_thread(
            client.wrap_socket, socket.create_connection((port.host, port.port))
        )
        await until(lambda: port.connections)
        await asyncio.wait_for(port.aclose(), 10)
        assert is_closed(silent)
        agreed.close()
    gc.collect()
    assert sockets() <= before


async def test_a_cancelled_fetch_with_tls_leaves_no_connection(
    store: BundleStore, port: DataPort
) -> None:
    offer = elsewhere(store.put("a", BIG * 4))
    before = sockets()
    task = asyncio.ensure_future(fetch(offer))
    await until(lambda: port.connections)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: sockets() <= before)


async def test_who_speaks_no_tls_where_the_offer_says_so_is_told_nothing(tmp_path: Path) -> None:
    told = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.extend(await reader.read(4096))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndata")
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    number = server.sockets[0].getsockname()[1]
    place = StoreEndpoint("127.0.0.1", number, TOKEN, "else", "/none", "0" * 64)
    for attempt in (fetch(BundleOffer("secret", 4, 0, place)), upload(place, "secret", b"data")):
        told.clear()
        with pytest.raises(TransferFailed):
            await attempt
        assert told and not any(word in told for word in (TOKEN.encode(), b"secret", b"HTTP"))
    server.close()
    await server.wait_closed()


async def test_what_is_to_be_encrypted_is_not_asked_for_by_ucx(tmp_path: Path) -> None:
    certificate = new_certificate()
    with impostor(certificate) as (number, told):
        place = StoreEndpoint(
            "127.0.0.1", number, TOKEN, "else", "/none", certificate.fingerprint, ucx=True
        )
        store = BundleStore(tmp_path / "store", token="t")
        await store.start()
        with pytest.raises(TransferFailed):
            await store.copy(BundleOffer("a", 1, 0, place), "a.00000000")
        await store.aclose()
    assert b"GET /a" in told[0] and b"X-UCX" not in told[0]


async def test_an_upload_with_tls_ends_when_its_token_is_revoked(
    store: BundleStore, port: DataPort
) -> None:
    sink = store.writable_by("w")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(sink.host, sink.port, ssl=client)
    writer.write(put(1000, b"data", token=sink.token) + b"begun")
    await until(lambda: files(Path(sink.root)))
    store.revoke("w")
    with contextlib.suppress(OSError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    await until(lambda: not files(Path(sink.root)) and not port.connections)


async def test_a_request_does_not_wait_until_the_handshake_is_acknowledged(
    store: BundleStore, timings: TransferTimings
) -> None:
    """Two small segments follow each other: without this, the second waits for the delayed
    acknowledgement of the first."""

    def is_sent_at_once(connection: HTTPConnection) -> int:
        found: int = connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        return found

    assert await exchange(store.endpoint, "get a", is_sent_at_once, timings, 10.0)
