"""The settings of `spotlight serve-reward`. Imports no numpy, so that the command line can make
them."""

from __future__ import annotations

from typing import Any

import msgspec

from spotlight.jobs.rewards import RewardKind

BUILT_IN: tuple[RewardKind, ...] = (
    "ocr",
    "compositional",
    "clip",
    "pickscore",
    "hpsv2",
    "hpsv3",
    "aesthetic",
)
"""Kinds of rewards that can be served by their name."""


class ServingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scorer and how it is served."""

    scorer: str
    """`package.module:Class`, an entry point of the group `spotlight.rewards`, or one of
    `BUILT_IN`."""
    options: dict[str, Any] = {}
    """Keyword arguments of the function or class; the fields of a section `clip` of such a kind."""
    host: str = "127.0.0.1"
    port: int = 8200
    """0 picks a free one."""
    largest_batch: int = 32
    """Most images in one call of the scorer. [images]"""
    most_waiting: int = 1024
    """Most images that wait; further requests are told to come again. [images]"""
    largest_request_mb: int = 64
    """The largest request that is read. [MiB]"""
    authorization_file: str | None = None
    """Holds the value of the `Authorization` header that requests must bear."""
    authorization_variable: str | None = None
    """An environment variable that holds it instead."""
    certificate: str | None = None
    """A file with the certificate to speak TLS with, and those that signed it."""
    key: str | None = None
    """A file with the key of the certificate."""
    plain: bool = False
    """Other machines may ask without TLS."""
