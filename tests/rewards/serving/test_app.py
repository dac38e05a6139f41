"""What the service answers; requests reach it without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest

from spotlight.errors import ScoringError
from spotlight.rewards.endpoint import Endpoint, Poster
from spotlight.rewards.http_scorer import HttpScorer
from spotlight.rewards.schema import image_to_score
from spotlight.rewards.serving.app import Service
from spotlight.rewards.serving.batching import Batcher
from spotlight.types import Prompt
from tests.rewards.serving.served import Mean, SourceBytes, Told

URL = "http://service.test"
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).astype(np.uint8)


@pytest.fixture
def service() -> Iterator[Any]:
    batchers = []

    def make(scorer: Any, *, most_waiting: int = 100, **options: Any) -> httpx2.ASGITransport:
        batcher = Batcher(scorer, largest_batch=8, most_waiting=most_waiting)
        batchers.append(batcher)
        made = Service(batcher, name="tests:Mean", **{"largest_request": 10**6, **options})
        return httpx2.ASGITransport(made.app())

    yield make
    for batcher in batchers:
        batcher.close()


def scorer_of(transport: httpx2.ASGITransport, **options: Any) -> HttpScorer:
    return HttpScorer(Poster(Endpoint(f"{URL}/score", attempts=1, **options), transport=transport))


def request(
    transport: httpx2.ASGITransport, method: str, path: str, **options: Any
) -> httpx2.Response:
    async def send() -> httpx2.Response:
        async with httpx2.AsyncClient(transport=transport) as client:
            return await client.request(method, f"{URL}{path}", **options)

    return asyncio.run(send())


def body(*images: Any) -> bytes:
    return msgspec.json.encode({"version": 1, "images": images})


def test_what_it_answers_is_what_the_scorer_gives_in_process(service: Any) -> None:
    prompts = [Prompt("a")] * 3
    assert scorer_of(service(Mean())).score(IMAGES, prompts) == Mean().score(IMAGES, prompts)


def test_metadata_reach_the_scorer(service: Any) -> None:
    prompts = [Prompt("a", {"reward": value}) for value in (1.5, -2.0, 20.0)]
    assert scorer_of(service(Told())).score(IMAGES, prompts) == [1.5, -2.0, 20.0]


def test_the_image_that_was_to_be_changed_reaches_the_scorer(service: Any) -> None:
    prompts = [Prompt("a", image=b"three"), Prompt("b")]
    assert scorer_of(service(SourceBytes())).score(IMAGES[:2], prompts) == [5.0, 0.0]


def test_an_image_that_the_scorer_fails_on_is_a_null_with_its_reason(service: Any) -> None:
    prompts = [Prompt("a", {"reward": 1}), Prompt("fail"), Prompt("b", {"reward": 2})]
    with pytest.raises(ScoringError, match=r"1 of 3 images .* 1-\w+: it is told to fail"):
        scorer_of(service(Told())).score(IMAGES, prompts)


def test_a_damaged_image_is_a_null_and_the_others_are_scored(service: Any) -> None:
    good = image_to_score(0, IMAGES[0], Prompt("a"), "png")
    bad = {"id": "bad", "prompt": "a", "format": "png", "image": "AAAA"}
    answer = request(service(Mean()), "POST", "/score", content=body(good, bad)).json()
    first, second = answer["rewards"]
    assert first == {"id": good.id, "reward": float(IMAGES[0].mean() / 255)}
    assert second["reward"] is None
    assert "not a png file" in second["reason"]


def test_health_says_what_is_served_and_how_it_goes(service: Any) -> None:
    transport = service(Mean())
    scorer_of(transport).score(IMAGES, [Prompt("a")] * 3)
    health = request(transport, "GET", "/health").json()
    assert health.pop("scoring") in (0, 3)  # the thread may not have looked up yet
    assert health == {
        "version": 1,
        "scorer": "tests:Mean",
        "waiting": 0,
        "scored": 3,
        "failed": 0,
    }


def test_a_request_without_the_authorization_is_refused_and_health_is_not(service: Any) -> None:
    transport = service(Mean(), authorization="Bearer sesame")
    for given in (None, "Bearer other", "Bearer sesame ", "sésame"):
        with pytest.raises((ScoringError, UnicodeEncodeError)) as refused:
            scorer_of(transport, authorization=given).score(IMAGES, [Prompt("a")] * 3)
        if isinstance(refused.value, ScoringError):
            assert "status 401" in str(refused.value)
    assert scorer_of(transport, authorization="Bearer sesame").score(IMAGES[:1], [Prompt("a")])
    assert request(transport, "GET", "/health").status_code == 200


def test_a_request_that_is_too_large_is_refused(service: Any) -> None:
    transport = service(Mean(), largest_request=100)
    with pytest.raises(ScoringError, match=r"status 413: .*more than 100 bytes"):
        scorer_of(transport).score(IMAGES, [Prompt("a")] * 3)


def test_when_too_many_images_wait_the_client_is_told_to_come_again(service: Any) -> None:
    transport = service(Mean(), most_waiting=1)
    answer = request(
        transport,
        "POST",
        "/score",
        content=body(*(image_to_score(row, IMAGES[row], Prompt("a"), "png") for row in range(3))),
    )
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"version": 2, "images": []}', "is of version 2"),
        (b'{"version": 1, "images": []}', "no images"),
        (b"not JSON", "malformed"),
        (b'{"version": 1, "images": [], "scale": 10}', "unknown field `scale`"),
        (b'{"version": 1, "images": [{"id": "0", "mask": ""}]}', "unknown field `mask`"),
    ],
)
def test_a_request_of_another_version_or_shape_is_refused(
    service: Any, content: bytes, problem: str
) -> None:
    answer = request(service(Mean()), "POST", "/score", content=content)
    assert answer.status_code == 400
    assert problem in answer.json()["error"]
    assert answer.json()["version"] == 1


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/score", 405), ("POST", "/other", 404)]
)
def test_what_is_not_there_is_refused_in_the_schema_too(
    service: Any, method: str, path: str, status: int
) -> None:
    answer = request(service(Mean()), method, path)
    assert answer.status_code == status
    assert set(answer.json()) == {"version", "error"}
