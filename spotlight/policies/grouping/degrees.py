"""Which degrees a model can be denoised at, and how a degree is laid out.

Tokens are shared out to all members of a group. For attention the group is a grid: Ulysses trades
tokens for whole heads, so its part divides the heads (Jacobs et al. 2023, DeepSpeed-Ulysses); the
rest is a ring in which keys and values go round (Liu et al. 2023, Ring Attention).
"""

from __future__ import annotations

import math


def layout(degree: int, heads: int) -> tuple[int, int]:
    """(ring, ulysses) with ring * ulysses = degree, and the largest ulysses that divides `heads`:
    it takes two exchanges however large it is, a ring one less than its size.
    """
    ulysses = math.gcd(degree, heads)
    return degree // ulysses, ulysses


def refusal(
    degree: int, *, heads: int, image_tokens: int, text_tokens: int | None, ring_possible: bool
) -> str | None:
    """Why this degree cannot be, in one sentence that names the number; None when it can.

    Args:
        heads: attention heads of the model.
        image_tokens: of one image, after patches are made.
        text_tokens: length of the text that is shared out too; None if text is not shared out, or
            its length is not known.
        ring_possible: attention on this device can say how much weight a part of the keys has.
    """
    if degree < 1:
        return f"a degree of {degree} is no member at all; at least 1 denoises"
    if degree == 1:
        return None
    for tokens, what in ((image_tokens, "image"), (text_tokens, "text")):
        if tokens is not None and tokens < degree:
            return f"{tokens} {what} tokens leave some of {degree} members without any"
    ring, ulysses = layout(degree, heads)
    if ring > 1 and not ring_possible:
        return (
            f"{heads} attention heads cannot be shared out evenly to {degree} members, and ring"
            f" attention, which could do with {ulysses}, is not possible here"
        )
    return None


def possible_degrees(
    most: int, *, heads: int, image_tokens: int, text_tokens: int | None, ring_possible: bool
) -> tuple[int, ...]:
    """All degrees up to `most` that `refusal` does not refuse, rising; 1 is always among them."""
    others = (
        degree
        for degree in range(2, most + 1)
        if not refusal(
            degree,
            heads=heads,
            image_tokens=image_tokens,
            text_tokens=text_tokens,
            ring_possible=ring_possible,
        )
    )
    return (1, *others)
