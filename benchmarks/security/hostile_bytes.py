"""Bytes that no honest process sends to the data port, and files that no honest user names."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

import msgspec

from benchmarks.security.attack import attack, require, require_words
from benchmarks.security.site import Site
from benchmarks.security.web import connection_to, put, talk
from spotlight.actors.protocol.users import SubmitJob
from spotlight.errors import JobError
from spotlight.types import StoreEndpoint

_MOST_MB = 150.0
"""Megabytes that the coordinator's memory may grow by while it is attacked."""


async def _still_serves(site: Site, before_mb: float) -> None:
    await site.status()
    grown = site.resident_mb() - before_mb
    require(grown < _MOST_MB, f"{grown:.0f} MB more")


async def _sink(site: Site) -> StoreEndpoint:
    """The data port, and a token for it that is none."""
    require(not await site.submit(site.job()), "a job must run")
    async with site.joined() as sink:
        return sink


@attack("two hundred connections to the data port send a header a byte at a time", stage="alone")
async def slow_loris(site: Site) -> None:
    sink = await _sink(site)
    with ExitStack() as stack:
        for number in range(200):
            opened = (
                connection_to(sink)
                if number % 2
                else socket.create_connection((sink.host, sink.port), 10)
            )
            stack.enter_context(opened).sendall(b"P")
        answered = talk(sink, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
    await site.cancel()
    require(answered.startswith(b"HTTP/1.1 401"), answered)


@attack("a header of 20 MB, and 100,000 headers, are sent to the data port", stage="alone")
async def huge_headers(site: Site) -> None:
    before, sink = site.resident_mb(), await _sink(site)
    long = talk(sink, b"GET /x HTTP/1.1\r\nAuthorization: " + b"a" * 20_000_000)
    many = talk(sink, b"GET /x HTTP/1.1\r\n" + b"X-A: b\r\n" * 100_000 + b"\r\n")
    await _still_serves(site, before)
    await site.cancel()
    for answer in (long, many):
        require(not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer)


_OUTSIDE = (
    "../../escaped",
    "samples/impostor/../../../escaped",
    "/etc/escaped",
    "samples/impostor/%2e%2e/%2e%2e/escaped",
    "samples/impostor/a%00escaped",
    "samples/impostor/a\\..\\escaped",
    "samples/impostor/.escaped",
    "samples/impostor//escaped",
)


@attack(
    "keys of bundles lead out of the store: dots, absolute paths, NUL, percent signs", stage="alone"
)
async def outside(site: Site) -> None:
    require(not await site.submit(site.job()), "a job must run")
    async with site.joined() as sink:
        keys = (*_OUTSIDE, f"{site.folder}/escaped", "samples/impostor/" + "e" * 2000)
        taken = [key for key in keys if put(sink, f"/{key}", b"forged") == 200]
    await site.cancel()
    found = list(site.folder.rglob("*escaped*"))
    require(not taken and not found, f"taken: {taken}, there: {found}")


@attack("an upload says that it has a million million bytes, or none, or no token", stage="alone")
async def uploads(site: Site) -> None:
    require(not await site.submit(site.job()), "a job must run")
    async with site.joined() as sink:
        huge = put(sink, "/samples/impostor/0/2-2", b"", **{"Content-Length": str(10**12)})
        more = put(sink, "/samples/impostor/0/2-3", b"", **{"Content-Length": "-1"})
        wrong = put(msgspec.structs.replace(sink, token="guess"), "/samples/x", b"forged")
        sums = put(sink, "/samples/impostor/0/2-4", b"forged", **{"X-Checksum": "0"})
    await site.cancel()
    require((huge, wrong) == (507, 401) or (huge, wrong) == (413, 401), (huge, wrong))
    require(more in (0, 400, 409) and sums == 409, (more, sums))


@attack("a symbolic link lies where a node's upload is to go", stage="alone")
async def link_in_the_store(site: Site) -> None:
    folder = site.runs / "linked"
    require(not await site.submit(site.job(), str(folder)), "a job must run")
    target = site.folder / "target"
    target.mkdir(exist_ok=True)
    (store,) = folder.glob("artifacts*")
    (store / "samples").mkdir(exist_ok=True)
    (store / "samples" / "impostor").symlink_to(target)
    async with site.joined() as sink:
        status = put(sink, "/samples/impostor/0/1-1", b"forged")
    await site.cancel()
    require(status != 200 and not list(target.rglob("*")), f"{status}: {list(target.rglob('*'))}")


@attack(
    "a job names devices and pipes as prompts, and a folder as checkpoint whose header is huge",
    stage="alone",
)
async def odd_files(site: Site) -> None:
    pipe = site.folder / "pipe"
    if not pipe.exists():
        os.mkfifo(pipe)
    for name in ("/dev/zero", str(pipe), "/proc/self/environ"):
        prompts = {"train": name, "validation": "builtin:ocr-tiny/validation", "per_iteration": 2}
        refused = await site.submit(site.job(prompts=prompts))
        require_words(refused, "prompts.train")
    checkpoint = site.folder / "checkpoint"
    (checkpoint / "transformer").mkdir(parents=True, exist_ok=True)
    (checkpoint / "model_index.json").write_text(
        '{"_class_name": "QwenImagePipeline", "transformer": ["diffusers", "x"]}'
    )
    (checkpoint / "transformer" / "config.json").write_text("{}")
    with (checkpoint / "transformer" / "diffusion_pytorch_model.safetensors").open("wb") as file:
        file.write((2**62).to_bytes(8, "little"))
        file.truncate(10**12)
    before = site.resident_mb()
    refused = await site.submit(site.job(model={"checkpoint": str(checkpoint)}))
    require(bool(refused) and "could not be started" not in refused, refused)
    await _still_serves(site, before)


@attack("names of jobs and run folders hold shell commands, line ends and NUL", stage="alone")
async def names(site: Site) -> None:
    for name in ("$(touch canary)", "a\nb", "a\0b", "../x", "{{7*7}}", ""):
        try:
            site.job(name=name)
        except JobError as error:
            require_words(str(error), "name")
        else:
            require(False, f"the name {name!r} was taken")
    for folder in ("a\0b", "a\nb", "x" * 5000):
        refused = await site.submit(site.job(), folder)
        require_words(refused, "run folder")
    require(not (site.folder / "canary").exists(), "a shell ran")


@attack("a message that only the coordinator's runner may say comes from a user", stage="alone")
async def wrong_sender(site: Site) -> None:
    async with site.person(site.submitter) as user:
        to = user.system.well_known(site.address, "dispatcher")
        said = await user.refusal(SubmitJob(site.job(), "", False), to)
    require(bool(said), "it was answered")
