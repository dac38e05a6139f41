"""Which images of a folder are of which prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from spotlight.errors import UserError
from spotlight.files import Lines
from spotlight.jobs import RewardSpec
from spotlight.rewards.trial.pairing import PromptImages, paired, require_groups, with_images
from spotlight.types import Prompt

NAMES = ["a.png", "b.png", "c.png", "d.png"]


def lines(*prompts: Prompt) -> Lines[Prompt]:
    return Lines("prompts.jsonl", list(prompts), list(range(1, len(prompts) + 1)))


def test_images_belong_to_prompts_in_the_order_of_their_names() -> None:
    found = paired(NAMES, lines(Prompt("one"), Prompt("two")), each=0)
    assert found == [
        PromptImages(Prompt("one"), ("a.png", "b.png")),
        PromptImages(Prompt("two"), ("c.png", "d.png")),
    ]


def test_prompts_behind_the_last_image_are_left_out_when_each_has_a_number_of_images() -> None:
    found = paired(NAMES[:2], lines(*map(Prompt, "pqr")), each=1)
    assert [one.prompt.text for one in found] == ["p", "q"]


def test_a_prompt_may_name_its_images_and_the_scorer_does_not_see_that() -> None:
    named = lines(Prompt("one", {"images": ["d.png", "a.png"], "tag": 1}), Prompt("none"))
    assert paired(NAMES, named, each=0) == [
        PromptImages(Prompt("one", {"tag": 1}), ("d.png", "a.png"))
    ]


@pytest.mark.parametrize(("prompts", "each"), [(3, 0), (5, 0), (3, 1), (1, 3)])
def test_images_that_cannot_be_shared_out_are_refused(prompts: int, each: int) -> None:
    with pytest.raises(UserError, match="--images: 4 images cannot be shared out among the"):
        paired(NAMES, lines(*[Prompt(str(number)) for number in range(prompts)]), each)


@pytest.mark.parametrize(
    ("images", "problem"),
    [(["e.png"], "there is no image 'e.png'"), ("a.png", "must be a list"), ([], "must be a list")],
)
def test_images_that_are_not_there_are_refused_with_the_line(images: object, problem: str) -> None:
    with pytest.raises(UserError, match=f"prompts.jsonl, line 1: `images`.*{problem}"):
        paired(NAMES, lines(Prompt("one", {"images": images})), each=0)


def test_prompts_come_with_the_files_of_what_is_to_be_changed(tmp_path: Path) -> None:
    Image.new("RGB", (3, 2)).save(tmp_path / "park.png")
    prompts = [Prompt(text, {"image": "park.png"}) for text in ("make it winter", "add a dog")]
    found = with_images(Lines(str(tmp_path / "prompts.jsonl"), prompts, [1, 2]))
    file = (tmp_path / "park.png").read_bytes()
    assert found.items == [Prompt(each.text, each.metadata, file) for each in prompts]
    assert found.items[0].image is found.items[1].image, "one image is read and kept once"


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        (None, "is missing, but this checkpoint changes images"),
        (3, "must be text"),
        ("none.png", "the file that it names cannot be read"),
        ("text.png", "the file that it names is no PNG"),
    ],
)
def test_what_is_to_be_changed_and_is_no_image_is_refused_with_the_line(
    tmp_path: Path, image: object, problem: str
) -> None:
    (tmp_path / "text.png").write_text("none")
    prompt = Prompt("make it winter", {"image": image})
    with pytest.raises(UserError, match=rf"prompts\.jsonl, line 1: `image`:? {problem}"):
        with_images(Lines(str(tmp_path / "prompts.jsonl"), [prompt], [1]))


def test_one_image_of_a_prompt_is_not_enough_to_compare() -> None:
    compares = RewardSpec(kind="python", python="own:compare", groupwise=True)
    of = [PromptImages(Prompt("one"), ("a.png", "b.png")), PromptImages(Prompt("two"), ("c.png",))]
    with pytest.raises(UserError, match=r"`python` compares .* that of c\.png has no other one"):
        require_groups(compares, of)
    require_groups(compares, of[:1])
    require_groups(RewardSpec(), of)
