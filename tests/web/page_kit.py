"""Runs on disk, the page's server over them, and a browser's part of the conversation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from spotlight.record.run_metrics import IterationMetrics
from spotlight.web.admission import Admission
from spotlight.web.page_server import PageServer, PageSettings
from spotlight.web.shown_runs import ShownRuns
from tests.small_run import write_run

LIMIT = aiohttp.ClientTimeout(total=20)


class WrittenRun:
    """A run folder that somebody writes."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        folder.parent.mkdir(exist_ok=True)
        self.folder = write_run(folder, **changes)
        self.iteration = 0
        self.time_s = 0.0
        self.event("run_started", job=folder.name)

    def iterate(self, count: int = 1, reward: float = 0.5) -> None:
        """So many iterations more are done."""
        for _ in range(count):
            self.time_s += 1.0
            done = IterationMetrics(
                iteration=self.iteration, time_s=self.time_s, reward_mean=reward, loss=0.1
            )
            line = {"kind": "iteration", **{k: getattr(done, k) for k in done.__struct_fields__}}
            self.append("metrics.jsonl", json.dumps(line))
            self.iteration += 1

    def validate(self, score: float) -> None:
        """The latest weights have this score."""
        line = {
            "kind": "validation",
            "time_s": self.time_s,
            "weights_version": self.iteration,
            "iteration": self.iteration,
            "score": score,
        }
        self.append("metrics.jsonl", json.dumps(line))

    def event(self, name: str, **fields: Any) -> None:
        """Something has happened."""
        self.append("events.jsonl", json.dumps({"time_s": self.time_s, "event": name, **fields}))

    def append(self, file: str, line: str, end: str = "\n") -> None:
        """A line, or a part of one."""
        with open(self.folder / file, "a", encoding="utf-8") as opened:
            opened.write(line + end)


class Page:
    """What a browser does."""

    def __init__(self, url: str, client: aiohttp.ClientSession) -> None:
        self.url = url
        self.client = client

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """The status and what was said: decoded if it is JSON."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.get(self.url + path, headers=named) as answer:
            if answer.content_type == "application/json":
                return answer.status, await answer.json()
            return answer.status, await answer.read()

    async def until(self, path: str, is_so: Callable[[int, Any], bool]) -> None:
        """Ask until the answer is so."""
        async with asyncio.timeout(20):
            while not is_so(*await self.get(path)):  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(0.02)

    async def view(self, run: str) -> dict[str, Any]:
        """That of a run."""
        status, said = await self.get(f"api/runs/{run}/view")
        assert status == 200, said
        assert isinstance(said, dict)
        return said

    @asynccontextmanager
    async def stream(self, run: str, **headers: str) -> AsyncIterator[Stream]:
        """What is told of a run."""
        async with self.client.get(
            f"{self.url}api/runs/{run}/stream", headers=headers, timeout=LIMIT
        ) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type == "text/event-stream"
            yield Stream(answer)


class Stream:
    """Server-sent events."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self._rest = b""
        self.view: dict[str, Any] = {}
        """What a page shows after all that was told."""

    async def next(self) -> tuple[str, int | None, Any]:
        """The next event: its name, its number and its data. Raises `EOFError` at the end."""
        fields: dict[str, str] = {}
        while True:
            line = (await self._line()).decode().rstrip("\n")
            if not line and fields:
                number = int(fields["id"]) if "id" in fields else None
                name, data = fields["event"], json.loads(fields["data"])
                if name in ("view", "change"):
                    self.view = data if name == "view" else changed(self.view, data)
                return name, number, data
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value

    async def until(self, **wanted: Any) -> dict[str, Any]:
        """The view, once these fields of its job are so."""
        while not self.view or any(self.view["job"][it] != wanted[it] for it in wanted):
            await self.next()
        return self.view

    async def _line(self) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n"):
            piece = await self._answer.content.readany() if not self._rest else self._rest
            if not piece:
                raise EOFError
            until, separator, self._rest = piece.partition(b"\n")
            line += until + separator
        return bytes(line)


def changed(view: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A view after a change, as a page makes it."""
    change = dict(change)
    if "rows" in change:
        change["rows"] = [*view["rows"][: change.pop("rows_from")], *change["rows"]]
    return {**view, **change}


@asynccontextmanager
async def serving(
    runs: Path, *, admission: Admission | None = None, only: str = "", **options: Any
) -> AsyncIterator[tuple[PageServer, Page]]:
    """The server, and somebody who looks."""
    settings = PageSettings(ShownRuns(runs, only), admission=admission, **options)
    server = PageServer(settings)
    await asyncio.to_thread(server.start)
    try:
        async with aiohttp.ClientSession(timeout=LIMIT) as client:
            yield server, Page(server.url, client)
    finally:
        await asyncio.to_thread(server.close)
