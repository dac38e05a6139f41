"""What people should know of a job that goes on: lines that its status shows. Pure."""

from __future__ import annotations

_LEAST_FREE_SHARE = 0.05
_LEAST_FREE = 10 * 10**9
"""A disk is nearly full when less than both this many bytes and that share of it are free."""


def of_exploration(share: float, tau: float | None) -> str:
    """Whether previews are made no more, or only some of them; empty if all are.

    Args:
        share: that of the job's previews which is made.
        tau: Kendall's, between the rewards of previews and samples; None before it is known.
    """
    if share >= 1:
        return ""
    how = "off" if share <= 0 else f"reduced to {share:.0%}"
    known = "" if tau is None else f" (Kendall's tau {tau:.2f})"
    return f"exploration is {how}: previews say too little of what rewards will be{known}"


def of_disk(place: str, free: int, total: int) -> str:
    """Whether the disk with this folder is nearly full, by its bytes; empty if it is not. The line
    stays the same while little changes: whoever looks on is told of each change."""
    if free >= min(_LEAST_FREE, _LEAST_FREE_SHARE * total):
        return ""
    return (
        f"the disk of {place} is nearly full: {free / total:.1%} of {total / 1e9:.0f} GB are free"
    )
