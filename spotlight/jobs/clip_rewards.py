"""The rewards that a CLIP model gives: which there are, and the section that names the weights."""

from __future__ import annotations

from typing import Literal, NamedTuple

from spotlight.jobs.fields import Section


class Published(NamedTuple):
    """What the authors of a reward have published."""

    checkpoint: str
    """The model on the hub."""
    processor: str
    """Where its tokenizer and the settings of its images are on the hub."""
    parameters: int
    range: tuple[float, float] | None
    """The least and the greatest reward by its formula; None for any number."""


PUBLISHED: dict[str, Published] = {
    "clip": Published(
        "hf:openai/clip-vit-large-patch14",
        "hf:openai/clip-vit-large-patch14",
        427_616_513,
        (0.0, 2.5),
    ),
    "pickscore": Published(
        "hf:yuvalkirstain/PickScore_v1",
        "hf:laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
        986_109_441,
        (-100.0, 100.0),
    ),
    "hpsv2": Published(
        "hf:adams-story/HPSv2-hf",
        "hf:openai/clip-vit-base-patch32",
        986_109_441,
        (-1.0, 1.0),
    ),
    "aesthetic": Published(
        "hf:shunk031/aesthetics-predictor-v2-sac-logos-ava1-l14-linearMSE",
        "hf:openai/clip-vit-large-patch14",
        305_680_609,
        None,
    ),
}
"""What was published of each kind of reward."""


class ClipSpec(Section, frozen=True, kw_only=True):
    """The weights of a reward that a CLIP model gives, and where it computes."""

    checkpoint: str = ""
    """The model in the layout of transformers, with safetensors: a folder, or
    `hf:ORGANISATION/NAME@REVISION` of the hub. The published one when absent; others are for models
    that were tuned anew."""
    processor: str = ""
    """Where the tokenizer and the settings of images are, in the same way. When absent, they are in
    the folder or on the page of `checkpoint`, or the published ones if that is absent too. Others
    are for checkpoints that come without them."""
    device: Literal["accelerator", "cpu"] = "accelerator"
    """The device of the model. `accelerator` is that on which its worker denoises, which the two
    share; `cpu` is for workers whose accelerator has no memory left."""

    def of(self, kind: str) -> tuple[str, str]:
        """The names of the model and of its processor, for a kind of reward."""
        published = PUBLISHED[kind]
        processor = self.processor or self.checkpoint or published.processor
        return self.checkpoint or published.checkpoint, processor
