"""Real processes that train a sharded model together; each leaves what it has in a folder."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch

from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.model import DiffusionModel
from spotlight.jobs import ModelSpec, TrainingSpec
from spotlight.training.batches import TrainingBatch
from spotlight.training.checkpoints import save_checkpoint
from spotlight.training.state_files import StateFile, StateFiles
from spotlight.training.trainer import Trainer
from spotlight_simulation.ports import unused_port
from spotlight_simulation.rank_groups import init_group
from spotlight_simulation.tiny_families import make_tiny_checkpoint
from tests.warm_processes import warm_processes

from .fakes import GRPO, NFT, NOISY, SAMPLER, FakeModel, make_batch
from .qwen import SIZE, tiny_model

TIMEOUT_S = 60.0
QWEN = msgspec.structs.replace(SAMPLER, **SIZE, guidance=2.0)
VIDEO = msgspec.structs.replace(SAMPLER, height=32, width=32)
CASES = {
    # name: (model, rule, sampler, samples)
    "old policy and reference": ("fake", {"rollout_decay": 0.5, "kl": 0.1}, NFT, SAMPLER, 8),
    "uneven shares": ("fake", {"micro_batch": 2}, NFT, SAMPLER, 7),
    "fewer samples than ranks": ("fake", {"rollout_decay": 0.5}, NFT, SAMPLER, 3),
    "offloaded": ("fake", {"cpu_offload": True, "kl": 0.1, "micro_batch": 2}, NFT, SAMPLER, 7),
    "flow grpo": ("fake", {}, GRPO, NOISY, 7),
    "qwen-image with guidance": ("qwen", {"micro_batch": 4}, NFT, QWEN, 5),
    "two transformers": ("wan-a14b", {"micro_batch": 2, "kl": 0.1}, NFT, VIDEO, 5),
}


def build_model(kind: str, seed: int = 0):
    if kind == "wan-a14b":
        return two_transformers()
    return FakeModel(seed=seed) if kind == "fake" else tiny_model()


def two_transformers() -> DiffusionModel:
    """Which ranks run in the same order, though their samples have other flow times."""
    with TemporaryDirectory() as folder:
        make_tiny_checkpoint("wan-a14b", Path(folder))
        model = load_model(ModelSpec(checkpoint=folder), device="cpu")
        model.encode_prompts(["one", "three"])  # which are kept, unlike the files
    return model


def case_of(name: str, *, sharded: bool) -> tuple[str, TrainingSpec, object, TrainingBatch]:
    kind, changes, rule, sampler, count = CASES[name]
    training = msgspec.structs.replace(rule, **changes, sharded=sharded)
    return kind, training, sampler, make_batch(build_model(kind), sampler, count=count)


def train(name: str, *, sharded: bool, model=None, **ranks) -> Trainer:
    """Two iterations; fake models of later ranks start from other weights, but rank 0's count."""
    kind, training, sampler, batch = case_of(name, sharded=sharded)
    model = model or build_model(kind, seed=ranks.get("rank", 0))
    trainer = Trainer(model, training, sampler, seed=0, **ranks)
    for iteration in range(2):
        trainer.train(iteration, batch)
    return trainer


def run_rank(rank: int, world: int, port: int, folder: str) -> None:
    """Trains, and leaves the part of the state and what is published."""
    torch.set_num_threads(1)
    with init_group(rank, world, port=port, timeout_s=TIMEOUT_S) as group:
        for name in CASES:
            trainer = train(name, sharded=True, rank=rank, world=world, group=group)
            save_part(trainer, Path(folder) / f"{name}-{rank}.safetensors")
            where = Path(folder) / f"{name}-{rank}-published"
            save_checkpoint(where, trainer.rollout_part(), {})


def resume_rank(rank: int, world: int, port: int, folder: str) -> None:
    """Goes on from the parts of other ranks, and leaves its own in a folder below."""
    torch.set_num_threads(1)
    with init_group(rank, world, port=port, timeout_s=TIMEOUT_S) as group:
        for name in CASES:
            trainer = resumed(name, Path(folder), rank=rank, world=world, group=group)
            save_part(trainer, Path(folder) / str(world) / f"{name}-{rank}.safetensors")


def resumed(name: str, folder: Path, *, sharded: bool = True, **ranks) -> Trainer:
    """A trainer that has loaded the parts in a folder."""
    kind, training, sampler, _ = case_of(name, sharded=sharded)
    trainer = Trainer(build_model(kind), training, sampler, seed=0, **ranks)
    files = StateFiles([StateFile(path) for path in sorted(folder.glob(f"{name}-?.safetensors"))])
    trainer.load_state_dict(files.for_rank(trainer.rows))
    return trainer


def save_part(trainer: Trainer, path: Path) -> None:
    save_checkpoint(path, trainer.state_dict(), {}, trainer.rows)


def run_ranks(world: int, folder: Path, target: Callable[..., None] = run_rank) -> None:
    """Returns when all of them are done."""
    port = unused_port()
    context = warm_processes()
    with ProcessPoolExecutor(world, mp_context=context) as pool:
        done = [pool.submit(target, rank, world, port, str(folder)) for rank in range(world)]
        for each in done:
            each.result(TIMEOUT_S * 3)
