import pytest

from spotlight.cloud.alibaba import ALIBABA_HEADER, AlibabaTermination
from spotlight.cloud.notices import SourceFailed
from spotlight.cloud.tokens import TokenService
from tests.cloud.watching import watching

PATH = "GET /latest/meta-data/instance/spot/termination-time"


def alibaba(fake, limit_s: float = 5.0) -> AlibabaTermination:
    return AlibabaTermination(TokenService(fake.url, ALIBABA_HEADER, limit_s), poll_s=0.01)


async def test_a_release_is_told_once_with_its_lead_time_and_its_withdrawal(fake):
    async with watching(alibaba(fake)) as told:
        await fake.asked_again(PATH)
        fake.alibaba_release(in_s=300)
        notice = await told.next()
        assert (notice.source, notice.kind) == ("alibaba", "preempt")
        assert 290 < notice.lead_s <= 300
        await fake.asked_again(PATH, times=3)
        assert told.nothing_more()
        fake.alibaba_withdraw()
        assert (await told.next()).kind == "cancel"


async def test_an_empty_answer_is_no_announcement(fake):
    fake.alibaba_release(in_s=300)
    source = alibaba(fake)
    assert len(await source.read()) == 1
    fake.alibaba_say("\n")
    assert await source.read() == ()


@pytest.mark.parametrize("in_s", [-3600, 3600])
async def test_a_clock_that_is_an_hour_off_leaves_five_minutes(fake, in_s):
    fake.alibaba_release(in_s)
    (announcement,) = await alibaba(fake).read()
    assert announcement.lead_s == 300


async def test_a_token_that_expired_early_is_replaced_within_the_reading(fake):
    source = alibaba(fake)
    await source.read()
    fake.expire_tokens()
    assert await source.read() == ()
    assert fake.count("PUT /latest/api/token") == 2


@pytest.mark.parametrize("fault", ["error", "unauthorised", "half", "huge", "html", "redirect"])
async def test_trouble_is_neither_a_notice_nor_the_end_of_one(fake, fault):
    fake.alibaba_release(in_s=300)
    fake.break_with(fault, PATH)
    with pytest.raises(SourceFailed):
        await alibaba(fake).read()


@pytest.mark.parametrize("fault", ["hang", "drip"])
async def test_a_service_that_stalls_is_given_up(fake, fault):
    fake.break_with(fault)
    with pytest.raises(SourceFailed, match="no answer"):
        await alibaba(fake, limit_s=0.1).read()
