"""The shape detector against rendered scenes, whose truth is known, and against pictures that try
to look like everything.
"""

from __future__ import annotations

import random
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from spotlight.errors import MissingDependency
from spotlight.rewards.compositional import DetectedObject, soft_score
from spotlight.rewards.shape_prompts import COLOURS, SHAPES
from tools.shape_scenes import EDGE, RGB, Shape, all_prompts, render, scene_for

pytest.importorskip("cv2")

from spotlight.rewards.shapes import ShapeDetector

DETECTOR = ShapeDetector()
PROMPTS = all_prompts()
RED = RGB["red"]


def detect(image: np.ndarray) -> list[DetectedObject]:
    return DETECTOR.detect(image)


def names(image: np.ndarray) -> list[str | None]:
    return [one.name for one in detect(image)]


def best_reward(image: np.ndarray) -> float:
    """Of the prompt that likes the image most."""
    objects = detect(image)
    return max(soft_score(prompt, objects) for prompt in PROMPTS)


def mean_reward(image: np.ndarray) -> float:
    """Over all prompts: what a model gets that always draws this."""
    objects = detect(image)
    return float(np.mean([soft_score(prompt, objects) for prompt in PROMPTS]))


def drawing(edge: int = EDGE) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (edge, edge))
    return image, ImageDraw.Draw(image)


@given(st.sampled_from(PROMPTS), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_rendered_scene_is_read_back_exactly(prompt: object, seed: int) -> None:
    scene = scene_for(prompt, random.Random(seed))  # type: ignore[arg-type]
    found = detect(render(scene))
    assert Counter((one.name, one.colour) for one in found) == Counter(
        (shape.name, shape.colour) for shape in scene
    )
    for shape in scene:
        nearest = min(found, key=lambda one: _distance(one, shape))
        assert _distance(nearest, shape) < 1.0
        assert nearest.name == shape.name
    assert soft_score(prompt, found) == 1.0  # type: ignore[arg-type]


def _distance(one: DetectedObject, shape: Shape) -> float:
    left, top, right, bottom = one.box
    return float(np.hypot((left + right) / 2 - shape.x, (top + bottom) / 2 - shape.y))


@given(
    st.sampled_from(SHAPES),
    st.sampled_from(COLOURS),
    st.floats(7.5, 12),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.7, 1),
)
@settings(deadline=None)
@example("square", "blue", 7.5, 0.03, 0.03, 0.7)
def test_one_shape_is_read_at_any_place_size_and_brightness(
    name: str, colour: str, size: float, across: float, down: float, brightness: float
) -> None:
    room = EDGE - size - 2
    shape = Shape(name, colour, 1 + size / 2 + across * room, 1 + size / 2 + down * room, size)
    dimmed = (render([shape]) * brightness).astype(np.uint8)
    assert [(one.name, one.colour) for one in detect(dimmed)] == [(name, colour)]


@pytest.mark.parametrize("edge", [64, 256])
def test_larger_pictures_are_read(edge: int) -> None:
    shapes = [Shape("circle", "red", 9, 9, 10), Shape("triangle", "blue", 22, 20, 12)]
    image = np.asarray(Image.fromarray(render(shapes)).resize((edge, edge)))
    assert [(one.name, one.colour) for one in detect(image)] == [
        ("circle", "red"),
        ("triangle", "blue"),
    ]


def test_what_is_found_is_a_function_of_the_image_alone() -> None:
    image = render([Shape("circle", "red", 9, 9, 10), Shape("square", "blue", 22, 20, 9)])
    assert detect(image) == detect(image) == ShapeDetector().detect(image.copy())


def test_a_blank_image_holds_nothing() -> None:
    assert detect(np.zeros((EDGE, EDGE, 3), dtype=np.uint8)) == []


def test_dirt_is_no_object() -> None:
    image = np.zeros((EDGE, EDGE, 3), dtype=np.uint8)
    image[::6, ::6] = RED
    assert detect(image) == []


@pytest.mark.parametrize("colour", [(255, 255, 255), (0, 255, 255), (255, 0, 255), (255, 128, 0)])
def test_a_colour_that_is_not_known_is_none(colour: tuple[int, int, int]) -> None:
    image, draw = drawing()
    draw.ellipse((8, 8, 20, 20), fill=colour)
    assert [(one.name, one.colour) for one in detect(np.asarray(image))] == [("circle", None)]


