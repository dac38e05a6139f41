"""The HTTP twin of `Rollouts`, for programs in other languages.

| request | does |
|---|---|
| `PUT /policies/VERSION?kind=full` | publishes weights: the body is a safetensors file |
| `POST /rollouts` | makes a prompt group and answers with it (`http_messages`) |
| `GET /fleet` | says what there is, and what was done |

A group whose weights no worker has yet is answered with 409 and `Retry-After` at once. A group is
made once for each id: a client that asks again, because the answer was lost or is not there yet,
gets the same group. The latest groups are remembered; older ones are forgotten. Answers are JSON,
or MessagePack for clients that accept it.

Every request bears the token that the program and its clients share, and comes from this machine or
over TLS; `http_guard` refuses others.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Literal

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spotlight.errors import (
    JobError,
    SessionEnded,
    SpotlightError,
    TransferFailed,
    UserError,
    VersionGone,
)
from spotlight.http_guard import HttpGuard
from spotlight.rollouts.groups import Group, RolloutRequest, Sample
from spotlight.rollouts.http_messages import (
    JSON,
    MSGPACK,
    VERSION,
    Array,
    FailedSeed,
    MadeGroup,
    MadeSample,
    Problem,
    WantedGroup,
)
from spotlight.rollouts.rollouts import Rollouts
from spotlight.rollouts.versions import AtLeast, Exactly, choose_version

if TYPE_CHECKING:
    from torch import Tensor

_TOKEN = "SPOTLIGHT_TWIN_TOKEN"
_SHORTEST_TOKEN = 20
_RETRY_S = 1
_LARGEST = 1 << 20
"""Bytes of a group that is asked for."""
_REMEMBERED = 1024
"""Groups that are done, and may be asked for again."""
_BODY_LIMIT_S = 60.0
"""The longest from the head of a request to the end of its body, with what its size takes besides.
"""
_SLOWEST_BYTES_PER_S = 1e6


class _TooSlow(SpotlightError):
    """A client takes too long to say what it wants."""


_STATUS = {
    VersionGone: 410,
    SessionEnded: 503,
    UserError: 400,
    TransferFailed: 400,
    _TooSlow: 408,
}


def rollout_app(
    open_rollouts: Callable[[], AbstractAsyncContextManager[Rollouts]],
    *,
    token: str | None = None,
    hosts: Collection[str] = (),
    plain: bool = False,
) -> Starlette:
    """An application for any ASGI server; the session lasts as long as it runs.

    app = rollout_app(lambda: Rollouts.connect(model=..., sampler=...))

    Args:
        open_rollouts: begins the session.
        token: that every request bears (`Authorization: Bearer TOKEN`); by default what the
            environment variable SPOTLIGHT_TWIN_TOKEN holds.
        hosts: names by which clients call this server, besides its address.
        plain: take requests of other machines without TLS: their network is private, or a proxy
            encrypts.

    Raises `UserError` if there is no token, or one that is easily guessed.
    """
    guard = Middleware(HttpGuard, token=_checked_token(token), hosts=hosts, plain=plain)
    service = _Service()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with open_rollouts() as rollouts:
            service.rollouts = rollouts
            try:
                yield
            finally:
                await service.aclose()

    return Starlette(
        routes=[
            Route("/policies/{version:int}", service.publish, methods=["PUT"]),
            Route("/rollouts", service.rollout, methods=["POST"]),
            Route("/fleet", service.fleet, methods=["GET"]),
        ],
        middleware=[guard],
        exception_handlers={SpotlightError: _refusal},
        lifespan=lifespan,
    )


def _checked_token(token: str | None) -> str:
    found = os.environ.get(_TOKEN, "") if token is None else token
    if not re.fullmatch(f"[!-~]{{{_SHORTEST_TOKEN},}}", found):
        raise UserError(
            f"token: give {_SHORTEST_TOKEN} or more letters and digits that nobody can guess, as"
            f" `token` or in the environment variable {_TOKEN}; `openssl rand -hex 20` makes some"
        )
    return found


class _Service:
    rollouts: Rollouts

    def __init__(self) -> None:
        self._groups: OrderedDict[str, tuple[WantedGroup, asyncio.Task[Group]]] = OrderedDict()
        """What was asked for, by its id; the last to be asked for stands last."""

    async def aclose(self) -> None:
        """Make nothing more."""
        tasks = [task for _, task in self._groups.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def publish(self, request: Request) -> Response:
        """See the module's docstring."""
        from spotlight.transport.tensors.bundles import unpack

        body = await _body(request, self.rollouts.largest_publication)
        weights = await asyncio.to_thread(unpack, body)
        kind: Literal["full", "lora"] = (
            "lora" if request.query_params.get("kind") == "lora" else "full"
        )
        version = request.path_params["version"]
        await self.rollouts.publish(weights, version, kind)
        return _answer(request, {"version": version})

    async def rollout(self, request: Request) -> Response:
        """See the module's docstring."""
        wanted = await _read(request)
        known = self._groups.get(wanted.id)
        if known is not None and known[0] != wanted:
            raise JobError("id", f"`{wanted.id}` belongs to another group; give each its own")
        if known is None:
            asked = _request(wanted)
            capacity = await self.rollouts.capacity()
            published = self.rollouts.versions
            if choose_version(asked.version, published) is None or not capacity.ready_workers:
                problem = Problem("no worker has these weights yet; ask again in a moment")
                return _answer(request, problem, 409, {"Retry-After": str(_RETRY_S)})
            known = self._groups.get(wanted.id)  # somebody else may have asked meanwhile
        if known is None:
            known = self._groups[wanted.id] = wanted, asyncio.create_task(self._make(asked))
        self._groups.move_to_end(wanted.id)
        self._forget()
        try:
            group = await asyncio.shield(known[1])
        except SpotlightError:
            self._groups.pop(wanted.id, None)  # it may be tried again
            raise
        return _answer(request, _made(wanted.id, group))

    async def fleet(self, request: Request) -> Response:
        """See the module's docstring."""
        capacity, usage = await self.rollouts.capacity(), await self.rollouts.usage()
        return _answer(request, {"capacity": capacity, "usage": usage})

    async def _make(self, wanted: RolloutRequest) -> Group:
        async with self.rollouts.rollout([wanted]) as stream:
            return await anext(stream)

    def _forget(self) -> None:
        done = [key for key, (_, task) in self._groups.items() if task.done()]
        for key in done[: max(0, len(done) - _REMEMBERED)]:
            del self._groups[key]


