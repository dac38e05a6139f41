"""Scenes of circles, squares and triangles: prompts, the metadata of prompts, and pictures.

A scene is a list of shapes; `scene_for` places what a prompt asks for at random, `render` draws it
with Pillow. This is all the data that `compositional-tiny` is trained on, and the truth that the
detector is tested against.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec
import numpy as np
from PIL import Image, ImageDraw

from spotlight.assets.geneval import Exclusion, PromptMetadata, Relation, Requirement
from spotlight.rewards.shape_prompts import COLOURS, SHAPES
from spotlight.types import Prompt

EDGE = 32
"""Pixels of a picture's edge."""
SIZES = (9.5, 10.5)
"""Pixels: smallest and largest edge of a shape's bounding box."""
CENTRES = (8.5, 23.5)
"""Pixels, in both directions: shapes lie about one of four places, well apart, which a tiny model
learns much faster than any place at all."""
JITTER = 0.25
"""Pixels: so far from its place a shape may lie, in both directions."""
APART = 1.15
"""The larger offset between two shapes is at least so many times the smaller one where a prompt
says which it is."""
OVERSAMPLING = 8

NUMBERS = {2: "two", 3: "three", 4: "four"}
RELATIONS: tuple[Relation, ...] = ("left of", "right of", "above", "below")
RGB = {"red": (255, 0, 0), "yellow": (255, 255, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


@dataclass(frozen=True)
class Shape:
    """One shape of a scene."""

    name: str
    colour: str
    x: float
    """The place of the centre from the left. [pixels]"""
    y: float
    """The place of the centre from the top. [pixels]"""
    size: float
    """Edge of the bounding box. [pixels]"""
    brightness: float = 1.0


def all_prompts() -> list[PromptMetadata]:
    """Every prompt of the task, by tag, in GenEval's manner: shapes differ within a prompt, and so
    do colours.
    """
    things = [(colour, name) for colour in COLOURS for name in SHAPES]
    pairs = [
        (one, other)
        for one in things
        for other in things
        if one[0] != other[0] and one[1] != other[1]
    ]
    return [
        *(_colours(*thing) for thing in things),
        *(_counting(*thing, count) for count in NUMBERS for thing in things),
        *(_both(*pair) for pair in pairs),
        *(_position(*pair, relation) for relation in RELATIONS for pair in pairs),
    ]


def _wanted(thing: tuple[str, str], **more: object) -> Requirement:
    colour, name = thing
    return Requirement(**{"name": name, "colour": colour, "count": 1, **more})  # type: ignore[arg-type]


def _colours(colour: str, name: str) -> PromptMetadata:
    include = (_wanted((colour, name)),)
    return PromptMetadata(tag="colors", include=include, prompt=f"a {colour} {name}")


def _counting(colour: str, name: str, count: int) -> PromptMetadata:
    return PromptMetadata(
        tag="counting",
        include=(_wanted((colour, name), count=count),),
        exclude=(Exclusion(name=name, count=count + 1),),
        prompt=f"{NUMBERS[count]} {colour} {name}s",
    )


def _both(one: tuple[str, str], other: tuple[str, str]) -> PromptMetadata:
    return PromptMetadata(
        tag="color_attr",
        include=(_wanted(one), _wanted(other)),
        prompt=f"a {' '.join(one)} and a {' '.join(other)}",
    )


def both_counted(pair: PromptMetadata, counts: tuple[int, int]) -> PromptMetadata:
    """A prompt for two shapes, with so many of each."""
    include = tuple(
        msgspec.structs.replace(one, count=count)
        for one, count in zip(pair.include, counts, strict=True)
    )
    prompt = " and ".join(f"{NUMBERS[one.count]} {one.colour} {one.name}s" for one in include)
    return PromptMetadata(tag="too_many", include=include, prompt=prompt)


def _position(one: tuple[str, str], target: tuple[str, str], relation: Relation) -> PromptMetadata:
    return PromptMetadata(
        tag="position",
        include=(_wanted(target), _wanted(one, position=(relation, 0))),
        prompt=f"a {' '.join(one)} {relation} a {' '.join(target)}",
    )


def as_prompt(metadata: PromptMetadata) -> Prompt:
    """The prompt of metadata, as scorers are told it."""
    fields = msgspec.to_builtins(metadata)
    return Prompt(fields.pop("prompt"), fields)


def scene_for(metadata: PromptMetadata, rng: random.Random) -> list[Shape]:
    """What a prompt asks for, at random places and sizes, with nothing touching; one brightness."""
    brightness = rng.uniform(0.8, 1.0)
    places = [(x, y) for x in CENTRES for y in CENTRES]
    wanted = [(one.name, one.colour) for one in metadata.include for _ in range(one.count)]
    while True:
        shapes = [
            Shape(name, colour, _near(x, rng), _near(y, rng), rng.uniform(*SIZES), brightness)
            for (name, colour), (x, y) in zip(wanted, rng.sample(places, len(wanted)), strict=True)
            if colour is not None
        ]
        if _relations_hold(metadata, shapes):
            return shapes


def _near(centre: float, rng: random.Random) -> float:
    return centre + rng.uniform(-JITTER, JITTER)


def _relations_hold(metadata: PromptMetadata, shapes: list[Shape]) -> bool:
    """Positions are only asked for in prompts of one shape for each entry."""
    for shape, wanted in zip(shapes, metadata.include, strict=False):
        if wanted.position is None:
            continue
        relation, target = wanted.position
        dx, dy = shape.x - shapes[target].x, shape.y - shapes[target].y
        along, across = (dx, dy) if relation in ("left of", "right of") else (dy, dx)
        forwards = along if relation in ("right of", "below") else -along
        if forwards < APART * abs(across):
            return False
    return True


def render(shapes: list[Shape]) -> np.ndarray:
    """A picture uint8 [EDGE, EDGE, 3] RGB, antialiased, on black."""
    image = Image.new("RGB", (EDGE * OVERSAMPLING, EDGE * OVERSAMPLING))
    draw = ImageDraw.Draw(image)
    for shape in shapes:
        colour = tuple(round(value * shape.brightness) for value in RGB[shape.colour])
        left, top = shape.x - shape.size / 2, shape.y - shape.size / 2
        right, bottom = left + shape.size, top + shape.size
        box = [value * OVERSAMPLING for value in (left, top, right, bottom)]
        if shape.name == "circle":
            draw.ellipse(box, fill=colour)
        elif shape.name == "square":
            draw.rectangle(box, fill=colour)
        else:
            middle = shape.x * OVERSAMPLING
            draw.polygon([(middle, box[1]), (box[2], box[3]), (box[0], box[3])], fill=colour)
    return np.asarray(image.resize((EDGE, EDGE), Image.Resampling.BOX))
