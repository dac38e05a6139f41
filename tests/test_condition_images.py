"""Images that prompts come with."""

from __future__ import annotations

import pytest

from spotlight.condition_images import digest_of, named, pack, unpack, with_image
from spotlight.errors import TransferFailed
from spotlight_simulation.pixels import gradient_image, png_of

FILE = png_of(gradient_image(48, 32, 1))


def test_a_prompt_and_its_image_are_one_text_and_can_be_told_apart_again() -> None:
    prompt = with_image("make it <image> red\nand round", digest_of(FILE))
    assert named(prompt) == ("make it <image> red\nand round", digest_of(FILE))


@pytest.mark.parametrize("text", ["a cat", "a cat <image 12>", "a cat <image of it>"])
def test_any_other_text_is_a_prompt_without_an_image(text: str) -> None:
    assert named(text) == (text, "")


def test_images_that_were_sent_are_those_of_their_digests() -> None:
    images = {digest_of(FILE): FILE}
    assert unpack(pack(images)) == images
    with pytest.raises(TransferFailed, match="is not the file of this digest"):
        unpack(pack({digest_of(FILE): FILE + b"!"}))
    with pytest.raises(TransferFailed, match="malformed"):
        unpack(b"!")
