"""Secrets and addresses of a node's machine, in the rewards of a job."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.security.attack import attack, require, require_words
from benchmarks.security.site import Site
from benchmarks.security.web import Asked, refusing, reward_server
from spotlight.actors.protocol.users import JobStatus
from spotlight.errors import JobError


def _reward(url: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "http", "http": {"url": url, "attempts": 1, "timeout_s": 20.0, **fields}}


async def _ended(site: Site, url: str, **fields: Any) -> JobStatus:
    return await site.outcome(site.job(rewards=[_reward(url, **fields)]))


def _got_nothing(asked: Asked, *secrets: str) -> None:
    seen = [request.get("authorization", "") for request in asked.requests]
    require(not any(secret in each for secret in secrets for each in seen), seen)


@attack("a job sends any file of a worker to any server", stage="jobs")
async def any_file(site: Site) -> None:
    file = site.folder / "private"
    file.write_text("Bearer private")
    with reward_server(site.here, refusing("no")) as server:
        status = await _ended(site, server.url, authorization_file=str(file))
        _got_nothing(server, "private")
    require(status.outcome == "failed", status)
    require_words(status.reason, "authorization_file", "--reward-secret")


@attack("a job sends any environment variable of a worker to any server", stage="jobs")
async def any_variable(site: Site) -> None:
    with reward_server(site.here, refusing("no")) as server:
        status = await _ended(site, server.url, authorization_variable="SPOTLIGHT_CANARY_SECRET")
        _got_nothing(server, "environment")
    require(status.outcome == "failed", status)
    require_words(status.reason, "authorization_variable", "--reward-secret")


@attack("a job sends the operator's secret to another server than the operator's", stage="jobs")
async def secret_elsewhere(site: Site) -> None:
    with reward_server(site.here, refusing("no")) as server:
        status = await _ended(site, server.url, secret="operators")
        _got_nothing(server, "operator")
    require(status.outcome == "failed", status)
    require_words(status.reason, "secret: `operators` may not be sent to", "--reward-secret")


@attack("the operator's own reward server sends the secret on by a redirect", stage="jobs")
async def redirected(site: Site) -> None:
    with reward_server(site.here, refusing("no")) as other:

        def redirect(ids: list[str]) -> tuple[int, dict[str, str], bytes]:
            return 307, {"Location": other.url}, b""

        with reward_server(site.here, redirect, site.secret_port) as server:
            status = await _ended(site, server.url, secret="operators")
        sent = [request.get("authorization") for request in server.requests]
        require(sent == ["Bearer of-the-operator"] * len(sent) and bool(sent), sent)
        require(not other.requests, "the redirect was followed")
    require(status.outcome == "failed", status)
    require_words(status.reason, "status 307")


@attack("a job has a worker ask the metadata service of its cloud", stage="jobs")
async def metadata_service(site: Site) -> None:
    for host in ("169.254.169.254", "2852039166", "0xa9.0xfe.0xa9.0xfe", "[::ffff:a9fe:a9fe]"):
        status = await _ended(site, f"http://{host}/latest/api/token")
        require(status.outcome == "failed", status)
        require_words(status.reason, "link-local address", "--allow-link-local")


@attack("a URL holds a password, which is shown wherever the job is", stage="alone")
async def password(site: Site) -> None:
    for url in ("http://me:hunter2@10.0.0.5/score", "http://me:hunter2@10.0.0.5\\@x/"):
        try:
            site.job(rewards=[_reward(url)])
        except JobError as error:
            require_words(str(error), "rewards[0].http.url", "password")
            require("hunter2" not in str(error), error)
        else:
            require(False, "it was taken")


@attack(
    "the server of a reward answers with ten thousand rewards that nobody asked for", stage="jobs"
)
async def many_rewards(site: Site) -> None:
    def answer(ids: list[str]) -> tuple[int, dict[str, str], bytes]:
        rewards = [{"id": f"x{number}", "reward": 1e30} for number in range(10_000)]
        return 200, {}, json.dumps({"version": 1, "rewards": rewards}).encode()

    with reward_server(site.here, answer) as server:
        status = await _ended(site, server.url)
    require(status.outcome == "failed", status)
    require_words(status.reason, "the answer has 10000 rewards for")
