"""GenEval's detector with models of transformers: Mask2Former finds objects of COCO's classes, and
CLIP names the colour of each by what it says of the object alone, on grey.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoProcessor,
    CLIPModel,
    Mask2FormerForUniversalSegmentation,
)

from spotlight.assets.geneval import Colour
from spotlight.rewards.compositional import DetectedObject

COLOURS: tuple[str, ...] = get_args(Colour)
GENEVAL_NAMES = {"mouse": "computer mouse", "remote": "tv remote", "keyboard": "computer keyboard"}
"""Where GenEval's name of a class is not COCO's."""
GREY = 153
MOST_OBJECTS = 16
"""Of a class, as GenEval's."""
TEMPLATES = ("a photo of a {} {}", "a photo of a {}-colored {}", "a photo of a {} object")


class Mask2FormerDetector:
    """See the module."""

    def __init__(self, detector: str, clip: str, device: str | None) -> None:
        own = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
        self._device = device or own
        self._processor = AutoImageProcessor.from_pretrained(detector)
        model = Mask2FormerForUniversalSegmentation.from_pretrained(detector)
        self._model = model.eval().to(self._device)
        self._names = {
            index: GENEVAL_NAMES.get(name, name) for index, name in model.config.id2label.items()
        }
        self._clip = CLIPModel.from_pretrained(clip).eval().to(self._device)
        self._clip_processor = AutoProcessor.from_pretrained(clip)

    @torch.inference_mode()
    def detect(
        self, image: np.ndarray, classes: Collection[str], threshold: float
    ) -> list[DetectedObject]:
        """Objects of these classes in an image uint8 [H, W, 3] RGB, the surest first.

        Raises `ValueError` for a class that the model does not know.
        """
        unknown = sorted(set(classes) - set(self._names.values()))
        if unknown:
            raise ValueError(f"the detector does not know the class {unknown[0]!r}")
        inputs = self._processor(images=[image], return_tensors="pt").to(self._device)
        [found] = self._processor.post_process_instance_segmentation(
            self._model(**inputs),
            threshold=threshold,
            target_sizes=[image.shape[:2]],
            return_binary_maps=True,
        )
        segments = sorted(
            zip(found["segments_info"], found["segmentation"], strict=True)
            if found["segments_info"]
            else (),
            key=lambda each: -each[0]["score"],
        )
        objects: list[DetectedObject] = []
        for segment, mask in segments:
            name = self._names[segment["label_id"]]
            inside = mask.cpu().numpy() > 0
            so_far = sum(one.name == name for one in objects)
            if name in classes and so_far < MOST_OBJECTS and inside.any():
                objects.append(self._object(image, inside, name))
        return objects

    def _object(self, image: np.ndarray, inside: np.ndarray, name: str) -> DetectedObject:
        rows, columns = np.nonzero(inside.any(axis=1))[0], np.nonzero(inside.any(axis=0))[0]
        top, bottom = int(rows[0]), int(rows[-1]) + 1
        left, right = int(columns[0]), int(columns[-1]) + 1
        alone = np.where(inside[..., None], image, np.uint8(GREY))[top:bottom, left:right]
        return DetectedObject(name, self._colour(alone, name), (left, top, right, bottom))

    def _colour(self, picture: np.ndarray, name: str) -> str:
        """Of an image uint8 [h, w, 3] of one object: the colour whose mean embedding over the
        templates is nearest.
        """
        texts = [template.format(colour, name) for colour in COLOURS for template in TEMPLATES]
        inputs = self._clip_processor(
            text=texts, images=[Image.fromarray(picture)], padding=True, return_tensors="pt"
        )
        out = self._clip(**inputs.to(self._device))
        means = out.text_embeds.reshape(len(COLOURS), len(TEMPLATES), -1).mean(dim=1)
        means = means / means.norm(dim=-1, keepdim=True)
        return COLOURS[int((means @ out.image_embeds[0]).argmax())]
