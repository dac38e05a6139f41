"""What a job will do, said before it starts: model, images, prompts, work, processes, disk."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from spotlight.cli.tables import pairs
from spotlight.jobs import JobSpec, PoolSpec, PoolsSpec, RewardSpec
from spotlight.jobs.clip_rewards import PUBLISHED, ClipSpec
from spotlight.jobs.losses import loss_title
from spotlight.jobs.prices import prices_of
from spotlight.policies.money.prices import Prices
from spotlight.policies.money.words import money
from spotlight.preflight.checkpoint_facts import CheckpointInfo
from spotlight.preflight.checks import JobFiles, disk_nbytes
from spotlight.preflight.memory import trained_guidance
from spotlight.preflight.scorers import scorer_bytes
from spotlight.report.formatting import count
from spotlight.types import Pool


def plan_lines(
    job: JobSpec, files: JobFiles, run_folder: Path, prices: Prices | None = None
) -> RenderableType:
    """The plan as a grid of names and words."""
    table = pairs()
    table.add_row("job", Text(job.name, style="bold"))
    for name, said in _lines(job, files, run_folder):
        table.add_row(name, Text(said))
    for name, said in _money(job, prices or prices_of(job.prices, Prices())):
        table.add_row(name, Text(said))
    return table


def _lines(job: JobSpec, files: JobFiles, run_folder: Path) -> list[tuple[str, str]]:
    checkpoint = files.checkpoint
    return [
        ("model", _model(job, checkpoint)),
        ("images", _images(job, checkpoint)),
        ("sampler", _sampler(job, checkpoint)),
        ("rewards", "; ".join(map(_reward, job.measured_rewards))),
        ("prompts", _prompts(files)),
        ("iterations", _iterations(job)),
        ("training", _training(job, checkpoint)),
        ("exploration", _exploration(job, checkpoint.previewer)),
        ("validation", _validation(job, files)),
        ("processes", _processes(job)),
        ("disk", _disk(job, files, run_folder)),
        ("run folder", str(run_folder)),
    ]


def _model(job: JobSpec, checkpoint: CheckpointInfo) -> str:
    size, frozen = amount(checkpoint.parameters), amount(checkpoint.frozen_parameters)
    trained = (
        "all trained"
        if job.model.tuning == "full"
        else f"{amount(checkpoint.trainable)} trained in adapters of rank {job.model.lora.rank}"
    )
    if job.model.quantize != "none":
        trained += f" beside {job.model.quantize} weights"
    begins = f", beginning with {job.model.start}" if job.model.start else ""
    both = " in two transformers" if checkpoint.transformers > 1 else ""
    return (
        f"{checkpoint.family.name} from {job.model.checkpoint}, {size} parameters{both}, {trained};"
        f" {frozen} in text encoders and VAE{begins}"
    )


def _images(job: JobSpec, checkpoint: CheckpointInfo) -> str:
    height, width = job.sampler.height, job.sampler.width
    edge = checkpoint.geometry.pixels_per_token
    frames = f" and {count(job.sampler.frames, 'frame')}" if job.sampler.frames > 1 else ""
    space = "pixels" if checkpoint.pixel_space else "pixels of a VAE"
    return (
        f"{width} x {height} pixels (width x height){frames}, "
        f"{count(_tokens(job, checkpoint), 'token')} of {edge} x {edge} {space}"
    )


def _tokens(job: JobSpec, checkpoint: CheckpointInfo) -> int:
    sampler = job.sampler
    return checkpoint.tokens(sampler.height, sampler.width, sampler.frames)


def _sampler(job: JobSpec, checkpoint: CheckpointInfo) -> str:
    sampler = job.sampler
    said = [f"{sampler.kind}, {count(sampler.steps, 'step')}"]
    if sampler.solver != "euler":
        said.append(sampler.solver)
    if sampler.kind != "ode":
        said.append(f"noise {sampler.noise_level:g} in {count(sampler.window.length, 'step')}")
    if sampler.guidance > 1:
        second = job.model.guidance_2
        then = f" and then {second:g}" if second is not None else ""
        said.append(f"guidance {sampler.guidance:g}{then}")
    said.append(f"batches of {sampler.micro_batch}")
    if job.degree != "auto":
        if job.degree > 1:
            said.append(f"{count(job.degree, 'worker')} together on each")
    elif (most := _largest_degree(job, checkpoint)) > 1:
        said.append(f"up to {count(most, 'worker')} together on one")
    return ", ".join(said)


def _largest_degree(job: JobSpec, checkpoint: CheckpointInfo) -> int:
    """That an SP group on this machine may have."""
    workers = max(pool.workers for pool in (job.pools.reserved, job.pools.spot) if pool.nodes)
    return checkpoint.degrees(workers, _tokens(job, checkpoint))[-1]


def _reward(reward: RewardSpec) -> str:
    """Where its scorer computes, and how much memory it needs, as far as that is known."""
    if reward.kind in PUBLISHED:
        device = (reward.clip or ClipSpec()).device
        shared = "the accelerator, which denoises too" if device == "accelerator" else "the CPU"
        where = f"in every worker on {shared}, {amount(scorer_bytes(reward))}B"
    elif endpoint := reward.http or reward.judge:
        where = f"on {':'.join(map(str, endpoint.place))}"
    elif reward.kind == "python":
        where = "in every worker, where its code computes"
    else:
        where = "in every worker on the CPU"
    groups = ", a prompt group at a time" if reward.groupwise else ""
    return f"{reward.name} {where}{groups}"


def _prompts(files: JobFiles) -> str:
    train, validation = len(files.train.items), len(files.validation.items)
    return f"{train:,} to train on, {validation:,} to validate on"


def _iterations(job: JobSpec) -> str:
    samples = count(job.samples_per_iteration, "sample")
    return (
        f"{job.iterations}, each of {count(job.prompts.per_iteration, 'prompt')} x "
        f"{job.group_size} = {samples}; a checkpoint every {job.checkpoint_every}"
    )


def _training(job: JobSpec, checkpoint: CheckpointInfo) -> str:
    training, guidance = job.training, trained_guidance(job, checkpoint)
    updates = count(training.updates_per_iteration, "update")
    said = [
        loss_title(training.loss),
        f"{updates} an iteration at learning rate {training.learning_rate:g}",
        f"on {count(training.ranks, 'worker')}",
    ]
    if guidance != job.sampler.guidance:
        said.append(f"guidance {guidance:g}" if guidance > 1 else "without guidance")
    return ", ".join(said)


def _exploration(job: JobSpec, previewer: CheckpointInfo | None) -> str:
    exploration = job.exploration
    if exploration.mode == "none":
        return "none"
    most = exploration.candidates * job.samples_per_iteration
    limit = (
        "as many as fit into the training time, at most"
        if exploration.budget == "window"
        else "always"
    )
    if exploration.weights == "fresh":
        limit = "before each rollout"
    share = "up to " if exploration.mode == "bandit" else ""
    pool = f" over {share}{job.explored_prompts} prompts" if exploration.prompt_pool > 1 else ""
    return (
        f"{exploration.mode}{pool}, {limit} {exploration.candidates} previews per kept seed "
        f"({count(most, 'preview')} an iteration), {count(job.preview_steps, 'step')} each"
        f"{_solved_by(job)}{_previewed_by(job, previewer)}{_repeats(job)}"
    )


def _solved_by(job: JobSpec) -> str:
    """The solver, if previews have one of their own."""
    solver = job.exploration.preview_solver
    return f" by {solver}" if solver not in (None, job.sampler.solver) else ""


def _previewed_by(job: JobSpec, previewer: CheckpointInfo | None) -> str:
    """The model that makes previews instead of the trained one."""
    if previewer is None:
        return ""
    name, size = job.exploration.preview_checkpoint, amount(previewer.parameters)
    return f", by {previewer.family.name} from {name}, {size} parameters in every worker"


def _repeats(job: JobSpec) -> str:
    """A fixed budget makes a run repeatable, which groups of several workers limit."""
    if job.exploration.budget != "fixed" or job.degree == 1:
        return ""
    return "; repeatable but for rounding, as groups shrink when a worker is lost"


def _validation(job: JobSpec, files: JobFiles) -> str:
    images = len(files.validation.items) * job.validation.seeds
    steps = job.sampler.evaluation_steps or job.sampler.steps
    return (
        f"{count(images, 'image')} every {count(job.validation.every, 'iteration')}, "
        f"{count(steps, 'step')} each"
    )


def _processes(job: JobSpec) -> str:
    pools = [
        f"{name} {_pool(pool)}"
        for name, pool in (("reserved", job.pools.reserved), ("spot", job.pools.spot))
        if pool.nodes
    ]
    workers = sum(pool.nodes * pool.workers for pool in (job.pools.reserved, job.pools.spot))
    cores = _cores()
    is_crowded = workers * job.threads > cores
    crowded = f", which is more than the {count(cores, 'core')} here" if is_crowded else ""
    threads = count(job.threads, "thread")
    return f"1 coordinator; {'; '.join(pools)}; {threads} per worker{crowded}"


def _pool(pool: PoolSpec) -> str:
    each = "" if pool.nodes == 1 else " each"
    return f"{count(pool.nodes, 'node')} with {count(pool.workers, 'worker')}{each}"


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _disk(job: JobSpec, files: JobFiles, run_folder: Path) -> str:
    place = next(path for path in (run_folder, *run_folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    return f"about {amount(disk_nbytes(job, files))}B of {amount(free)}B free"


def _money(job: JobSpec, prices: Prices) -> Iterator[tuple[str, str]]:
    """What an hour costs with all nodes that `spotlight run` starts, and what it may cost."""
    now, currency = time.time(), prices.currency
    cost, unpriced = 0.0, 0
    for name, pool in _nodes(job.pools):
        workers = (job.pools.reserved if pool == "reserved" else job.pools.spot).workers
        price = prices.of(name, pool, None, now)
        cost += 0 if price is None else price.usd_per_gpu_hour * workers
        unpriced += workers if price is None else 0
    if prices.sources():
        each = [f"{money(cost, currency)} an hour with all nodes, by {', '.join(prices.sources())}"]
        if unpriced:
            each.append(f"{count(unpriced, 'worker')} without a price")
        yield "price", "; ".join((*each, *prices.remarks()))
    budget = job.budget
    limits = [] if budget.usd is None else [money(budget.usd, currency)]
    limits += [] if budget.hours is None else [f"{budget.hours:g} h"]
    if limits:
        yield "budget", f"{' or '.join(limits)}, then it stops and can be resumed"


def _nodes(pools: PoolsSpec) -> Iterator[tuple[str, Pool]]:
    yield from ((f"reserved-{index}", "reserved") for index in range(pools.reserved.nodes))
    yield from ((f"spot-{index}", "spot") for index in range(pools.spot.nodes))


def amount(value: int) -> str:
    """A number with three digits and k, M, G or T: `1.28 M`."""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            scaled = value / factor
            digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
            return f"{scaled:.{digits}f} {unit}"
    return f"{value} "
