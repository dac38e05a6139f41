"""What the OCR reward reads, what it costs to score over HTTP, and what becomes of failures.

`perfect_EDGE` is the mean reward of signs that say exactly what their prompts ask for, `empty` that
of the same signs without their text, at both sizes; `ms_per_image_EDGE` is processor time, of one
thread. `http_vs_local` is images per second of the `ocr` scorer behind `spotlight serve-reward`, in
a process of its own, over those of the same scorer in this process; rounds alternate. Faults are
injected into real HTTP answers, and batches that fail are scored again, as a job does.

`unicode_cases` are texts as people write them (`unicode_cases.jsonl`), of which `unicode_wrong` get
another reward than a person would give. `try_reward_s` is the median time of `spotlight try-reward`
with 8 images of 512 px and a function of `function_lines` lines, as a user starts it, and
`try_reward_cpu_s` the processor time of a try, whatever else the machine does.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.report import Report
from benchmarks.signs import Sign, draw_signs, fonts
from benchmarks.unicode_cases import reward_of, unicode_cases
from spotlight.errors import ScoringError
from spotlight.jobs import RewardSpec
from spotlight.rewards.endpoint import Endpoint, Poster
from spotlight.rewards.http_scorer import HttpScorer
from spotlight.rewards.ocr import OcrScorer
from spotlight.rewards.reading import RapidReader
from spotlight.rewards.validity import score_with
from spotlight.types import Prompt
from spotlight_simulation.faulty_reward_server import FAULTS, Fault, FaultyRewardServer

ROOT = Path(__file__).parents[1]
EDGES = (512, 1280)
BATCH = 8
HANG_S = 0.2
"""Deadline of a request while faults are injected."""
FUNCTION = """def sharpness(images, prompts):
    return images.std(axis=(1, 2, 3)) / 128
