"""The sections of rewards that are given by a server: a scorer, or a vision-language model.

A field's docstring ends with its unit in square brackets, where it has one.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from spotlight.jobs.fields import (
    LONGEST_SCORING_S,
    MOST_IN_BATCH,
    MOST_REPEATS,
    Section,
    require,
    require_path,
)

LONGEST_URL = 2000
"""Most characters of a URL."""
_URL = re.compile(r"(https?)://(\[[0-9A-Za-z:.%]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?([/?][^\s#]*)?")
_PORTS = {"http": 80, "https": 443}
LONGEST_RUBRIC = 20_000
"""Most characters of a rubric."""


class EndpointSpec(Section, frozen=True, kw_only=True):
    """A server, and how much patience there is with it."""

    url: str
    """Where requests are sent: with `http` the address that the server prints, with `judge` that of
    the endpoint's `chat/completions`."""
    image_format: Literal["png", "webp"] = "png"
    """File format of the images that are sent. Both are lossless; `webp` is smaller and takes
    longer. `webp` is for servers behind a slow network."""
    attempts: Annotated[int, msgspec.Meta(ge=1, le=MOST_REPEATS)] = 4
    """How often a request is sent before its images count as not scored. It is sent again after no
    connection, no answer in time, and status 408, 425, 429 and 5xx. More are for servers that
    restart now and then. [tries]"""
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_SCORING_S)] = 60.0
    """Time limit of one try, from connecting to the last byte of the answer. More is for slow
    models. [seconds]"""
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=MOST_IN_BATCH)] = 4
    """How many requests of one worker may be open at the same time. More are for servers that
    answer several at a time. [requests]"""
    secret: str | None = None
    """The name of a secret which the operator of every node that scores has named for this server
    (`--reward-secret`): it is the value of the `Authorization` header. It is for servers that ask
    for a key."""
    authorization_file: str | None = None
    """A file that holds that value, such as `Bearer TOKEN`, for a job that `spotlight run` runs.
    Other nodes read only files that their operators named. It is for trying out such a server."""
    authorization_variable: str | None = None
    """An environment variable that holds it instead, for a job that `spotlight run` runs. It is for
    trying out such a server."""

    def __post_init__(self) -> None:
        authority = re.split(r"[/?#\\]", self.url.partition("//")[2])[0]
        require(
            "@" not in authority,
            "url",
            "must not hold a user's name or a password; name a `secret` of the nodes instead",
        )
        require(
            _URL.fullmatch(self.url) is not None and len(self.url) <= LONGEST_URL,
            "url",
            "must begin with `http://` or `https://` and name a host",
        )
        sources = (self.secret, self.authorization_file, self.authorization_variable)
        require(
            sum(source is not None for source in sources) <= 1,
            "authorization_file",
            "name one of a secret (`secret`), a file, and a variable (`authorization_variable`)",
        )
        require(
            self.secret is None
            or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.secret) is not None,
            "secret",
            "use letters, digits, `.`, `_` and `-` only, 100 characters at most",
        )
        if self.authorization_file is not None:
            require_path("authorization_file", self.authorization_file)

    @property
    def place(self) -> tuple[str, int]:
        """Host and port of the server, in small letters."""
        found = _URL.fullmatch(self.url)
        assert found is not None
        scheme, host, port, _ = found.groups()
        return host.lower(), int(port or _PORTS[scheme])


class HttpSpec(EndpointSpec, frozen=True, kw_only=True):
    """A scorer that is reached over HTTP, in its own environment or on its own machine."""

    images_per_request: Annotated[int, msgspec.Meta(ge=1, le=MOST_IN_BATCH)] = 8
    """Most images in one request. It is for scorers that are fastest with batches of a size of
    their own. [images]"""


class JudgeSpec(EndpointSpec, frozen=True, kw_only=True):
    """A vision-language model behind an endpoint that is compatible with OpenAI's chat
    completions."""

    model: str
    """The model's name at the endpoint."""
    formula: Literal["ocr", "rubric"] = "ocr"
    """What the model is asked for. With `ocr` it reads the text, which is compared as by the `ocr`
    reward; with `rubric` it gives a grade within the reward's `range`. `rubric` is for what no
    formula measures."""
    rubric: Annotated[str, msgspec.Meta(max_length=LONGEST_RUBRIC)] = ""
    """What the model should look at, in your words; Spotlight adds the prompt and the scale. It is
    for `formula: rubric`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.model.strip()), "model", "must not be empty")
        require(
            (self.formula == "rubric") == bool(self.rubric.strip()),
            "rubric",
            "say what the model should look at"
            if self.formula == "rubric"
            else "is only used with `formula: rubric`; remove it, or set that formula",
        )
