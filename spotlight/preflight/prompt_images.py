"""The images that the prompts of a job come with, where its checkpoint changes images: read and
checked before any model is loaded.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from spotlight.condition_images import NAMED_FILE, digest_of, image_path, read_image, with_image
from spotlight.errors import JobError
from spotlight.files import Lines
from spotlight.types import Prompt

MOST_NBYTES = 1024**3
"""Bytes of all images of a job together: every worker has them in memory."""


class PromptImages:
    """The images of both lists of a job."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        """These files are named by their digests."""
        self._paths: dict[Path, str] = {}
        self._nbytes = 0
        self._size: tuple[int, int] | None = None
        """All have the size of the first."""

    def read(self, field: str, lines: Lines[Prompt]) -> Lines[Prompt]:
        """The prompts with the digests of their images; raises `JobError` naming the field, the
        line and the image.
        """
        folder, prompts = Path(lines.source).parent, []
        for index, prompt in enumerate(lines.items):
            try:
                digest = self._digest(image_path(folder, prompt.metadata))
            except ValueError as error:
                raise JobError(field, f"{lines.place(index)}: {error}") from error
            prompts.append(msgspec.structs.replace(prompt, text=with_image(prompt.text, digest)))
        return Lines(lines.source, prompts, lines.numbers)

    def _digest(self, path: Path) -> str:
        if path not in self._paths:
            self._paths[path] = self._read_file(path)
        return self._paths[path]

    def _read_file(self, path: Path) -> str:
        data, size = read_image(path)
        self._size = self._size or size
        if size != self._size:
            raise ValueError(
                f"{NAMED_FILE} has {size[0]} x {size[1]} pixels, but the first image has"
                f" {self._size[0]} x {self._size[1]}; all images of a job must have one size"
            )
        digest = digest_of(data)
        self._nbytes += len(data) if digest not in self.files else 0
        if self._nbytes > MOST_NBYTES:
            raise ValueError(
                f"`image`: with the file that it names the images of the job have more than"
                f" {MOST_NBYTES:,} bytes; make them smaller, or fewer"
            )
        self.files[digest] = data
        return digest


def refuse_twins(field: str, lines: Lines[Prompt]) -> None:
    """Raise the `JobError` of a prompt that occurs with two images where the checkpoint takes
    none: then it is one prompt, with other fields.
    """
    known: dict[str, Prompt] = {}
    for index, prompt in enumerate(lines.items):
        if known.setdefault(prompt.text, prompt) != prompt:
            raise JobError(
                field,
                f"{lines.place(index)}: its prompt occurred before with other fields; keep one of"
                " them",
            )
