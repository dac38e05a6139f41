"""Writes the folder of a long run with many workers, as the coordinator leaves one, within seconds
or minutes: what reads and shows runs is measured on it.

    python -m benchmarks.large_run FOLDER [--size small|long|wide] [--iterations N] ...

Everything follows from the size and the seed (`large_run_world`), and agrees: the lines of the
roll-ups add up to the ledger, and the states of the last hour to the latest lines.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from benchmarks.large_run_world import LINE_MS, SIZES, Size, Stay, World
from spotlight.jobs import JobSpec, job_from_data, job_to_yaml
from spotlight.jobs.stamp import Stamp
from spotlight.record.ledger import Ledger, Milliseconds, NodeBill, Price, RollupLine
from spotlight.record.run_events import (
    CheckpointSaved,
    NodeJoined,
    NodeLost,
    NoticeReceived,
    PhaseBegan,
    RunEvent,
    RunFinished,
    RunStarted,
    WeightsPublished,
    WorkerJoined,
    encode_event,
)
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.store.ledger_file import write_ledger
from spotlight.store.rollups import FOLDER as ROLLUPS
from spotlight.store.rollups import Rollups
from spotlight_simulation.chaos import scratch_folder

BEGAN_AT = 1_767_225_600.0
"""When every such run began, in seconds since 1970."""
PRICES = {
    "reserved": Price(usd_per_gpu_hour=3.29, on_demand=3.29, source="job"),
    "spot": Price(usd_per_gpu_hour=1.43, on_demand=3.29, source="job"),
}
_NOTICE_S = 30.0
_STATES_MS = 3_600_000
"""Raw states of workers are kept for so long."""


def write_large_run(folder: Path, size: Size, *, finished: bool = True) -> World:
    """Write the folder, which must not be there."""
    world = World(size)
    folder.mkdir(parents=True)
    stamp = Stamp(run=f"run-large-{size.seed}")
    (folder / "config.yaml").write_text(job_to_yaml(_job(size), stamp))
    _write_lines(folder / "metrics.jsonl", _metrics(world))
    events = sorted(_events(world, finished=finished), key=lambda event: event["time_s"])
    _write_lines(folder / "events.jsonl", events)
    _write_states(folder / "states.jsonl", world)
    write_rollups(folder / ROLLUPS, world)
    write_ledger(folder, make_ledger(world))
    _write_pictures(folder / "validation", world)
    return world


def write_rollups(folder: Path, world: World) -> None:
    """As the coordinator does, line by line; in memory, since every line is synced."""
    with scratch_folder() as scratch:
        rollups = Rollups(scratch / ROLLUPS)
        for line in rollup_lines(world):
            rollups.append(line)
        rollups.close()
        shutil.copytree(scratch / ROLLUPS, folder)


def rollup_lines(world: World) -> Iterator[RollupLine]:
    """Those of the finest level, one for each write of the ledger."""
    going, coming, spent = [], list(reversed(world.stays)), dict.fromkeys(PRICES, 0.0)
    for number in range(world.size.lines):
        while coming and coming[-1].begin <= number:
            going.append(coming.pop())
        going = [stay for stay in going if number < stay.end]
        times: dict[str, Milliseconds] = {}
        for stay in going:
            state = stay.state(number)
            for index, worker in enumerate(stay.workers):
                if state is None:
                    times[worker] = world.variant(stay, index).lines[number]
                else:
                    times[worker] = {state: LINE_MS}
            gpu_h = len(stay.workers) * LINE_MS / 3_600_000
            spent[stay.pool] += gpu_h * PRICES[stay.pool].usd_per_gpu_hour
        end_s = (number + 1) * LINE_MS / 1000
        yield RollupLine(
            number=number + 1,
            start_s=number * LINE_MS / 1000,
            end_s=end_s,
            at=BEGAN_AT + end_s,
            times=times,
            spent={pool: round(usd, 6) for pool, usd in spent.items()},
        )


def make_ledger(world: World) -> Ledger:
    """That of the job at the end, which accounts for all lines."""
    end_s = world.end_ms / 1000
    bills = [
        NodeBill(
            node=stay.node,
            pool=stay.pool,
            job=f"large-run-{world.size.seed}",
            process=stay.process,
            workers=len(stay.workers),
            from_at=BEGAN_AT + stay.begin * LINE_MS / 1000,
            to_at=BEGAN_AT + stay.end * LINE_MS / 1000,
            is_there=not stay.is_lost,
            price=PRICES[stay.pool],
            times={
                worker: _times_of(world, stay, index) for index, worker in enumerate(stay.workers)
            },
        )
        for stay in world.stays
    ]
    return Ledger(number=world.size.lines, at=BEGAN_AT + end_s, time_s=end_s, bills=tuple(bills))


def _times_of(world: World, stay: Stay, index: int) -> Milliseconds:
    works = slice(stay.serves, stay.drains)
    by_line = world.variant(stay, index).by_line
    times: Milliseconds = {state: int(took[works].sum()) for state, took in by_line.items()}
    edges = (stay.begin, stay.loads, stay.serves, stay.drains, stay.lost, stay.end)
    for begin, end in pairwise(edges):
        state = stay.state(begin)
        if state is not None:
            times[state] = (end - begin) * LINE_MS
    return {state: took for state, took in times.items() if took}


def _job(size: Size) -> JobSpec:
    return job_from_data(
        {
            "name": "large-run",
            "seed": size.seed,
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {
                "train": "builtin:ocr-tiny/train",
                "validation": "builtin:ocr-tiny/validation",
                "per_iteration": 8,
            },
            "sampler": {"height": size.side, "width": size.side, "steps": 8, "micro_batch": 8},
            "iterations": size.iterations,
            "group_size": 16,
            "validation": {"every": size.validate_every, "seeds": 2},
        }
    )


# --- metrics and events ---


def _metrics(world: World) -> Iterator[dict[str, Any]]:
    rng = random.Random(f"{world.size.seed} metrics")
    ends_s, took_s = world.iterations[1:] / 1000, np.diff(world.iterations) / 1000
    for iteration, (end_s, s) in enumerate(zip(ends_s.tolist(), took_s.tolist(), strict=True)):
        if world.validated[iteration]:
            yield _metrics_line(_validation(world, rng, iteration), end_s - 0.4 * s)
        further = {"kl": 0.02 * rng.random(), "velocity_change": 0.001 * rng.random()}
        yield _metrics_line(_iteration(world, rng, iteration, s), end_s) | further
    last = _validation(world, rng, world.size.iterations)
    yield _metrics_line(last, world.end_ms / 1000)


def _quality(world: World, iteration: int) -> float:
    """How good the model is by then."""
    return 0.93 - 0.63 * math.exp(-3.0 * iteration / world.size.iterations)


def _iteration(world: World, rng: random.Random, iteration: int, s: float) -> IterationMetrics:
    reward = min(1.0, max(0.0, _quality(world, iteration) + rng.gauss(0.0, 0.03)))
    contrast = 0.25 + 0.05 * rng.random()
    return IterationMetrics(
        iteration=iteration,
        weights_version=iteration,
        publish_s=round(0.02 * s, 3),
        explore_s=0.0,
        rollout_s=round(0.46 * s, 3),
        train_s=round(0.48 * s, 3),
        scoring_s=round(0.1 * s * world.size.all_workers, 3),
        samples=128,
        images_per_s=round(128 / (0.46 * s), 3),
        reward_mean=reward,
        reward_std=0.2,
        rewards={"ocr": reward},
        reward_stds={"ocr": 0.2},
        group_std_mean=0.18,
        contrast=contrast,
        contrast_at_random=contrast / (1.2 + 0.2 * rng.random()),
        loss=0.4 * math.exp(-iteration / world.size.iterations) + rng.gauss(0.0, 0.01),
        grad_norm=0.02 + 0.005 * rng.random(),
        learning_rate=3e-4,
        previews=512,
        explored_prompts=8,
        preview_group_std_mean=0.25,
        explored_std_mean=0.2,
        realised_share=0.7,
        rank_correlation=0.6 + 0.1 * rng.random(),
        probes=16,
        probe_correlation=0.6,
        probe_tau=0.5,
        window_s=round(0.48 * s, 3),
    )


def _validation(world: World, rng: random.Random, version: int) -> ValidationMetrics:
    score = min(1.0, _quality(world, version) + rng.gauss(0.0, 0.01))
    return ValidationMetrics(
        weights_version=version,
        score=score,
        score_error=0.01,
        rewards={"ocr": score},
        reward_errors={"ocr": 0.01},
        iteration=version,
        images=2 * world.size.prompts,
    )


def _metrics_line(metrics: IterationMetrics | ValidationMetrics, time_s: float) -> dict[str, Any]:
    metrics.time_s = round(time_s, 3)
    line: dict[str, Any] = msgspec.to_builtins(metrics)
    return {
        key: round(value, 6) if isinstance(value, float) else value for key, value in line.items()
    } | {"at": BEGAN_AT + metrics.time_s}


def _events(world: World, *, finished: bool) -> Iterator[dict[str, Any]]:
    yield _event(RunStarted(job="large-run", term=1), 0)
    yield _event(PhaseBegan(phase="preparing"), 0)
    for phase, begins in world.phase_edges().items():
        for iteration, begin in enumerate(begins.tolist()):
            yield _event(PhaseBegan(phase=phase, iteration=iteration), begin)
    for version, end in enumerate(world.iterations.tolist()):
        yield _event(WeightsPublished(version=version), end)
        if version and version % world.size.validate_every == 0:
            path = f"checkpoints/iteration-{version:06d}.safetensors"
            yield _event(CheckpointSaved(iteration=version, path=path), end)
    middle = int(world.iterations[world.size.iterations // 2])
    going_on = RunStarted(
        job="large-run", resumed_from_iteration=world.size.iterations // 2, term=2
    )
    yield _event(going_on, middle)
    for stay in world.stays:
        yield from _events_of(stay)
    if finished:
        yield _event(RunFinished(), world.end_ms)


def _events_of(stay: Stay) -> Iterator[dict[str, Any]]:
    joins = stay.loads * LINE_MS
    yield _event(NodeJoined(node=stay.node, pool=stay.pool, workers=stay.workers), joins)
    for worker in stay.workers:
        yield _event(WorkerJoined(worker=worker, node=stay.node, pool=stay.pool), joins)
    if stay.had_notice:
        notice = NoticeReceived(node=stay.node, source="cloud", lead_s=_NOTICE_S)
        yield _event(notice, stay.drains * LINE_MS)
    if stay.is_lost:
        lost = NodeLost(node=stay.node, pool=stay.pool, reason="its process is gone")
        yield _event(lost, stay.lost * LINE_MS)


def _event(event: RunEvent, time_ms: int) -> dict[str, Any]:
    time_s = time_ms / 1000
    return encode_event(event, time_s) | {"at": BEGAN_AT + time_s}


def _write_lines(path: Path, lines: Iterator[dict[str, Any]] | Sequence[dict[str, Any]]) -> None:
    with path.open("wb") as file:
        for line in lines:
            file.write(json.dumps(line).encode() + b"\n")


# --- the last hour of workers, and pictures ---


def _write_states(path: Path, world: World) -> None:
    """In order of time."""
    since, found = max(0, world.end_ms - _STATES_MS), []
    for stay in world.stays:
        if stay.end * LINE_MS <= since:
            continue
        for index, worker in enumerate(stay.workers):
            begun = list(_states_of(world, stay, index))
            first = max((ms for ms, _ in begun if ms <= since), default=0)
            of_it = f'"worker": "{worker}", "node": "{stay.node}", "pool": "{stay.pool}"'
            found += [(ms, state, of_it) for ms, state in begun if ms >= first]
    with path.open("w") as file:
        for ms, state, of_it in sorted(found):
            at = BEGAN_AT + ms / 1000
            file.write(
                f'{{"time_s": {ms / 1000}, "event": "worker_state", {of_it}, "state": "{state}",'
                f' "at": {at}}}\n'
            )


def _states_of(world: World, stay: Stay, index: int) -> Iterator[tuple[int, str]]:
    """When a worker began what, in ms, from its process's start on."""
    variant = world.variant(stay, index)
    serves, drains = stay.serves * LINE_MS, stay.drains * LINE_MS
    yield stay.loads * LINE_MS, "loading"
    first, last = np.searchsorted(variant.edges, [serves, drains], side="right").tolist()
    for place in range(first - 1, min(last, len(variant.states))):
        begin, end = max(serves, int(variant.edges[place])), int(variant.edges[place + 1])
        if begin < min(end, drains):
            yield begin, variant.states[place]
    if stay.is_lost:
        if stay.had_notice:
            yield drains, "idle"
        yield stay.lost * LINE_MS, "gone"


