"""Who gets past the guard of a web application, and who does not."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from spotlight.http_guard import HttpGuard

TOKEN = "a-token-of-the-clients"
BEARER = ("authorization", f"Bearer {TOKEN}")
HERE = ("127.0.0.1", 8000)
AWAY = ("10.0.0.1", 8000)


class Application:
    """Counts who gets in, and reads nothing."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def status_of(
    *headers: tuple[str, str],
    server: tuple[str, int | None] | None = HERE,
    scheme: str = "http",
    host: str = "127.0.0.1:8000",
    **options: Any,
) -> int:
    application, sent = Application(), list[Any]()

    async def receive() -> Any:
        raise AssertionError("a body is not for the guard")

    async def send(message: Any) -> None:
        sent.append(message)

    named = [("host", host)] if host else []
    scope = {
        "type": "http",
        "method": "POST",
        "scheme": scheme,
        "server": server,
        "path": "/",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in [*named, *headers]],
    }
    await HttpGuard(application, **{"token": TOKEN, **options})(scope, receive, send)
    status: int = sent[0]["status"]
    assert application.asked == (status == 200)
    return status


async def test_who_has_the_token_gets_in() -> None:
    assert await status_of(BEARER) == 200
    assert await status_of(("authorization", f"bearer  {TOKEN}")) == 200


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("authorization", ""),),
        (("authorization", "Bearer"),),
        (("authorization", TOKEN),),
        (("authorization", f"Basic {TOKEN}"),),
        (("authorization", f"Bearer {TOKEN[:-1]}"),),
        (("authorization", f"Bearer {TOKEN}x"),),
        (("authorization", "Bearer \xff\xfe"),),
        (BEARER, ("authorization", "Bearer another")),
    ],
)
async def test_who_has_no_token_or_a_wrong_one_does_not(headers: tuple[tuple[str, str]]) -> None:
    assert await status_of(*headers) == 401


@pytest.mark.parametrize(
    "said",
    [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://127.0.0.1:8000"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ],
)
async def test_a_page_in_a_browser_does_not_though_it_has_the_token(said: tuple[str, str]) -> None:
    assert await status_of(BEARER, said) == 403


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example:8000", "10.0.0.1:8000", "", "localhost@evil"],
)
async def test_a_request_to_another_name_is_not_for_this_server(host: str) -> None:
    assert await status_of(BEARER, host=host) == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "[::1]:8000", "127.0.0.1"])
async def test_loopback_has_several_names(host: str) -> None:
    assert await status_of(BEARER, host=host) == 200


async def test_two_hosts_are_none() -> None:
    assert await status_of(BEARER, ("host", "127.0.0.1:8000")) == 421


async def test_a_name_of_the_server_is_one_that_it_was_given() -> None:
    away = {"server": AWAY, "scheme": "https"}
    assert await status_of(BEARER, host="10.0.0.1:8000", **away) == 200
    assert await status_of(BEARER, host="twin.example", **away) == 421
    assert await status_of(BEARER, host="Twin.example:443", hosts=["twin.example"], **away) == 200


async def test_other_machines_ask_over_tls_unless_their_network_is_private() -> None:
    away = {"server": AWAY, "host": "10.0.0.1:8000"}
    assert await status_of(BEARER, **away) == 403
    assert await status_of(BEARER, **away, scheme="https") == 200
    assert await status_of(BEARER, **away, plain=True) == 200


async def test_a_socket_of_this_machine_needs_no_tls() -> None:
    assert await status_of(BEARER, server=("/run/twin.sock", None)) == 200
    assert await status_of(BEARER, server=None) == 200


async def test_headers_are_bounded() -> None:
    assert await status_of(BEARER, ("x-filler", "x" * 20_000)) == 431
    assert await status_of(BEARER, *[("x-filler", "")] * 5_000) == 431
