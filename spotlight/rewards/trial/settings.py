"""The settings of `spotlight try-reward`. Imports no numpy, so that the command line can make
them."""

from __future__ import annotations

import msgspec

from spotlight.jobs import RewardSpec
from spotlight.permissions import Permissions


class TrialSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which scorers are tried on which images."""

    rewards: dict[str, RewardSpec]
    """The scorers, by the fields in which the job names them."""
    permissions: Permissions
    images: str
    """The folder of the images."""
    prompts: str
    """The file of their prompts, or the name of a list that ships with Spotlight."""
    each: int = 0
    """How many images belong to a prompt; 0 shares them out evenly among all prompts. [images]"""
    changes_images: bool = False
    """Whether prompts come with images that are to be changed."""
    as_json: bool = False
    """Whether JSON is printed."""
