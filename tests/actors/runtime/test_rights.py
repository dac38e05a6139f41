"""What the runtime takes from a peer by the role of its key, and what it sends at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import structlog
from runtime_kit import Accountant, Bump, Cluster, Explode, ReadTally, Tally, Watcher, tally

from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, Message, handles
from spotlight.actors.runtime.envelopes import (
    Done,
    Down,
    Ended,
    Failure,
    PushedBack,
    Unwatch,
    Watch,
)
from spotlight.errors import (
    AskTimeout,
    FrameRejected,
    NotAdmitted,
    NotAllowed,
    PeerUnreachable,
    RemoteError,
)
from spotlight.transport.control import Dialect, Guests
from spotlight_simulation.memory_network import Faults

pytestmark = pytest.mark.virtual_time

BANK, CLERK, READER = "bank", "clerk", "reader"
RIGHTS: Mapping[type[Message], Collection[str]] = {
    Bump: {CLERK},
    ReadTally: {CLERK, READER},
    Tally: {BANK},
    Explode: {BANK},
    Watch: {CLERK},
    Unwatch: {CLERK},
    Ended: {BANK, CLERK},
    Done: {BANK, READER},
    Failure: {BANK, READER},
    PushedBack: {BANK},
}


@dataclass
class Site:
    """A bank, with an accountant, and those who come to it."""

    cluster: Cluster
    bank: ActorSystem
    clerk: ActorSystem
    reader: ActorSystem
    accountant: ActorRef


async def opened(cluster: Cluster) -> Site:
    of_bank = Guests({CLERK: CLERK, READER: READER})
    bank = await cluster.system(BANK, guests=of_bank, rights=RIGHTS)
    clerk, reader = [
        await cluster.system(name, guests=Guests({BANK: BANK}), rights=RIGHTS)
        for name in (CLERK, READER)
    ]
    return Site(cluster, bank, clerk, reader, await bank.spawn(Accountant, "accountant"))


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Cluster() as cluster:
        yield await opened(cluster)


# --- what is refused ------------------------------------------------------------------


async def test_an_ask_that_the_askers_role_may_not_say_is_refused_and_does_not_run(
    site: Site,
) -> None:
    with pytest.raises(NotAllowed, match="the role `reader`, which may not say Bump"):
        await site.reader.ask(site.accountant, Bump(100), timeout_s=5.0)
    await site.clerk.ask(site.accountant, Bump(1), timeout_s=5.0)
    assert await tally(site.reader, site.accountant) == (1,)
    assert site.bank.post.frames_rejected == {"not_allowed": 1}
    assert site.bank.post.refusals == {(READER, "Bump"): 1}


async def test_a_tell_that_the_tellers_role_may_not_say_is_dropped_and_counted(site: Site) -> None:
    for _ in range(50):
        site.reader.tell(site.accountant, Bump(100))
    assert await tally(site.reader, site.accountant) == ()
    assert site.bank.post.refusals == {(READER, "Bump"): 50}


async def test_whoever_says_what_it_may_not_stays_connected(site: Site) -> None:
    watcher = Watcher(site.accountant)
    await site.clerk.spawn(lambda: watcher, "watcher")
    site.clerk.tell(site.accountant, Explode("now"))
    assert await tally(site.clerk, site.accountant) == ()
    assert site.bank.post.refusals == {(CLERK, "Explode"): 1}
    assert watcher.downs == []


async def test_log_lines_about_what_may_not_be_said_are_few(site: Site) -> None:
    await tally(site.reader, site.accountant)
    with structlog.testing.capture_logs() as logs:
        for _ in range(100):
            site.reader.tell(site.accountant, Bump(100))
        await asyncio.sleep(0.1)
    told = [line for line in logs if line["event"] == "input_rejected"]
    assert [(line["peer"], line["reason"]) for line in told] == [
        (site.reader.address, "not_allowed")
    ]


async def test_a_refused_ask_that_comes_twice_is_refused_once() -> None:
    async with Cluster(faults=Faults(duplication=1.0)) as cluster:
        site = await opened(cluster)
        with pytest.raises(NotAllowed):
            await site.reader.ask(site.accountant, Bump(100), timeout_s=5.0)
        await asyncio.sleep(1.0)
        assert site.bank.post.refusals == {(READER, "Bump"): 1}
        assert site.bank.post.duplicates == 1


class Liar(Actor):
    """Answers with what it may not say."""

    @handles(ReadTally)
    async def on_read(self, message: ReadTally) -> Tally:
        return Tally((100,))


async def test_an_answer_that_its_role_may_not_give_is_none(site: Site) -> None:
    system = await site.cluster.system("liar", guests=Guests({BANK: CLERK}), rights=RIGHTS)
    liar = await system.spawn(Liar, "liar")
    site.bank.guests.admit("liar", READER)
    with pytest.raises(AskTimeout):
        await site.bank.ask(liar, ReadTally(), timeout_s=5.0)
    assert site.bank.post.refusals == {(READER, "Tally"): 1}


async def test_a_watch_of_one_who_may_not_watch_is_refused(site: Site) -> None:
    watcher = Watcher(site.accountant)
    await site.reader.spawn(lambda: watcher, "watcher")
    await asyncio.sleep(0.1)
    await site.bank.stop(site.accountant)
    await asyncio.sleep(0.1)
    assert watcher.downs == []
    assert site.bank.post.refusals[(READER, "Watch")] >= 1


async def test_the_role_is_that_which_the_key_had_when_it_connected(site: Site) -> None:
    await tally(site.reader, site.accountant)
    site.bank.guests.forget(READER)
    site.bank.guests.admit(READER, CLERK)
    with pytest.raises(NotAllowed, match="the role `reader`"):
        await site.reader.ask(site.accountant, Bump(1), timeout_s=5.0)


async def test_within_a_process_anything_may_be_said(site: Site) -> None:
    site.bank.tell(site.accountant, Bump(1))
    assert await tally(site.bank, site.accountant) == (1,)


# --- what is not sent -----------------------------------------------------------------


class Unlisted(Message, frozen=True):
    """In no row."""


async def test_a_message_without_a_row_is_not_sent(site: Site) -> None:
    with pytest.raises(FrameRejected, match="nobody may say Unlisted"):
        site.clerk.tell(site.accountant, Unlisted())
    with pytest.raises(FrameRejected, match="nobody may say Unlisted"):
        await site.clerk.ask(site.accountant, Unlisted(), timeout_s=5.0)
    with pytest.raises(FrameRejected, match="nobody may say Down"):
        site.clerk.tell(site.accountant, Down(site.accountant, "crashed"))
    assert site.clerk.post.frames_sent == 0


class Careless(Actor):
    """Answers with what nobody may say."""

    @handles(ReadTally)
    async def on_read(self, message: ReadTally) -> Unlisted:
        return Unlisted()


async def test_a_reply_without_a_row_is_an_error_for_the_asker(site: Site) -> None:
    careless = await site.bank.spawn(Careless, "careless")
    with pytest.raises(RemoteError, match="nobody may say Unlisted"):
        await site.clerk.ask(careless, ReadTally(), timeout_s=5.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({Failure: ()}, "nobody may say Failure"),
        ({Watch: ()}, "nobody may say Watch"),
        ({Down: {BANK}}, "from its own runtime alone"),
    ],
)
async def test_rights_with_which_no_runtime_can_work_are_refused(
    changes: dict[Any, Any], said: str
) -> None:
    async with Cluster() as cluster:
        with pytest.raises(ValueError, match=said):
            await cluster.system(BANK, rights={**RIGHTS, **changes})


# --- whoever is not let in ------------------------------------------------------------


async def test_an_ask_to_one_who_does_not_know_our_key_says_what_to_do(site: Site) -> None:
    stranger = await site.cluster.system("stranger", guests=Guests({BANK: BANK}), rights=RIGHTS)
    with pytest.raises(NotAdmitted, match=r"memory://bank does not let .* new join token"):
        await stranger.ask(site.accountant, ReadTally(), timeout_s=60.0)


async def test_whoever_is_dismissed_loses_its_asks_and_watches_and_does_not_come_again(
    site: Site,
) -> None:
    watcher = Watcher(site.accountant)
    await site.clerk.spawn(lambda: watcher, "watcher")
    await tally(site.clerk, site.accountant)
    lost = await site.bank.spawn(Accountant, "slow")
    asking = asyncio.ensure_future(site.clerk.ask(lost, ReadTally(), timeout_s=60.0))
    site.bank.dismiss(CLERK, "its access was revoked")
    with pytest.raises(PeerUnreachable, match="its access was revoked"):
        await asking
    assert watcher.reasons == ["unreachable"]
    with pytest.raises(NotAdmitted):
        await site.clerk.ask(site.accountant, ReadTally(), timeout_s=60.0)
    assert await tally(site.reader, site.accountant) == ()


# --- other versions -------------------------------------------------------------------


async def test_whoever_was_refused_for_its_version_is_remembered_until_it_comes(
    site: Site,
) -> None:
    old = Dialect("0.1", "abc")
    site.bank.post.other_version(site.clerk.address, old)
    site.bank.post.other_version(site.reader.address, old)
    assert site.bank.post.other_versions == {CLERK: old, READER: old}
    await tally(site.clerk, site.accountant)
    assert site.bank.post.other_versions == {READER: old}


async def test_only_the_latest_of_other_versions_are_remembered(site: Site) -> None:
    for number in range(5000):
        site.bank.post.other_version(f"memory://node-{number}", Dialect("0.1", "abc"))
    remembered = site.bank.post.other_versions
    assert 1000 < len(remembered) < 5000
    assert "node-4999" in remembered
    assert "node-0" not in remembered
