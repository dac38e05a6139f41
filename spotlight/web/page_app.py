"""What the page's server answers.

| request | answer |
|---|---|
| `GET /` | the page; if a token is needed and none was shown, the one to sign in |
| `GET /static/FILE` | what the page consists of |
| `POST /session` | takes a token (a form with `token`) and gives a cookie for it |
| `GET /api/runs` | the runs there are, those that were written to last first |
| `GET /api/runs/NAME/view` | a `RunView` |
| `GET /api/runs/NAME/stream` | server-sent events: `view`, then each `change` |
| `GET /api/runs/NAME/time?from_s=&to_s=` | what workers did in that span of run time |
| `GET /files/NAME/PATH` | a picture in the run folder |
| `GET /healthz`, `GET /readyz`, `GET /metrics` | for those who watch over the cluster |

No request changes anything but who is signed in. Whatever is refused is answered with `error`, a
line that says why and what to do.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from urllib.parse import parse_qs, unquote

import msgspec
import structlog
from aiohttp import web

from spotlight.text import plain
from spotlight.web.broadcasting import Broadcasts
from spotlight.web.exposition import MEDIA_TYPE, exposition
from spotlight.web.page_guard import PageGuard
from spotlight.web.page_metrics import PageMetrics, families, nodes_there
from spotlight.web.refusing import Refused, busy, not_found
from spotlight.web.run_pictures import open_picture
from spotlight.web.run_summaries import Summaries
from spotlight.web.shown_runs import ShownRuns
from spotlight.web.static_files import PAGE, SIGN_IN, StaticFiles
from spotlight.web.worker_time import WantedTime, time_of

log = structlog.get_logger(__name__)

JSON = "application/json"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src"
    " 'self' data:; connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "Server": "Spotlight",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Every answer has these headers."""
_LARGEST_FORM = 4096
_FORM_LIMIT_S = 10.0
_CHECK_S = 1.0
"""A stream looks this often whether its viewer may still look."""
_BEAT_S = 10.0
"""A stream without anything to tell says so this often, so that nobody on the way ends it."""
_WRITE_LIMIT_S = 30.0
"""A client that takes nothing for so long is gone."""
_PIECE = 256 * 1024

Answer = Awaitable[web.StreamResponse]


