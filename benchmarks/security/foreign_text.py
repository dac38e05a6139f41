"""Texts, bundles and files of others, where they enter."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import msgspec

from benchmarks.security.attack import attack, require
from benchmarks.security.network import ATTACKER
from benchmarks.security.site import Site
from benchmarks.security.web import put, refusing, reward_server
from spotlight.actors.node.checkpoint_transfer import fetch_files, offer_files
from spotlight.actors.protocol.up import WorkerTrouble
from spotlight.actors.protocol.users import CancelJob
from spotlight.diffusion.hub_cache import CheckpointFolder
from spotlight.errors import CheckpointError
from spotlight.jobs.hub_names import HubFile, HubName
from spotlight.store.record_files import whole_event_lines
from spotlight.timings import Timings
from spotlight.transport.tensors import BundleStore
from spotlight_simulation.ports import unused_port

_ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.exe\u2066\x00"
_LONGEST = 8192
"""Characters of a line that may reach a person."""


def _is_clean(text: str) -> bool:
    return text.isprintable() and "\x1b" not in text and len(text) <= _LONGEST


@attack("a reward server's reason has 3,000,000 characters and escape codes", stage="jobs")
async def long_reason(site: Site) -> None:
    with reward_server(site.here, refusing(_ESCAPES + "x" * 3_000_000)) as server:
        reward = {"kind": "http", "http": {"url": server.url, "attempts": 1}}
        status = await site.outcome(site.job(rewards=[reward]))
    run = Path(status.run_folder)
    require(_is_clean(status.reason), status.reason[:300])
    for line in whole_event_lines(run):
        strings = [each for each in json.loads(line).values() if isinstance(each, str)]
        require(all(map(_is_clean, strings)), max(strings, key=len)[:300])
    report = (run / "report.html").read_text()
    require("\x1b" not in report and "\u202e" not in report and "x" * 9000 not in report, "report")


@attack("a reward server refuses with escape codes in its answer", stage="jobs")
async def long_refusal(site: Site) -> None:
    def answer(ids: list[str]) -> tuple[int, dict[str, str], bytes]:
        return 400, {}, (_ESCAPES + "y" * 3_000_000).encode()

    with reward_server(site.here, answer) as server:
        reward = {"kind": "http", "http": {"url": server.url, "attempts": 1}}
        status = await site.outcome(site.job(rewards=[reward]))
    require(_is_clean(status.reason), status.reason[:300])


@attack("a node's report says what is wrong with escape codes", stage="alone")
async def report_of_a_node(site: Site) -> None:
    require(not await site.submit(site.job()), "a job must run")
    trouble = WorkerTrouble("impostor/0", "", tries=3)
    # As another program would send it: what is made here is cleaned here.
    msgspec.structs.force_setattr(trouble, "reason", _ESCAPES + "z" * 100_000)
    async with site.joined(troubles=(trouble,)):
        for _ in range(100):
            status = await site.status()
            if status.troubles:
                break
            await asyncio.sleep(0.1)
    await site.cancel()
    require(bool(status.troubles), "nothing is told of it")
    require(all(map(_is_clean, status.troubles)), status.troubles[0][:300])


@attack("a user cancels a job for a reason with escape codes", stage="alone")
async def reason_of_a_user(site: Site) -> None:
    require(not await site.submit(site.job()), "a job must run")
    message = CancelJob()
    msgspec.structs.force_setattr(message, "reason", _ESCAPES + "z" * 100_000)
    async with site.person(site.submitter) as user:
        await user.ask(message)
    for _ in range(100):
        status = await site.status()
        if status.outcome:
            break
        await asyncio.sleep(0.1)
    require(_is_clean(status.reason), status.reason[:300])


_OTHERS = (
    "samples/other/0/1-1",
    "commits/other/0/1-1-1",
    "validation/v000000/other/0/p000.png",
    "validation/v000000/p000.png",
    "state/0-0",
    "state/checkpoint",
    "export/transformer/config.json",
    "samples/impostor",
)


@attack("a spot node's token writes over what other nodes and the trainers left", stage="alone")
async def other_prefixes(site: Site) -> None:
    require(not await site.submit(site.job()), "a job must run")
    async with site.joined() as sink:
        taken = [key for key in _OTHERS if put(sink, f"/{key}", b"forged") == 200]
        own = put(sink, "/samples/impostor/0/1-1", b"its own")
    await site.cancel()
    require(not taken, f"taken: {taken}")
    require(own == 200, f"what it may leave was answered with {own}")


@attack("a peer's list of the files of a checkpoint carries checksums of its own", stage="alone")
async def forged_checkpoint(site: Site) -> None:
    """With a real store on a real port; a node's process would first need a hub."""
    folder = site.folder / "forged"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    forged = folder / "model_index.json"
    forged.write_bytes(b"{}")
    blob = "9e26dfeeb6e641a33dae4961196235bdb965b21b"  # of these bytes, as git says it
    hubs = HubFile("model_index.json", 2, "0" * 40)
    peer = BundleStore(folder / "peer", token="peer")
    await peer.start()
    cache = CheckpointFolder(folder / "cache", HubName("painters/tiny", "0" * 40))
    try:
        listing = offer_files(peer, {HubFile("model_index.json", 2, blob): forged})
        with suppress(CheckpointError):
            await fetch_files(listing, (hubs,), cache, Timings())
    finally:
        await peer.aclose()
    require(not list((folder / "cache").rglob("*.json")), "it is in the cache")


