"""Writes run folders like those of a real run, from one seed: for tests and to look at reports."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotlight.jobs import job_from_data, job_to_yaml

RESERVED = {"worker": "reserved-0/0", "node": "reserved-0", "pool": "reserved"}
SPOT = {"worker": "spot-0/0", "node": "spot-0", "pool": "spot"}
SPOT_AGAIN = {"worker": "spot-1/0", "node": "spot-1", "pool": "spot"}

Paint = Callable[[str, float, random.Random], bytes]


def sample_job(**changes: Any):
    """The job of the sample run."""
    return job_from_data(
        {
            "name": "ocr-tiny",
            "seed": 7,
            "iterations": 40,
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {
                "train": "builtin:ocr-tiny/train",
                "validation": "builtin:ocr-tiny/validation",
            },
            "sampler": {"height": 32, "width": 64},
            **changes,
        }
    )


def png(width: int, height: int, rgb: bytes) -> bytes:
    """An 8-bit RGB PNG."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        checksum = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)

    row = width * 3
    lines = b"".join(b"\0" + rgb[y * row : (y + 1) * row] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


def noise(prompt: str, quality: float, rng: random.Random) -> bytes:
    """A grey picture that is noisier the worse it is."""
    grey = (round(220 - (1 - quality) * rng.random() * 180) for _ in range(64 * 32))
    return png(64, 32, b"".join(bytes([value]) * 3 for value in grey))


class RunWriter:
    """Appends to the files of a run folder as the coordinator does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def job(self, job) -> None:
        (self.folder / "config.yaml").write_text(job_to_yaml(job), encoding="utf-8")

    def metric(self, kind: str, time_s: float, **fields: Any) -> None:
        self._append("metrics.jsonl", {"kind": kind, "time_s": round(time_s, 4), **fields})

    def event(self, name: str, time_s: float, **fields: Any) -> None:
        self._append("events.jsonl", {"time_s": round(time_s, 4), "event": name, **fields})

    def state(self, worker: dict[str, str], time_s: float, state: str) -> None:
        self.state_line(time_s, **worker, state=state)

    def state_line(self, time_s: float, **fields: Any) -> None:
        line = {"time_s": round(time_s, 4), "event": "worker_state", **fields}
        self._append("states.jsonl", line)

    def gallery(self, version: int, quality: float, rng: random.Random, paint: Paint) -> None:
        folder = self.folder / "validation" / f"v{version:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for index in range(8):
            prompt = f'the number "{random.Random(index).randrange(1000, 10000)}"'
            shade = min(1.0, max(0.0, quality + rng.uniform(-0.2, 0.2)))
            file = f"p{index:03d}.png"
            (folder / file).write_bytes(paint(prompt, shade, rng))
            lines.append({"prompt": prompt, "reward": round(shade * 4) / 4, "file": file})
        (folder / "prompts.json").write_text(json.dumps(lines), encoding="utf-8")

    def _append(self, file: str, line: dict[str, Any]) -> None:
        with (self.folder / file).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def write_sample_run(
    folder: Path, *, iterations: int = 40, loses_spot: bool = True, paint: Paint = noise
) -> Path:
    """A finished run of two workers; in its middle the spot node is lost and another one comes."""
    rng = random.Random(7)
    run = RunWriter(folder)
    run.job(sample_job(iterations=iterations))
    run.event("run_started", 0.0, job="ocr-tiny", resumed_from_iteration=None)
    run.event("phase", 0.0, iteration=0, phase="preparing")
    _join(run, RESERVED, 0.31)
    _join(run, SPOT, 0.34)
    spot = SPOT
    now = _validate(run, rng, 3.2, spot, version=0, iteration=0, quality=0.3, paint=paint)
    for iteration in range(iterations):
        progress = (iteration + 1) / iterations
        if loses_spot and iteration == iterations // 2:
            _lose(run, spot, now + 0.4)
            spot = SPOT_AGAIN
            _join(run, spot, now + 0.9)
        now = _iteration(run, rng, now, spot, iteration, progress)
        if (iteration + 1) % 5 == 0 or iteration + 1 == iterations:
            run.event(
                "checkpoint_saved",
                now,
                iteration=iteration,
                path=f"checkpoints/iteration-{iteration + 1:06d}.safetensors",
            )
            now = _validate(
                run,
                rng,
                now,
                spot,
                version=iteration + 1,
                iteration=iteration,
                quality=0.33 + 0.5 * progress**0.7,
                paint=paint if iteration + 1 == iterations else None,
            )
    run.event("phase", now, iteration=iterations - 1, phase="finished")
    for worker in (RESERVED, spot):
        run.state(worker, now, "idle")
        run.state(worker, now + 0.2, "gone")
    run.event("run_finished", now + 0.25, outcome="finished", reason="")
    return folder


def _join(run: RunWriter, worker: dict[str, str], time_s: float) -> None:
    run.event(
        "node_joined",
        time_s,
        node=worker["node"],
        pool=worker["pool"],
        workers=[worker["worker"]],
    )
    run.event("worker_joined", time_s, **worker)
    run.state(worker, time_s, "starting")
    run.state(worker, time_s + 1.4, "loading")
    run.state(worker, time_s + 2.3, "idle")


def _lose(run: RunWriter, worker: dict[str, str], time_s: float) -> None:
    run.event(
        "worker_lost",
        time_s,
        **worker,
        reason="preempted",
        requests_handed_on={"rollout": 8},
    )
    run.event(
        "node_lost",
        time_s,
        node=worker["node"],
        pool=worker["pool"],
        reason="preempted",
    )
    run.state(worker, time_s, "gone")


def _iteration(
    run: RunWriter,
    rng: random.Random,
    start: float,
    spot: dict[str, str],
    iteration: int,
    progress: float,
) -> float:
    rollout_s, train_s = rng.uniform(1.1, 1.4), rng.uniform(2.0, 2.3)
    here = start if spot is SPOT or iteration % 40 != 20 else start + 3.3
    run.event("phase", start, iteration=iteration, phase="rollout")
    rolled_out = start + rollout_s
    for worker, begin in ((RESERVED, start), (spot, here)):
        rolled_out = max(
            rolled_out, _batches(run, rng, worker, begin, start + rollout_s, "rollout")
        )
    rollout_s = rolled_out - start
    run.event("phase", start + rollout_s, iteration=iteration, phase="train")
    run.state(RESERVED, start + rollout_s, "train")
    trained = start + rollout_s + train_s
    late = _batches(run, rng, spot, max(here, start + rollout_s), trained - 0.1, "explore")
    run.state(spot, min(late, trained), "idle")
    run.event("phase", trained, iteration=iteration, phase="publish")
    run.state(RESERVED, trained, "idle")
    run.event("weights_published", trained + 0.05, version=iteration + 1)
    spread = 0.36 - 0.12 * progress + rng.uniform(-0.02, 0.02)
    run.metric(
        "iteration",
        trained + 0.06,
        iteration=iteration,
        weights_version=iteration,
        rollout_s=round(rollout_s, 3),
        train_s=round(train_s, 3),
        publish_s=0.05,
        samples=64,
        scoring_s=round(rollout_s / 2, 3),
        images_per_s=round(64 / rollout_s, 2),
        reward_mean=round(0.33 + 0.5 * progress**0.7 + rng.uniform(-0.05, 0.05), 4),
        reward_std=round(0.31 - 0.08 * progress, 4),
        group_std_mean=round(spread, 4),
        contrast=round(spread, 4),
        contrast_at_random=None if iteration == 0 else round(0.8 * spread, 4),
        zero_variance_groups=rng.randrange(2),
        loss=round(0.9 - 0.3 * progress, 4),
        grad_norm=round(rng.uniform(0.3, 0.6), 4),
        previews=0 if iteration == 0 else rng.randrange(180, 210),
        previews_late=rng.randrange(6),
        explored_prompts=0 if iteration == 0 else 8,
        preview_group_std_mean=None if iteration == 0 else round(spread + 0.06, 4),
        realised_share=None if iteration == 0 else 0.7,
        rank_correlation=None if iteration == 0 else 0.9,
        probes=0 if iteration == 0 else 4,
        probe_tau=None if iteration == 0 else 0.625,
    )
    return trained + 0.07


def _batches(
    run: RunWriter,
    rng: random.Random,
    worker: dict[str, str],
    start: float,
    end: float,
    state: str,
) -> float:
    """Batches of `state`, each followed by scoring."""
    now = start
    while now < end:
        run.state(worker, now, state)
        run.state(worker, now + 0.3, "score")
        now += 0.3 + rng.uniform(0.03, 0.09)
    return now


def _validate(
    run: RunWriter,
    rng: random.Random,
    start: float,
    spot: dict[str, str],
    *,
    version: int,
    iteration: int,
    quality: float,
    paint: Paint | None,
) -> float:
    run.event("phase", start, iteration=iteration, phase="validation")
    for worker in (RESERVED, spot):
        run.state(worker, start, "evaluate")
        run.state(worker, start + 2.2, "score")
        run.state(worker, start + 2.6, "idle")
    run.metric(
        "validation",
        start + 2.6,
        weights_version=version,
        iteration=iteration,
        score=round(quality, 4),
        images=128,
    )
    if paint is not None:
        run.gallery(version, quality, rng, paint)
    return start + 2.65