class PageApp:
    """See the module's docstring."""

    def __init__(self, runs: ShownRuns, guard: PageGuard) -> None:
        self.refusals: Counter[int] = Counter()
        """Requests that were refused, by status of HTTP."""
        self.broadcasts = Broadcasts()
        self._runs = runs
        self._guard = guard
        self._static = StaticFiles()
        self._summaries = Summaries(runs)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request, whatever it is."""
        try:
            response = await self._answer(request)
        except Refused as error:
            self.refusals[error.status] += 1
            response = _json({"error": plain(error)}, error.status)
            response.headers.update(error.headers)
        except ConnectionError:  # nothing more can be said to it
            _abort(request)
            response = web.Response()
        except Exception as error:  # a fault of this server is no reason to end it
            log.exception("page_request_failed", path=request.path[:200])
            reason = f"this server has a fault ({type(error).__name__}); its log says more"
            response = _json({"error": reason}, HTTPStatus.INTERNAL_SERVER_ERROR)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._guard.check(request)
        steps = _steps(request)
        match request.method, steps:
            case "POST", ["session"]:
                return await self._sign_in(request)
            case "GET" | "HEAD", _:
                return await self._get(request, steps)
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"{request.method[:20]} does nothing here")

    async def _get(self, request: web.BaseRequest, steps: Sequence[str]) -> web.StreamResponse:
        match steps:
            case ["static", *rest]:
                return self._static.answer(request, "/".join(rest))
            case ["healthz"]:
                return web.Response(text="ok\n")
            case ["readyz"]:
                return await asyncio.to_thread(self._readiness)
            case [""]:
                return self._page(request)
        viewer = self._guard.viewer(request)
        match steps:
            case ["metrics"]:
                return await asyncio.to_thread(self._metrics)
            case ["api", "runs"]:
                return _json(await asyncio.to_thread(self._summaries.summaries))
            case ["api", "runs", name, "view"]:
                return await self._view(name)
            case ["api", "runs", name, "time"]:
                return await self._time(name, request)
            case ["api", "runs", name, "stream"] if request.method == "GET":
                return await self._stream(name, request, viewer)
            case ["files", name, *rest]:
                return await self._picture(name, rest, request)
        raise not_found("there is nothing here")

    def _page(self, request: web.BaseRequest) -> web.Response:
        try:
            self._guard.viewer(request)
        except Refused as error:
            return self._static.answer(request, SIGN_IN, error.status)
        return self._static.answer(request, PAGE)

    def _readiness(self) -> web.Response:
        """Whether jobs can run: a coordinator is at work here and has a node at least."""
        nodes = nodes_there(self._runs.folder, self._summaries.latest(), time.time())
        if nodes:
            return web.Response(text=f"ready: {len(nodes)} nodes\n")
        raise busy("no coordinator has accounted for any node here for a minute", 10)

    def _metrics(self) -> web.Response:
        own = PageMetrics(
            page_viewers=self.broadcasts.viewers,
            page_runs_followed=self.broadcasts.followed,
            page_told_anew_total=self.broadcasts.told_anew,
            page_refused_total=self.refusals.total(),
        )
        text = exposition(families(self._summaries.latest(), own, time.time()))
        return web.Response(body=text.encode(), headers={"Content-Type": MEDIA_TYPE})

    async def _sign_in(self, request: web.BaseRequest) -> web.Response:
        cookies, admission = self._guard.cookies, self._guard.admission
        if cookies is None or admission is None:
            raise not_found("nobody needs to sign in here")
        name = admission.name_of(await _token_in(request))
        response = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "/"})
        response.set_cookie(
            self._guard.cookie_name,
            cookies.bake(name),
            httponly=True,
            samesite="Strict",
            secure=self._guard.scheme == "https",
        )
        return response

    async def _view(self, name: str) -> web.Response:
        async with self.broadcasts.viewing(self._runs.find(name)) as (run, _):
            return _json(run.view())

    async def _time(self, name: str, request: web.BaseRequest) -> web.Response:
        folder = self._runs.find(name)
        wanted = WantedTime(_number(request, "from_s"), _number(request, "to_s"))
        async with self.broadcasts.viewing(folder) as (run, _):
            return _json(await asyncio.to_thread(time_of, folder, run.view(), wanted))

    async def _picture(
        self, name: str, steps: Sequence[str], request: web.BaseRequest
    ) -> web.StreamResponse:
        picture = await asyncio.to_thread(open_picture, self._runs.find(name), steps)
        with picture.file:
            headers = {"ETag": picture.tag, "Cache-Control": "private, no-cache", **_HEADERS}
            if request.headers.get("If-None-Match") == picture.tag:
                return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
            response = web.StreamResponse(headers=headers)
            response.content_type = picture.media_type
            response.content_length = picture.nbytes
            await response.prepare(request)
            left = 0 if request.method == "HEAD" else picture.nbytes
            while piece := await asyncio.to_thread(picture.file.read, min(left, _PIECE)):
                left -= len(piece)
                await _write(request, response, piece)
            if left and request.method != "HEAD":  # it is shorter now
                _abort(request)
            return response

    async def _stream(self, name: str, request: web.BaseRequest, viewer: str) -> web.StreamResponse:
        async with self.broadcasts.viewing(self._runs.find(name)) as (_, viewing):
            response = web.StreamResponse(
                headers={
                    "Content-Type": "text/event-stream",
                    "Cache-Control": "no-store",
                    "X-Accel-Buffering": "no",  # what buffers on the way would keep all of it
                    **_HEADERS,
                }
            )
            response.force_close()
            await response.prepare(request)
            try:
                await self._tell(viewing.next, request, response, viewer)
            except Refused as error:
                data = msgspec.json.encode({"error": plain(error), "status": error.status})
                await _write(request, response, b"event: end\ndata: %b\n\n" % data)
            return response

    async def _tell(
        self,
        following: Callable[[float], Awaitable[bytes]],
        request: web.BaseRequest,
        response: web.StreamResponse,
        viewer: str,
    ) -> None:
        now = asyncio.get_running_loop().time
        checked = told = now()
        while True:
            event = await following(_CHECK_S)
            if now() - checked >= _CHECK_S:
                checked = now()
                self._guard.still_looks(viewer)
            if not event and now() - told >= _BEAT_S:
                event = b": nothing new\n\n"
            if event:
                told = now()
                await _write(request, response, event)


async def _write(request: web.BaseRequest, response: web.StreamResponse, data: bytes) -> None:
    """Send it; end the connection of a client that does not take it."""
    try:
        async with asyncio.timeout(_WRITE_LIMIT_S):
            await response.write(data)
    except TimeoutError as error:
        _abort(request)
        raise ConnectionResetError("the client takes nothing") from error


def _abort(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()


async def _token_in(request: web.BaseRequest) -> str:
    """What the form says. Raises `Refused`."""
    body = bytearray()
    try:
        async with asyncio.timeout(_FORM_LIMIT_S):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > _LARGEST_FORM:
                    raise Refused(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                        f"the form has more than {_LARGEST_FORM:,} bytes",
                    )
    except TimeoutError as error:
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, "the form did not come in time") from error
    fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=4)
    return fields.get("token", [""])[0].strip()


def _steps(request: web.BaseRequest) -> list[str]:
    """The path, one step after the other; a slash that is part of a step stays in it."""
    path = request.rel_url.raw_path.removeprefix("/")
    return [unquote(step, errors="surrogateescape") for step in path.split("/")]


def _number(request: web.BaseRequest, name: str) -> float | None:
    """A number of the query; None if it says none. Raises `Refused`."""
    text = request.query.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Refused(HTTPStatus.BAD_REQUEST, f"{name}: must be a number of seconds")
    return value


def _json(said: object, status: int = HTTPStatus.OK) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    body = msgspec.json.encode(said)
    return web.Response(body=body, status=status, content_type=JSON, headers=headers)
