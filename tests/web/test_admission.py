"""Whom the page's server lets in by what a coordinator has written down."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest

from spotlight.actors.coordinator.key_ring import KeyRing, door_file
from spotlight.join_token import JoinToken
from spotlight.transport.control import Guests
from spotlight.transport.control.keys import KeyPair
from spotlight.types import TokenRole
from spotlight.web.admission import Cookies, DoorAdmission
from spotlight.web.refusing import Refused
from spotlight_simulation.memory_network import MemoryNetwork
from tests.web.page_kit import WrittenRun, serving


class Site:
    """A coordinator's book, and a page beside it; time is what a test says."""

    def __init__(self, folder: Path) -> None:
        self.now = 1e9
        self.file = door_file(folder)
        transport = MemoryNetwork(random.Random(0)).transport("coordinator", guests=Guests())
        self.keys = KeyRing(transport, self.file, clock=lambda: self.now)
        self.admission = DoorAdmission(self.file, clock=lambda: self.now)

    async def token(self, role: TokenRole, ttl_s: float | None = 3600.0) -> JoinToken:
        made = self.keys.new_token(role, "spot" if role == "node" else None, ttl_s=ttl_s)
        await self.keys.saved()
        return replace(made, place="127.0.0.1:7070", key=KeyPair.derived(b"coordinator").public)

    def refusal(self, token: JoinToken | str) -> Refused:
        with pytest.raises(Refused) as caught:
            self.admission.name_of(str(token))
        return caught.value


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield Site(tmp_path)


@pytest.mark.parametrize("role", ["observer", "submitter", "operator"])
async def test_people_of_each_role_may_look(site: Site, role: TokenRole) -> None:
    join = await site.token(role)
    assert site.admission.name_of(str(join)) == join.id


async def test_a_token_for_nodes_shows_nothing(site: Site) -> None:
    refused = site.refusal(await site.token("node"))
    assert refused.status == HTTPStatus.FORBIDDEN
    assert "--role observer" in str(refused)


async def test_a_token_of_another_secret_is_not_known(site: Site) -> None:
    join = await site.token("observer")
    assert site.refusal(replace(join, secret=b"0" * 16)).status == HTTPStatus.UNAUTHORIZED
    assert site.refusal(replace(join, id="abcdef")).status == HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize("text", ["", "sl1", "sl1.a.b.c.d", "\udcff", "a" * 4000])
async def test_what_is_no_token_is_refused_in_a_line_that_repeats_nothing(
    site: Site, text: str
) -> None:
    refused = site.refusal(text)
    assert refused.status == HTTPStatus.UNAUTHORIZED
    assert "this is no join token" in str(refused)


async def test_a_revoked_token_is_good_no_longer_and_neither_is_its_cookie(site: Site) -> None:
    join, cookies = await site.token("operator"), Cookies(site.admission)
    cookie = cookies.bake(site.admission.name_of(str(join)))
    assert cookies.name_in(cookie) == join.id
    site.keys.revoke(join.id)
    await site.keys.saved()
    with pytest.raises(Refused, match=r"was revoked on .*; sign in again with another token"):
        cookies.name_in(cookie)
    assert "was revoked" in str(site.refusal(join))


async def test_an_expired_token_is_good_no_longer(site: Site) -> None:
    join = await site.token("observer", ttl_s=60.0)
    site.now += 59
    site.admission.name_of(str(join))
    site.now += 1
    assert "expired on" in str(site.refusal(join))


async def test_tokens_that_are_made_later_are_known_at_once(site: Site) -> None:
    site.admission.name_of(str(await site.token("observer")))
    join = await site.token("observer")
    assert site.admission.name_of(str(join)) == join.id


@pytest.mark.parametrize("damage", ["gone", "torn", "open to others"])
async def test_nobody_gets_in_by_a_book_that_cannot_be_read(site: Site, damage: str) -> None:
    join = await site.token("observer")
    if damage == "gone":
        site.file.unlink()
    elif damage == "torn":
        site.file.write_bytes(site.file.read_bytes()[:-10])
    else:
        site.file.chmod(0o644)
        site.file.write_bytes(site.file.read_bytes() + b" ")
    assert site.refusal(join).status == HTTPStatus.SERVICE_UNAVAILABLE


async def test_a_page_with_a_revoked_token_is_told_so_in_one_line(
    site: Site, tmp_path: Path
) -> None:
    WrittenRun(tmp_path / "runs" / "a")
    join = await site.token("observer")
    bearer = {"Authorization": f"Bearer {join}"}
    async with serving(tmp_path / "runs", admission=site.admission) as (_, page):
        async with page.stream("a", **bearer) as stream:
            await stream.next()
            site.keys.revoke(join.id)
            await site.keys.saved()
            name, _, data = await stream.next()
        assert name == "end"
        assert f"the join token `{join.id}` was revoked" in data["error"]
        assert (await page.get("api/runs", **bearer))[0] == 401
