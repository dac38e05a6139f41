"""Step 1: does a GPU compute what it should, with tiny models and a whole run?"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.families import CASES, make_checkpoint, run_job
from benchmarks.gpu_steps.site import Site
from benchmarks.report import Figure
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import resume, sample, start
from spotlight.jobs import ModelSpec, SamplerSpec, TrainingSpec, WindowSpec
from spotlight.training.trainer import Trainer, TrainingBatch
from spotlight.types import SamplingSettings
from spotlight_simulation.pipeline_comparison import compare

PROMPTS = ["a cat", "a dog", "a house", "a tree"]
SEEDS = [1, 2, 3, 4]
HEIGHT, WIDTH, STEPS = 32, 48, 4
NOISE = 0.7


def measure(site: Site) -> dict[str, Figure]:
    """See the module's docstring."""
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for family in list(CASES)[: 1 if site.quick else None]:
            make_checkpoint(family, folder / family)
            case, _ = CASES[family][0]
            difference = compare(folder / family, case, device=str(site.device), dtype=site.dtype)
            figures[f"latents_difference[{family}]"] = difference.latents
        model = load_model(ModelSpec(checkpoint=str(folder / "qwen-image")), device=site.device)
        figures["equal_bits"] = int(_bits_are_equal(model))
        figures["ratio_deviation"] = _ratio_deviation(model)
        figures["attention_kernels"] = _attention_kernels(site)
        # NCCL refuses two ranks on one GPU, so there is one spot worker.
        run_job(folder / "qwen-image", "lora", folder / "job", spot_workers=1)
        figures["run_done"] = 1
    return figures


def _settings() -> SamplingSettings:
    return SamplingSettings(
        kind="flow_sde",
        steps=STEPS,
        height=HEIGHT,
        width=WIDTH,
        noise_level=NOISE,
        window=(1, 2),
        micro_batch=len(SEEDS),
    )


def _bits_are_equal(model: DiffusionModel) -> bool:
    """Of the same samples drawn twice, alone, in another order, and resumed from a commit."""
    settings = _settings()
    first = sample(model, PROMPTS, SEEDS, settings).latents
    again = sample(model, PROMPTS, SEEDS, settings).latents
    alone = torch.cat(
        [sample(model, [p], [s], settings).latents for p, s in zip(PROMPTS, SEEDS, strict=True)]
    )
    turned = sample(model, PROMPTS[::-1], SEEDS[::-1], settings).latents.flip(0)
    half = start(model, PROMPTS, SEEDS, settings)
    half.step()
    half.step()
    rest = resume(model, PROMPTS, SEEDS, settings, half.progress())
    while not rest.done:
        rest.step()
    return all(torch.equal(first, other) for other in (again, alone, turned, rest.result().latents))


def _ratio_deviation(model: DiffusionModel) -> float:
    """How far the first update's ratio of probabilities is from 1, which it is exactly if training
    replays what the sampler did."""
    drawn = sample(model, PROMPTS, SEEDS, _settings())
    batch = TrainingBatch(
        PROMPTS,
        drawn.latents,
        torch.tensor([1.0, -1.0, 0.5, -0.5]),
        drawn.window_states,
        drawn.log_probs,
        drawn.window_start,
    )
    sampler = SamplerSpec(
        height=HEIGHT,
        width=WIDTH,
        steps=STEPS,
        kind="flow_sde",
        noise_level=NOISE,
        micro_batch=len(SEEDS),
        window=WindowSpec(length=2, earliest=1, latest=3),
    )
    training = TrainingSpec(loss="flow_grpo", micro_batch=len(SEEDS))
    report = Trainer(model, training, sampler, seed=0).train(1, batch)
    return report["first_ratio_deviation"]


def _attention_kernels(site: Site) -> str:
    """Which kernels torch takes for attention of Qwen-Image's width, without and with a mask."""
    found = []
    query = torch.randn(1, 24, 256, 128, device=site.device, dtype=site.dtype)
    mask = torch.ones(1, 1, 1, 256, dtype=torch.bool, device=site.device)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if site.is_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for given in (None, mask):
        with torch.profiler.profile(activities=activities) as profile:
            scaled_dot_product_attention(query, query, query, given)
            site.synchronize()
        names = {event.key for event in profile.key_averages() if "attention" in event.key.lower()}
        found.append("+".join(sorted(names - {"aten::scaled_dot_product_attention"})))
    return " | ".join(found)
