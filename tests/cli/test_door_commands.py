"""The commands of whoever runs a coordinator: what they print, and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from spotlight.actors.protocol.door import (
    AccessRevoked,
    GuestList,
    KnownNode,
    KnownToken,
    NotEnrolled,
)
from spotlight.cli.door import token_table
from spotlight.errors import NotAdmitted, NotAllowed, RequestRefused
from spotlight.join_token import JoinToken
from tests.cli.stand_in import JOIN, StandIn

MADE = JoinToken("127.0.0.1:7070", JOIN.key, "made01", b"1" * 16)
GUESTS = GuestList(
    (
        KnownToken("oper01", "operator", None, 1, None),
        KnownToken("spot01", "node", "spot", 49, 3600.0),
        KnownToken("used01", "node", "reserved", 0, 3600.0),
        KnownToken("late01", "submitter", None, 1, -120.0),
        KnownToken("gone01", "observer", None, 1, 60.0, revoked=True),
    ),
    (
        KnownNode("a100-1", "reserved", "", True),
        KnownNode("spot-1", "spot", "spot01", False),
        KnownNode("spot-2", "spot", "spot01", False, software="0.9", revoked=False),
        KnownNode("spot-3", "spot", "spot01", False, revoked=True),
    ),
    "1.0",
)


class Coordinator(StandIn):
    """See `StandIn`."""

    async def new_token(self, *words: Any) -> str:
        return self.answer(("new_token", *words), str(MADE))

    async def revoke(self, *words: Any) -> AccessRevoked:
        return self.answer(("revoke", *words), AccessRevoked(("spot01",), ("spot-1", "spot-2")))

    async def guests(self) -> GuestList:
        return self.answer(("guests",), GUESTS)


@pytest.fixture
def coordinator(reached_by_join: Any) -> Coordinator:
    return reached_by_join(Coordinator())


def shown(table: Any) -> list[list[str]]:
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return [line.split() for line in captured.get().splitlines()]


def test_a_new_token_is_alone_on_standard_output(coordinator: Coordinator, spotlight: Any) -> None:
    words = ("token", "new", "--pool", "spot", "--uses", "50", "--ttl", "24h")
    code, out, err = spotlight(*words)
    assert (code, out) == (0, f"{MADE}\n")
    assert "`made01` for 50 spot nodes, for 24h" in err
    assert "spotlight revoke made01" in err
    assert str(MADE) not in err
    assert coordinator.asked == [("new_token", "node", "spot", 50, 86_400.0, 0)]


def test_a_user_s_token_has_neither_pool_nor_uses(coordinator: Coordinator, spotlight: Any) -> None:
    code, _, err = spotlight("token", "new", "--role", "submitter", "--ttl", "7d")
    assert code == 0
    assert "for a user (submitter)" in err
    assert coordinator.asked == [("new_token", "submitter", None, 1, 604_800.0, 0)]


def test_a_submitter_s_token_says_how_high_it_may_go(
    coordinator: Coordinator, spotlight: Any
) -> None:
    code, _, _ = spotlight("token", "new", "--role", "submitter", "--priority", "7")
    assert code == 0
    assert coordinator.asked == [("new_token", "submitter", None, 1, 86_400.0, 7)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ttl", "soon"), "--ttl: 'soon' is no duration"),
        (("--ttl", "0h"), "--ttl: 0h must be more than nothing"),
        (("--ttl", "4000d"), "at most 3660d"),
        (("--role", "observer", "--pool", "spot"), "--pool: a token for observers has none"),
        (("--role", "operator", "--uses", "2"), "--uses: a token for operators"),
        (("--role", "operator", "--priority", "1"), "--priority: a token for operators has none"),
        (("--role", "submitter", "--priority", "101"), "--priority 101: must be from -100 to 100"),
        (("--join", "sl1.nonsense"), "--join: this is no join token"),
        (("--join", "@nowhere"), "--join: nowhere cannot be read"),
    ],
)
def test_a_token_that_cannot_be_is_refused_in_one_line(
    coordinator: Coordinator, spotlight: Any, words: tuple[str, ...], said: str
) -> None:
    code, out, err = spotlight("token", "new", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert coordinator.asked == []


@pytest.mark.parametrize(
    "words",
    [("--role", "root"), ("--pool", "blue"), ("--uses", "0"), ("--uses", "1000001")],
)
def test_a_word_that_there_is_not_is_a_wrong_usage(
    coordinator: Coordinator, spotlight: Any, words: tuple[str, ...]
) -> None:
    code, out, _ = spotlight("token", "new", *words)
    assert (code, out) == (2, "")
    assert coordinator.asked == []


def test_the_tokens_are_listed_with_how_they_stand(
    coordinator: Coordinator, spotlight: Any
) -> None:
    _, *rows = shown(token_table(GUESTS))
    assert rows[1:] == [
        ["oper01", "operator", "does", "not", "expire"],
        ["spot01", "node", "spot", "49", "for", "1", "h", "00", "m"],
        ["used01", "node", "reserved", "0", "used", "up"],
        ["late01", "submitter", "up", "to", "0", "expired", "2", "m", "00", "s", "ago"],
        ["gone01", "observer", "revoked"],
    ]
    code, out, err = spotlight("token", "list")
    assert (code, err) == (0, "")
    assert "spot01" in out


def test_the_tokens_are_there_as_json(coordinator: Coordinator, spotlight: Any) -> None:
    code, out, _ = spotlight("token", "list", "--json")
    assert code == 0
    assert json.loads(out)[0]["id"] == "oper01"


def test_who_revokes_a_node_hears_what_would_still_let_it_in(
    coordinator: Coordinator, spotlight: Any
) -> None:
    code, out, _ = spotlight("revoke", "spot-3")
    assert code == 0
    assert out.splitlines() == [
        "spot-3: revoked",
        "the node came by the join token `spot01`, which would let it in under another name:"
        " spotlight revoke spot01",
        "nodes that came by it stay: spot-1, spot-2",
    ]


def test_nobody_revokes_the_token_that_he_uses(coordinator: Coordinator, spotlight: Any) -> None:
    code, _, err = spotlight("revoke", "oper01")
    assert code == 2
    assert "spotlight token new --role operator" in err
    assert coordinator.asked == []


@pytest.mark.parametrize("words", [("token", "new"), ("token", "list"), ("revoke", "spot-1")])
@pytest.mark.parametrize(
    ("error", "end", "said"),
    [
        (NotAdmitted("x"), "", "does not know this join token (oper01)"),
        (NotAllowed("x"), "", "does not allow that"),
        (NotAllowed("x"), "the join token `oper01` expired", "the join token `oper01` expired"),
        (RequestRefused("there is no node"), "", "there is no node"),
    ],
)
def test_what_a_coordinator_refuses_is_one_line(
    coordinator: Coordinator,
    spotlight: Any,
    words: tuple[str, ...],
    error: Exception,
    end: str,
    said: str,
) -> None:
    coordinator.error, coordinator.end = error, end
    code, out, err = spotlight(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_reason_that_a_coordinator_gives_moves_no_cursor() -> None:
    assert NotEnrolled("a\x1b[2Jb\nc").reason == "ab c"
