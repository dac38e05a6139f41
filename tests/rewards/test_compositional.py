from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.assets.geneval import Exclusion, PromptMetadata, Requirement
from spotlight.errors import ScoringError
from spotlight.rewards.base import Prompt
from spotlight.rewards.compositional import (
    CompositionalScorer,
    DetectedObject,
    relations,
    soft_score,
)
from spotlight.tracebacks import foreign_traceback
from tools.shape_scenes import as_prompt

IMAGES = np.zeros((2, 8, 8, 3), dtype=np.uint8)
NAMES, COLOURS = ("circle", "square", None), ("red", "blue", None)


def thing(name: str | None, colour: str | None, x: float = 0, y: float = 0) -> DetectedObject:
    """An object of 2 x 2 pixels around a point."""
    return DetectedObject(name, colour, (x - 1, y - 1, x + 1, y + 1))


def wanted(name: str, colour: str | None = None, count: int = 1, **more: Any) -> Requirement:
    return Requirement(name=name, colour=colour, count=count, **more)  # type: ignore[arg-type]


def asks(*include: Requirement, exclude: tuple[Exclusion, ...] = ()) -> PromptMetadata:
    return PromptMetadata(tag="test", include=include, exclude=exclude, prompt="p")


RED_CIRCLE = asks(wanted("circle", "red"))
THREE = asks(wanted("circle", "red", 3), exclude=(Exclusion(name="circle", count=4),))
LEFT = asks(wanted("square", "blue"), wanted("circle", "red", position=("left of", 0)))


@pytest.mark.parametrize(
    ("metadata", "objects", "reward"),
    [
        (RED_CIRCLE, [], 0.0),
        (RED_CIRCLE, [thing("circle", "red")], 1.0),
        (RED_CIRCLE, [thing("circle", "blue")], 0.5),
        (RED_CIRCLE, [thing("circle", None)], 0.5),
        (RED_CIRCLE, [thing("square", "red")], 0.0),
        (RED_CIRCLE, [thing("circle", "red"), thing("square", "red")], 1 / 2),
        (RED_CIRCLE, [thing("circle", "red"), thing(None, "red")], 1 / 2),
        (RED_CIRCLE, [thing("circle", "red")] * 2, (0 + 1 / 2) / 2),
        (RED_CIRCLE, [thing("circle", "red")] * 5, (0 + 1 / 5) / 2),
        (THREE, [thing("circle", "red")] * 3, 1.0),
        (THREE, [thing("circle", "red")] * 2, 2 / 3),
        (THREE, [thing("circle", "red")] * 2 + [thing("circle", "blue")], (1 + 2 / 3) / 2),
        (THREE, [thing("circle", "red")] * 4, (2 / 3 + 3 / 4) / 2 * 3 / 4),
        (LEFT, [thing("circle", "red", 0, 9), thing("square", "blue", 9, 9)], 1.0),
        (LEFT, [thing("circle", "red", 9, 9), thing("square", "blue", 0, 9)], 4 / 5),
        (LEFT, [thing("circle", "blue", 0, 9), thing("square", "blue", 9, 9)], 3 / 5),
        (LEFT, [thing("circle", "red", 0, 9), thing("square", "red", 9, 9)], 3 / 5),
        (LEFT, [thing("circle", "red")], 2 / 5),
    ],
)
def test_the_reward_is_the_mean_of_its_parts_less_for_strays(
    metadata: PromptMetadata, objects: list[DetectedObject], reward: float
) -> None:
    assert soft_score(metadata, objects) == pytest.approx(reward)


def test_a_class_is_asked_for_in_any_colour() -> None:
    assert soft_score(asks(wanted("circle")), [thing("circle", None)]) == 1.0


def test_every_pair_must_hold_the_relation() -> None:
    two = asks(wanted("square"), wanted("circle", count=2, position=("above", 0)))
    square = thing("square", None, 5, 5)
    above, below = thing("circle", None, 5, 0), thing("circle", None, 5, 10)
    assert soft_score(two, [square, above, above]) == 1.0
    assert soft_score(two, [square, above, below]) == pytest.approx((1 + 1 + 1 / 2) / 3)


objects_strategy = st.lists(
    st.builds(
        thing,
        st.sampled_from(NAMES),
        st.sampled_from(COLOURS),
        st.floats(0, 32),
        st.floats(0, 32),
    ),
    max_size=12,
)
metadata_strategy = st.sampled_from([RED_CIRCLE, THREE, LEFT, asks(wanted("square", count=2))])


