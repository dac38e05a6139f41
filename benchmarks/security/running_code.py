"""Code of a stranger's own, on the coordinator and on workers."""

from __future__ import annotations

import asyncio

from benchmarks.security.attack import attack, require, require_words
from benchmarks.security.clients import Sayer
from benchmarks.security.network import ATTACKER
from benchmarks.security.site import CODE, Site
from benchmarks.security.web import put
from spotlight.actors.protocol.sessions import BeginSession, SessionRefused
from spotlight.jobs import job_to_yaml

_OWN = {"kind": "python", "python": "planted:Evil"}


def _ran_nothing(site: Site) -> None:
    ran = site.canary.exists()
    site.canary.unlink(missing_ok=True)
    require(not ran, "the code ran")


@attack("a tracker names a module that the coordinator can import", stage="alone")
async def tracker(site: Site) -> None:
    refused = await site.submit(site.job(trackers=[{"kind": "planted:Evil"}]))
    _ran_nothing(site)
    require_words(refused, "trackers[0].kind", "--allow-code planted")


@attack("a reward names a module that workers can import", stage="alone")
async def reward(site: Site) -> None:
    refused = await site.submit(site.job(rewards=[_OWN]))
    if not refused:
        await site.cancel()
    _ran_nothing(site)
    require_words(refused, "rewards[0].python", "--allow-code planted")


@attack("a loss names a module that workers can import", stage="alone")
async def loss(site: Site) -> None:
    refused = await site.submit(site.job(training={"loss": "planted:Evil"}))
    if not refused:
        await site.cancel()
    _ran_nothing(site)
    require_words(refused, "training.loss", "--allow-code planted")


@attack("a module of the standard library that does harm is named as a loss", stage="alone")
async def standard_library(site: Site) -> None:
    refused = await site.submit(site.job(training={"loss": "subprocess:Popen"}))
    if not refused:
        await site.cancel()
    require_words(refused, "training.loss", "--allow-code subprocess")


@attack("a session of another program names a reward's module", stage="alone")
async def session(site: Site) -> None:
    work = site.job(rewards=[_OWN]).work
    async with site.person(site.submitter) as user:
        ref = await user.system.spawn(Sayer, "user")
        message = BeginSession("stranger", ref, work, False)
        answer = await user.ask(message, timeout_s=60.0, sender=ref)
    _ran_nothing(site)
    require(isinstance(answer, SessionRefused), answer)
    require_words(getattr(answer, "reason", ""), "rewards[0].python", "--allow-code planted")


@attack("a run folder outside of --runs is filled", stage="alone")
async def run_folder_outside(site: Site) -> None:
    outside = site.folder / "outside"
    refused = await site.submit(site.job(), str(outside))
    if not refused:
        await site.cancel()
    require(not outside.exists(), "it was made")
    require_words(refused, "the run folder", "--runs")


@attack("a run folder leads outside of --runs by a symbolic link and `..`", stage="alone")
async def run_folder_by_links(site: Site) -> None:
    target = site.folder / "behind-a-link"
    target.mkdir(exist_ok=True)
    link = site.runs / "link"
    if not link.is_symlink():
        link.symlink_to(target)
    for wanted in (link / "x", site.runs / ".." / "above"):
        refused = await site.submit(site.job(), str(wanted))
        if not refused:
            await site.cancel()
        require_words(refused, "the run folder", "--runs")
    require(not list(target.iterdir()) and not (site.folder / "above").exists(), "it was made")


@attack("a prepared run folder outside of --runs is resumed, whose job names code", stage="alone")
async def prepared_run(site: Site) -> None:
    job = site.job(trackers=[{"kind": "planted:Evil"}])
    for folder, words in (
        (site.folder / "prepared", ("the run folder", "--runs")),
        (site.runs / "prepared", ("trackers[0].kind", "--allow-code planted")),
    ):
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text(job_to_yaml(job))
        refused = await site.submit(site.job(), str(folder), resume=True)
        _ran_nothing(site)
        require_words(refused, *words)


@attack("the run folder is a file in which the coordinator keeps what runs", stage="alone")
async def run_folder_of_the_note(site: Site) -> None:
    for name in (".coordinator", ".running", "queue.records", "queue.records.part"):
        refused = await site.submit(site.job(), str(site.runs / name))
        if not refused:
            await site.cancel()
        require(not (site.runs / name).is_dir(), f"{name} is a folder now")
        require_words(refused, "the name of a file of the coordinator")


@attack("a node's token leaves a module as an artifact, and a second job names it", stage="alone")
async def uploaded_module(site: Site) -> None:
    folder = site.runs / "loot"
    require(not await site.submit(site.job(), str(folder)), "the first job must run")
    async with site.joined() as sink:
        body = CODE.format(canary=str(site.canary)).encode()
        keys = [
            f"{place}/evil.{end}"
            for end in ("py", "pyc", "so", "PY")
            for place in ("samples/impostor/0", "evil", "../../..", ".")
        ]
        left = [key for key in keys if put(sink, f"/{key}", body) == 200]
    await site.cancel()
    found = [path for path in site.folder.rglob("evil.*") if path.is_file()]
    for path in found:
        path.unlink()
    require(not left and not found, f"taken: {left}, there: {found}")
    refused = await site.submit(
        site.job(trackers=[{"kind": "runs.loot.artifacts.evil:Evil"}]), str(site.runs / "second")
    )
    _ran_nothing(site)
    require_words(refused, "trackers[0].kind", "--allow-code runs")


@attack("a job file builds Python objects", stage="alone")
async def yaml_objects(site: Site) -> None:
    file = site.folder / "objects.yaml"
    file.write_text(f'!!python/object/apply:os.system ["touch {site.canary}"]\n')
    words = ("submit", str(file), "--join", f"@{site.token_file(site.submitter_token)}")
    code, said = await asyncio.to_thread(site.command, ATTACKER, *words)
    _ran_nothing(site)
    require(code == 2 and "Traceback" not in said, said)


@attack("a node runs what only its coordinator's operator allowed", stage="jobs")
async def allowed_elsewhere(site: Site) -> None:
    half = {"kind": "python", "name": "half", "python": "half_allowed:Evil"}
    status = await site.outcome(site.job(rewards=[half]))
    _ran_nothing(site)
    require(status.outcome == "failed", status)
    require_words(status.reason, "half_allowed:Evil", "--allow-code half_allowed")


@attack("a node trains with a loss that only its coordinator's operator allowed", stage="jobs")
async def loss_allowed_elsewhere(site: Site) -> None:
    status = await site.outcome(site.job(training={"loss": "half_allowed:Evil"}))
    _ran_nothing(site)
    require(status.outcome == "failed", status)
    require_words(status.reason, "half_allowed:Evil", "--allow-code half_allowed")