def _write_pictures(folder: Path, world: World) -> None:
    """Those of the first and of the latest version."""
    size = world.size
    for version in (0, size.iterations):
        shown = folder / f"v{version:06d}"
        shown.mkdir(parents=True)
        listing = []
        for number in range(size.prompts):
            file = f"p{number:03d}.png"
            (shown / file).write_bytes(_picture(size.side, number, _quality(world, version)))
            reward = round(_quality(world, version), 3)
            listing.append(
                {"prompt": f'the number "{1000 + number}"', "reward": reward, "file": file}
            )
        (shown / "prompts.json").write_text(json.dumps(listing))


def _picture(side: int, number: int, quality: float) -> bytes:
    """About as hard to compress as a photograph."""
    numbers = np.random.default_rng(number)
    y, x = np.mgrid[0:side, 0:side] / side
    waves = [np.sin(6.3 * (x * numbers.uniform(1, 4) + y * numbers.uniform(1, 4))) for _ in "rgb"]
    grain = numbers.normal(0.0, 24.0 * (1.1 - quality), (side, side, 1))
    pixels = np.stack(waves, axis=-1) * 90 + 128 + grain
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    data = BytesIO()
    image.save(data, "PNG", compress_level=1)
    return data.getvalue()


def main() -> None:
    """Write a folder as the options say."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.large_run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("folder", type=Path)
    options.add_argument("--size", choices=SIZES, default="small")
    for field in msgspec.structs.fields(Size):
        name = "--" + field.name.replace("_", "-")
        options.add_argument(name, type=type(field.default), help="in place of the size's own")
    given = vars(options.parse_args())
    changes = {
        field.name: given[field.name]
        for field in msgspec.structs.fields(Size)
        if given[field.name] is not None
    }
    if given["folder"].exists():
        sys.exit(f"{given['folder']} is there already; give the folder of a new run")
    began = time.monotonic()
    write_large_run(given["folder"], msgspec.structs.replace(SIZES[given["size"]], **changes))
    nbytes = sum(each.stat().st_size for each in given["folder"].rglob("*") if each.is_file())
    print(f"{nbytes / 1e6:.1f} MB in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
