"""Denoising: from (prompt, seed) to clean latents, one resumable step at a time.

Invariants:
- A sample is a function of (weights, prompt, seed, settings) alone. Every forward pass runs at
  exactly `settings.micro_batch` rows, padded when short, because kernels choose differently for
  other batch sizes.
- Noise comes from (seed, step); resuming needs no generator state.
- Samples that are NaN or infinite are never a result.
- Latents stay float32. Noise is added only inside the window; outside it every step is the
  solver's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spotlight.diffusion.finite import rows_not_finite
from spotlight.diffusion.model import Conditioning, DiffusionModel
from spotlight.diffusion.noise import initial_noise, step_noise
from spotlight.diffusion.progress import Progress
from spotlight.diffusion.transitions import dpmpp_2m, euler, foresee, log_prob, transition
from spotlight.errors import NotFinite
from spotlight.types import SamplingSettings

_NAMED = 4
"""An error names so many samples."""


@dataclass(frozen=True)
class SampleBatch:
    """Finished samples, on the CPU."""

    latents: Tensor
    """[B, T, C] float32, clean."""
    window_states: Tensor | None
    """[B, w + 1, T, C]: the latents before the first and after every window step."""
    log_probs: Tensor | None
    """[B, w]: one log-probability of each noisy step."""
    window_start: int


@dataclass(frozen=True)
class _Point:
    """Where a denoising is, padded. Replaced as a whole after every step, so that another thread
    never sees half a step.
    """

    step: int
    latents: Tensor
    states: tuple[Tensor, ...]
    log_probs: tuple[Tensor, ...]
    foreseen: tuple[Tensor, ...]
    """One, if the next step looks back at it."""


class Denoising:
    """One micro-batch on its way from noise to image. Make one with `start` or `resume`.

    A copy (`copy.copy`) goes on by itself from the last completed step, also while another thread
    is in the middle of the next one.
    """

    def __init__(
        self,
        model: DiffusionModel,
        prompts: Sequence[str],
        seeds: Sequence[int],
        settings: SamplingSettings,
        progress: Progress | None = None,
    ) -> None:
        count = len(seeds)
        if not 1 <= count <= settings.micro_batch or len(prompts) != count:
            raise ValueError(
                f"{len(prompts)} prompts and {count} seeds do not make a micro-batch of at most"
                f" {settings.micro_batch} samples"
            )
        self.settings = settings
        self._model = model
        self._prompts = prompts
        size = settings.height, settings.width
        self._shape = model.latent_shape(*size, settings.frames)
        self._count = count
        # Padding repeats the last sample: rows never influence each other, so any valid row will
        # do.
        rows = [min(row, count - 1) for row in range(settings.micro_batch)]
        self._seeds = [seeds[row] for row in rows]
        self._conditioning: Conditioning = model.encode_prompts(
            [prompts[row] for row in rows], settings.text_tokens
        )
        self._sigmas = model.sigmas(settings.steps, *size, settings.shift, settings.frames)
        if progress is None:
            progress = Progress.begin(initial_noise(seeds, self._shape))
        if progress.latents.shape != (count, *self._shape):
            raise ValueError(
                f"a commit of latents {tuple(progress.latents.shape)} does not fit"
                f" {(count, *self._shape)}"
            )
        padded = progress.select(rows)
        self._at = _Point(
            padded.step,
            padded.latents.to(model.device),
            padded.window_states.to(model.device).unbind(1),
            padded.log_probs.to(model.device).unbind(1),
            padded.foreseen.to(model.device).unbind(1),
        )

    @property
    def done(self) -> bool:
        """Whether all steps are taken."""
        return self._at.step >= self.settings.steps

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return self.settings.steps

    @property
    def steps_taken(self) -> int:
        """How many steps are taken."""
        return self._at.step

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the samples, without the padding."""
        return tuple(self._seeds[: self._count])

    @property
    def latents(self) -> Tensor:
        """[B, T, C] float32 after the steps taken, without the padding, on the model's device."""
        return self._at.latents[: self._count]

    @property
    def carried(self) -> Tensor:
        """[B, 1 or 2, T, C]: `latents` and, if the next step looks back at them, the clean ones
        that the last step foresaw.
        """
        at = self._at
        return torch.stack((at.latents, *at.foreseen), dim=1)[: self._count]

    def adopt(self, ahead: Denoising) -> None:
        """Be where a copy of this denoising is by now."""
        self._at = ahead._at

    @torch.no_grad()
    def step(self) -> None:
        """Take one denoising step: one forward pass at the micro-batch size (two with guidance)."""
        if self.done:
            raise ValueError(f"all {self.settings.steps} steps are taken")
        settings, at = self.settings, self._at
        sigma, next_sigma = self._sigmas[at.step], self._sigmas[at.step + 1]
        begins, ends = (
            each.expand(settings.micro_batch).to(at.latents.device) for each in (sigma, next_sigma)
        )
        velocity = self._model.velocity(
            at.latents,
            begins,
            self._conditioning,
            height=settings.height,
            width=settings.width,
            frames=settings.frames,
            guidance=settings.guidance,
            next_sigmas=ends,
        )
        if settings.in_window(at.step):
            after = self._after_noise(at, velocity)
        elif at.foreseen:
            latents = dpmpp_2m(at.latents, velocity, at.foreseen[0], self._sigmas, at.step)
            after = replace(at, step=at.step + 1, latents=latents)
        else:
            latents = euler(at.latents, velocity, sigma, next_sigma)
            after = replace(at, step=at.step + 1, latents=latents)
        looks_back = settings.looks_back(after.step)
        foreseen = (foresee(at.latents, velocity, sigma),) if looks_back else ()
        self._at = replace(after, foreseen=foreseen)

    def progress(self) -> Progress:
        """What is done so far, without the padding, on the CPU: a commit."""
        at = self._at
        states, log_probs = self._recorded(at)
        carried = self.carried.cpu()
        latents, foreseen = carried[:, 0].contiguous(), carried[:, 1:].contiguous()
        return Progress(at.step, latents, states, log_probs, foreseen)

    def result(self) -> SampleBatch:
        """The finished samples, without the padding.

        Raises `ValueError` before the last step, and `NotFinite` with the samples that are not.
        """
        if not self.done:
            raise ValueError(f"only {self._at.step} of {self.settings.steps} steps are taken")
        end = self.progress()
        require_finite(end, self._prompts, self._seeds)
        if self.settings.window is None or self.settings.kind == "ode":
            return SampleBatch(end.latents, None, None, 0)
        return SampleBatch(end.latents, end.window_states, end.log_probs, self.settings.window[0])

    def _after_noise(self, at: _Point, velocity: Tensor) -> _Point:
        kind, noise_level = self.settings.kind, self.settings.noise_level
        mean, std = transition(kind, noise_level, at.latents, velocity, self._sigmas, at.step)
        noise = step_noise(self._seeds, at.step, self._shape).to(mean.device)
        latents = mean + std * noise
        return _Point(
            at.step + 1,
            latents,
            (*(at.states or (at.latents,)), latents),
            (*at.log_probs, log_prob(kind, latents, mean, std)),
            (),
        )

    def _recorded(self, at: _Point) -> tuple[Tensor, Tensor]:
        count = self._count
        if not at.states:
            empty = torch.zeros(count, 0, *self._shape)
            return empty, torch.zeros(count, 0)
        states = torch.stack(at.states, dim=1)[:count].cpu()
        if not at.log_probs:
            return states, torch.zeros(count, 0)
        return states, torch.stack(at.log_probs, dim=1)[:count].cpu()


