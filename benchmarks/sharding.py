"""Trainer ranks that share out a model (FSDP2): `python -m benchmarks.sharding --json`.

Real gloo processes train all weights of a tiny random checkpoint of every family: 1, 2 and 4 ranks
that share everything out, a rank that does not, and a plain loop of torch with its own AdamW. Their
weights are compared, and their gradients by the first moment. The state that 4 ranks left is
resumed by 2 and by 1, and by one that is not sharded, and compared bit by bit.

Then 4 ranks leave states over and over in a store, which makes checkpoints of them, and one of the
processes is killed (SIGKILL) at a random moment: a rank while it writes its part, or the one that
keeps the store. All checkpoints that were there before must load, every number of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.report import Report, warnings_on_stderr
from spotlight.actors.protocol.trainer import state_key
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.model import DiffusionModel
from spotlight.jobs import ModelSpec, SamplerSpec, TrainingSpec
from spotlight.store.run_folder import checkpoint_path
from spotlight.training.batches import TrainingBatch, deal, key
from spotlight.training.checkpoints import save_checkpoint
from spotlight.training.forwards import Forwards
from spotlight.training.losses import Velocities
from spotlight.training.state_files import StateFile, StateFiles
from spotlight.training.trainer import Trainer
from spotlight.training.weights import Rows
from spotlight.transport.tensors import BundleStore
from spotlight.transport.tensors.files import deposit
from spotlight.types import StoreEndpoint
from spotlight_simulation.drawn_batches import drawn_batch
from spotlight_simulation.ports import unused_port
from spotlight_simulation.rank_groups import init_group
from spotlight_simulation.tiny_families import make_tiny_checkpoint

FAMILIES = ("qwen-image", "sd3", "flux", "wan")
RANKS = (1, 2, 4)
MOST_RANKS = 4
SAMPLES = 6
"""Which 4 ranks cannot share evenly."""
ITERATIONS = 3
KILLS = 20
LIMIT_S = 120.0
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["spotlight_simulation.tiny_families", "spotlight.training.trainer"])
SAMPLER = SamplerSpec(height=32, width=32, steps=4, micro_batch=2)
SHARDED = TrainingSpec(
    sharded=True,
    micro_batch=4,
    options={"times": 2},
    updates_per_iteration=2,
    rollout_decay=0.5,
    kl=0.1,
    weight_decay=0.01,
)
PLAIN = TrainingSpec(sharded=True, micro_batch=4, options={"times": 2}, updates_per_iteration=2)
"""What the plain loop can do, which keeps no old policy and no reference."""


def model_of(folder: str) -> DiffusionModel:
    """A tiny checkpoint, on the CPU."""
    return load_model(ModelSpec(checkpoint=folder), device="cpu")


def batch_for(model: DiffusionModel) -> TrainingBatch:
    """Samples of the untrained model."""
    return drawn_batch(
        model, SAMPLER, [f"picture number {number % 2}" for number in range(SAMPLES)]
    )


def trained(folder: str, training: TrainingSpec, **ranks: Any) -> Trainer:
    """A trainer after some iterations."""
    model = model_of(folder)
    batch = batch_for(model)
    trainer = Trainer(model, training, SAMPLER, seed=0, **ranks)
    for iteration in range(ITERATIONS):
        trainer.train(iteration, batch)
    return trainer


def leave(trainer: Trainer, path: Path) -> None:
    """The part of the state that a sharded rank has."""
    save_checkpoint(path, trainer.state_dict(), {}, trainer.rows)


def part_of(folder: Path, world: int, rank: int) -> Path:
    """Where a rank leaves its part."""
    return folder / f"part-{rank}-of-{world}.safetensors"


# --- what each process of a group does ---


def train_rank(rank: int, world: int, port: int, checkpoint: str, folder: Path) -> None:
    """Train, and leave the part."""
    torch.set_num_threads(1)
    with init_group(rank, world, port=port, timeout_s=LIMIT_S) as group:
        for training, where in ((SHARDED, folder), (PLAIN, folder / "plain")):
            trainer = trained(checkpoint, training, rank=rank, world=world, group=group)
            leave(trainer, part_of(where, world, rank))


def resume_rank(rank: int, world: int, port: int, checkpoint: str, folder: Path) -> None:
    """Go on from the parts of 4 ranks, and leave what that gives; nothing is trained."""
    torch.set_num_threads(1)
    with init_group(rank, world, port=port, timeout_s=LIMIT_S) as group:
        trainer = Trainer(
            model_of(checkpoint), SHARDED, SAMPLER, seed=0, rank=rank, world=world, group=group
        )
        trainer.load_state_dict(parts_of(folder, MOST_RANKS).for_rank(trainer.rows))
        leave(trainer, part_of(folder / "resumed", world, rank))


def in_ranks(target: Callable[..., None], world: int, checkpoint: str, folder: Path) -> None:
    """Run it in so many new processes, to its end."""
    port = unused_port()
    with ProcessPoolExecutor(world, CONTEXT, warnings_on_stderr) as pool:
        done = [pool.submit(target, r, world, port, checkpoint, folder) for r in range(world)]
        for each in done:
            each.result(2 * LIMIT_S)


def parts_of(folder: Path, world: int) -> StateFiles:
    """As a trainer reads them."""
    return StateFiles([StateFile(part_of(folder, world, rank)) for rank in range(world)])


def joined(folder: Path, world: int) -> dict[str, Tensor]:
    """The parts put together by plain means: rows one behind the other."""
    parts = [load_file(part_of(folder, world, rank)) for rank in range(world)]
    return {
        name: first if not first.dim() else torch.cat([p[name] for p in parts if name in p])
        for name, first in parts[0].items()
    }


# --- the same update ---


def plain_loop(folder: str) -> dict[str, Tensor]:
    """Weights after the same iterations, by autograd and AdamW of torch on the whole model; only
    what the losses of the samples are is asked of a trainer, which trains nothing."""
    training, model = PLAIN, model_of(folder)
    batch = batch_for(model)
    losses = Trainer(model_of(folder), training, SAMPLER, seed=0)
    named = dict(model.transformer.named_parameters())
    for parameter in named.values():
        parameter.grad = torch.zeros_like(parameter)  # some never get one, and only decay
    optimizer = torch.optim.AdamW(
        named.values(),
        lr=training.learning_rate,
        betas=training.adam_betas,
        eps=1e-8,
        weight_decay=training.weight_decay,
        foreach=False,
    )
    forwards = Forwards(model, SAMPLER, batch.prompts)
    for iteration in range(ITERATIONS):
        hands = deal(SAMPLES, training.updates_per_iteration, key(0, iteration))
        terms = [losses._terms(iteration, u, batch, hand) for u, hand in enumerate(hands)]
        with torch.no_grad():
            old = [[forwards.velocity(b) for b in forwards.micro_batches(t, len(t))] for t in terms]
        for update, of_update in zip(terms, old, strict=True):
            optimizer.zero_grad(set_to_none=False)
            for micro, before in zip(
                forwards.micro_batches(update, len(update)), of_update, strict=True
            ):
                velocity = forwards.velocity(micro)
                rows, _ = losses._loss.evaluate(
                    micro.terms, Velocities(velocity, before.detach(), None)
                )
                (rows.sum() / len(update)).backward()
            torch.nn.utils.clip_grad_norm_(named.values(), training.gradient_clip)
            optimizer.step()
    return {f"weights/{name}": parameter.detach() for name, parameter in named.items()}


def distance(
    found: Mapping[str, Tensor], other: Mapping[str, Tensor], role: str = "weights"
) -> float:
    """Between all weights, or their moments, as one vector."""
    names = [name for name in other if name.startswith(f"{role}/")]
    return math.sqrt(
        sum(float((found[n].double() - other[n].double()).square().sum()) for n in names)
    )


def bits_difference(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest of any number of the state; infinite where another tensor is there."""
    if found.keys() != wanted.keys():
        return float("inf")
    return max(
        (float((found[n].double() - wanted[n].double()).abs().max()) for n in wanted), default=0.0
    )


