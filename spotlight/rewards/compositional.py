"""The compositional reward: GenEval's checks as a soft score (arXiv 2310.11513, and the reward of
Flow-GRPO, arXiv 2505.05470).

For each entry of `include`, with n objects of its class asked for and m found, there are up to
three parts, each in [0, 1]:

    count     max(0, 1 - |n - m| / n)
    colour    min(n, k) / max(n, m), for k of the m in the right colour
    position  share of the pairs (object, target) in which the relation holds, 0 without a pair;
              only objects and targets in the right colour count

    reward = mean of all parts * asked / (asked + strays)

Strays are found objects of a class that nobody asked for, or of no class that the detector knows,
and for each entry of `exclude` the objects from its `count` on. Three things differ from
Flow-GRPO's score: the count cannot go below 0, a wrong position is worth 0, and what nobody asked
for costs something, so that an image full of everything is worth little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from spotlight.assets.geneval import PromptMetadata, Relation
from spotlight.errors import ScoringError
from spotlight.rewards.shape_prompts import shapes_asked_of
from spotlight.types import Prompt

POSITION_SLACK = 0.1
"""Share of the objects' sizes by which centres may differ and still count as level: GenEval's
POSITION_THRESHOLD.
"""


class DetectedObject(msgspec.Struct, frozen=True):
    """Something that a detector found."""

    name: str | None
    """Its class; None when it is of none that the detector knows."""
    colour: str | None
    """None when it has none that the detector knows."""
    box: tuple[float, float, float, float]
    """Left, top, right and bottom. [pixels]"""


class Detector(Protocol):
    """Finds objects in an image."""

    def detect(self, image: np.ndarray) -> list[DetectedObject]:
        """What is in an image uint8 [H, W, 3] RGB; may raise anything."""
        ...


class CompositionalScorer:
    """Scores images by what a detector finds in them."""

    def __init__(self, detector: Detector) -> None:
        self._detector = detector

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        """Rewards in [0, 1]; raises `ScoringError` for any failure, a prompt without metadata
        included.
        """
        if len(images) != len(prompts):
            raise ScoringError(
                f"{len(images)} images cannot be scored against {len(prompts)} prompts"
            )
        asked = [_asked_of(prompt) for prompt in prompts]
        try:
            found = [self._detector.detect(image) for image in images]
        except Exception as error:
            # The detector is foreign code: whatever it raises means that these images have no
            # reward.
            raise ScoringError(
                f"detection failed on {len(images)} images: {type(error).__name__}: {error}"
            ) from error
        return [
            soft_score(metadata, objects) for metadata, objects in zip(asked, found, strict=True)
        ]


def _asked_of(prompt: Prompt) -> PromptMetadata:
    try:
        return shapes_asked_of(prompt)
    except ValueError as error:
        raise ScoringError(f"prompt {prompt.text!r}: {error}") from None  # no code is at fault


def soft_score(metadata: PromptMetadata, objects: Sequence[DetectedObject]) -> float:
    """How much of what was asked for is there, in [0, 1], by the module's formula."""
    parts: list[float] = []
    groups: list[list[DetectedObject]] = []
    for wanted in metadata.include:
        found = [one for one in objects if one.name == wanted.name]
        right = [one for one in found if wanted.colour in (None, one.colour)]
        parts.append(max(0.0, 1 - abs(wanted.count - len(found)) / wanted.count))
        if wanted.colour is not None:
            parts.append(min(wanted.count, len(right)) / max(wanted.count, len(found)))
        if wanted.position is not None:
            relation, target = wanted.position
            parts.append(_share_of_pairs(right, groups[target], relation))
        groups.append(right)
    strays = _strays(metadata, objects)
    return math.fsum(parts) / len(parts) * metadata.asked / (metadata.asked + strays)


def relations(one: DetectedObject, other: DetectedObject) -> set[Relation]:
    """Where `one` is, seen from `other`: GenEval's `relative_position`.

    None, one or two relations (two on a diagonal). An offset counts only beyond `POSITION_SLACK` of
    both widths or heights, and in a direction only if it is more than half of the distance.
    """
    offset, beyond = [], []
    for low, high in ((0, 2), (1, 3)):
        along = (one.box[low] + one.box[high] - other.box[low] - other.box[high]) / 2
        sizes = one.box[high] - one.box[low] + other.box[high] - other.box[low]
        offset.append(along)
        beyond.append(math.copysign(max(0.0, abs(along) - POSITION_SLACK * sizes), along))
    half = math.hypot(*offset) / 2
    found: dict[Relation, bool] = {
        "left of": beyond[0] < -half,
        "right of": beyond[0] > half,
        "above": beyond[1] < -half,
        "below": beyond[1] > half,
    }
    return {relation for relation, holds in found.items() if holds}


def _share_of_pairs(
    group: Sequence[DetectedObject], targets: Sequence[DetectedObject], relation: Relation
) -> float:
    pairs = [(one, target) for one in group for target in targets]
    held = sum(relation in relations(one, target) for one, target in pairs)
    return held / len(pairs) if pairs else 0.0


def _strays(metadata: PromptMetadata, objects: Sequence[DetectedObject]) -> int:
    asked_for = {wanted.name for wanted in metadata.include}
    found = [one.name for one in objects]
    others = sum(name not in asked_for for name in found)
    # Others are strays already, so an exclusion adds only what is too many of a class asked for.
    too_many = sum(
        max(0, found.count(excluded.name) - excluded.count + 1)
        for excluded in metadata.exclude
        if excluded.name in asked_for
    )
    return others + too_many
