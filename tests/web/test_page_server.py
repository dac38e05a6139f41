"""The page's server as a thread: what it takes, what it leaves, and how it ends."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path

import aiohttp
import pytest
import structlog

from spotlight.errors import AddressInUse, UserError
from spotlight.transport.tensors.certificates import new_certificate
from spotlight.transport.wary_server import WaryServer
from spotlight.web import page_server
from spotlight.web.page_server import PageServer, PageSettings
from spotlight.web.shown_runs import ShownRuns
from tests.web.page_kit import WrittenRun, serving


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    return WrittenRun(tmp_path / "runs" / "a")


async def test_the_port_is_free_again_at_the_end_though_pages_are_open(run: WrittenRun) -> None:
    async with serving(run.folder.parent) as (server, page), page.stream("a") as stream:
        await stream.next()
        port = int(server.url.rsplit(":", 1)[1].strip("/"))
        await asyncio.to_thread(server.close)
        assert not server.is_alive
        with pytest.raises((EOFError, aiohttp.ClientError)):
            while await stream.next():
                pass
    async with serving(run.folder.parent, port=port):
        pass


def test_closing_twice_is_closing_once(run: WrittenRun) -> None:
    server = PageServer(PageSettings(ShownRuns(run.folder.parent)))
    server.start()
    server.close()
    server.close()
    assert not server.is_alive


def test_a_port_that_is_taken_is_an_error_of_the_option(run: WrittenRun) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = PageSettings(ShownRuns(run.folder.parent), port=port, option="--web")
        with pytest.raises(AddressInUse, match=rf"--web 127\.0\.0\.1:{port}: .*; choose another"):
            PageServer(settings).start()


def test_an_address_of_another_machine_is_an_error_of_the_option(run: WrittenRun) -> None:
    settings = PageSettings(ShownRuns(run.folder.parent), host="192.0.2.1", option="--web")
    with pytest.raises(UserError, match=r"--web 192\.0\.2\.1:0: .*; name an address"):
        PageServer(settings).start()


def test_a_server_that_breaks_down_says_so_in_the_log_and_ends_alone(
    run: WrittenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = threading.Event()

    async def break_down(*_: object) -> None:
        broken.set()
        raise MemoryError("no more")

    monkeypatch.setattr(WaryServer, "until_closed", break_down)
    with structlog.testing.capture_logs() as logs:
        server = PageServer(PageSettings(ShownRuns(run.folder.parent)))
        server.start()
        assert broken.wait(10)
        while server.is_alive:
            pass
        server.close()
    assert [line["event"] for line in logs] == ["page_server_ended"]


async def test_more_connections_than_there_may_be_are_told_so(
    run: WrittenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "MOST_CONNECTIONS", 2)
    async with serving(run.folder.parent) as (_, page):
        async with page.stream("a") as one, page.stream("a") as other:
            await one.next()
            await other.next()
            status, said = await page.get("healthz")
            assert status == 503
            assert "too many connections" in said["error"]
        await page.until("healthz", lambda status, _: status == 200)


async def test_a_thousand_pages_at_once_are_served_or_refused_with_a_reason(
    run: WrittenRun,
) -> None:
    run.iterate(3)

    async def look(port: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET /api/runs/a/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split()[1])
            assert status == 200 or b"Retry-After" in head
            return status
        except (ConnectionError, EOFError):
            return 0
        finally:
            await asyncio.sleep(1.0)
            writer.close()

    async with serving(run.folder.parent) as (server, page):
        port = int(server.url.rsplit(":", 1)[1].strip("/"))
        found = await asyncio.gather(*(look(port) for _ in range(1000)))
        assert found.count(200) > 10
        assert found.count(200) + found.count(503) + found.count(0) == 1000
        assert found.count(0) == 0
        await page.until("healthz", lambda status, _: status == 200)


async def test_who_says_nothing_is_disconnected(
    run: WrittenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "HEADER_LIMIT_S", 0.2)
    async with serving(run.folder.parent) as (server, _):
        port = int(server.url.rsplit(":", 1)[1].strip("/"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HT")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_a_connection_without_requests_is_ended(
    run: WrittenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "IDLE_LIMIT_S", 0.2)
    async with serving(run.folder.parent) as (server, _):
        port = int(server.url.rsplit(":", 1)[1].strip("/"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"\x00" * 100])
async def test_what_is_no_http_ends_its_own_connection_alone(run: WrittenRun, sent: bytes) -> None:
    async with serving(run.folder.parent) as (server, page):
        port = int(server.url.rsplit(":", 1)[1].strip("/"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writer.write_eof()
        async with asyncio.timeout(10):
            assert not (await reader.read()).startswith(b"HTTP/1.1 2")
        writer.close()
        assert (await page.get("healthz"))[0] == 200


async def test_with_a_certificate_nothing_is_said_in_clear(run: WrittenRun) -> None:
    async with serving(run.folder.parent, certificate=new_certificate()) as (server, page):
        async with page.client.get(f"{server.url}api/runs", ssl=False) as answer:
            assert [run["name"] for run in json.loads(await answer.read())] == ["a"]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(server.url.rsplit(":", 1)[1].strip("/"))
        )
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(10):
            assert b"HTTP" not in await reader.read()
        writer.close()


async def test_a_run_that_appears_later_is_listed(tmp_path: Path) -> None:
    async with serving(tmp_path / "runs") as (_, page):
        assert await page.get("api/runs") == (200, [])
        WrittenRun(tmp_path / "runs" / "b").iterate(2)
        assert [each["iteration"] for each in (await page.get("api/runs"))[1]] == [2]