def require_finite(end: Progress, prompts: Sequence[str], seeds: Sequence[int]) -> None:
    """Raises `NotFinite` with the rows that are not, after the last step."""
    rows = rows_not_finite(end.latents, end.log_probs)
    if rows:
        names = [f"{prompts[row]!r}, seed {seeds[row]}" for row in rows]
        named = "; ".join(names[:_NAMED] + ["..."] * (len(names) > _NAMED))
        raise NotFinite(
            f"{len(rows)} of {len(end.latents)} samples are NaN or infinite after the last step"
            f" ({named}); resume from an earlier checkpoint with a lower"
            " training.learning_rate, or lower sampler.guidance",
            rows,
        )


def start(
    model: DiffusionModel, prompts: Sequence[str], seeds: Sequence[int], settings: SamplingSettings
) -> Denoising:
    """Begin to denoise one micro-batch of at most `settings.micro_batch` samples."""
    return Denoising(model, prompts, seeds, settings)


def resume(
    model: DiffusionModel,
    prompts: Sequence[str],
    seeds: Sequence[int],
    settings: SamplingSettings,
    progress: Progress,
) -> Denoising:
    """Go on from a commit; the samples come out with the same bits as without the break."""
    return Denoising(model, prompts, seeds, settings, progress)


def sample(
    model: DiffusionModel, prompts: Sequence[str], seeds: Sequence[int], settings: SamplingSettings
) -> SampleBatch:
    """Denoise any number of samples to the end, one micro-batch after the other, in the order
    given.
    """
    batches = []
    for first in range(0, len(seeds), settings.micro_batch):
        rows = slice(first, first + settings.micro_batch)
        denoising = start(model, prompts[rows], seeds[rows], settings)
        while not denoising.done:
            denoising.step()
        batches.append(denoising.result())
    return join_samples(batches)


def join_samples(batches: Sequence[SampleBatch]) -> SampleBatch:
    """Several batches with the same settings as one."""
    states = [batch.window_states for batch in batches if batch.window_states is not None]
    log_probs = [batch.log_probs for batch in batches if batch.log_probs is not None]
    return SampleBatch(
        torch.cat([batch.latents for batch in batches]),
        torch.cat(states) if states else None,
        torch.cat(log_probs) if log_probs else None,
        batches[0].window_start,
    )