@settings(deadline=None)
@given(metadata_strategy, objects_strategy)
def test_the_reward_is_within_bounds_whatever_is_found(
    metadata: PromptMetadata, objects: list[DetectedObject]
) -> None:
    assert 0.0 <= soft_score(metadata, objects) <= 1.0


@settings(deadline=None)
@given(metadata_strategy, objects_strategy, st.randoms(use_true_random=False))
def test_the_order_in_which_objects_are_found_does_not_matter(
    metadata: PromptMetadata, objects: list[DetectedObject], rng: Any
) -> None:
    shuffled = rng.sample(objects, len(objects))
    assert soft_score(metadata, shuffled) == pytest.approx(soft_score(metadata, objects))


@settings(deadline=None)
@given(metadata_strategy, objects_strategy, st.sampled_from(["triangle", None]))
def test_what_nobody_asked_for_never_helps(
    metadata: PromptMetadata, objects: list[DetectedObject], name: str | None
) -> None:
    before = soft_score(metadata, objects)
    after = soft_score(metadata, [*objects, thing(name, "red")])
    assert after < before or before == after == 0.0


@settings(deadline=None)
@given(st.integers(1, 6))
def test_each_missing_object_that_is_added_helps_and_each_extra_hurts(count: int) -> None:
    metadata = asks(wanted("circle", "red", count))
    rewards = [soft_score(metadata, [thing("circle", "red")] * found) for found in range(2 * count)]
    assert rewards[count] == 1.0
    assert rewards[: count + 1] == sorted(rewards[: count + 1])
    assert rewards[count:] == sorted(rewards[count:], reverse=True)
    assert len(set(rewards[: count + 1])) == count + 1


def test_only_what_was_asked_for_has_the_full_reward() -> None:
    things = [thing(n, c, x, 5) for n in NAMES for c in ("red", "blue") for x in (0.0, 20.0)]
    for found in itertools.chain(*(itertools.combinations(things, k) for k in range(4))):
        names = sorted((str(one.name), one.colour) for one in found)
        right = names == [("circle", "red"), ("square", "blue")] and (
            next(one for one in found if one.name == "circle").box[0] < 10
            and next(one for one in found if one.name == "square").box[0] > 10
        )
        assert (soft_score(LEFT, found) == 1.0) == right


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (-10, 0, {"left of"}),
        (10, 3, {"right of"}),
        (0, -10, {"above"}),
        (2, 10, {"below"}),
        (10, 10, {"right of", "below"}),
        (0, 0, set()),
        (0.3, 0, set()),
    ],
)
def test_relations_are_those_of_geneval(x: float, y: float, expected: set[str]) -> None:
    assert relations(thing("circle", None, x, y), thing("square", None)) == expected


@settings(deadline=None)
@given(st.floats(-20, 20), st.floats(-20, 20))
def test_relations_are_the_other_way_round_from_the_other_side(x: float, y: float) -> None:
    one, other = thing("circle", None, x, y), thing("square", None)
    opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
    assert {opposite[relation] for relation in relations(one, other)} == relations(other, one)


class Finds:
    """A detector that finds the same in every image."""

    def detect(self, image: np.ndarray) -> list[DetectedObject]:
        return [thing("circle", "red")]


class Breaks:
    def detect(self, image: np.ndarray) -> list[DetectedObject]:
        raise RuntimeError("out of memory")


CIRCLE, SQUARE = (as_prompt(each) for each in (RED_CIRCLE, asks(wanted("square"))))


def test_every_image_is_scored_against_its_own_prompt() -> None:
    scorer = CompositionalScorer(Finds())
    assert scorer.score(IMAGES, [CIRCLE, SQUARE]) == [1.0, 0.0]


def test_a_prompt_without_metadata_is_an_error_that_names_it() -> None:
    problem = "prompt 'a cat': object missing required field `tag`"
    with pytest.raises(ScoringError, match=problem) as caught:
        CompositionalScorer(Finds()).score(IMAGES, [SQUARE, Prompt("a cat")])
    assert foreign_traceback(caught.value) == "", "no code has failed"


def test_a_failing_detector_is_an_error_and_not_a_reward() -> None:
    with pytest.raises(ScoringError, match="RuntimeError: out of memory"):
        CompositionalScorer(Breaks()).score(IMAGES, [SQUARE] * 2)


def test_there_must_be_as_many_images_as_prompts() -> None:
    with pytest.raises(ScoringError, match="2 images"):
        CompositionalScorer(Finds()).score(IMAGES, [SQUARE])
