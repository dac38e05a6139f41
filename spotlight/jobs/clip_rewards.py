"""The rewards that a CLIP model gives, or HPSv3's: which there are, and the section that names the
weights."""

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
    number_bytes: int = 4
    """Bytes of each of the parameters on the device."""
    file: str = ""
    """The file of the weights where they are not in the layout of transformers; the configuration
    is with the processor then."""


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
    "hpsv3": Published(
        "hf:MizzenAI/HPSv3",
        "hf:Qwen/Qwen2-VL-7B-Instruct",
        7_748_610_610,
        None,
        number_bytes=2,
        file="HPSv3.safetensors",
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
    """The weights of a reward that a CLIP model gives, or of HPSv3, and where it computes."""

    checkpoint: str = ""
    """The model in the layout of transformers, with safetensors: a folder, or
    `hf:ORGANISATION/NAME@REVISION` of the hub. That of `hpsv3` has one file, `HPSv3.safetensors`,
    as its authors publish it. The published one when absent; others are for models that were tuned
    anew."""
    processor: str = ""
    """Where the tokenizer and the settings of images are, in the same way. When absent, they are in
    the folder or on the page of `checkpoint`, or the published ones if that is absent too, or has
    none of its own, as that of `hpsv3`. Others are for checkpoints that come without them."""
    device: Literal["accelerator", "cpu"] = "accelerator"
    """The device of the model. `accelerator` is that on which its worker denoises, which the two
    share; `cpu` is for workers whose accelerator has no memory left."""

    def of(self, kind: str) -> tuple[str, str]:
        """The names of the model and of its processor, for a kind of reward."""
        published = PUBLISHED[kind]
        own = "" if published.file else self.checkpoint
        processor = self.processor or own or published.processor
        return self.checkpoint or published.checkpoint, processor
