from __future__ import annotations

import io

import numpy as np
from PIL import Image

from spotlight.diffusion.png import to_png


def test_an_image_is_a_png_with_the_same_pixels() -> None:
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    with Image.open(io.BytesIO(to_png(image))) as opened:
        assert getattr(opened, "n_frames", 1) == 1
        assert np.array_equal(np.asarray(opened), image)


def test_a_video_is_a_png_that_plays_its_frames_again_and_again() -> None:
    video = np.arange(3 * 4 * 6 * 3, dtype=np.uint8).reshape(3, 4, 6, 3)
    with Image.open(io.BytesIO(to_png(video))) as opened:
        assert (opened.format, opened.n_frames, opened.info["loop"]) == ("PNG", 3, 0)
        for number, frame in enumerate(video):
            opened.seek(number)
            assert np.array_equal(np.asarray(opened.convert("RGB")), frame)
