"""What a scorer is, and how the one that a job names is built.

A scorer never turns a failure into a reward: it raises `ScoringError`, and the job decides what
happens to the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from spotlight.errors import ScoringError
from spotlight.jobs import RewardSpec
from spotlight.jobs.clip_rewards import PUBLISHED, ClipSpec
from spotlight.permissions import Permissions
from spotlight.types import Prompt

__all__ = ["Prompt", "Scorer", "build_scorer"]


class Scorer(Protocol):
    """Scores images against the prompts they were made for."""

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> Sequence[float]:
        """Rewards of images uint8 [B, H, W, 3] RGB, one per image and within the declared range.

        A reward depends on its image and prompt alone, not on the others of the batch. Of a
        `groupwise` reward the batch is a whole prompt group, and rewards may depend on all of it.
        Raises `ScoringError`.
        """
        ...


class FrameScorer:
    """Scores videos by their frames: the reward of one is the mean of theirs.

    Frames of one time are scored together, so that videos can be compared. A scorer has a copy of
    the images, since it may write into them, and other rewards and people are to see them as well.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> Sequence[float]:
        """See `Scorer`; also of videos uint8 [B, F, H, W, 3]."""
        if images.ndim == 4:
            return self._scorer.score(images.copy(), prompts)
        frames = [self._rewards(images[:, at].copy(), prompts) for at in range(images.shape[1])]
        return [sum(rewards) / len(frames) for rewards in zip(*frames, strict=True)]

    def _rewards(self, frames: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        """Of one frame of each video."""
        rewards = list(self._scorer.score(frames, prompts))  # which may be a generator
        if len(rewards) != len(prompts):
            raise ScoringError(f"the scorer gave {len(rewards)} rewards for {len(prompts)} frames")
        return list(map(float, rewards))


def build_scorer(spec: RewardSpec, permissions: Permissions = Permissions()) -> Scorer:
    """The scorer of a reward, for images and for the frames of videos. `permissions`: what it may
    do on this machine; by default no code of the user's own runs, and no secret is sent.

    Raises `MissingDependency` when its packages are not installed, and `JobError` when what the job
    names for it is missing or not as it should be.
    """
    return FrameScorer(_build(spec, permissions))


def _build(spec: RewardSpec, permissions: Permissions) -> Scorer:
    # Imported here so that a worker needs no packages of scorers that it does not use.
    if spec.kind == "python":
        from spotlight.rewards.plugins import load_scorer

        loaded: Scorer = load_scorer(spec, permissions)
        return loaded
    if spec.kind == "hpsv3":
        from spotlight.rewards.hpsv3 import HpsV3Scorer

        return HpsV3Scorer(spec.clip or ClipSpec())
    if spec.kind in PUBLISHED:
        from spotlight.rewards.clip import ClipScorer

        return ClipScorer(spec.kind, spec.clip or ClipSpec())
    if spec.kind == "compositional":
        from spotlight.rewards.compositional import CompositionalScorer
        from spotlight.rewards.shapes import ShapeDetector

        return CompositionalScorer(ShapeDetector())
    if spec.http is not None or spec.judge is not None:
        from spotlight.rewards.remote import build_remote_scorer

        return build_remote_scorer(spec, permissions)
    from spotlight.rewards.ocr import OcrScorer
    from spotlight.rewards.reading import RapidReader

    return OcrScorer(RapidReader())
