"""How fast the policy that rolls out follows the one that is trained."""

from __future__ import annotations


def rollout_decay(
    updates: int, *, most: float, after: int = 0, growth: float | None = None
) -> float:
    """d of `old <- d * old + (1 - d) * new`, in [0, `most`], after so many optimizer steps.

    It is 0 for `after` updates, then grows by `growth` with each; without a growth it is `most` at
    once. DiffusionNFT, arXiv 2509.16117, section 3.3: (0.5, 0, 0.001) for GenEval and PickScore,
    (0.999, 75, 0.0075) for OCR.
    """
    if updates < after:
        return 0.0
    return most if growth is None else min((updates - after) * growth, most)
