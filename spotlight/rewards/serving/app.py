"""The web application around a scorer: `POST /score` and `GET /health`."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spotlight.http_guard import HttpGuard
from spotlight.rewards.schema import (
    VERSION,
    ImageScore,
    ImageToScore,
    Refusal,
    ScoreAnswer,
    ScoreRequest,
    decode_image,
    prompt_of,
    read_request,
)
from spotlight.rewards.serving.batching import Batcher, Outcome, Overloaded

_BODY_LIMIT_S = 300
"""The longest from the head of a request to the end of its body."""


class Service:
    """Answers requests with what a batcher's scorer gives."""

    def __init__(
        self,
        batcher: Batcher,
        *,
        name: str,
        largest_request: int,
        authorization: str | None = None,
        hosts: Collection[str] | None = None,
    ) -> None:
        """`name` is the scorer's, `largest_request` in bytes; `authorization` is the value of the
        header that requests to score must bear; `hosts` as `HttpGuard` has it.
        """
        self._batcher = batcher
        self._name = name
        self._largest_request = largest_request
        self._authorization = authorization
        self._hosts = hosts

    def app(self) -> Starlette:
        """To be run by any ASGI server."""
        return Starlette(
            routes=[
                Route("/score", self._score, methods=["POST"]),
                Route("/health", self._health, methods=["GET"]),
            ],
            middleware=[Middleware(HttpGuard, hosts=self._hosts, plain=True)],
            exception_handlers={HTTPException: _refusal},
        )

    async def _health(self, request: Request) -> Response:
        batcher = self._batcher
        return _json(
            {
                "version": VERSION,
                "scorer": self._name,
                "waiting": batcher.waiting,
                "scoring": batcher.scoring,
                "scored": batcher.scored,
                "failed": batcher.failed,
            }
        )

    async def _score(self, request: Request) -> Response:
        self._require_authorization(request)
        wanted = await self._read(request)
        images = await asyncio.to_thread(_decode_all, wanted.images)
        outcomes = await self._outcomes(request, wanted.images, images)
        rewards = tuple(
            ImageScore(id=image.id, reward=outcome.reward, reason=outcome.reason)
            for image, outcome in zip(wanted.images, outcomes, strict=True)
        )
        return _json(ScoreAnswer(version=VERSION, rewards=rewards))

    def _require_authorization(self, request: Request) -> None:
        given = request.headers.get("authorization", "")
        if self._authorization is not None and not hmac.compare_digest(
            given.encode(), self._authorization.encode()
        ):
            raise HTTPException(401, "the Authorization header is missing or wrong")

    async def _read(self, request: Request) -> ScoreRequest:
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_LIMIT_S):
                async for part in request.stream():
                    body += part
                    if len(body) > self._largest_request:
                        raise HTTPException(
                            413,
                            f"the request has more than {self._largest_request:,} bytes; send fewer"
                            " images at a time",
                        )
        except TimeoutError as error:
            raise HTTPException(408, f"the body did not come within {_BODY_LIMIT_S} s") from error
        try:
            return read_request(bytes(body))
        except ValueError as error:
            raise HTTPException(400, str(error)) from error

    async def _outcomes(
        self,
        request: Request,
        wanted: Sequence[ImageToScore],
        images: Sequence[np.ndarray | Outcome],
    ) -> list[Outcome]:
        """Of each image; what could not be decoded is one already."""
        good = [row for row, image in enumerate(images) if not isinstance(image, Outcome)]
        try:
            futures = self._batcher.submit(
                [image for image in images if not isinstance(image, Outcome)],
                [prompt_of(wanted[row]) for row in good],
            )
        except Overloaded as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from error
        all_scored = asyncio.gather(*map(asyncio.wrap_future, futures))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait((all_scored, gone), return_when=asyncio.FIRST_COMPLETED)
            if not all_scored.done():
                raise HTTPException(400, "the client no longer waits for the answer")
            scored = iter(all_scored.result())
            return [image if isinstance(image, Outcome) else next(scored) for image in images]
        finally:
            gone.cancel()
            all_scored.cancel()


async def _disconnected(request: Request) -> None:
    """Returns when the client has gone: it asks again elsewhere, or has given up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _decode_all(images: Sequence[ImageToScore]) -> list[np.ndarray | Outcome]:
    decoded: list[np.ndarray | Outcome] = []
    for image in images:
        try:
            decoded.append(decode_image(image.image, image.format))
        except ValueError as error:
            decoded.append(Outcome(None, f"the image {error}"))
    return decoded


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = _json(Refusal(version=VERSION, error=error.detail), error.status_code)
    answer.headers.update(error.headers or {})
    return answer


def _json(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
