import asyncio

import pytest

from spotlight.cloud.http import BODY_LIMIT, request
from spotlight.cloud.notices import SourceFailed

NAME = "/metadata/instance/compute/name?api-version=2021-02-01"
HEADERS = {"Metadata": "true"}

pytestmark = pytest.mark.both_loops


def get(fake, limit_s: float = 5.0):
    return request("GET", fake.url + NAME, HEADERS, limit_s)


async def test_an_answer_has_its_status_and_text(fake):
    answer = await get(fake)
    assert (answer.status, answer.text) == (200, fake.machine)
    assert (await request("GET", fake.url + "/nothing", {}, 5.0)).status == 404


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("drop", "disconnected"), ("half", "payload"), ("huge", f"more than {BODY_LIMIT} bytes")],
)
async def test_an_answer_that_is_cut_off_or_has_no_end_is_a_failure(fake, fault, reason):
    fake.break_with(fault)
    with pytest.raises(SourceFailed, match=f"(?i){reason}"):
        await get(fake)


@pytest.mark.parametrize("fault", ["hang", "drip"])
async def test_a_service_that_stalls_costs_no_more_than_the_limit(fake, fault):
    fake.break_with(fault)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(SourceFailed, match=r"no answer within 0\.2 s"):
        await get(fake, limit_s=0.2)
    assert loop.time() - began < 2.0


async def test_a_redirect_is_not_followed(fake):
    fake.break_with("redirect")
    assert (await get(fake)).status == 302
    assert fake.count("") == 1


async def test_a_proxy_of_the_environment_is_not_used(fake, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert (await get(fake)).status == 200


async def test_nothing_is_asked_for_in_compressed_form(fake):
    await get(fake)
    assert fake.asked[0].headers["accept-encoding"] == "identity"


async def test_a_service_that_is_not_there_is_a_failure(fake):
    await fake.__aexit__(None, None, None)
    with pytest.raises(SourceFailed, match=fake.url):
        await get(fake)


@pytest.mark.parametrize("url", ["", "nonsense", "http://", "ftp://127.0.0.1/", "http://[::"])
async def test_an_address_that_is_none_is_a_failure(url):
    with pytest.raises(SourceFailed):
        await request("GET", url, {}, 5.0)


async def test_bytes_that_are_no_text_are_a_failure():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(SourceFailed):
            await request("GET", f"http://127.0.0.1:{port}/", {}, 5.0)
