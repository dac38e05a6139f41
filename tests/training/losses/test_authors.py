"""Every loss and step in the box, against numbers that its authors' own code gave.

authors.json was made in a scratch folder with the functions, or the lines of the training loop,
named below, run by torch 2.13 on a CPU in float32 on the inputs that the file holds: 6 rows of
latents [4, 2], each at a step of an 8-step schedule with shift 3. Losses are those of single rows;
gradients are those of their sum in the velocity.

| what | whose code |
|---|---|
| Flow-SDE and CPS steps | zhtmike/flow_grpo @9745241, diffusers_patch/sd3_sde_with_logprob.py |
| Flow-GRPO, and -Fast | the same, scripts/train_sd3_fast.py, "grpo logic" |
| GRPO-Guard | the same, scripts/train_sd3_GRPO_Guard.py, "grpo logic" |
| DanceGRPO's step | XueZeyue/DanceGRPO @15cc71d, fastvideo/train_grpo_flux.py, flux_step |
| DiffusionNFT | NVlabs/DiffusionNFT @24af555, scripts/train_nft_sd3.py, "Policy Gradient Loss" |
| DPM-Solver++ 2M | the same, flow_grpo/diffusers_patch/solver.py, run_sampling with dpm2 |
| AWM | scxue/advantage_weighted_matching @be51372, scripts/train_sd3_awm.py |
| MixGRPO's window | Tencent-Hunyuan/MixGRPO @e5cdd6a, fastvideo/utils/grpo_states.py |
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from spotlight.diffusion.transitions import dpmpp_2m, euler, foresee, log_prob, transition
from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.jobs.losses import (
    AWMOptions,
    DiffusionNFTOptions,
    FlowGRPOOptions,
    GRPOGuardOptions,
    LossOptions,
)
from spotlight.training.losses import Loss, LossSetup, Terms, Velocities
from spotlight.training.losses.awm import AWM
from spotlight.training.losses.diffusion_nft import DiffusionNFT
from spotlight.training.losses.flow_grpo import FlowGRPO
from spotlight.training.losses.grpo_guard import GRPOGuard

AUTHORS: dict[str, Any] = json.loads((Path(__file__).parent / "authors.json").read_text("utf-8"))
SIGMAS = torch.tensor(AUTHORS["sigmas"])
STEPS = torch.tensor(AUTHORS["steps"])
LATENTS = torch.tensor(AUTHORS["latents"])
VELOCITIES = Velocities(*(torch.tensor(AUTHORS[name]) for name in ("velocity", "old", "reference")))
ADVANTAGES = torch.tensor(AUTHORS["advantages"])
NOISED = {name: torch.tensor(values) for name, values in AUTHORS["noised"].items()}
NOISY = ("flow_sde", "dance_sde", "cps")


def losses_and_gradient(loss: Loss, terms: Terms) -> tuple[Tensor, Tensor]:
    current = VELOCITIES.current.clone().requires_grad_()
    losses, _ = loss.evaluate(terms, VELOCITIES._replace(current=current))
    (gradient,) = torch.autograd.grad(losses.sum(), current)
    return losses.detach(), gradient


def check(loss: Loss, terms: Terms, case: dict[str, Any]) -> None:
    losses, gradient = losses_and_gradient(loss, terms)
    assert_close(losses, torch.tensor(case["losses"]), rtol=2e-5, atol=1e-6)
    assert_close(gradient, torch.tensor(case["gradient"]), rtol=2e-4, atol=1e-6)


def setup(sampler: SamplerSpec, options: LossOptions, **training: Any) -> LossSetup:
    return LossSetup(TrainingSpec(**{"advantage_clip": 5.0} | training), sampler, SIGMAS, options)


def sampler(kind: str) -> SamplerSpec:
    level = AUTHORS["steps_of"][kind]["noise_level"]
    return SamplerSpec(height=8, width=8, kind=kind, noise_level=level)


def replayed(kind: str) -> Terms:
    case = AUTHORS["steps_of"][kind]
    return Terms(
        samples=torch.arange(6),
        latents=LATENTS,
        sigmas=SIGMAS[STEPS],
        targets=torch.tensor(case["next"]),
        advantages=ADVANTAGES,
        steps=STEPS,
        log_probs=torch.tensor(case["old_log_prob"]),
    )


def noised() -> Terms:
    s = NOISED["sigmas"].view(-1, 1, 1)
    return Terms(
        samples=torch.arange(6),
        latents=(1 - s) * NOISED["clean"] + s * NOISED["noise"],
        sigmas=NOISED["sigmas"],
        targets=NOISED["noise"] - NOISED["clean"],
        advantages=ADVANTAGES,
        steps=torch.zeros(6, dtype=torch.long),
        log_probs=torch.zeros(6),
    )


@pytest.mark.parametrize("kind", NOISY)
def test_the_noisy_step_is_its_authors(kind: str) -> None:
    case = AUTHORS["steps_of"][kind]
    mean, std = transition(kind, case["noise_level"], LATENTS, VELOCITIES.current, SIGMAS, STEPS)
    assert_close(mean, torch.tensor(case["mean"]), rtol=1e-5, atol=1e-6)
    assert_close(std.flatten(), torch.tensor(case["std"]), rtol=1e-5, atol=1e-7)
    found = log_prob(kind, torch.tensor(case["next"]), mean, std)
    assert_close(found, torch.tensor(case["log_prob"]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("kind", NOISY)
def test_flow_grpo_is_its_authors(kind: str, index: int) -> None:
    case = AUTHORS["steps_of"][kind]["flow_grpo"][index]
    loss = FlowGRPO(
        setup(sampler(kind), FlowGRPOOptions(clip_range=case["clip_range"]), kl=case["kl"])
    )
    check(loss, replayed(kind), case)


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("kind", ["flow_sde", "dance_sde"])
def test_grpo_guard_is_its_authors(kind: str, index: int) -> None:
    case = AUTHORS["steps_of"][kind]["grpo_guard"][index]
    loss = GRPOGuard(
        setup(sampler(kind), GRPOGuardOptions(clip_range=case["clip_range"]), kl=case["kl"])
    )
    check(loss, replayed(kind), case)


@pytest.mark.parametrize("case", AUTHORS["diffusion_nft"], ids=lambda case: str(case["strength"]))
def test_diffusion_nft_is_its_authors(case: dict[str, Any]) -> None:
    loss = DiffusionNFT(
        setup(
            SamplerSpec(height=8, width=8),
            DiffusionNFTOptions(strength=case["strength"]),
            advantage_clip=case["advantage_clip"],
            kl=case["kl"],
        )
    )
    check(loss, noised(), case)


@pytest.mark.parametrize("case", AUTHORS["awm"], ids=lambda case: str(case["clip_range"]))
def test_awm_is_its_authors(case: dict[str, Any]) -> None:
    options = AWMOptions(clip_range=case["clip_range"], old_kl=case["awm_kl"])
    given = {name: case[name] for name in ("kl", "advantage_clip")}
    check(AWM(setup(SamplerSpec(height=8, width=8), options, **given)), noised(), case)


@pytest.mark.parametrize("case", AUTHORS["dpm2"], ids=lambda case: str(case["steps"]))
def test_the_second_order_solver_is_that_of_diffusion_nft(case: dict[str, Any]) -> None:
    steps = case["steps"]
    even = torch.linspace(1, 0, steps + 1)
    sigmas = 3 * even / (1 + 2 * even)
    latents = foreseen = LATENTS
    for step in range(steps):
        sigma = sigmas[step]
        velocity = torch.sin(2 * latents) * (1 - sigma) + 0.8 * latents * sigma - 0.2
        clean = foresee(latents, velocity, sigma)
        if 2 <= step < steps - 1:
            latents = dpmpp_2m(latents, velocity, foreseen, sigmas, step)
        else:
            latents = euler(latents, velocity, sigma, sigmas[step + 1])
        foreseen = clean
    assert_close(latents, torch.tensor(case["latents"]), rtol=1e-4, atol=1e-5)
