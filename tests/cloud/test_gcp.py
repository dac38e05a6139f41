import asyncio

import pytest

from spotlight.cloud.gcp import GcpPreempted
from spotlight.cloud.notices import SourceFailed
from tests.cloud.watching import watching

PATH = "GET /computeMetadata/v1/instance/preempted"


def gcp(fake, **settings) -> GcpPreempted:
    return GcpPreempted(fake.url, **{"poll_s": 0.01, "wait_s": 60, "limit_s": 5.0, **settings})


async def test_a_preemption_ends_the_long_poll(fake):
    async with watching(gcp(fake)) as told:
        await fake.asked_again(PATH, times=2)
        await fake.gcp_set(preempted=True)
        notice = await told.next()
    assert (notice.source, notice.kind, notice.lead_s) == ("gcp", "preempt", 30)
    assert fake.asked[1].query == {
        "wait_for_change": "true",
        "timeout_sec": "60",
        "last_etag": "1",
    }


async def test_a_preemption_from_before_the_start_is_seen_without_waiting(fake):
    await fake.gcp_set(preempted=True)
    assert len(await gcp(fake).read()) == 1
    assert "wait_for_change" not in fake.asked[0].query


async def test_a_preemption_between_two_readings_is_seen(fake):
    source = gcp(fake)
    await source.read()
    await fake.gcp_set(preempted=True)
    assert len(await source.read()) == 1


async def test_a_long_poll_that_ends_without_a_change_is_no_news(fake):
    source = gcp(fake, wait_s=0)
    assert [await source.read() for _ in range(3)] == [(), (), ()]


async def test_a_notice_without_a_kill_is_told_once_and_cancelled(fake):
    await fake.gcp_set(preempted=True)
    async with watching(gcp(fake, wait_s=0)) as told:
        await told.next()
        await fake.asked_again(PATH, times=3)
        assert told.nothing_more()
        await fake.gcp_set(preempted=False)
        assert (await told.next()).kind == "cancel"


@pytest.mark.parametrize("fault", ["error", "drop", "half", "huge", "html", "redirect"])
async def test_after_trouble_the_value_is_read_at_once(fake, fault):
    source = gcp(fake)
    await source.read()
    fake.break_with(fault)
    await fake.gcp_set(preempted=True)
    with pytest.raises(SourceFailed):
        await source.read()
    fake.mend()
    assert len(await source.read()) == 1
    assert "wait_for_change" not in fake.asked[-1].query


async def test_a_long_poll_that_hangs_is_given_up(fake):
    source = gcp(fake, wait_s=0, limit_s=0.2)
    await source.read()
    fake.break_with("hang")
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(SourceFailed, match="no answer"):
        await source.read()
    assert loop.time() - began < 2.0


async def test_a_service_that_is_not_googles_is_not_believed(fake):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTRUE")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(SourceFailed, match="not Google"):
            await GcpPreempted(f"http://127.0.0.1:{port}").read()