async def _body(request: Request, most: int) -> bytes:
    """No more is held of a body than may be in it, and for no longer than that may take."""
    body, limit_s = bytearray(), _BODY_LIMIT_S + most / _SLOWEST_BYTES_PER_S
    try:
        async with asyncio.timeout(limit_s):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise JobError("body", f"is larger than {most:,} bytes")
    except TimeoutError as error:
        raise _TooSlow(f"the body did not come within {limit_s:.0f} s") from error
    return bytes(body)


async def _read(request: Request) -> WantedGroup:
    body = await _body(request, _LARGEST)
    try:
        if request.headers.get("content-type", JSON).startswith(MSGPACK):
            return msgspec.msgpack.decode(body, type=WantedGroup)
        return msgspec.json.decode(body, type=WantedGroup)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise JobError("body", f"is not a valid group: {error}") from error


def _request(wanted: WantedGroup) -> RolloutRequest:
    if wanted.at_least is not None and wanted.exactly is not None:
        raise JobError("exactly", "cannot be given together with `at_least`; give one of them")
    version = AtLeast(wanted.at_least or 0) if wanted.exactly is None else Exactly(wanted.exactly)
    return RolloutRequest(
        wanted.prompt,
        wanted.seeds,
        version,
        wanted.images,
        wanted.steps,
        wanted.window_start,
        wanted.metadata,
    )


def _made(group_id: str, group: Group) -> MadeGroup:
    return MadeGroup(
        VERSION,
        group_id,
        group.policy_version,
        tuple(map(_sample, group.samples)),
        tuple(FailedSeed(each.seed, each.reason) for each in group.failed),
    )


def _sample(sample: Sample) -> MadeSample:
    return MadeSample(
        sample.seed,
        sample.reward,
        dict(sample.rewards),
        sample.attempts,
        sample.resumed_at_step,
        sample.image,
        _array(sample.latents),
        _array(sample.states),
        _array(sample.log_probs),
    )


def _array(tensor: Tensor | None) -> Array | None:
    if tensor is None:
        return None
    return Array(tuple(tensor.shape), tensor.contiguous().numpy().astype("<f4").tobytes())


def _answer(
    request: Request, said: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    if MSGPACK in request.headers.get("accept", ""):
        return Response(msgspec.msgpack.encode(said), status, headers, MSGPACK)
    return Response(msgspec.json.encode(said), status, headers, JSON)


async def _refusal(request: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    return _answer(request, Problem(str(error)), status)
