import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from spotlight.cloud.file import NoticeFile
from spotlight.cloud.notices import SourceFailed
from tests.cloud.watching import watching


@pytest.fixture(autouse=True)
async def no_thread_stays() -> AsyncIterator[None]:
    yield
    await asyncio.get_running_loop().shutdown_default_executor()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "notice.json"


def write(path, text: str) -> None:
    """As a careful launcher does: whole or not at all."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


async def test_no_file_is_no_announcement(path):
    assert await NoticeFile(path).read() == ()


async def test_a_notice_and_its_withdrawal_are_told(path):
    async with watching(NoticeFile(path, poll_s=0.01)) as told:
        write(path, '{"action": "preempt", "lead_s": 45}')
        notice = await told.next()
        assert (notice.source, notice.kind, notice.lead_s) == ("file", "preempt", 45)
        write(path, '{"action": "cancel"}')
        assert (await told.next()).kind == "cancel"
        path.unlink()
        write(path, '{"action": "preempt"}')
        assert (await told.next()).lead_s == 30
        path.unlink()
        assert (await told.next()).kind == "cancel"
        assert told.nothing_more()


async def test_a_byte_order_mark_before_a_notice_is_none_of_it(path):
    write(path, '\ufeff{"action": "preempt"}')
    (notice,) = await NoticeFile(path).read()
    assert notice.kind == "preempt"


async def test_writing_it_again_brings_the_deadline_nearer_and_never_back(path):
    async with watching(NoticeFile(path, poll_s=0.01)) as told:
        write(path, '{"action": "preempt", "lead_s": 60}')
        first = await told.next()
        write(path, '{"action": "preempt", "lead_s": 600}')
        write(path, '{"action": "preempt", "lead_s": 5}')
        second = await told.next()
        assert (second.kind, second.lead_s) == ("preempt", 5)
        assert second.deadline < first.deadline
        assert told.nothing_more()


async def test_a_file_that_did_not_change_is_not_read_again(path):
    write(path, '{"action": "preempt"}')
    source = NoticeFile(path)
    first = await source.read()
    status = path.stat()
    with path.open("r+") as file:
        file.write('{"action": "xxxxxxx"}')
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert await source.read() == first


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"action": "pre',
        '{"action": "explode"}',
        '{"action": "preempt", "lead": 3}',
        '{"action": "preempt", "lead_s": -1}',
        '{"action": "preempt", "lead_s": 1e999}',
        "[" * 10_000,
        '{"action": "cancel"}' + " " * 70_000,
    ],
)
async def test_a_file_that_says_nothing_sensible_withdraws_nothing(path, text):
    source = NoticeFile(path)
    write(path, text)
    for _ in range(2):
        with pytest.raises(SourceFailed, match=str(path)):
            await source.read()


async def test_a_pipe_in_its_place_is_not_waited_for(path):
    os.mkfifo(path)
    with pytest.raises(SourceFailed, match="not a regular file"):
        await NoticeFile(path).read()
