"""Reads the text in pictures of any size with the models that the rapidocr wheel ships.

A strip is one line of text, and goes to the recogniser as it is. In a larger picture a detector
(PP-OCRv4, DBNet) first finds where there is text, and each place is read by itself, in reading
order. On one thread, so that what is read never depends on the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spotlight.rewards.recognition import HEIGHT, RapidRecognizer, model_paths

LONGEST_STRIP = 8
"""Times as wide as high; a wider picture is a strip, however high it is. RapidOCR's own limit."""


class RapidReader:
    """RapidOCR for pictures, and its recogniser alone for strips."""

    def __init__(self) -> None:
        """Raises `MissingDependency`."""
        self._recognizer = RapidRecognizer()
        self._whole: Any = None
        """The pipeline; made for the first picture that needs it, since strips never do."""

    def recognize(self, images: np.ndarray) -> list[str]:
        """The text of images uint8 [B, H, W, 3] RGB, whatever the number of its lines."""
        if is_strip(*images.shape[1:3]):
            return self._recognizer.recognize(images)
        return [self._read(image) for image in images]

    def _read(self, image: np.ndarray) -> str:
        if self._whole is None:
            from rapidocr import RapidOCR

            # A picture is searched at its own size: enlarging it first, as RapidOCR does by itself,
            # takes twice as long at 512 pixels and reads no more. The classifier of upside-down
            # text stays off: a sign that stands on its head is wrong.
            self._whole = RapidOCR(
                params={
                    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
                    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
                    "Global.use_cls": False,
                    "Global.log_level": "error",
                    "Det.limit_type": "max",
                    **{f"{step}.model_path": str(path) for step, path in model_paths().items()},
                }
            )
        found = self._whole(np.ascontiguousarray(image[..., ::-1]))
        if not found.txts:
            return ""
        return " ".join(found.txts[index] for index in reading_order(found.boxes))


def is_strip(height: int, width: int) -> bool:
    """Whether a picture of this size [pixels] is read as one line."""
    return height <= HEIGHT or width > LONGEST_STRIP * height


def reading_order(boxes: np.ndarray) -> Sequence[int]:
    """Indices of boxes [n, 4 corners, 2] from the first line to the last, in each from left to
    right.

    A box belongs to a line if its middle lies between the top and the bottom of the line's first
    box: words of one line differ in height, by as much as their letters do.
    """
    left = boxes[:, :, 0].min(axis=1)
    top, bottom = boxes[:, :, 1].min(axis=1), boxes[:, :, 1].max(axis=1)
    middle = (top + bottom) / 2
    lines: list[list[int]] = []
    for index in np.argsort(middle, kind="stable").tolist():
        line = lines[-1] if lines else []
        if line and top[line[0]] <= middle[index] <= bottom[line[0]]:
            line.append(index)
        else:
            lines.append([index])
    return [index for line in lines for index in sorted(line, key=lambda one: (left[one], one))]
