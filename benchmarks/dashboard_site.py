"""A small site that serves the page with made-up runs, at any number of changes a second.

It speaks as `spotlight dashboard` does, with the same policy for content, and counts what it sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

import spotlight
from benchmarks.dashboard_views import picture
from spotlight.report.run_view import RunView

STATIC = Path(spotlight.__file__).parent / "web" / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Site:
    """Serves these runs, by name. `per_s` changes a second are sent of each that is followed."""

    def __init__(self, runs: dict[str, RunView], per_s: float = 0.0) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.per_s = per_s
        self.url = ""
        self.sent = 0
        """Changes that were sent to all viewers together."""
        self.refuses = ""
        """Why nothing is granted now; empty if it is."""
        self.asked: list[str] = []
        """The paths that were asked for, with their queries."""
        self._streams: set[asyncio.Task[Any]] = set()
        self._queues: dict[str, list[asyncio.Queue[tuple[int, dict[str, Any]]]]] = {}
        self._numbers: dict[str, int] = {}
        for name, view in runs.items():
            self.add(name, view)

    def add(self, name: str, view: RunView) -> None:
        """Serve another run."""
        self.runs[name] = msgspec.to_builtins(view)
        self._numbers[name] = 1

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serve while the context lasts; gives the address."""
        app = web.Application(middlewares=[self._guarded])
        app.router.add_get("/", self._page)
        app.router.add_static("/static", STATIC)
        app.router.add_get("/api/runs", self._list)
        app.router.add_get("/api/runs/{name}/view", self._view)
        app.router.add_get("/api/runs/{name}/stream", self._stream)
        app.router.add_get("/api/runs/{name}/time", self._time)
        app.router.add_get("/files/{name}/{folder}/{file}", self._picture)
        runner = web.AppRunner(app, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/"
        changing = asyncio.create_task(self._change_on())
        try:
            yield self.url
        finally:
            changing.cancel()
            self.drop()
            await runner.cleanup()

    def change(self, name: str, change: dict[str, Any]) -> None:
        """Send a change of a run to all that follow it."""
        view = self.runs[name]
        for field, value in change.items():
            if field == "rows_from":
                continue
            if field == "rows" and "rows_from" in change:
                view["rows"] = [*view["rows"][: change["rows_from"]], *value]
            else:
                view[field] = value
        self._numbers[name] += 1
        for queue in self._queues.get(name, ()):
            queue.put_nowait((self._numbers[name], change))
            self.sent += 1

    def drop(self) -> None:
        """End all streams."""
        for stream in self._streams:
            stream.cancel()

    async def _change_on(self) -> None:
        loop = asyncio.get_running_loop()
        begun, count = loop.time(), 0
        while self.per_s:
            count += 1
            await asyncio.sleep(max(0.0, begun + count / self.per_s - loop.time()))
            for name in self.runs:
                if self._queues.get(name):
                    self.change(name, self._next(name, count))

    def _next(self, name: str, count: int) -> dict[str, Any]:
        """What changes: always the job, sometimes money, often a row, areas and lanes."""
        view = self.runs[name]
        job = view["job"] | {
            "time_s": view["job"]["time_s"] + 1 / self.per_s,
            "phase": f"rollouts {count % 64} of 64",
        }
        change: dict[str, Any] = {"job": job}
        if count % 5 == 0:
            paid = view["money"]
            change["money"] = paid | {"spent": (paid["spent"] or 0) + 0.001}
        if count % 10 == 0 and view["rows"]:
            last = list(view["rows"][-1])
            rows = [[last[0] + 1, last[1] + 1, (last[2] or 0) + 0.01, *last[3:]]]
            # As the builder does, the number of rows stays bounded.
            place = len(view["rows"]) if len(view["rows"]) < 1000 else 999
            change |= {"rows_from": place, "rows": rows}
        if count % 25 == 0:
            change |= {"areas": view["areas"], "lanes": view["lanes"], "nodes": view["nodes"]}
        return change

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(request.path_qs)
        if self.refuses and request.path.startswith("/api"):
            return web.json_response({"error": self.refuses}, status=503)
        response: web.StreamResponse = await handler(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html")

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(
            [
                {
                    "name": name,
                    "outcome": view["job"]["outcome"],
                    "iteration": view["job"]["iteration"],
                    "iterations": view["job"]["iterations"],
                    "validation": view["validation"]["latest"],
                    "spent": view["money"]["spent"],
                }
                for name, view in self.runs.items()
            ]
        )

    def _of(self, request: web.Request) -> dict[str, Any]:
        name = request.match_info["name"]
        if name not in self.runs:
            raise web.HTTPNotFound(text=f"there is no run `{name}`")
        view: dict[str, Any] = self.runs[name]
        return view

    async def _view(self, request: web.Request) -> web.Response:
        return web.json_response(self._of(request))

    async def _time(self, request: web.Request) -> web.Response:
        view = self._of(request)
        return web.json_response({"areas": view["areas"], "lanes": view["lanes"]})

    async def _picture(self, request: web.Request) -> web.Response:
        stem = request.match_info["file"].removesuffix(".png")
        version, _, seed = stem.partition("-")
        is_thumbnail = request.match_info["folder"] == "thumbnails"
        size = (192, 128) if is_thumbnail else (768, 512)
        return web.Response(body=picture(int(version), int(seed), size), content_type="image/png")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        view = self._of(request)
        name = request.match_info["name"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[tuple[int, dict[str, Any]]] = asyncio.Queue()
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        self._queues.setdefault(name, []).append(queue)
        with suppress(ConnectionError):
            try:
                await response.write(_event(self._numbers[name], "view", view))
                while True:
                    number, change = await queue.get()
                    await response.write(_event(number, "change", change))
            except asyncio.CancelledError:
                pass  # it was dropped: the connection ends
            finally:
                self._streams.discard(task)
                self._queues[name].remove(queue)
        return response


def _event(number: int, name: str, data: object) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (number, name.encode(), msgspec.json.encode(data))