def compare(checkpoint: str, folder: Path) -> dict[str, float]:
    """One family."""
    for each in (folder, folder / "plain", folder / "resumed"):
        each.mkdir()
    alone = trained(checkpoint, SHARDED).state_dict()  # without a group nothing is shared out
    start = {f"weights/{n}": t for n, t in model_of(checkpoint).trainable_state().items()}
    for world in RANKS:
        in_ranks(train_rank, world, checkpoint, folder)
    states = {world: joined(folder, world) for world in RANKS}
    plain = plain_loop(checkpoint)
    update = distance(alone, start)
    norms = {
        role: distance(alone, {n: t * 0 for n, t in alone.items()}, role)
        for role in ("weights", "adam_mean")
    }
    other = trained(checkpoint, msgspec.structs.replace(SHARDED, micro_batch=2)).state_dict()
    for world in (2, 1):
        in_ranks(resume_rank, world, checkpoint, folder)
    one = Trainer(model_of(checkpoint), SHARDED, SAMPLER, seed=0)
    one.load_state_dict(parts_of(folder, MOST_RANKS).for_rank(one.rows))
    resumed = [joined(folder / "resumed", world) for world in (2, 1)]
    return {
        "fsdp_max_difference": max(distance(s, alone) for s in states.values()) / norms["weights"],
        "plain_torch_max_difference": max(
            distance(joined(folder / "plain", world), plain) for world in RANKS
        )
        / norms["weights"],
        "gradient_max_difference": max(
            distance(state, alone, "adam_mean") for state in states.values()
        )
        / norms["adam_mean"],
        "update_max_difference": max(distance(s, alone) for s in states.values()) / update,
        "micro_batch_difference": distance(other, alone) / update,
        "update_size": update / norms["weights"],
        "resharded_max_difference": max(
            bits_difference(state, states[MOST_RANKS]) for state in (*resumed, one.state_dict())
        ),
    }


