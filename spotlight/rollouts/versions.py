"""Chooses which of the published weights versions a request gets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from spotlight.errors import VersionGone


@dataclass(frozen=True)
class AtLeast:
    """The newest published weights, once they have at least this version."""

    version: int


@dataclass(frozen=True)
class Exactly:
    """These weights and no others; the request waits until they are published."""

    version: int


ANY_VERSION = AtLeast(0)
"""The newest weights that there are."""


def choose_version(wanted: AtLeast | Exactly, published: Collection[int]) -> int | None:
    """The version that makes the samples; None: it is not published yet. Raises `VersionGone`."""
    newest = max(published, default=-1)
    if newest < wanted.version:
        return None
    if isinstance(wanted, AtLeast):
        return newest
    if wanted.version not in published:
        there = ", ".join(map(str, sorted(published)))
        raise VersionGone(f"weights version {wanted.version} is no longer kept; there are: {there}")
    return wanted.version
