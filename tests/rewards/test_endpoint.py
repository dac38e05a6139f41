"""Patience with a server, on virtual time."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest

from spotlight.errors import ScoringError
from spotlight.rewards import endpoint
from spotlight.rewards.endpoint import LARGEST_ANSWER, LONGEST_WAIT_S, Endpoint, Poster
from spotlight_simulation.virtual_time import VirtualTimeLoop

URL = "http://scorer.test/score"
Answer = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


class Server:
    """Gives prepared answers, the last one again and again, and notes when it was asked."""

    def __init__(self, *answers: Answer | int, **headers: str) -> None:
        self.answers = list(answers)
        self.headers = headers
        self.asked_at: list[float] = []
        self.requests: list[httpx2.Request] = []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        answer = self.answers[min(len(self.asked_at), len(self.answers) - 1)]
        self.asked_at.append(asyncio.get_running_loop().time())
        self.requests.append(request)
        if isinstance(answer, int):
            return httpx2.Response(answer, text="told", headers=self.headers)
        return await answer(request)


async def hang(request: httpx2.Request) -> httpx2.Response:
    await asyncio.sleep(1e6)
    raise AssertionError("nobody waits so long")


async def cut(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.RemoteProtocolError("peer closed the connection")


def poster(server: Answer, **options: Any) -> Poster:
    return Poster(
        Endpoint(URL, **options),
        transport=httpx2.MockTransport(server),
        new_loop=VirtualTimeLoop,
    )


def problem_of(server: Answer, **options: Any) -> str:
    [error] = poster(server, **options).post_all([b"{}"])
    assert isinstance(error, ScoringError)
    return str(error)


def test_the_answer_of_each_body_is_given_in_their_order() -> None:
    async def echo(request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep({b"a": 3, b"b": 2, b"c": 1}[request.content])
        return httpx2.Response(200, content=request.content)

    assert poster(echo).post_all([b"a", b"b", b"c"]) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("fault", [500, 503, 429, 408, cut])
def test_what_may_pass_is_tried_again_after_waits_that_double(fault: Answer | int) -> None:
    server = Server(fault, fault, fault, 200)
    assert poster(server, first_wait_s=0.5).post_all([b"{}"]) == [b"told"]
    assert server.asked_at == [0, 0.5, 1.5, 3.5]


def test_a_server_that_says_when_to_come_again_is_left_alone_until_then() -> None:
    server = Server(503, 200, **{"retry-after": "7"})
    poster(server, first_wait_s=0.5).post_all([b"{}"])
    assert server.asked_at == [0, 7]


def test_a_server_that_asks_for_an_hour_does_not_get_it() -> None:
    server = Server(503, 200, **{"retry-after": "3600"})
    poster(server).post_all([b"{}"])
    assert server.asked_at == [0, LONGEST_WAIT_S]


def test_a_hang_ends_at_the_deadline_of_each_try() -> None:
    server = Server(hang)
    assert "no answer within 2 s" in problem_of(server, attempts=3, timeout_s=2, first_wait_s=1)
    assert server.asked_at == [0, 3, 7]


def test_an_answer_that_drips_ends_at_the_deadline_too() -> None:
    async def drip(request: httpx2.Request) -> httpx2.Response:
        async def parts() -> Any:
            while True:
                yield b"x"
                await asyncio.sleep(1)

        return httpx2.Response(200, content=parts())

    assert "no answer within 5 s" in problem_of(drip, attempts=1, timeout_s=5)


def test_an_address_that_is_none_is_an_error() -> None:
    [error] = Poster(Endpoint("http://host:port/score")).post_all([b"{}"])
    assert isinstance(error, ScoringError)
    assert "InvalidURL" in str(error)


def test_an_answer_without_an_end_is_not_kept() -> None:
    async def pour(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=b"x" * (LARGEST_ANSWER + 1))

    assert "more than" in problem_of(pour)


def test_an_answer_that_is_compressed_unasked_is_not_unpacked() -> None:
    async def bomb(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["accept-encoding"] == "identity"
        packed = gzip.compress(bytes(10 * LARGEST_ANSWER))
        return httpx2.Response(200, stream=Parts(packed), headers={"content-encoding": "gzip"})

    class Parts(httpx2.AsyncByteStream):
        def __init__(self, data: bytes) -> None:
            self._data = data

        async def __aiter__(self) -> AsyncIterator[bytes]:
            raise AssertionError("nobody reads it")
            yield self._data

    assert "compressed unasked" in problem_of(bomb)


@pytest.mark.parametrize("status", [301, 400, 401, 404, 413])
def test_what_will_not_pass_is_not_tried_again_and_the_server_is_quoted(status: int) -> None:
    server = Server(status)
    assert problem_of(server) == f"{URL}: status {status}: told"
    assert len(server.asked_at) == 1


def test_after_the_last_try_the_error_says_how_many_there_were_and_why() -> None:
    assert (
        problem_of(Server(500), attempts=2)
        == f"{URL}: no answer in 2 tries; the last one: status 500: told"
    )


def test_one_failure_does_not_cost_the_other_answers() -> None:
    async def picky(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(400 if request.content == b"bad" else 200, text="told")

    answers = poster(picky).post_all([b"good", b"bad", b"good"])
    assert [isinstance(answer, ScoringError) for answer in answers] == [False, True, False]


def test_no_more_requests_are_under_way_than_the_endpoint_allows() -> None:
    now = most = 0

    async def count(request: httpx2.Request) -> httpx2.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(1)
        now -= 1
        return httpx2.Response(200)

    poster(count, concurrency=3).post_all([b""] * 10)
    assert most == 3


def test_the_authorization_is_sent_with_every_request() -> None:
    server = Server(200)
    poster(server, authorization="Bearer abc").post_all([b"", b""])
    assert [one.headers["authorization"] for one in server.requests] == ["Bearer abc"] * 2


def test_without_an_authorization_none_is_sent() -> None:
    server = Server(200)
    poster(server).post_all([b""])
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "2852039166", "0xa9fea9fe", "[::ffff:169.254.169.254]"]
)
def test_nothing_is_sent_to_a_link_local_address_however_it_is_written(host: str) -> None:
    [error] = Poster(Endpoint(f"http://{host}/score", attempts=1)).post_all([b"{}"])
    assert isinstance(error, ScoringError)
    assert "link-local address" in str(error) and "--allow-link-local" in str(error)


def test_a_name_that_means_a_link_local_address_by_the_time_of_the_connection_gets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a name server answers the second question otherwise."""
    heard: list[bytes] = []
    checked: list[str] = []

    def looks_once(address: str) -> bool:
        checked.append(address)
        return len(checked) > 1

    monkeypatch.setattr(endpoint, "is_link_local", looks_once)
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = threading.Thread(target=lambda: heard.append(_all_of(server)))
        listening.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/score"
        [error] = Poster(Endpoint(url, authorization="Bearer x", attempts=1)).post_all([b"{}"])
        listening.join()
    assert isinstance(error, ScoringError) and "link-local" in str(error)
    assert heard == [b""]
    assert len(checked) == 2


def _all_of(server: socket.socket) -> bytes:
    connection, _ = server.accept()
    with connection:
        return connection.recv(1000)


def test_what_a_server_says_is_one_short_line() -> None:
    async def shout(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(400, content=b"\x1b[2J\x1b]0;t\x07no\n" + b"x" * 3_000_000)

    problem = problem_of(shout)
    assert "status 400: no x" in problem
    assert problem.isprintable() and len(problem) < 1000