def test_a_shape_of_two_colours_has_none() -> None:
    image, draw = drawing()
    draw.rectangle((8, 8, 13, 19), fill=RGB["red"])
    draw.rectangle((14, 8, 19, 19), fill=RGB["blue"])
    assert [(one.name, one.colour) for one in detect(np.asarray(image))] == [("square", None)]


@pytest.mark.parametrize(
    "draw_it",
    [
        lambda draw: draw.rectangle((8, 12, 24, 18), fill=RED),  # a bar
        lambda draw: draw.polygon(  # an L
            [(8, 8), (14, 8), (14, 18), (24, 18), (24, 24), (8, 24)], fill=RED),
        lambda draw: draw.rectangle((-3, 8, 9, 18), fill=RED),  # a square that is cut off
        lambda draw: draw.rectangle((2, 2, 29, 29), fill=RED),  # a square as large as the image
        lambda draw: draw.ellipse((8, 8, 24, 24), outline=RED, width=2),  # a ring
        lambda draw: draw.rectangle((8, 8, 24, 24), outline=RED, width=2),  # a frame
        lambda draw: draw.ellipse((8, 12, 24, 20), fill=RED),  # an ellipse
        lambda draw: draw.ellipse((-4, 8, 8, 20), fill=RED),  # a circle that is cut off
        lambda draw: (  # two circles that touch
            draw.ellipse((4, 8, 14, 18), fill=RED),
            draw.ellipse((14, 8, 24, 18), fill=RED),
        ),
        lambda draw: draw.rectangle((8, 8, 11, 11), fill=RED),  # too small to tell
        lambda draw: draw.polygon(  # a plus sign
            [(13, 8), (18, 8), (18, 13), (23, 13), (23, 18), (18, 18), (18, 23), (13, 23),
             (13, 18), (8, 18), (8, 13), (13, 13)], fill=RED),
    ],
)  # fmt: skip
def test_what_is_no_shape_is_reported_without_a_class(draw_it: object) -> None:
    image, draw = drawing()
    draw_it(draw)  # type: ignore[operator]
    assert names(np.asarray(image)) == [None]


def test_rewards_of_noise_are_low() -> None:
    rng = np.random.default_rng(0)
    for low, high in ((0, 256), (0, 140), (100, 256)):
        image = rng.integers(low, high, (EDGE, EDGE, 3)).astype(np.uint8)
        assert best_reward(image) <= 0.2


@pytest.mark.parametrize("seed", range(5))
def test_an_inverted_scene_is_worth_nothing(seed: int) -> None:
    rng = random.Random(seed)
    prompt = rng.choice(PROMPTS)
    assert best_reward(255 - render(scene_for(prompt, rng))) == 0.0


def grid(pitch: int, size: int, shapes: list[tuple[str, str]]) -> np.ndarray:
    """A picture tiled with shapes, in turn."""
    places = range(pitch // 2, EDGE - pitch // 2 + 1, pitch)
    spots = [(x, y) for y in places for x in places]
    return render(
        [Shape(*shapes[index % len(shapes)], x, y, size) for index, (x, y) in enumerate(spots)]
    )


EVERYTHING = [(name, colour) for colour in COLOURS for name in SHAPES]
HACKS = {
    "a huge blob": np.full((EDGE, EDGE, 3), RED, dtype=np.uint8),
    "stripes of all colours": np.repeat(
        np.array([[RGB[colour]] * EDGE for colour in COLOURS], dtype=np.uint8), EDGE // 4, axis=0
    ),
    "a checkerboard": np.kron(
        np.indices((8, 8)).sum(axis=0)[..., None] % 2, np.ones((4, 4, 3))
    ).astype(np.uint8)
    * 255,
    "tiles of one shape": grid(8, 6, [("circle", "red")]),
    "tiles of every shape and colour": grid(8, 6, EVERYTHING),
    "sixteen large tiles": grid(8, 7, EVERYTHING),
}


@pytest.mark.parametrize("hack", HACKS)
def test_a_picture_of_everything_is_worth_little_to_any_prompt(hack: str) -> None:
    assert best_reward(HACKS[hack]) <= 0.3
    assert mean_reward(HACKS[hack]) <= 0.15


def test_no_picture_is_good_for_all_prompts() -> None:
    """Always drawing the same scene, whichever, pays far less than drawing what is asked for."""
    rng = random.Random(0)
    for prompt in PROMPTS[::3]:
        assert mean_reward(render(scene_for(prompt, rng))) < 0.4


def test_opencv_that_is_missing_is_named_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingDependency, match=r'pip install "\.\[rewards\]'):
        ShapeDetector()
