"""HPSv3 (arXiv 2508.03789): how much people like an image, by a Qwen2-VL with a head of its own.

The model reads the image and a text that asks for a rating, with the prompt in it. At the token
`<|Reward|>` behind that, three layers give the mean and the spread of the score; the reward is the
mean. The text is that of its authors' package (`hpsv3_question`), and images have as many pixels as
they had in training.

Images are scored one by one, without padding, so a reward does not depend on the batch of its
image. The weights are bfloat16, the head float32.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spotlight.errors import MissingDependency, ScoringError, how_to_install
from spotlight.jobs.clip_rewards import PUBLISHED, ClipSpec
from spotlight.jobs.hub_names import HubName
from spotlight.rewards.hpsv3_question import MARK, hpsv3_question
from spotlight.rewards.hub_models import device_of, named, require_plain
from spotlight.text import error_text
from spotlight.types import Prompt

REWARD_TOKEN = "<|Reward|>"
PIXELS = 256 * 28 * 28
"""How many pixels the model sees of every image, as far as both sides are multiples of 28."""
_CHAT = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    "<|vision_start|>{image}<|vision_end|>{text}<|im_end|>\n<|im_start|>assistant\n"
)
"""The chat template of Qwen2-VL for one image and one text."""
_IMAGE_TOKEN = "<|image_pad|>"
_RENAMED = (
    (r"^model\.(?=(layers|embed_tokens|norm)\.)", "model.language_model."),
    (r"^visual\.", "model.visual."),
)
"""Names of numbers in files of transformers before 4.52, the published one included, and now."""
_HEAD = (1024, 16, 2)
"""How many numbers each layer of the head gives; those of the last one are mean and spread."""


class HpsV3Scorer:
    """Scores images by HPSv3; see the module's docstring."""

    def __init__(self, spec: ClipSpec) -> None:
        """Raises `MissingDependency`, and `ScoringError` when the weights cannot be loaded."""
        try:
            import torch
            from safetensors import SafetensorError
            from transformers import AutoTokenizer, Qwen2VLImageProcessorPil
        except ImportError as error:
            raise MissingDependency(
                f"the `hpsv3` reward needs {error.name}; {how_to_install('worker')}"
            ) from error
        self._torch, self._device = torch, device_of(torch, spec)
        hpsv3_question(Prompt(""))  # now rather than with the first image
        checkpoint, processor = spec.of("hpsv3")
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                **named(processor), trust_remote_code=False
            )
            kind: Any = Qwen2VLImageProcessorPil
            self._images: Any = kind.from_pretrained(**named(processor))
            model = _loaded(_file_of(checkpoint), processor)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise ScoringError(
                f"clip.checkpoint: the weights of `{checkpoint}` cannot be loaded"
                f" ({error_text(error)})"
            ) from error
        self._tokenizer.add_tokens([REWARD_TOKEN], special_tokens=True)
        rows = model.config.text_config.vocab_size
        if len(self._tokenizer) != rows:
            raise ScoringError(
                f"clip.processor: with {REWARD_TOKEN}, `{processor}` has"
                f" {len(self._tokenizer):,} tokens, but `{checkpoint}` knows {rows:,}; name the"
                " Qwen2-VL that it was made of"
            )
        self._reward_id = self._tokenizer.convert_tokens_to_ids(REWARD_TOKEN)
        self._image_id = self._tokenizer.convert_tokens_to_ids(_IMAGE_TOKEN)
        self._model: Any = model.to(self._device).eval()

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        """One reward per image uint8 [B, H, W, 3] RGB."""
        pairs = zip(images, prompts, strict=True)
        return [self._reward(image, prompt) for image, prompt in pairs]

    def _reward(self, image: np.ndarray, prompt: Prompt) -> float:
        if MARK in prompt.text:
            raise ScoringError(
                f"prompt {prompt.text!r} has `{MARK}`, with which HPSv3's own marks begin"
            )
        size = {"shortest_edge": PIXELS, "longest_edge": PIXELS}
        seen = self._images(images=[image], size=size, return_tensors="pt")
        tokens = int(seen["image_grid_thw"].prod()) // self._images.merge_size**2
        asked = _CHAT.format(image=_IMAGE_TOKEN * tokens, text=hpsv3_question(prompt))
        inputs = {**self._tokenizer([asked], return_tensors="pt"), **seen}
        ids = inputs["input_ids"]
        inputs["mm_token_type_ids"] = (ids == self._image_id).int()
        with self._torch.inference_mode():
            found = self._model(**{name: each.to(self._device) for name, each in inputs.items()})
        return float(found[0, (ids[0] == self._reward_id).nonzero()[-1, 0], 0])


def _file_of(checkpoint: str) -> Path:
    """The weights in a folder, or in the hub's cache, where they are downloaded to."""
    name, on_hub = PUBLISHED["hpsv3"].file, HubName.parse(checkpoint)
    if on_hub is None:
        return Path(checkpoint) / name
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(on_hub.repository, name, revision=on_hub.revision))


def _loaded(file: Path, processor: str) -> Any:
    """The model of a file. Raises `ValueError` for one of another model."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig

    require_plain([file])
    state = {_renamed(name): tensor for name, tensor in load_file(file).items()}
    state.pop("lm_head.weight", None)  # it writes no text
    rows = state.get("model.language_model.embed_tokens.weight")
    if rows is None:
        raise ValueError(f"{file.name} holds no Qwen2-VL")
    config = AutoConfig.from_pretrained(**named(processor), trust_remote_code=False)
    config.text_config.vocab_size = len(rows)
    model, found = _model_class().from_pretrained(
        None, config=config, state_dict=state, dtype=torch.bfloat16, output_loading_info=True
    )
    wrong = sorted({*found["missing_keys"], *found["unexpected_keys"]})
    if wrong:
        raise ValueError(f"{file.name} is of another model: {wrong[0]} is not in both")
    return model


def _renamed(name: str) -> str:
    for before, now in _RENAMED:
        name = re.sub(before, now, name)
    return name


def _model_class() -> Any:
    """Qwen2-VL with HPSv3's head, whose names are those of the published file."""
    from torch import nn
    from transformers import Qwen2VLModel, Qwen2VLPreTrainedModel

    class HpsV3(Qwen2VLPreTrainedModel):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self._keep_in_fp32_modules_strict = {"rm_head"}
            self.model = Qwen2VLModel(config)
            first, second, third = _HEAD
            self.rm_head = nn.Sequential(
                nn.Linear(config.text_config.hidden_size, first),
                nn.ReLU(),
                nn.Dropout(0.05),
                nn.Linear(first, second),
                nn.ReLU(),
                nn.Linear(second, third),
            )
            self.post_init()  # type: ignore[no-untyped-call]

        def forward(self, **inputs: Any) -> Any:
            """Mean and spread at each token, [1, T, 2]."""
            return self.rm_head(self.model(**inputs, use_cache=False).last_hidden_state.float())

    return HpsV3
