import asyncio
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from spotlight.cloud.detect import METADATA_VARIABLE, MetadataUrls, detect, metadata_urls
from tests.cloud.fake_metadata import PLATFORMS, FakeMetadata
from tests.cloud.watching import watching


def at(fake: FakeMetadata) -> MetadataUrls:
    return metadata_urls({METADATA_VARIABLE: f"{fake.url}/"})


@pytest.mark.parametrize("platform", PLATFORMS)
async def test_a_cloud_is_known_by_its_metadata_service(platform):
    async with FakeMetadata((platform,)) as fake:
        with capture_logs() as lines:
            found = [source.name for source in await detect(at(fake), budget_s=5.0)]
    assert found == (["aws", "aws-rebalance"] if platform == "aws" else [platform])
    assert lines == [{"event": "notice_sources", "sources": found, "log_level": "info"}]


async def test_a_machine_outside_any_cloud_says_so_and_why():
    async with FakeMetadata(()) as fake:
        with capture_logs() as lines:
            assert await detect(at(fake), budget_s=5.0) == []
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("no_notice_source", "warning")
    assert sorted(line["tried"]) == sorted(PLATFORMS)
    assert all(fake.url in reason for reason in line["tried"].values())


@pytest.mark.parametrize("fault", ["error", "unauthorised", "html", "huge", "redirect", "drop"])
async def test_a_service_that_answers_nonsense_is_no_cloud(fake, fault):
    fake.break_with(fault)
    assert await detect(at(fake), budget_s=5.0) == []


@pytest.mark.parametrize("fault", ["hang", "drip"])
async def test_services_that_stall_cost_one_budget_in_all(fake, fault):
    fake.break_with(fault)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await detect(at(fake), budget_s=0.5) == []
    assert loop.time() - began < 1.5  # one after the other, four would take two seconds


async def test_one_service_that_stalls_does_not_hide_another(fake):
    fake.break_with("hang", "PUT /latest/api/token")
    found = await detect(at(fake), budget_s=0.5)
    assert [source.name for source in found] == ["gcp", "azure"]


async def test_all_clouds_at_once_tell_one_story(fake):
    sources = await detect(at(fake), budget_s=5.0)
    async with watching(*sources) as told:
        fake.alibaba_release(in_s=300)
        assert (await told.next()).source == "alibaba"
        fake.aws_interrupt(in_s=120)
        assert (await told.next()).source == "aws"
        await fake.gcp_set(preempted=True)
        assert (await told.next()).source == "gcp"
        fake.azure_announce("A-1", in_s=60)
        await fake.asked_again("scheduledevents", times=2)
        assert told.nothing_more()
    assert sorted(told.book.seen) == sorted(PLATFORMS)


def test_without_a_word_each_cloud_is_asked_at_its_own_address():
    assert metadata_urls({}) == MetadataUrls()
    assert metadata_urls({METADATA_VARIABLE: ""}) == MetadataUrls()


@pytest.mark.parametrize("module", ["spotlight.cli.app", "spotlight.store.run_folder"])
def test_the_http_library_is_not_loaded_where_nothing_is_served(module):
    code = f"import sys, {module}; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
