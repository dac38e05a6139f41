"""A metadata service to rehearse with: the dialects of four clouds, and the ways in which they
fail.

It is written against plain sockets, so that it shares no code with what it tests. An event has one
absolute time, fixed when it is announced. `break_with` makes answers fail until `mend`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from types import TracebackType
from typing import Literal, Self
from urllib.parse import parse_qs, urlsplit

Platform = Literal["aws", "gcp", "azure", "alibaba"]
Fault = Literal[
    "error",  # 500
    "unauthorised",  # 401, whatever the token
    "hang",  # no answer
    "drop",  # the connection ends without an answer
    "half",  # half the body, then the connection ends
    "cut",  # half the body, as if it were whole
    "huge",  # a body without end
    "drip",  # a body without end, a byte at a time
    "html",  # a page of text/html, as a hotel's network would answer
    "mislabelled",  # the right body, as application/octet-stream
    "redirect",  # 302 to /elsewhere
]
PLATFORMS: tuple[Platform, ...] = ("aws", "gcp", "azure", "alibaba")
TOKEN_HEADERS: dict[str, Platform] = {
    "x-aws-ec2-metadata-token": "aws",
    "x-aliyun-ecs-metadata-token": "alibaba",
}
PAGE = "<html><body>Please log in</body></html>"


@dataclass
class Answer:
    """What the service means to say."""

    status: int
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A request that came in."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


class FakeMetadata:
    """An async context manager: listens at `url` until its end.

    `platforms` are the dialects that it speaks; everything else is 404. `wall` is its clock.
    """

    def __init__(
        self,
        platforms: tuple[Platform, ...] = PLATFORMS,
        machine: str = "Spot-VM_3",
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.platforms = platforms
        self.machine = machine
        self.url = ""
        self.asked: list[Asked] = []
        self._wall = wall
        self._faults: list[tuple[str, Fault]] = []
        self._tokens: set[str] = set()
        self._numbers = itertools.count(1)
        self._aws_action: str = ""
        self._aws_rebalance: str = ""
        self._alibaba_time: str = ""
        self._gcp_preempted = False
        self._gcp_etag = 1
        self._azure_events: dict[str, dict[str, object]] = {}
        self._azure_incarnation = 1
        self._changed = asyncio.Condition()
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    # --- the script -------------------------------------------------------------------------------

    def aws_interrupt(self, in_s: float, action: str = "terminate") -> None:
        self._aws_action = json.dumps({"action": action, "time": self._rfc3339(in_s)})

    def aws_say(self, body: str) -> None:
        """Announce an interruption in these words."""
        self._aws_action = body

    def aws_recommend_rebalance(self) -> None:
        self._aws_rebalance = json.dumps({"noticeTime": self._rfc3339(0)})

    def aws_withdraw(self) -> None:
        self._aws_action = self._aws_rebalance = ""

    async def gcp_set(self, preempted: bool) -> None:
        async with self._changed:
            self._gcp_preempted = preempted
            self._gcp_etag += 1
            self._changed.notify_all()

    def azure_announce(
        self,
        event_id: str,
        in_s: float,
        kind: str = "Preempt",
        machines: tuple[str, ...] | None = None,
    ) -> None:
        not_before = format_datetime(self._moment(in_s), usegmt=True)
        self._azure_events[event_id] = {
            "EventId": event_id,
            "EventType": kind,
            "ResourceType": "VirtualMachine",
            "Resources": list(machines or (self.machine,)),
            "EventStatus": "Scheduled",
            "NotBefore": not_before,
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        self._azure_incarnation += 1

    def azure_start(self, event_id: str) -> None:
        self._azure_events[event_id] |= {"EventStatus": "Started", "NotBefore": ""}
        self._azure_incarnation += 1

    def azure_withdraw(self, event_id: str) -> None:
        del self._azure_events[event_id]
        self._azure_incarnation += 1

    def alibaba_release(self, in_s: float) -> None:
        self._alibaba_time = self._rfc3339(in_s)

    def alibaba_say(self, body: str) -> None:
        """Announce a release in these words."""
        self._alibaba_time = body

    def alibaba_withdraw(self) -> None:
        self._alibaba_time = ""

    def expire_tokens(self) -> None:
        """Take no token that was handed out so far."""
        self._tokens.clear()

    def break_with(self, fault: Fault, method_and_path: str = "") -> None:
        """Fail requests whose `METHOD /path` contains this, until `mend`."""
        self._faults.insert(0, (method_and_path, fault))

    def mend(self) -> None:
        self._faults.clear()

    def count(self, method_and_path: str) -> int:
        """How many such requests came in."""
        return sum(method_and_path in f"{asked.method} {asked.path}" for asked in self.asked)

    async def asked_again(self, method_and_path: str = "", times: int = 2) -> None:
        """Return when so many more such requests came in: then an earlier answer has been read."""
        goal = self.count(method_and_path) + times
        async with self._changed:
            await self._changed.wait_for(lambda: self.count(method_and_path) >= goal)

    # --- the dialects -----------------------------------------------------------------------------

    async def _answer(self, asked: Asked) -> Answer:
        if asked.path == "/latest/api/token" and asked.method == "PUT":
            return self._hand_out_token(asked)
        if asked.method != "GET":
            return Answer(405)
        if asked.path.startswith("/latest/meta-data/"):
            return self._with_token(asked)
        if asked.path == "/computeMetadata/v1/instance/preempted" and "gcp" in self.platforms:
            return await self._gcp(asked)
        if asked.path.startswith("/metadata/") and "azure" in self.platforms:
            return self._azure(asked)
        return Answer(404)

    def _hand_out_token(self, asked: Asked) -> Answer:
        for header, platform in TOKEN_HEADERS.items():
            life = asked.headers.get(f"{header}-ttl-seconds", "")
            if life and platform in self.platforms:
                if not life.isdigit() or not 1 <= int(life) <= 21600:
                    return Answer(400)
                token = f"{platform}-{next(self._numbers)}=="
                self._tokens.add(token)
                return Answer(200, token)
        return Answer(404)

    def _with_token(self, asked: Asked) -> Answer:
        for header, platform in TOKEN_HEADERS.items():
            token = asked.headers.get(header, "")
            if platform in self.platforms and token.startswith(platform):
                if token not in self._tokens:
                    return Answer(401)
                body = {
                    "aws/latest/meta-data/spot/instance-action": self._aws_action,
                    "aws/latest/meta-data/events/recommendations/rebalance": self._aws_rebalance,
                    "alibaba/latest/meta-data/instance/spot/termination-time": self._alibaba_time,
                }.get(platform + asked.path, "")
                return Answer(200, body) if body else Answer(404)
        return Answer(401)

    async def _gcp(self, asked: Asked) -> Answer:
        if asked.headers.get("metadata-flavor") != "Google":
            return Answer(403)
        if asked.query.get("wait_for_change") == "true":
            known = asked.query.get("last_etag", str(self._gcp_etag))
            try:
                async with asyncio.timeout(float(asked.query["timeout_sec"])), self._changed:
                    await self._changed.wait_for(lambda: str(self._gcp_etag) != known)
            except TimeoutError:
                pass  # answers with what has not changed
        headers = {"Metadata-Flavor": "Google", "ETag": str(self._gcp_etag)}
        return Answer(200, str(self._gcp_preempted).upper(), headers)

    def _azure(self, asked: Asked) -> Answer:
        if asked.headers.get("metadata") != "true" or "api-version" not in asked.query:
            return Answer(400)
        if asked.path == "/metadata/instance/compute/name":
            return Answer(200, self.machine)
        if asked.path == "/metadata/scheduledevents":
            events = list(self._azure_events.values())
            document = {"DocumentIncarnation": self._azure_incarnation, "Events": events}
            return Answer(200, json.dumps(document), {"Content-Type": "application/json"})
        return Answer(404)

    def _moment(self, in_s: float) -> datetime:
        return datetime.fromtimestamp(self._wall() + in_s, UTC)

    def _rfc3339(self, in_s: float) -> str:
        return self._moment(in_s).strftime("%Y-%m-%dT%H:%M:%SZ")

    # --- the wire ---------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            asked = _parse(await reader.readuntil(b"\r\n\r\n"))
            async with self._changed:
                self.asked.append(asked)
                self._changed.notify_all()
            what = f"{asked.method} {asked.path}"
            fault = next((fault for part, fault in self._faults if part in what), None)
            await _send(writer, await self._answer(asked), fault)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        except asyncio.CancelledError:
            pass  # the service ends
        finally:
            self._connections.discard(task)
            writer.close()


def _parse(head: bytes) -> Asked:
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    url = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(url.query).items()}
    return Asked(method, url.path, query, headers)


async def _send(writer: asyncio.StreamWriter, answer: Answer, fault: Fault | None) -> None:
    if fault == "error":
        answer = Answer(500, "internal error")
    elif fault == "unauthorised":
        answer = Answer(401)
    elif fault == "redirect":
        answer = Answer(302, "", {"Location": "/elsewhere"})
    elif fault == "html":
        answer = Answer(200, PAGE, {**answer.headers, "Content-Type": "text/html"})
    elif fault == "mislabelled":
        answer.headers["Content-Type"] = "application/octet-stream"
    elif fault == "cut":
        answer.body = answer.body[: len(answer.body) // 2]
    elif fault == "hang":
        await asyncio.Event().wait()
    elif fault == "drop":
        return
    body = answer.body.encode()
    headers = {"Content-Type": "text/plain", "Connection": "close", **answer.headers}
    if fault not in ("huge", "drip"):
        headers["Content-Length"] = str(len(body))
    lines = [f"HTTP/1.1 {answer.status} Said", *(f"{k}: {v}" for k, v in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    if fault == "half":
        body = body[: len(body) // 2]
    writer.write(body)
    await writer.drain()
    while fault in ("huge", "drip"):
        writer.write(b"x" * (16384 if fault == "huge" else 1))
        await writer.drain()
        await asyncio.sleep(0 if fault == "huge" else 0.01)
