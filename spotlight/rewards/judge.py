"""A vision-language model as a scorer, behind an endpoint that is compatible with OpenAI's chat
completions. It looks at one image at a time, greedily (temperature 0), and either

- reads the text in the image, which is compared with the text that the prompt asks for by the
  formula of `ocr`, or
- grades the image by a rubric, with one number.

An answer without a number, or with several, is a `ScoringError`: the answer is not guessed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from spotlight.errors import ScoringError
from spotlight.rewards.endpoint import Poster
from spotlight.rewards.http_scorer import not_scored
from spotlight.rewards.ocr import ocr_reward, target_text
from spotlight.rewards.schema import ImageFormat, ImageToScore, image_to_score
from spotlight.text import plain
from spotlight.types import Prompt

MOST_TOKENS = 256
"""Most tokens of an answer: a long sign, or a number after some words."""
_LONGEST_QUOTE = 200
"""Characters of an answer that is told."""


class Question(Protocol):
    """The question to the model about an image, and the reward for its answer."""

    compares: bool
    """Whether the model sees the image that was to be changed, too: before the other one."""

    def ask(self, prompt: Prompt) -> str:
        """The words that go with the image. Raises `ScoringError` if the prompt does not fit."""
        ...

    def reward(self, answer: str, prompt: Prompt) -> float:
        """What the answer is worth. Raises `ScoringError` if that cannot be told."""
        ...


class Transcription:
    """The model reads the image; the reward is that of `ocr`."""

    compares = False

    def ask(self, prompt: Prompt) -> str:
        """The same for every prompt: a model that knew the text would read it into any image."""
        target_text(prompt.text)
        return (
            "Transcribe the text in this image exactly as it is written, with its mistakes. Answer"
            " with the text alone. If there is no text, answer with an empty line."
        )

    def reward(self, answer: str, prompt: Prompt) -> float:
        """In [0, 1]."""
        return ocr_reward(answer, target_text(prompt.text))


class Rubric:
    """The model grades the image."""

    compares = True

    def __init__(self, text: str, low: float, high: float) -> None:
        """`text` says what to look at; grades are from `low`, the worst, to `high`."""
        self._text = text
        self._low, self._high = low, high

    def ask(self, prompt: Prompt) -> str:
        """The rubric, the prompt, and how to answer."""
        made = (
            "The first image was to be changed as this prompt says; judge the second one, which is"
            " what came of it"
            if prompt.image
            else "The image was made for this prompt"
        )
        return (
            f"{self._text}\n\n{made}:\n{prompt.text}\n\n"
            f"Answer with one number from {self._low:g} (worst) to {self._high:g} (best), and"
            " nothing else."
        )

    def reward(self, answer: str, prompt: Prompt) -> float:
        """The number in the answer; the scale may stand behind it (`7/10`)."""
        number = r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?!\.?\w)"
        found = re.findall(rf"{number}(?:\s*/\s*{self._high:g}\b)?", answer)
        if len(found) != 1:
            raise ScoringError(
                f"the model's answer has {len(found)} numbers where one was asked for:"
                f" {_shortened(answer)}"
            )
        grade = float(found[0].partition("/")[0])
        if not self._low <= grade <= self._high:
            raise ScoringError(
                f"the model's grade {grade:g} is not from {self._low:g} to {self._high:g}"
            )
        return grade


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message


class _Completion(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...]


class JudgeScorer:
    """Asks a vision-language model about every image."""

    def __init__(
        self, poster: Poster, model: str, question: Question, image_format: ImageFormat = "png"
    ) -> None:
        """`poster` posts to the endpoint's `chat/completions`, which knows the model by `model`."""
        self._poster = poster
        self._model = model
        self._question = question
        self._format: ImageFormat = image_format

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        """One reward per image uint8 [B, H, W, 3] RGB. Raises `ScoringError` unless all have one,
        naming each image that has none (the first of them, when they are many), and why.
        """
        wanted = [
            image_to_score(row, image, prompt, self._format)
            for row, (image, prompt) in enumerate(zip(images, prompts, strict=True))
        ]
        bodies = [
            self._body(image, self._question.ask(prompt))
            for image, prompt in zip(wanted, prompts, strict=True)
        ]
        rewards: list[float] = []
        problems: dict[str, str] = {}
        answers = self._poster.post_all(bodies)
        for image, prompt, answer in zip(wanted, prompts, answers, strict=True):
            try:
                if isinstance(answer, ScoringError):
                    raise answer
                rewards.append(self._question.reward(_content(answer), prompt))
            except ScoringError as error:
                problems[image.id] = str(error)
        if problems:
            raise ScoringError(not_scored(problems, len(wanted)))
        return rewards

    def _body(self, image: ImageToScore, question: str) -> bytes:
        shown = [(image.format, image.image)]
        if image.source and self._question.compares:
            shown.insert(0, ("png", image.source))
        content = [*map(_shown, shown), {"type": "text", "text": question}]
        return msgspec.json.encode(
            {
                "model": self._model,
                "temperature": 0,
                "max_tokens": MOST_TOKENS,
                "messages": [{"role": "user", "content": content}],
            }
        )


def _shown(file: tuple[ImageFormat, bytes]) -> dict[str, object]:
    """A part of a message, of the format and the bytes of an image's file."""
    form, data = file
    url = f"data:image/{form};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _content(body: bytes) -> str:
    try:
        choices = msgspec.json.decode(body, type=_Completion).choices
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ScoringError(f"the answer is not a chat completion: {plain(error)}") from error
    if not choices or choices[0].message.content is None:
        raise ScoringError(f"the model gave no answer: {_shortened(body.decode())}")
    return choices[0].message.content


def _shortened(text: str) -> str:
    return plain(text, _LONGEST_QUOTE)
