import pytest

from spotlight.cloud.azure import AzureEvents
from spotlight.cloud.notices import SourceFailed
from tests.cloud.watching import watching

EVENTS = "GET /metadata/scheduledevents"
DAY_S = 86400.0


def azure(fake, **settings) -> AzureEvents:
    return AzureEvents(fake.url, **{"poll_s": 0.01, "limit_s": 5.0, **settings})


async def test_a_preemption_of_this_machine_is_told_with_its_lead_time(fake):
    async with watching(azure(fake)) as told:
        await fake.asked_again(EVENTS)
        fake.azure_announce("A-1", in_s=30)
        notice = await told.next()
        assert (notice.source, notice.kind, notice.event_id) == ("azure", "preempt", "A-1")
        assert 20 < notice.lead_s <= 30
        await fake.asked_again(EVENTS, times=3)
        assert told.nothing_more()


async def test_an_event_of_other_machines_is_not_ours(fake):
    fake.azure_announce("A-1", in_s=30, machines=("spot-vm_4", "Spot-VM_33"))
    assert await azure(fake).read() == ()


async def test_ours_is_found_among_several_and_without_regard_to_case(fake):
    fake.azure_announce("A-1", in_s=30, machines=("spot-vm_4", fake.machine.upper()))
    assert len(await azure(fake).read()) == 1


async def test_an_event_that_vanishes_is_cancelled_twice_over(fake):
    async with watching(azure(fake)) as told:
        for event_id in ("A-1", "A-2"):
            fake.azure_announce(event_id, in_s=30)
            assert (await told.next()).event_id == event_id
            fake.azure_withdraw(event_id)
            assert (await told.next()).kind == "cancel"
        await fake.asked_again(EVENTS, times=3)
        assert told.nothing_more()
    assert told.book.seen == {"azure": 2}


async def test_an_event_that_starts_before_its_time_leaves_none(fake):
    fake.azure_announce("A-1", in_s=300, kind="Terminate")
    async with watching(azure(fake)) as told:
        assert 290 < (await told.next()).lead_s <= 300
        fake.azure_start("A-1")
        assert (await told.next()).lead_s == 0


@pytest.mark.parametrize("in_s", [-DAY_S, DAY_S])
async def test_a_clock_that_is_a_day_off_leaves_thirty_seconds(fake, in_s):
    fake.azure_announce("A-1", in_s)
    (announcement,) = await azure(fake).read()
    assert (announcement.kind, announcement.lead_s) == ("preempt", 30)


@pytest.mark.parametrize("kind", ["Reboot", "Redeploy"])
async def test_a_move_days_ahead_is_advice_until_it_is_near(fake, kind):
    fake.azure_announce("A-1", in_s=3 * DAY_S, kind=kind)
    (announcement,) = await azure(fake).read()
    assert (announcement.kind, announcement.lead_s) == ("advise", None)
    fake.azure_announce("A-1", in_s=600, kind=kind)
    (announcement,) = await azure(fake).read()
    assert announcement.kind == "preempt"
    assert 590 < announcement.lead_s <= 600


@pytest.mark.parametrize("kind", ["Freeze", "SomethingNew"])
async def test_an_event_that_the_machine_survives_is_no_notice(fake, kind):
    fake.azure_announce("A-1", in_s=300, kind=kind)
    assert await azure(fake).read() == ()


async def test_nothing_is_ever_acknowledged(fake):
    fake.azure_announce("A-1", in_s=30)
    async with watching(azure(fake)) as told:
        await told.next()
        await fake.asked_again(EVENTS)
    assert {asked.method for asked in fake.asked} == {"GET"}


async def test_the_name_of_the_machine_is_asked_once(fake):
    source = azure(fake)
    for _ in range(3):
        await source.read()
    assert fake.count("compute/name") == 1


@pytest.mark.parametrize("fault", ["error", "drop", "half", "cut", "huge", "html", "redirect"])
async def test_trouble_withdraws_nothing_and_passes(fake, fault):
    fake.azure_announce("A-1", in_s=60)
    async with watching(azure(fake)) as told:
        await told.next()
        fake.break_with(fault)
        await fake.asked_again(EVENTS)
        assert told.nothing_more()
        fake.mend()
        fake.azure_withdraw("A-1")
        assert (await told.next()).kind == "cancel"


@pytest.mark.parametrize("fault", ["html", "error"])
async def test_a_name_that_is_none_is_not_taken(fake, fault):
    fake.break_with(fault, "compute/name")
    with pytest.raises(SourceFailed, match="compute/name"):
        await azure(fake).read()


@pytest.mark.parametrize("fault", ["hang", "drip"])
async def test_a_service_that_stalls_is_given_up(fake, fault):
    fake.break_with(fault)
    with pytest.raises(SourceFailed, match="no answer"):
        await azure(fake, limit_s=0.1).read()
