import asyncio
import time

import pytest
from structlog.testing import capture_logs

from spotlight.cloud.aws import AWS_HEADER, AwsInterruption, AwsRebalance
from spotlight.cloud.notices import SourceFailed
from spotlight.cloud.tokens import TokenService
from tests.cloud.watching import watching

ACTION = "GET /latest/meta-data/spot/instance-action"
TOKEN = "PUT /latest/api/token"


def service(fake, limit_s: float = 5.0) -> TokenService:
    return TokenService(fake.url, AWS_HEADER, limit_s)


def interruption(fake, **settings) -> AwsInterruption:
    return AwsInterruption(service(fake, **settings), poll_s=0.01)


async def test_no_interruption_is_no_announcement(fake):
    assert await interruption(fake).read() == ()


async def test_an_interruption_is_told_once_with_its_lead_time(fake):
    async with watching(interruption(fake)) as told:
        await fake.asked_again(ACTION)
        fake.aws_interrupt(in_s=120)
        notice = await told.next()
        assert (notice.source, notice.kind) == ("aws", "preempt")
        assert 110 < notice.lead_s <= 120
        left_s = notice.deadline - asyncio.get_running_loop().time()
        assert notice.lead_s - 5 < left_s <= notice.lead_s
        await fake.asked_again(ACTION, times=5)
        assert told.nothing_more()


async def test_a_service_that_writes_another_time_at_each_reading_announces_one_event(fake):
    async with watching(interruption(fake)) as told:
        for in_s in (120, 122, 124):
            fake.aws_interrupt(in_s)
            await fake.asked_again(ACTION)
        assert (await told.next()).lead_s <= 120
        assert told.nothing_more()
    assert told.book.seen == {"aws": 1}


async def test_a_notice_without_a_kill_stays_one_notice(fake):
    clock = [time.time()]
    source = AwsInterruption(service(fake), poll_s=0.01, wall=lambda: clock[0])
    async with watching(source) as told:
        fake.aws_interrupt(in_s=120)
        await told.next()
        clock[0] += 600
        await fake.asked_again(ACTION, times=3)
        assert told.nothing_more()
        fake.aws_withdraw()
        assert (await told.next()).kind == "cancel"


@pytest.mark.parametrize("in_s", [-3600, 3600])
async def test_a_clock_that_is_an_hour_off_leaves_two_minutes(fake, in_s):
    fake.aws_interrupt(in_s)
    (announcement,) = await interruption(fake).read()
    assert announcement.lead_s == 120


@pytest.mark.parametrize("body", ['{"action":"stop"}', '{"action":"new","time":"soon"}'])
async def test_a_notice_without_a_readable_time_is_still_a_notice(fake, body):
    fake.aws_say(body)
    (announcement,) = await interruption(fake).read()
    assert (announcement.kind, announcement.lead_s) == ("preempt", 120)


async def test_hibernation_begins_at_once(fake):
    fake.aws_interrupt(in_s=120, action="hibernate")
    (announcement,) = await interruption(fake).read()
    assert announcement.lead_s == 0


async def test_a_rebalance_recommendation_is_advice(fake):
    fake.aws_recommend_rebalance()
    async with watching(AwsRebalance(service(fake), poll_s=0.01)) as told:
        notice = await told.next()
    assert (notice.source, notice.kind, notice.deadline) == ("aws-rebalance", "advise", None)


async def test_trouble_with_the_recommendation_does_not_hide_the_interruption(fake):
    tokens = service(fake)
    fake.break_with("hang", "recommendations")
    fake.aws_interrupt(in_s=120)
    sources = AwsRebalance(tokens, poll_s=0.01), AwsInterruption(tokens, poll_s=0.01)
    async with watching(*sources) as told:
        assert (await told.next()).kind == "preempt"


async def test_one_token_serves_many_readings(fake):
    source = interruption(fake)
    for _ in range(3):
        await source.read()
    assert (fake.count(TOKEN), fake.count(ACTION)) == (1, 3)


async def test_a_token_that_expired_early_is_replaced_within_the_reading(fake):
    source = interruption(fake)
    await source.read()
    fake.expire_tokens()
    fake.aws_interrupt(in_s=120)
    assert len(await source.read()) == 1
    assert (fake.count(TOKEN), fake.count(ACTION)) == (2, 3)


async def test_a_token_is_renewed_before_its_end(fake, monkeypatch):
    source = interruption(fake)
    await source.read()
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + 3600 - 30)
    await source.read()
    assert (fake.count(TOKEN), fake.count(ACTION)) == (2, 2)


async def test_a_service_that_takes_no_token_is_asked_twice_and_no_more(fake):
    source = interruption(fake)
    fake.break_with("unauthorised", ACTION)
    with pytest.raises(SourceFailed, match="answered 401"):
        await source.read()
    assert (fake.count(TOKEN), fake.count(ACTION)) == (2, 2)


@pytest.mark.parametrize("fault", ["error", "html", "unauthorised", "redirect", "half", "huge"])
async def test_without_a_token_nothing_else_is_asked(fake, fault):
    fake.break_with(fault, TOKEN)
    with pytest.raises(SourceFailed):
        await interruption(fake).read()
    assert fake.count(ACTION) == 0


@pytest.mark.parametrize(
    "fault", ["error", "hang", "drop", "half", "cut", "huge", "drip", "html", "redirect"]
)
async def test_trouble_is_visible_and_passes(fake, fault):
    fake.aws_interrupt(in_s=120)
    fake.break_with(fault, ACTION)
    with capture_logs() as lines:
        async with watching(interruption(fake, limit_s=0.2)) as told:
            await fake.asked_again(ACTION, times=2)
            assert told.nothing_more()
            fake.mend()
            assert (await told.next()).kind == "preempt"
    assert [line["event"] for line in lines if "fail" in line["event"]]
    assert fake.count("elsewhere") == 0


async def test_trouble_withdraws_nothing(fake):
    fake.aws_interrupt(in_s=120)
    async with watching(interruption(fake)) as told:
        await told.next()
        fake.break_with("error")
        await fake.asked_again(times=3)
        assert told.nothing_more()


async def test_the_type_that_an_answer_claims_to_be_of_does_not_matter(fake):
    fake.aws_interrupt(in_s=120)
    fake.break_with("mislabelled")
    assert len(await interruption(fake).read()) == 1
