"""The HTTP twin over a simulated cluster: versions, ids, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import safetensors.torch
import torch
from session_kit import PROMPT, simulate
from test_rollouts import opened

from spotlight.errors import UserError
from spotlight.rollouts.http_twin import rollout_app
from spotlight.rollouts.publication import Publications
from spotlight.rollouts.rollouts import Rollouts
from spotlight.transport.tensors import BundleStore
from spotlight_simulation.memory_cluster import Cluster

TOKEN = "a-token-of-the-clients"
GROUP: dict[str, Any] = {"id": "a", "prompt": PROMPT, "seeds": [0, 1, 2]}


@asynccontextmanager
async def client(cluster: Cluster) -> AsyncIterator[tuple[httpx2.AsyncClient, Rollouts]]:
    """One that talks to the application, whose session is there."""
    rollouts: list[Rollouts] = []

    @asynccontextmanager
    async def opening() -> AsyncIterator[Rollouts]:
        async with opened(cluster) as each:
            rollouts.append(each)
            yield each

    app = rollout_app(opening, token=TOKEN)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app),
            base_url="https://twin",
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=None,
        ) as talks,
    ):
        yield talks, rollouts[0]


async def published(rollouts: Rollouts, version: int) -> None:
    """When workers have it."""
    await rollouts.publish("weights", version)  # type: ignore[arg-type]
    while not (await rollouts.capacity()).ready_workers:  # noqa: ASYNC110
        await asyncio.sleep(0.5)


def test_a_group_is_made_once_for_each_id(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with client(cluster) as (talks, rollouts):
            await published(rollouts, 0)
            answers = await asyncio.gather(*(talks.post("/rollouts", json=GROUP) for _ in "abc"))
            answers.append(await talks.post("/rollouts", json=GROUP))
            assert [answer.status_code for answer in answers] == [200] * 4
            assert len({answer.content for answer in answers}) == 1
            said = answers[0].json()
            assert (said["version"], said["id"], said["policy_version"]) == (1, "a", 0)
            assert [sample["seed"] for sample in said["samples"]] == [0, 1, 2]
            assert said["failed"] == []
            assert (await rollouts.usage()).samples == 3
            other = await talks.post("/rollouts", json={**GROUP, "seeds": [4]})
            assert other.status_code == 400 and "another group" in other.json()["error"]

    simulate(tmp_path, scene)


def test_weights_that_no_worker_has_yet_are_to_be_asked_for_again(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with client(cluster) as (talks, rollouts):
            for wanted in (GROUP, {**GROUP, "at_least": 1}, {**GROUP, "exactly": 1}):
                answer = await talks.post("/rollouts", json=wanted)
                assert answer.status_code == 409
                assert int(answer.headers["retry-after"]) > 0
            await published(rollouts, 1)
            answer = await talks.post("/rollouts", json={**GROUP, "exactly": 1})
            assert (answer.status_code, answer.json()["policy_version"]) == (200, 1)
            for version in (2, 3):
                await published(rollouts, version)
            gone = await talks.post("/rollouts", json={**GROUP, "id": "b", "exactly": 1})
            assert gone.status_code == 410

    simulate(tmp_path, scene)


def test_images_come_as_base64_in_json_and_as_they_are_in_messagepack(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with client(cluster) as (talks, rollouts):
            await published(rollouts, 0)
            wanted = {**GROUP, "images": True}
            plain = await talks.post("/rollouts", json=wanted)
            assert plain.json()["samples"][0]["image"] == "cGljdHVyZQ=="
            packed = await talks.post(
                "/rollouts",
                content=msgspec.msgpack.encode(wanted),
                headers={"content-type": "application/msgpack", "accept": "application/msgpack"},
            )
            assert msgspec.msgpack.decode(packed.content)["samples"][0]["image"] == b"picture"

    simulate(tmp_path, scene)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "body: is not a valid group"),
        (b" " * (1 << 21), "body: is larger than 1,048,576 bytes"),
        (b'{"id": "a", "prompt": "x", "seeds": []}', "seeds: are 0"),
        (b'{"id": "a", "prompt": "x", "seeds": [1], "seedz": 2}', "unknown field `seedz`"),
        (
            b'{"id": "a", "prompt": "x", "seeds": [1], "at_least": 1, "exactly": 1}',
            "cannot be given together with",
        ),
    ],
)
def test_what_is_no_group_is_refused(tmp_path: Path, body: bytes, problem: str) -> None:
    async def scene(cluster: Cluster) -> None:
        async with client(cluster) as (talks, _):
            answer = await talks.post("/rollouts", content=body)
            assert answer.status_code == 400 and problem in answer.json()["error"]

    simulate(tmp_path, scene)


def test_who_has_no_token_begins_nothing(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with client(cluster) as (talks, rollouts):
            await published(rollouts, 0)
            for shown in ("", "Bearer ", "Bearer another", f"Basic {TOKEN}"):
                headers = {"Authorization": shown}
                for answer in (
                    await talks.post("/rollouts", json=GROUP, headers=headers),
                    await talks.put("/policies/1", content=b"weights", headers=headers),
                    await talks.get("/fleet", headers=headers),
                ):
                    assert answer.status_code == 401 and "Bearer TOKEN" in answer.json()["error"]
            assert (list(rollouts.versions), (await rollouts.usage()).samples) == ([0], 0)

    simulate(tmp_path, scene)


def test_nothing_is_begun_or_published_by_asking_for_it_with_get(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with client(cluster) as (talks, _):
            for path in ("/rollouts", "/policies/1"):
                assert (await talks.get(path)).status_code == 405

    simulate(tmp_path, scene)


def test_a_body_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with client(cluster) as (talks, _):

            async def dribble() -> AsyncIterator[bytes]:
                while True:
                    yield b" "
                    await asyncio.sleep(10.0)

            answer = await talks.post("/rollouts", content=dribble())
            assert answer.status_code == 408 and "did not come within" in answer.json()["error"]

    simulate(tmp_path, scene)


@pytest.mark.parametrize("token", [None, "", "short", "with spaces in it, so none", "ä" * 30])
def test_without_a_token_that_is_hard_to_guess_there_is_no_application(
    token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPOTLIGHT_TWIN_TOKEN", raising=False)
    with pytest.raises(UserError, match="SPOTLIGHT_TWIN_TOKEN"):
        rollout_app(_nothing, token=token)
    monkeypatch.setenv("SPOTLIGHT_TWIN_TOKEN", TOKEN)
    assert rollout_app(_nothing)


@asynccontextmanager
async def _nothing() -> AsyncIterator[Rollouts]:
    raise AssertionError("nobody has asked for it")
    yield


def test_the_fleet_is_shown(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with client(cluster) as (talks, rollouts):
            await published(rollouts, 0)
            await asyncio.sleep(10.0)
            said = (await talks.get("/fleet")).json()
            assert [node["name"] for node in said["capacity"]["nodes"]] == ["a", "b"]
            assert said["usage"]["samples"] == 0

    simulate(tmp_path, scene)


def test_weights_that_are_no_safetensors_are_refused(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with client(cluster) as (talks, _):
            answer = await talks.put("/policies/0", content=b"no tensors")
            assert answer.status_code == 400 and "malformed" in answer.json()["error"]

    simulate(tmp_path, scene)


def test_weights_that_are_larger_than_the_models_are_refused_while_they_come(
    tmp_path: Path,
) -> None:
    async def scene(cluster: Cluster) -> None:
        async with client(cluster) as (talks, rollouts):
            sent = 0

            async def pour() -> AsyncIterator[bytes]:
                nonlocal sent
                while sent < 10 * rollouts.largest_publication:
                    sent += 1
                    yield bytes(rollouts.largest_publication // 4)

            answer = await talks.put("/policies/0", content=pour())
            assert answer.status_code == 400 and "is larger than" in answer.json()["error"]

    simulate(tmp_path, scene)


def test_what_a_publication_may_hold_is_known_from_the_model(tmp_path: Path) -> None:
    publications = Publications(BundleStore(tmp_path, token="t"), "full")
    publications.shapes = {"a": (1000, 1000), "b": (7,)}
    weights = {"a": torch.zeros(1000, 1000, dtype=torch.float64), "b": torch.zeros(7)}
    assert len(safetensors.torch.save(weights)) <= publications.largest < 10_000_000
