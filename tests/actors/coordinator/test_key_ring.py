"""The book of keys on the disk and at the transport."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotlight.actors.coordinator.key_ring import KeyRing, door_file
from spotlight.actors.protocol.dialect import own_dialect
from spotlight.actors.protocol.door import AccessRevoked, Enroll, Enrolled, NameUnknown, NotEnrolled
from spotlight.errors import RunFolderError, UnreadableFile, UserError
from spotlight.join_token import JoinToken
from spotlight.transport.control import Guests, ZeroMQTransport
from spotlight.transport.control.keys import KeyPair
from spotlight_simulation.memory_network import MemoryNetwork, MemoryTransport

NODE = KeyPair.derived(b"node").public
OTHER = KeyPair.derived(b"other").public


class Site:
    """A coordinator's transport, and rings on one file; time is what a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1e9
        self.network = MemoryNetwork(random.Random(0))
        self.seeds = itertools.count()

    def open(self, **options: Any) -> KeyRing:
        """Of the next coordinator."""
        self.transport: MemoryTransport = self.network.transport("coordinator", guests=Guests())
        return KeyRing(
            self.transport,
            door_file(self.folder),
            clock=lambda: self.now,
            random_bytes=random.Random(next(self.seeds)).randbytes,
            **options,
        )

    def role(self, key: str) -> str | None:
        return self.transport.guests.role(key)


def address(key: str) -> str:
    return f"memory://{key}"


def joins(join: JoinToken) -> str:
    """The address of whoever has the token."""
    return address(join.keys.public)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield Site(tmp_path)


async def test_what_a_ring_knows_the_next_one_lets_in_before_its_transport_starts(
    site: Site,
) -> None:
    keys = site.open()
    join = keys.new_token("node", "spot", 2, 3600.0)
    assert keys.enroll(joins(join), Enroll("node", NODE)) == Enrolled("node", "spot")
    assert keys.report("node", "spot", address(NODE), [address("worker")]) == ""
    await keys.saved()
    site.open()
    assert [site.role(key) for key in (join.keys.public, NODE, "worker")] == [
        "joiner",
        "node",
        "worker",
    ]


async def test_the_file_is_its_owner_s_alone_and_holds_no_secret(site: Site) -> None:
    keys = site.open()
    join = keys.new_token("operator")
    await keys.saved()
    file = door_file(site.folder)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert join.keys.public in text
    assert str(join).rpartition(".")[2] not in text
    assert join.keys.secret not in text
    assert os.listdir(site.folder) == [file.name]


async def test_a_file_that_others_could_read_is_refused(site: Site) -> None:
    keys = site.open()
    keys.new_token("operator")
    await keys.saved()
    door_file(site.folder).chmod(0o640)
    with pytest.raises(UnreadableFile, match="mode 0640"):
        site.open()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 1}',
        '{"version": "1", "book": {}}',
        '{"version": 1, "book": 5}',
        '{"version": 1, "book": {"tokens": [{"id": 5}]}}',
        '{"version": 1, "book": {"guests": []}}',
        '{"version": 1, "book": {"nodes": [{"name": "a", "key": "k", "pool": "blue", "token": "",'
        ' "last_seen": 0}]}}',
        '{"version": 1, "book": {"nodes": ['
        '{"name": "a", "key": "k", "pool": "spot", "token": "", "last_seen": 1e9},'
        '{"name": "b", "key": "k", "pool": "spot", "token": "", "last_seen": 1e9}]}}',
        "\0" * 40,
        '{"version": 1, "book": {}, "\\n\\u001b[2J": 1}',
    ],
)
def test_a_damaged_file_is_refused_by_one_line(site: Site, text: str) -> None:
    file = door_file(site.folder)
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(RunFolderError) as refused:
        site.open()
    said = str(refused.value)
    assert said.isprintable()
    assert str(file) in said
    assert "damaged" in said
    assert "everybody needs a new token" in said
    assert file.read_text() == text


def test_a_file_of_another_version_is_refused_by_name(site: Site) -> None:
    file = door_file(site.folder)
    file.write_text('{"version": 2, "book": {"anything": 1}}')
    file.chmod(0o600)
    with pytest.raises(RunFolderError, match="format is 2, and this one reads 1"):
        site.open()


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing"])
def test_what_is_no_file_is_refused(site: Site, kind: str) -> None:
    file = door_file(site.folder)
    if kind == "folder":
        file.mkdir(mode=0o700)
    elif kind == "pipe":
        os.mkfifo(file, 0o600)
    else:
        file.symlink_to(site.folder / "nothing")
    with pytest.raises(UserError, match=r"\.door\.json"):
        site.open()


async def test_a_disk_that_refuses_is_an_error_that_says_what_is_lost(site: Site) -> None:
    keys = site.open()
    keys.new_token("operator")
    door_file(site.folder).mkdir()  # no file can take its place
    with pytest.raises(RunFolderError, match="is forgotten when it ends"):
        await keys.saved()
    door_file(site.folder).rmdir()
    await keys.saved()
    assert door_file(site.folder).is_file()


