"""Checkpoints that a job names as on the Hugging Face hub: `hf:ORGANISATION/NAME@REVISION`."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

import msgspec

HUB = "hf:"
MAIN = "main"
"""The revision that is meant where none is named."""
_WORD = r"[A-Za-z0-9][\w.-]{0,95}"
_NAME = re.compile(rf"hf:({_WORD}/{_WORD})(?:@([\w./-]{{1,200}}))?", re.ASCII)
_PAGE = re.compile(r"(?:^|/)(?:huggingface|hf)\.co/(.+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubName(NamedTuple):
    """`str` gives it as jobs name it."""

    repository: str
    """The repository's name, as ORGANISATION/NAME."""
    revision: str
    """A branch, a tag, or the hash of a commit."""

    def __str__(self) -> str:
        return f"{HUB}{self.repository}@{self.revision}"

    @property
    def is_pinned(self) -> bool:
        """Whether it is the hash of a commit: what it names never changes."""
        return _COMMIT.fullmatch(self.revision) is not None

    @classmethod
    def parse(cls, text: str) -> HubName | None:
        """None for what is no such name."""
        found = _NAME.fullmatch(text)
        if found is None or ".." in text:
            return None
        return cls(found[1], found[2] or MAIN)

    @classmethod
    def meant(cls, path: str) -> HubName | None:
        """The name that may be meant by a path that leads nowhere: one that ends in
        ORGANISATION/NAME, as others name checkpoints of the hub, or in the address of its page.
        """
        page = _PAGE.search(path)
        words = (page[1] if page else path).split("/")
        return cls.parse(HUB + "/".join(words[:2] if page else words[-2:]))


SHA256_DIGITS, GIT_DIGITS = 64, 40
"""The digits of the checksum of a large file, and of a small one, which is git's of a blob."""
_BLOB = f"[0-9a-f]{{{SHA256_DIGITS}}}|[0-9a-f]{{{GIT_DIGITS}}}"
_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}"
_PATH = rf"^{_PART}(/{_PART}){{0,3}}\Z"
"""The path of a file in a checkpoint: it can name nothing outside."""


class HubFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a checkpoint of the hub."""

    path: Annotated[str, msgspec.Meta(max_length=400, pattern=_PATH)]
    """The path below the checkpoint's folder."""
    nbytes: Annotated[int, msgspec.Meta(ge=0, le=2**40)]
    blob: Annotated[str, msgspec.Meta(pattern=rf"^({_BLOB})\Z")]
    """Its checksum, by which the cache names it."""