"""
JOB = """
name: first
model: {checkpoint: "builtin:ocr-tiny"}
prompts: {train: "builtin:ocr-tiny/train", validation: "builtin:ocr-tiny/validation"}
sampler: {height: 32, width: 64}
rewards: [{kind: python, python: "my_rewards:sharpness"}]
"""
MOST_ATTEMPTS = 100
"""Most attempts for a batch; then its images are lost."""


def main() -> None:
    """Print the figures."""
    report = Report("rewards", __doc__, minutes=8)
    report.begin()
    report.add(reading(report.times(100, quick=2)))
    report.add(over_http(report.times(15, quick=1)))
    report.add(failures(report.times(1000, quick=70)))
    report.add(text_of_people())
    report.add(trying(report.times(7, quick=1)))
    report.finish()


def reading(count: int) -> dict[str, Any]:
    """Rewards of so many drawn signs of each size."""
    scorer = OcrScorer(RapidReader())
    figures: dict[str, Any] = {"signs": len(EDGES) * count, "fonts": len(fonts())}
    empty: list[float] = []
    for edge in EDGES:
        signs = draw_signs(count, edge, seed=edge)
        scorer.score(*_batch(signs[:1]))  # loads the models
        began = time.process_time()
        perfect = [scorer.score(*_batch([sign]))[0] for sign in signs]
        seconds = time.process_time() - began
        empty += [scorer.score(sign.empty[None], [Prompt(sign.prompt)])[0] for sign in signs]
        figures[f"perfect_{edge}"] = round(sum(perfect) / count, 4)
        figures[f"unread_{edge}"] = sum(reward < 1 for reward in perfect)
        figures[f"ms_per_image_{edge}"] = round(1000 * seconds / count, 1)
    figures["empty"] = round(sum(empty) / len(empty), 4)
    return figures


def over_http(rounds: int) -> dict[str, Any]:
    """Images per second at batch 8 of 512 px, here and behind HTTP."""
    local = OcrScorer(RapidReader())
    images, prompts = _batch(draw_signs(BATCH, EDGES[0], seed=8))
    ratios, rates = [], []
    with _serving_ocr() as url:
        remote = HttpScorer(Poster(Endpoint(url)), images_per_request=BATCH)
        assert local.score(images, prompts) == remote.score(images, prompts)  # and both are warm
        for _ in range(rounds):
            here, there = (_seconds(one, images, prompts) for one in (local, remote))
            ratios.append(here / there)
            rates.append(BATCH / there)
    return {
        "http_vs_local": round(median(ratios), 3),
        "http_images_per_second": round(median(rates), 2),
    }


def failures(count: int) -> dict[str, Any]:
    """What becomes of so many faults."""
    rng = random.Random(0)
    kinds: Iterator[Fault] = iter([FAULTS[number % len(FAULTS)] for number in range(count)])
    left = count

    def next_fault() -> Fault | None:
        nonlocal left
        if left == 0 or rng.random() < 0.5:
            return None
        left -= 1
        return next(kinds)

    spec = RewardSpec(kind="ocr", range=(0.0, 1.0))  # its range is all that counts here
    rewards: dict[int, list[float]] = {}
    truth: dict[int, float] = {}
    told: Counter[str] = Counter()
    noise = np.random.default_rng(0)
    with FaultyRewardServer(next_fault) as server:
        endpoint = Endpoint(server.url, attempts=3, timeout_s=HANG_S, first_wait_s=0.005)
        scorer = HttpScorer(Poster(endpoint), images_per_request=3, limits=(0.0, 1.0))
        while left:
            images = noise.integers(1, 256, (BATCH, 8, 8, 3)).astype(np.uint8)
            numbers = range(len(truth), len(truth) + BATCH)
            truth |= {
                number: float(image.mean() / 255)
                for number, image in zip(numbers, images, strict=True)
            }
            prompts = [Prompt(f"image {number}") for number in numbers]
            for _ in range(MOST_ATTEMPTS):
                try:
                    scored = score_with(scorer, spec, images, prompts)
                except ScoringError:
                    told["batches_tried_again"] += 1
                    continue
                for number, reward in zip(numbers, scored, strict=True):
                    rewards.setdefault(number, []).append(reward)
                break
        injected = server.injected.total()
    given = [reward for each in rewards.values() for reward in each]
    return {
        "faults": injected,
        "images": len(truth),
        "batches_tried_again": told["batches_tried_again"],
        "scored_zero": sum(reward == 0 for reward in given),
        "scored_wrong": sum(
            reward != truth[number] for number, each in rewards.items() for reward in each
        ),
        "lost": len(truth.keys() - rewards.keys()),
        "counted_twice": sum(len(each) > 1 for each in rewards.values()),
    }


def text_of_people() -> dict[str, Any]:
    """How many of the cases of text get the reward that they should."""
    cases = unicode_cases()
    wrong = [case.what for case in cases if reward_of(case) != case.reward]
    return {"unicode_cases": len(cases), "unicode_wrong": len(wrong)}


def trying(rounds: int) -> dict[str, Any]:
    """What it takes to see the rewards of a function of one's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "my_rewards.py").write_text(FUNCTION)
        (folder / "job.yaml").write_text(JOB)
        (folder / "images").mkdir()
        for number, sign in enumerate(draw_signs(BATCH, EDGES[0], seed=8)):
            Image.fromarray(sign.picture).save(folder / "images" / f"{number}.png")
        began = _children_s()
        seconds = [_try_once(folder) for _ in range(rounds)]
        cpu_s = (_children_s() - began) / rounds
    return {
        "try_reward_s": round(median(seconds), 2),
        "try_reward_cpu_s": round(cpu_s, 2),
        "function_lines": len(FUNCTION.splitlines()),
    }


def _try_once(folder: Path) -> float:
    command = ("-m", "spotlight.cli", "try-reward", "job.yaml", "--images", "images", "--json")
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
    )
    seconds = time.perf_counter() - began
    [tried] = json.loads(done.stdout)
    assert len(tried["rewards"]) == BATCH
    return seconds


def _children_s() -> float:
    """The processor time of the processes that were begun here and are over."""
    used = os.times()
    return used.children_user + used.children_system


def _batch(signs: Sequence[Sign]) -> tuple[np.ndarray, list[Prompt]]:
    return np.stack([sign.picture for sign in signs]), [Prompt(sign.prompt) for sign in signs]


def _seconds(scorer: Any, images: np.ndarray, prompts: Sequence[Prompt]) -> float:
    began = time.perf_counter()
    scorer.score(images, prompts)
    return time.perf_counter() - began


@contextmanager
def _serving_ocr() -> Iterator[str]:
    """The address of a process that serves the `ocr` scorer."""
    process = subprocess.Popen(
        [sys.executable, "-m", "spotlight.cli", "serve-reward", "ocr", "--port", "0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=60)


if __name__ == "__main__":
    main()