async def test_many_who_wait_share_a_write(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []
    disk_answers = threading.Event()

    def write(path: Path, text: str) -> None:
        assert disk_answers.wait(30.0)
        writes.append(text)

    monkeypatch.setattr("spotlight.actors.coordinator.key_ring.write_secret_file", write)
    keys = site.open()
    waiting = []
    for number in range(100):
        keys.admit_node(f"n{number}", f"k{number}", "spot")
        waiting.append(asyncio.ensure_future(keys.saved()))
        await asyncio.sleep(0)
    disk_answers.set()
    await asyncio.gather(*waiting)
    assert len(writes) == 2
    assert '"n99"' not in writes[0]
    assert '"n99"' in writes[-1]


async def test_when_nodes_were_seen_is_written_down_from_time_to_time(site: Site) -> None:
    keys = site.open()
    keys.admit_node("node", NODE, "spot")
    keys.report("node", "spot", address(NODE), ())
    await keys.saved()
    before = door_file(site.folder).read_bytes()
    site.now += keys.timings.note_s - 1.0
    await keys.saved()
    assert door_file(site.folder).read_bytes() == before
    site.now += 1.0
    await keys.saved()
    assert door_file(site.folder).read_bytes() != before


def test_a_user_whose_token_expires_is_a_joiner_from_then_on(site: Site) -> None:
    keys = site.open()
    join = keys.new_token("submitter", None, 1, 60.0)
    assert site.role(join.keys.public) == "submitter"
    site.now += 60.0
    keys.sweep()
    assert site.role(join.keys.public) == "joiner"


async def test_a_revoked_token_makes_a_joiner_and_a_revoked_node_nobody(site: Site) -> None:
    keys = site.open()
    join, user = keys.new_token("node", "spot"), keys.new_token("observer")
    keys.enroll(joins(join), Enroll("node", NODE))
    keys.report("node", "spot", address(NODE), [address("worker")])
    assert keys.revoke(user.id) == AccessRevoked((), ())
    assert keys.revoke("node") == AccessRevoked((), ())  # its token is used up
    assert keys.revoke(join.id) == AccessRevoked((), ())
    assert [site.role(key) for key in (user.keys.public, NODE, "worker")] == ["joiner", None, None]
    answer = keys.enroll(joins(user), Enroll("another", OTHER))
    assert isinstance(answer, NotEnrolled)
    assert "was revoked" in answer.reason


def test_nobody_of_that_name_is_answered_with_those_there_are(site: Site) -> None:
    keys = site.open()
    join = keys.new_token("operator")
    keys.admit_node("node", NODE, "spot")
    assert keys.revoke("nodes") == NameUnknown(("node",), (join.id,))


@pytest.mark.parametrize(
    ("name", "pool", "by", "said"),
    [
        ("node", "spot", NODE, ""),
        ("other", "spot", NODE, "that of the node `node`"),
        ("node", "reserved", NODE, "of the pool spot"),
        ("node", "spot", OTHER, "not known as a node"),
        ("node", "spot", "worker", "not known as a node"),
    ],
)
def test_a_report_is_that_of_the_node_whose_key_it_comes_by(
    site: Site, name: str, pool: Any, by: str, said: str
) -> None:
    keys = site.open()
    keys.admit_node("node", NODE, "spot")
    keys.report("node", "spot", address(NODE), [address("worker")])
    answer = keys.report(name, pool, address(by), ())
    assert (said in answer) if said else not answer


def test_jobs_belong_to_the_token_of_a_submitter_and_else_to_operators(site: Site) -> None:
    keys = site.open()
    mine, theirs = keys.new_token("submitter"), keys.new_token("operator")
    assert keys.user(joins(mine)) == mine.id
    assert keys.user(joins(theirs)) == "operator"
    assert keys.user(site.transport.address) == "operator"
    for token in (keys.new_token("observer"), keys.new_token("node", "spot")):
        assert keys.user(joins(token)) == ""
    keys.revoke(mine.id)
    assert keys.user(joins(mine)) == ""


async def test_the_priority_of_a_submitter_s_token_outlives_the_coordinator(site: Site) -> None:
    keys = site.open()
    join = keys.new_token("submitter", priority=3)
    await keys.saved()
    keys = site.open()
    assert keys.highest_priority(joins(join)) == 3
    assert keys.highest_priority(site.transport.address) == 100
    (known,) = keys.guest_list(own_dialect(), {}).tokens
    assert known.priority == 3


async def test_a_book_of_before_tokens_had_priorities_is_read(site: Site) -> None:
    keys = site.open()
    join = keys.new_token("submitter")
    await keys.saved()
    file = door_file(site.folder)
    file.write_text(file.read_text().replace(',"priority":0', ""))
    assert "priority" not in file.read_text()
    assert site.open().highest_priority(joins(join)) == 0


def test_a_token_leads_to_its_coordinator_and_is_known_there_until_it_ends() -> None:
    now = 1e9
    transport = ZeroMQTransport("tcp://127.0.0.1:7070")
    keys = KeyRing(transport, clock=lambda: now)
    join = keys.new_token("operator", None, 1, 60.0)
    assert JoinToken.parse("--join", str(join)) == join
    assert join.coordinator == transport.address
    assert keys.knows(join)
    assert not keys.knows(replace(join, place="127.0.0.1:7071"))
    assert not keys.knows(replace(join, secret=bytes(16)))
    now += 60.0
    assert not keys.knows(join)


@pytest.mark.parametrize(("role", "pool"), [("node", None), ("operator", "spot")])
def test_a_token_has_a_pool_if_it_is_for_nodes_and_else_none(
    site: Site, role: Any, pool: Any
) -> None:
    keys = site.open()
    with pytest.raises(ValueError, match="if, and only if, it is for nodes"):
        keys.new_token(role, pool)


async def test_nothing_is_kept_of_a_ring_without_a_file(site: Site) -> None:
    transport = site.network.transport("another", guests=Guests())
    keys = KeyRing(transport)
    keys.admit_user("operator", NODE, "operator")
    await keys.saved()
    assert transport.guests.role(NODE) == "operator"
    assert os.listdir(site.folder) == []
