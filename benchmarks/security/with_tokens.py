"""Whoever has a token that is worth nothing any more, or less than is asked for."""

from __future__ import annotations

import asyncio

from benchmarks.security.attack import attack, require, require_words
from benchmarks.security.clients import Sayer, is_kept_out
from benchmarks.security.network import ATTACKER, RESERVED, SPOT
from benchmarks.security.site import Impostor, Site
from spotlight.actors.protocol.door import Enroll, Enrolled, NewToken, NotEnrolled, TokenMade
from spotlight.errors import ActorError
from spotlight.join_token import JoinToken
from spotlight.timings import Timings
from spotlight.transport.control import KeyPair


async def _enroll(site: Site, token: JoinToken, node: str, pool: str | None = None) -> str:
    """Why it is not let in; empty if it is."""
    try:
        answer = await site.enroll(token, node, KeyPair.new(), pool)  # type: ignore[arg-type]
    except ActorError as error:
        return f"{type(error).__name__}: {error}"
    return answer.reason if isinstance(answer, NotEnrolled) else ""


@attack("a token is used after it has expired")
async def expired(site: Site) -> None:
    token = await site.new_token("node", "spot", uses=5, ttl_s=0.5)
    await asyncio.sleep(1.0)
    require_words(await _enroll(site, token, "late"), "expired")
    user = await site.new_token("submitter", ttl_s=0.5)
    await asyncio.sleep(1.0 + Timings().door.check_s)
    file = site.token_file(user)
    code, said = await asyncio.to_thread(site.command, ATTACKER, "status", "--join", f"@{file}")
    require(code != 0 and "Traceback" not in said, said)


@attack("a connection outlives the token of its user")
async def outlived(site: Site) -> None:
    token = await site.new_token("observer", ttl_s=2.0)
    async with site.line(token.keys) as end:
        await asyncio.wait_for(end.up.wait(), 10)
        try:
            await asyncio.wait_for(end.lost.wait(), 30)
        except TimeoutError:
            require(False, "it is still there")


@attack("a token is used once more than it may be")
async def used_up(site: Site) -> None:
    token = await site.new_token("node", "spot", uses=1)
    require(not await _enroll(site, token, "first"), "the first use was refused")
    require_words(await _enroll(site, token, "second"), "used")


@attack("two machines use a token at once, more often than it may be")
async def at_once(site: Site) -> None:
    token = await site.new_token("node", "spot", uses=3)
    said = await asyncio.gather(*(_enroll(site, token, f"twin-{n}") for n in range(12)))
    require(said.count("") == 3, said)


@attack("a token is used after it was revoked")
async def revoked(site: Site) -> None:
    token = await site.new_token("node", "spot", uses=5)
    await site.revoke(token.id)
    require(bool(await _enroll(site, token, "gone")), "it was let in")


@attack("a token is mistyped, and its secret guessed")
async def mistyped(site: Site) -> None:
    token = site.spot_token
    for secret in (bytes([token.secret[0] ^ 1]) + token.secret[1:], bytes(16)):
        wrong = JoinToken(token.place, token.key, token.id, secret)
        said = await _enroll(site, wrong, "guess")
        require(is_kept_out(said), said)


@attack("a token of the pool `spot` is used to be a reserved node")
async def other_pool(site: Site) -> None:
    require(bool(await _enroll(site, site.spot_token, "trainers", "reserved")), "it was let in")


@attack("a token is used under the name of a node that is there")
async def names(site: Site) -> None:
    for name in (RESERVED, SPOT):
        require(bool(await _enroll(site, site.spot_token, name)), f"another {name} was let in")
    require(await site.nodes_there() >= {RESERVED, SPOT}, "they are gone")


@attack("a token is used for a key that is somebody else's")
async def keys_of_others(site: Site) -> None:
    async with site.person(site.joiner) as joiner:
        for key in (site.operator.public, site.honest.public, site.joiner.public):
            said = await joiner.refusal(Enroll("thief", key, None), joiner.door)
            require(bool(said), "it was enrolled")
    require(bool((await site.guests()).tokens), "the operator is none any more")


@attack("a token of spot nodes is used as that of an operator, by the key that it makes")
async def as_operator(site: Site) -> None:
    async with site.person(site.joiner) as joiner:
        said = await joiner.refusal(NewToken("operator", None, 1, 60.0), joiner.door)
    require_words(said, "NotAllowed")


@attack("the holder of a token enrolls without end")
async def flood(site: Site) -> None:
    before = site.resident_mb()
    token = await site.new_token("node", "spot", uses=20)
    async with site.person(token.keys) as joiner:

        async def enroll(number: int) -> bool:
            message = Enroll(f"flood-{number}", KeyPair.new().public)
            try:
                answer = await joiner.ask(message, joiner.door, timeout_s=60.0)
            except ActorError:
                return False
            return isinstance(answer, Enrolled)

        done = await asyncio.gather(*(enroll(number) for number in range(2000)))
    require(sum(done) <= 20, f"{sum(done)} were let in")
    grown = site.resident_mb() - before
    require(grown < 150, f"{grown:.0f} MB more")


@attack("an enrolled node uses its key as one of another name")
async def renamed(site: Site) -> None:
    keys = await site.enrolled("renamed")
    async with site.person(keys) as node:
        me = await node.system.spawn(Sayer, "node")
        report = Impostor(node.coordinator, {}).report_of(me, node="first", workers=())
        require(bool(await node.refusal(report, sender=me)), "it was taken")
    answer = await site.enroll(site.spot_token, "another-name", keys)
    require(isinstance(answer, NotEnrolled), answer)


@attack("an operator's mistake: tokens for nobody, for no time, and for ever")
async def odd_tokens(site: Site) -> None:
    async with site.person(site.operator) as operator:
        for message in (
            NewToken("node", None, 1, 60.0),
            NewToken("operator", "spot", 1, 60.0),
        ):
            answer = await operator.ask(message, operator.door)
            require(not isinstance(answer, TokenMade), answer)
