"""What a job must know of an update rule before any process loads it: its name, its options, and
where it fits.

All this stands here for the losses in the box, since a job is checked where there is no torch. A
loss of the user's own is named as `module:Class`, or by an entry point of the group
`spotlight.losses`. Its options and what it fits are written in its class, so they are checked where
that is loaded: by the trainer, before its first update.

A field's docstring ends with its unit in square brackets, where it has one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args

import msgspec

from spotlight.errors import JobError
from spotlight.jobs.fields import MOST_REPEATS, Positive, Section, Weight
from spotlight.jobs.problems import job_error, option_path, option_problem
from spotlight.types import SamplerKind

if TYPE_CHECKING:
    from spotlight.jobs.sampling import SamplerSpec
    from spotlight.jobs.training import TrainingSpec

_Options = TypeVar("_Options", bound=msgspec.Struct)

GROUP = "spotlight.losses"
"""Entry points by which a package offers losses."""
_TARGET = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,200}:[A-Za-z_][A-Za-z0-9_]{0,100}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,100}")

ANY_SAMPLER: tuple[SamplerKind, ...] = get_args(SamplerKind)
NOISY_SAMPLERS: tuple[SamplerKind, ...] = tuple(kind for kind in ANY_SAMPLER if kind != "ode")


class LossOptions(Section, frozen=True, kw_only=True):
    """Settings of a loss, under `training.options`; a loss that has some derives a class of its
    own."""


class NoisedOptions(LossOptions, frozen=True, kw_only=True):
    """Options of a loss that noises samples anew (`Noised`). A loss of your own has these unless it
    names others."""

    times: Annotated[int, msgspec.Meta(ge=1, le=MOST_REPEATS)] = 4
    """Random flow times per sample and update. [draws]"""
    noisiest: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Share of these flow times that is trained on: the noisiest of every sample, rounded to whole
    ones, halves up, and one at least. Training takes as much less time."""
    shared_noise: bool = False
    """Whether the samples of a prompt have the same flow times and noise in an update, so that what
    all of them would push alike cancels out. It is for trying: its gain lay within noise."""

    @property
    def trained_times(self) -> int:
        """Flow times per sample and update that are trained on."""
        return max(1, int(self.noisiest * self.times + 0.5))


class DiffusionNFTOptions(NoisedOptions, frozen=True, kw_only=True):
    """These are those of `diffusion_nft`."""

    strength: Positive = 1.0
    """How far the two implicit policies lie from the old one: `b` of DiffusionNFT. Less is for
    DiffusionNFT's recipe for OCR, which has 0.1."""


class AWMOptions(NoisedOptions, frozen=True, kw_only=True):
    """These are those of `awm`."""

    clip_range: Positive = 1.0
    """Clip range of probability ratios; the authors' hardly ever stops anything. Less is for jobs
    that update often with the same samples."""
    old_kl: Weight = 1.0
    """Weight of the distance to the old policy. It is for recipes that name another."""


class FlowGRPOOptions(LossOptions, frozen=True, kw_only=True):
    """These are those of `flow_grpo`."""

    clip_range: Positive = 1e-4
    """Clip range of probability ratios; log-probabilities are means over the latents, so it is
    small. The default is that of the authors' recipes for Flow-SDE."""


class GRPOGuardOptions(LossOptions, frozen=True, kw_only=True):
    """These are those of `grpo_guard`."""

    clip_range: Positive = 2e-6
    """Clip range of probability ratios; the default is that of the authors' recipe for OCR. More is
    for images of few latents."""


class LossFacts(NamedTuple):
    """One loss in the box."""

    title: str
    """The name that reports have for it."""
    target: str
    """The class, as `module:Class`."""
    samplers: tuple[SamplerKind, ...]
    """Whose samples it can train on."""
    options: type[LossOptions]
    """What a job may set of it."""
    reuses: bool = True
    """Whether it can train on samples that are one iteration old."""
    advantage_clip: float = 5.0
    """What `training.advantage_clip` is when absent; all authors have 5."""


LOSSES = {
    "diffusion_nft": LossFacts(
        "DiffusionNFT",
        "spotlight.training.losses.diffusion_nft:DiffusionNFT",
        ANY_SAMPLER,
        DiffusionNFTOptions,
        # It pulls back to the old policy by `advantage_clip` times `strength`: with 5 and a
        # strength of 1 the second update undoes what the first has learnt.
        advantage_clip=1.0,
    ),
    "flow_grpo": LossFacts(
        "Flow-GRPO",
        "spotlight.training.losses.flow_grpo:FlowGRPO",
        NOISY_SAMPLERS,
        FlowGRPOOptions,
    ),
    "grpo_guard": LossFacts(
        "GRPO-Guard",
        "spotlight.training.losses.grpo_guard:GRPOGuard",
        ("flow_sde", "dance_sde"),  # the log-probability of `cps` is none of a normal distribution
        GRPOGuardOptions,
    ),
    "awm": LossFacts(
        "AWM", "spotlight.training.losses.awm:AWM", ANY_SAMPLER, AWMOptions, reuses=False
    ),
}


def default_advantage_clip(name: str) -> float:
    """What `training.advantage_clip` is when a job leaves it out, by the name of its loss. One of
    the user's own may derive from the loss that needs the smallest."""
    facts = LOSSES.get(name, LOSSES["diffusion_nft"])
    return facts.advantage_clip


def read_options(loss: str, given: Mapping[str, Any], kind: type[_Options]) -> _Options:
    """The options that a job gives its loss, as that wants them, with defaults for the others.

    Raises `JobError` that names the option as `options.NAME`.
    """
    known = kind.__struct_fields__
    for name, value in given.items():
        if name not in known:
            raise JobError(option_path(name), _unknown_option(loss, name, known))
        if problem := option_problem(value):
            raise JobError(option_path(name), problem)
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        found = job_error(str(error), given, kind)
        raise JobError(f"options.{found.path}", found.problem) from error


def _unknown_option(loss: str, name: str, known: Collection[str]) -> str:
    others = [
        f"`{each}`" for each, facts in LOSSES.items() if name in facts.options.__struct_fields__
    ]
    if others and loss in LOSSES:
        return f"belongs to {' and '.join(others)}, but this job's loss is `{loss}`; remove it"
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"`{loss}` has no option `{name}`; did you mean `{close[0]}`?"
    return f"`{loss}` has no option `{name}`; known here: {', '.join(sorted(known)) or 'none'}"


def noised_options(training: TrainingSpec) -> NoisedOptions:
    """What a job says of rows that are noised anew: of a loss of the user's own, as far as can be
    told without loading it."""
    said = {
        name: training.options[name]
        for name in NoisedOptions.__struct_fields__
        if name in training.options
    }
    return read_options(training.loss, said, NoisedOptions)


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


def training_guidance(
    training: TrainingSpec,
    sampler: SamplerSpec,
    samplers: Collection[str],
    *,
    embedded: bool,
) -> float:
    """The guidance scale of training's forward passes, for a loss that fits these `samplers`, and
    a transformer that may have guidance `embedded`, as an input."""
    if training.guidance is not None:
        return training.guidance
    return sampler.guidance if replays(samplers) or embedded else 1.0


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
    if training.guidance not in (None, sampler.guidance):
        return (
            "training.guidance",
            f"must be {sampler.guidance:g} as `sampler.guidance`, or absent, with {name}, not"
            f" {training.guidance:g}: it compares the likelihood of the very steps that were"
            " sampled; `diffusion_nft` and `awm` can train without the guidance of rollouts",
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
