"""What the actors cost: `python -m benchmarks.overhead --json`.

Images per second of one real worker process that pulls from a real dispatcher over ZeroMQ and
delivers to a real store, divided by those of the same sampler called in a plain loop, in one
process, with the same batches, latents decoded in both. Rounds of the two alternate; scoring is
left out of both: the worker gives every image the same reward.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Report
from spotlight.actors.coordinator.tenant.dispatcher import Dispatcher
from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.coordinator.tenant.request_plans import rollout_settings
from spotlight.actors.coordinator.tenant.request_queue import Ended
from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.actors.protocol.dialect import own_dialect
from spotlight.actors.protocol.door import Role
from spotlight.actors.protocol.down import JobPlan, Membership, WeightsOffer, WorkerPlan
from spotlight.actors.protocol.handed_keys import WorkerKeys
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.protocol.up import WorkerRefs, WorkerReport, WorkerUp
from spotlight.actors.runtime import Actor, ActorSystem, handles
from spotlight.actors.runtime.launcher import PARENT, LocalLauncher
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import run
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.samplers import sample
from spotlight.jobs import JobSpec, load_job
from spotlight.policies.requests.instructions import RequestsFinished
from spotlight.policies.requests.pace import Pace
from spotlight.policies.requests.table import RequestTable
from spotlight.policies.step_times import StepTimes
from spotlight.store.journal import NAME, Journal
from spotlight.transport.control import Guests, KeyPair, ZeroMQTransport, key_of
from spotlight.transport.tensors import BundleStore
from spotlight.transport.tensors.bundles import pack
from spotlight.types import Request, RequestId
from spotlight_simulation.quiet_owner import QuietOwner

EXAMPLE = Path(__file__).parent.parent / "examples" / "ocr-tiny.yaml"


class _Submitter(Actor):
    """Hears when so many requests are done."""

    def __init__(self) -> None:
        self.counted = 0
        self.target = 0
        self.reached = asyncio.Event()

    def count(self, ended: Ended) -> None:
        """Requests are over."""
        if isinstance(ended, RequestsFinished):
            self.counted += len(ended.results)
        if self.counted >= self.target:
            self.reached.set()

    @handles(WorkerReport)
    async def on_report(self, message: WorkerReport) -> None:
        """Of no interest here."""


class _Parent(Actor):
    """Stands in for the node: takes the worker's introduction."""

    def __init__(self, up: asyncio.Future[WorkerRefs]) -> None:
        self._up = up

    @handles(WorkerUp)
    async def on_up(self, message: WorkerUp) -> None:
        self._up.set_result(message.refs)


def _system(worker: str) -> ActorSystem:
    """One that knows the worker by this key."""
    transport = ZeroMQTransport(guests=Guests({worker: "worker"}), dialect=own_dialect())
    return ActorSystem(transport, rng=random.Random(0), rights=MAY_SAY)


def _requests(job: JobSpec, count: int, round_number: int) -> tuple[Request, ...]:
    settings = rollout_settings(job, 0)
    return tuple(
        Request(
            id=str(RequestId("rollout", round_number, 0, 0, seed)),
            kind="rollout",
            iteration=round_number,
            group=0,
            prompt=f'the number "{seed % 10000:04d}"',
            seed=seed,
            weights_version=0,
            settings=settings,
        )
        for seed in range(count)
    )


def _plain(model: Any, requests: tuple[Request, ...]) -> float:
    """Images per second of the plain loop."""
    settings = requests[0].settings
    size = settings.micro_batch
    loop = asyncio.new_event_loop()
    started = loop.time()
    for first in range(0, len(requests), size):
        batch = requests[first : first + size]
        done = sample(model, [r.prompt for r in batch], [r.seed for r in batch], settings)
        model.decode(done.latents, settings.height, settings.width)
    seconds = loop.time() - started
    loop.close()
    return len(requests) / seconds


async def _measure(count: int, rounds: int) -> dict[str, Any]:
    job = load_job(EXAMPLE)
    model = load_model(job.model)
    plain, through_actors = [], []
    with tempfile.TemporaryDirectory() as folder:
        store = BundleStore(Path(folder) / "store", token="benchmark", durable=True)
        await store.start()
        journal = Journal.open(Path(folder) / NAME, "benchmark")
        worker = KeyPair.new()
        node, system = [_system(worker.public) for _ in range(2)]
        for each in (node, system):
            await each.start()
        up: asyncio.Future[WorkerRefs] = asyncio.get_running_loop().create_future()
        await node.spawn(lambda: _Parent(up), "node")
        submitter = _Submitter()
        submitter_ref = await system.spawn(lambda: submitter, "submitter")
        profile = StepProfile("benchmark", StepTimes())
        dispatcher = Dispatcher(
            QuietOwner(store, submitter.count),
            RequestTable(pace=Pace(profile), score_attempts=1),
            JobJournal(journal, store, _fail),
        )
        dispatcher_ref = await system.spawn(lambda: dispatcher, "dispatcher")
        argv = [sys.executable, "-m", "benchmarks.unscored_worker", "--name", "worker"]
        argv += ["--node", node.address, "--host", "127.0.0.1"]
        keys: dict[str, Role] = {
            key_of(node.address): "node",
            key_of(system.address): "coordinator",
        }
        process = await LocalLauncher().start(
            argv,
            {**os.environ, "OMP_NUM_THREADS": "1", PARENT: str(os.getpid())},
            "worker",
            Path(folder) / "worker.log",
            WorkerKeys("1", worker, keys).encode(),
        )
        try:
            refs = await asyncio.wait_for(up, 300)
            membership = Membership(submitter_ref, dispatcher_ref, store.writable_by("node"))
            dispatcher.queue.add_workers("node", "spot", (refs,))
            bundle = store.put("weights/0", pack(model.trainable_state()))
            weights = WeightsOffer(0, (bundle,))
            plan = WorkerPlan(1, JobPlan("job", membership, (weights,), (0,), spec=job.work))
            await node.ask(refs.leader, plan, timeout_s=300)
            for number in range(rounds + 1):
                requests = _requests(job, count, number)
                speed = await asyncio.to_thread(_plain, model, requests)
                submitter.target = submitter.counted + count
                submitter.reached.clear()
                started = asyncio.get_running_loop().time()
                dispatcher.queue.submit(requests)
                await asyncio.wait_for(submitter.reached.wait(), 300)
                seconds = asyncio.get_running_loop().time() - started
                if number > 0:  # the first round warms both up
                    plain.append(speed)
                    through_actors.append(count / seconds)
        finally:
            process.kill()
            await process.wait()
            for each in (node, system):
                await each.aclose()
            await store.aclose()
            journal.close()
    ratios = [actors / loop for actors, loop in zip(through_actors, plain, strict=True)]
    return {
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "images_per_second_actors": statistics.median(through_actors),
        "images_per_second_plain": statistics.median(plain),
        "rounds": rounds,
        "images_per_round": count,
    }


def _fail(error: Exception) -> None:
    raise error


def main() -> None:
    """Print the ratio."""
    report = Report("overhead", __doc__, minutes=4)
    report.begin()
    torch.set_num_threads(1)
    log_as_json_lines(logging.ERROR)
    report.add(run(_measure(count=128, rounds=report.times(15, quick=1))))
    report.finish()


if __name__ == "__main__":
    main()
