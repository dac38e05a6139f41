"""Images of prompts are checked before anything is loaded."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from PIL import Image

from spotlight.assets import read_prompt_lines
from spotlight.condition_images import digest_of, named
from spotlight.errors import JobError
from spotlight.preflight.prompt_images import PromptImages, refuse_twins
from spotlight_simulation.pixels import gradient_image, png_of

FIELD = "prompts.train"
FILES = {"a.png": png_of(gradient_image(48, 32, 1)), "b.png": png_of(gradient_image(48, 32, 2))}


def read(folder: Path, *images: object) -> tuple[list[str], PromptImages]:
    """The texts of one prompt with each of these images."""
    for name, file in FILES.items():
        (folder / name).write_bytes(file)
    lines = [json.dumps({"prompt": "make it red", "image": image}) for image in images]
    (folder / "list.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = PromptImages()
    prompts = found.read(FIELD, read_prompt_lines(folder / "list.jsonl"))
    return [prompt.text for prompt in prompts.items], found


def test_one_prompt_with_two_images_is_two_prompts(tmp_path: Path) -> None:
    texts, images = read(tmp_path, "a.png", "b.png")
    assert len(set(texts)) == 2
    assert [images.files[named(text).digest] for text in texts] == [*FILES.values()]


def test_an_image_that_is_named_twice_is_kept_once(tmp_path: Path) -> None:
    texts, images = read(tmp_path, "a.png", "./a.png")
    assert len(set(texts)) == 1
    assert images.files == {digest_of(FILES["a.png"]): FILES["a.png"]}


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        (None, "`image` is missing, but this checkpoint changes images"),
        (3, "`image` must be text"),
        ("missing.png", "`image`: the file that it names cannot be read"),
        ("list.jsonl", "`image`: the file that it names is no PNG; convert it"),
        ("cut.png", "`image`: the file that it names is cut off"),
        ("wide.png", "`image`: the file that it names has 64 x 32 pixels, but the first image has"),
        ("pipe.png", "`image`: the file that it names is a named pipe"),
    ],
)
def test_an_image_that_cannot_be_used_is_told_by_its_line_and_nothing_that_stands_there(
    tmp_path: Path, image: object, problem: str
) -> None:
    (tmp_path / "cut.png").write_bytes(FILES["a.png"][:-20])
    (tmp_path / "wide.png").write_bytes(png_of(gradient_image(64, 32, 1)))
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(JobError, match=rf"^prompts\.train: .*list\.jsonl, line 2: {problem}") as it:
        read(tmp_path, "a.png", image)
    assert ".png" not in it.value.problem


def test_without_images_a_prompt_has_the_same_fields_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    lines = [json.dumps({"prompt": "a cat", "image": name}) for name in FILES]
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(JobError, match="line 2: its prompt occurred before with other fields"):
        refuse_twins(FIELD, read_prompt_lines(path))


def turned(width: int, height: int) -> bytes:
    """A file of these sides, of which a person sees the right one at the top."""
    note, file = Image.Exif(), io.BytesIO()
    note[0x0112] = 6
    gradient_image(width, height, 1).save(file, "PNG", exif=note)
    return file.getvalue()


def test_images_have_the_size_that_a_person_sees(tmp_path: Path) -> None:
    (tmp_path / "turned.png").write_bytes(turned(32, 48))
    (tmp_path / "wrong.png").write_bytes(turned(48, 32))
    texts, _ = read(tmp_path, "a.png", "turned.png")
    assert len(texts) == 2
    with pytest.raises(JobError, match="has 32 x 48 pixels, but the first image has 48 x 32"):
        read(tmp_path, "a.png", "wrong.png")