# --- saves that are killed ---


def saving_rank(rank: int, store: StoreEndpoint, saved: Any, goes_on: Any) -> None:
    """Leave states over and over, each when the coordinator has used the last one."""
    torch.set_num_threads(1)
    for number in itertools.count(2):
        first = torch.arange(4.0).repeat(4_000, 50)
        rows = {"a": Rows((16_000, 200), 4_000 * rank, (4_000, 200))}
        state = {
            f"{role}/a": first + number for role in ("weights", "ema", "adam_mean", "adam_square")
        } | {"updates": torch.tensor(number)}
        write = partial(
            save_checkpoint, tensors=state, metadata={"completed": str(number)}, rows=rows
        )
        asyncio.run(deposit(store, state_key(number, rank), write))
        saved.put((rank, number))
        goes_on[rank].acquire()


def keeping(folder: Path, endpoint: Any, saved: Any, goes_on: Sequence[Any]) -> None:
    """Keep the store, and make a checkpoint of each state that is complete, as a coordinator."""

    async def keep() -> None:
        store = BundleStore(folder / "artifacts", token="benchmark", durable=True)
        await store.start()
        endpoint.send(store.writable_by("ranks"))
        loop = asyncio.get_running_loop()
        while True:
            numbers = {(await loop.run_in_executor(None, saved.get))[1] for _ in range(MOST_RANKS)}
            (number,) = numbers
            await store.join([state_key(number, r) for r in range(MOST_RANKS)], "state/joined")
            await store.hand_out("state/joined", folder / checkpoint_path(number))
            store.delete("state/joined")
            for rank in goes_on:
                rank.release()

    asyncio.run(keep())


def loads(path: Path) -> bool:
    """Whether all of the checkpoint is what was saved."""
    number = int(path.stem.removeprefix("iteration-"))
    file = StateFiles([StateFile(path)])
    state = file.for_rank({"a": Rows((16_000, 200), 0, (16_000, 200))})
    wanted = torch.arange(4.0).repeat(16_000, 50) + number
    roles = ("weights", "ema", "adam_mean", "adam_square")
    equal = all(torch.equal(state[f"{role}/a"], wanted) for role in roles)
    return equal and int(state["updates"]) == number


def killed_save(folder: Path, rng: random.Random) -> bool:
    """Kill one process in the middle of a save that follows a checkpoint; whether the newest
    checkpoint loads."""
    saved, goes_on = CONTEXT.Queue(), [CONTEXT.Semaphore(0) for _ in range(MOST_RANKS)]
    ours, theirs = CONTEXT.Pipe()
    keeper: BaseProcess = CONTEXT.Process(target=keeping, args=(folder, theirs, saved, goes_on))
    processes: list[BaseProcess] = []
    try:
        keeper.start()
        processes.append(keeper)
        store = ours.recv()
        for rank in range(MOST_RANKS):
            process: BaseProcess = CONTEXT.Process(
                target=saving_rank, args=(rank, store, saved, goes_on)
            )
            process.start()
            processes.append(process)
        _until(lambda: len(_checkpoints(folder)) >= 2)
        before = _checkpoints(folder)
        time.sleep(rng.uniform(0.0, 0.5))
        rng.choice(processes).kill()
        time.sleep(0.2)  # others go on writing, as they would
    finally:
        for process in processes:
            process.kill()
            process.join(LIMIT_S)
    after = _checkpoints(folder)
    return set(before) <= set(after) and all(loads(path) for path in after)


def _checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("iteration-*.safetensors"))


def _until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not there():
        if time.monotonic() > end:
            raise RuntimeError("no checkpoint was made")
        time.sleep(0.01)


def main() -> None:
    """Compare, kill, and print."""
    report = Report("sharding", __doc__, minutes=10)
    families = FAMILIES[:1] if report.begin().quick else FAMILIES
    rng = random.Random(0)
    with contextlib.ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        torch.set_num_threads(1)
        found = {}
        for family in families:
            make_tiny_checkpoint(family, folder / family)
            found[family] = compare(str(folder / family), folder / f"{family}-states")
            report.add({f"fsdp_difference[{family}]": found[family]["fsdp_max_difference"]})
        report.add(worst_of(list(found.values())) | {"families": len(found)})
        kills = range(report.times(KILLS, quick=2))
        kept = [killed_save(folder / f"save-{number}", rng) for number in kills]
    report.add(
        {
            "ranks_max": MOST_RANKS,
            "saves_killed": len(kept),
            "checkpoints_lost": kept.count(False),
            "kept_fraction": statistics.fmean(kept),
        }
    )
    report.finish()


def worst_of(families: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The worst figures of all families."""
    return {
        figure: (min if figure == "update_size" else max)(found[figure] for found in families)
        for figure in families[0]
    }


if __name__ == "__main__":
    main()
