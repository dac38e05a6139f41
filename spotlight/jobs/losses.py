"""What a job must know of an update rule before any process loads it: its name and where it fits.

A loss of the user's own is named as `module:Class`, or by an entry point of the group
`spotlight.losses`. What it fits is written in its class, so it is checked where that is loaded: by
the trainer, before its first update.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple, get_args

from spotlight.types import SamplerKind

if TYPE_CHECKING:
    from spotlight.jobs.sampling import SamplerSpec
    from spotlight.jobs.training import TrainingSpec

GROUP = "spotlight.losses"
"""Entry points by which a package offers losses."""
_TARGET = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,200}:[A-Za-z_][A-Za-z0-9_]{0,100}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,100}")

ANY_SAMPLER: tuple[SamplerKind, ...] = get_args(SamplerKind)
NOISY_SAMPLERS: tuple[SamplerKind, ...] = tuple(kind for kind in ANY_SAMPLER if kind != "ode")


class LossFacts(NamedTuple):
    """One loss in the box."""

    title: str
    """As reports call it."""
    target: str
    """`module:Class`."""
    samplers: tuple[SamplerKind, ...]
    """Whose samples it can train on."""
    reuses: bool = True
    """Whether it can train on samples that are one iteration old."""
    advantage_clip: float = 5.0
    """What `training.advantage_clip` is when absent; all authors have 5."""


LOSSES = {
    "diffusion_nft": LossFacts(
        "DiffusionNFT",
        "spotlight.training.losses.diffusion_nft:DiffusionNFT",
        ANY_SAMPLER,
        # It pulls back to the old policy by `advantage_clip` times `nft_strength`: with 5 and a
        # strength of 1 the second update undoes what the first has learnt.
        advantage_clip=1.0,
    ),
    "flow_grpo": LossFacts(
        "Flow-GRPO", "spotlight.training.losses.flow_grpo:FlowGRPO", NOISY_SAMPLERS
    ),
    "grpo_guard": LossFacts(
        "GRPO-Guard",
        "spotlight.training.losses.grpo_guard:GRPOGuard",
        ("flow_sde", "dance_sde"),  # the log-probability of `cps` is none of a normal distribution
    ),
    "awm": LossFacts("AWM", "spotlight.training.losses.awm:AWM", ANY_SAMPLER, reuses=False),
}


def default_advantage_clip(name: str) -> float:
    """What `training.advantage_clip` is when a job leaves it out, by the name of its loss. One of
    the user's own may derive from the loss that needs the smallest."""
    facts = LOSSES.get(name, LOSSES["diffusion_nft"])
    return facts.advantage_clip


def loss_title(name: str) -> str:
    """What a report calls the loss of a job."""
    return LOSSES[name].title if name in LOSSES else name


def loss_target(name: str) -> str | None:
    """`module:Class` of a loss by the name that a job gives it; None when there is none."""
    if name in LOSSES:
        return LOSSES[name].target
    if _TARGET.fullmatch(name):
        return name
    if not _NAME.fullmatch(name):
        return None
    points = entry_points(group=GROUP, name=name)
    found = {f"{entry.module}:{entry.attr}" for entry in points}
    return found.pop() if len(found) == 1 else None


def name_problem(name: str) -> str | None:
    """Why a job cannot name its loss so; None when it can."""
    if loss_target(name) is not None:
        return None
    known = {*LOSSES, *(entry.name for entry in entry_points(group=GROUP))}
    names = ", ".join(f"`{each}`" for each in sorted(known))
    return f"must be {names} or `module:Class`, not `{name}`"


def replays(samplers: Collection[str]) -> bool:
    """Whether a loss that fits these samplers repeats the sampler's noisy steps."""
    return "ode" not in samplers


def misfit(
    name: str, samplers: Collection[str], sampler: SamplerSpec, training: TrainingSpec
) -> tuple[str, str] | None:
    """The field and the problem when a loss that fits `samplers` does not fit a job; else None."""
    if sampler.kind not in samplers:
        choices = ", ".join(f"`{kind}`" for kind in ANY_SAMPLER if kind in samplers)
        return (
            "sampler.kind",
            f"{name} cannot train on samples of `{sampler.kind}`, only on those of {choices}",
        )
    if not replays(samplers):
        return None
    if training.nft_noisiest < 1:
        return (
            "training.nft_noisiest",
            f"must be 1 with {name}, which trains on the sampler's own noisy steps and draws no"
            " flow times; leave it out, or choose the steps by `sampler.window`",
        )
    if training.nft_shared_noise:
        return (
            "training.nft_shared_noise",
            f"must be `false` with {name}, which trains on the sampler's own noise and draws none",
        )
    if sampler.noise_level <= 0:
        return (
            "sampler.noise_level",
            f"must be above 0 with {name}, which learns from noise alone; usual values are 0.7 with"
            " `flow_sde`, 0.3 with `dance_sde` and 0.8 with `cps`",
        )
    rollout, replay = sampler.micro_batch, training.micro_batch
    if rollout < 4 and rollout != replay:
        return (
            "sampler.micro_batch",
            f"must be at least 4, or {replay} as `training.micro_batch` is, not {rollout}: "
            f"small batches use other kernels, and {name} replays samples exactly",
        )
    return None
