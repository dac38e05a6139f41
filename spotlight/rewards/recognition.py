"""Text recognition with the PP-OCRv4 model that the rapidocr wheel ships.

An image is read as one line of text: the recognition model runs directly, without detection. Images
go through it in batches of one fixed size, padded when short, on one thread, so that what is read
never depends on the load.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from spotlight.errors import MissingDependency, how_to_install

HEIGHT = 48
"""Pixels: the height that the model was trained at."""

_MODELS = {
    "Det": "ch_PP-OCRv4_det_mobile.onnx",
    "Cls": "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
    "Rec": "ch_PP-OCRv4_rec_mobile.onnx",
}
"""Files in the wheel, by RapidOCR's name of the step."""
_INSTALL = how_to_install("rewards")


class RapidRecognizer:
    """PP-OCRv4's recognition model in onnxruntime."""

    def __init__(self) -> None:
        """Raises `MissingDependency`."""
        try:
            import cv2
            import onnxruntime
        except ImportError as error:
            raise MissingDependency(f"the OCR reward needs {error.name}; {_INSTALL}") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session: Any = onnxruntime.InferenceSession(
            str(model_paths()["Rec"]), options, providers=["CPUExecutionProvider"]
        )
        self._input = self._session.get_inputs()[0].name
        characters = self._session.get_modelmeta().custom_metadata_map["character"].splitlines()
        self._alphabet = ["", *characters, " "]
        self._resize = cv2.resize

    def recognize(self, images: np.ndarray) -> list[str]:
        """The text of images uint8 [B, H, W, 3] RGB, one line each."""
        return [self._text(image) for image in self._prepare(images)]

    def _text(self, prepared: np.ndarray) -> str:
        scores = self._session.run(None, {self._input: prepared[None]})[0]
        return self.decode(scores.argmax(axis=2)[0])

    def decode(self, indices: Sequence[int] | np.ndarray) -> str:
        """Greedy CTC decoding: merge repeats, drop blanks (index 0)."""
        return "".join(self._alphabet[int(index)] for index, _ in groupby(indices))

    def _prepare(self, images: np.ndarray) -> np.ndarray:
        """float32 [B, 3, HEIGHT, W'] in [-1, 1], BGR, scaled to the model's height with the aspect
        kept.
        """
        height, width = images.shape[1:3]
        size = (max(1, -(-width * HEIGHT // height)), HEIGHT)
        scaled = np.stack([self._resize(image[..., ::-1], size) for image in images])
        return np.ascontiguousarray((scaled.astype(np.float32) / 127.5 - 1).transpose(0, 3, 1, 2))


def model_paths() -> dict[str, Path]:
    """The model of each step (`Det`, `Cls`, `Rec`). Raises `MissingDependency`.

    They are named one by one: RapidOCR would download a model that it does not find by itself.
    """
    package = importlib.util.find_spec("rapidocr")
    if package is None or package.origin is None:
        raise MissingDependency(f"the OCR reward needs rapidocr; {_INSTALL}")
    folder = Path(package.origin).parent / "models"
    paths = {step: folder / file for step, file in _MODELS.items()}
    for path in paths.values():
        if not path.is_file():
            raise MissingDependency(f"{path} is missing; reinstall it: {_INSTALL}")
    return paths