_TOKEN_OF_TWIN = "a-token-of-its-client"
_TWIN = """
import asyncio, sys
import uvicorn
from spotlight.rollouts.http_twin import rollout_app
from spotlight import Rollouts
sampler = {"height": 16, "width": 48, "kind": "ode", "steps": 2, "micro_batch": 4}
job = {"model": "builtin:ocr-tiny", "sampler": sampler, "tensors": False}
app = rollout_app(lambda: Rollouts.connect(f"@{sys.argv[1]}", **job), token=sys.argv[3])
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
"""


@asynccontextmanager
async def _twin(site: Site) -> AsyncIterator[tuple[int, subprocess.Popen[bytes]]]:
    """The port of one, and its process."""
    port = unused_port()
    words = (str(site.token_file(site.submitter_token)), str(port), _TOKEN_OF_TWIN)
    process = site.python(ATTACKER, "-c", _TWIN, *words)
    try:
        await asyncio.to_thread(_wait_for, port)
        yield port, process
    finally:
        process.kill()  # the session with it
        await asyncio.to_thread(process.wait)
    await site.cancel()


@attack(
    "a page of another site, and a user without its token, speak to the HTTP twin", stage="alone"
)
async def cross_site(site: Site) -> None:
    own = f"Bearer {_TOKEN_OF_TWIN}"
    tried: list[tuple[str, str, dict[str, str]]] = [
        ("GET", "/fleet", {}),
        ("POST", "/rollouts", {}),
        ("PUT", "/policies/1?kind=full", {"Authorization": "Bearer guess"}),
        ("DELETE", "/rollouts", {"Authorization": f"Bearer {_TOKEN_OF_TWIN}x"}),
        ("GET", "/fleet", {"Authorization": own, "Host": "evil.example"}),
        ("GET", "/fleet", {"Authorization": own, "Origin": "https://evil.example"}),
    ]
    async with _twin(site) as (port, _):
        for method, path, headers in tried:
            status = await asyncio.to_thread(_status_of, port, method, path, headers)
            require(status in (400, 401, 403, 404, 405, 421), (method, path, headers, status))


def _status_of(port: int, method: str, path: str, headers: dict[str, str]) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, headers=headers)
        return connection.getresponse().status


@attack("the HTTP twin is sent weights without end", stage="jobs")
async def endless_weights(site: Site) -> None:
    async with _twin(site) as (port, process):
        await asyncio.to_thread(_stream_weights, port, 0)  # it loads torch for the first
        before = _resident_mb(process.pid)
        status = await asyncio.to_thread(_stream_weights, port, 300)
        grown = _resident_mb(process.pid) - before
    require(status in (0, 400, 413), status)
    require(grown < 150, f"{grown:.0f} MB more")


def _stream_weights(port: int, megabytes: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        with suppress(OSError):  # it may be cut before all is sent
            connection.request(
                "PUT",
                "/policies/1?kind=full",
                body=(b"\0" * 1_000_000 for _ in range(megabytes)),
                encode_chunked=True,
                headers={
                    "Transfer-Encoding": "chunked",
                    "Authorization": f"Bearer {_TOKEN_OF_TWIN}",
                },
            )
        with suppress(OSError, http.client.HTTPException):
            return connection.getresponse().status
    return 0


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) / 1000


def _wait_for(port: int) -> None:
    for _ in range(1200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError("the HTTP twin did not come up")
