"""HPSv3, with tiny random weights in the published layout, against its authors' way written out
with plain transformers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from spotlight.errors import ScoringError
from spotlight.jobs import RewardSpec
from spotlight.jobs.clip_rewards import ClipSpec
from spotlight.rewards.base import build_scorer
from spotlight.rewards.validity import score_with
from spotlight.types import Prompt
from tests.examples.tiny_hub_models import tiny_hpsv3
from tests.rewards.hpsv3_kit import QUESTION, hpsv3_package

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

TEXTS = ["a cat", 'a {red} sign that says "OPEN"']
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 40, 64, 3)).astype(np.uint8)
PIXELS = 256 * 28 * 28


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_hpsv3(tmp_path_factory.mktemp("hpsv3"))


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hpsv3_package(tmp_path, monkeypatch)


def spec_of(folder: Path, **changes: str) -> RewardSpec:
    named = {"checkpoint": str(folder), "processor": str(folder / "qwen"), **changes}
    return RewardSpec(kind="hpsv3", clip=ClipSpec(device="cpu", **named))


def patches(image: np.ndarray) -> tuple[Any, Any]:
    """As the authors prepare an image: resized, normalised, and cut into patches of 14 x 14 x 2,
    four neighbours behind one another."""
    height, width = image.shape[:2]
    by = math.sqrt(PIXELS / (height * width))
    height, width = (math.ceil(edge * by / 28) * 28 for edge in (height, width))
    resized = Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
    mean = np.array([0.48145466, 0.4578275, 0.40821073])
    std = np.array([0.26862954, 0.26130258, 0.27577711])
    pixels = torch.from_numpy((np.asarray(resized) / 255 - mean) / std).float().permute(2, 0, 1)
    rows, columns = height // 14, width // 14
    cut = pixels.reshape(3, rows // 2, 2, 14, columns // 2, 2, 14)
    cut = cut.permute(1, 4, 2, 5, 0, 3, 6).unsqueeze(5).expand(-1, -1, -1, -1, -1, 2, -1, -1)
    return cut.reshape(rows * columns, -1), torch.tensor([[1, rows, columns]])


def wanted(folder: Path, image: np.ndarray, text: str) -> float:
    """The mean that the head gives for the state of the last layer at the token of the reward."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoTokenizer, Qwen2VLForConditionalGeneration

    state = load_file(folder / "HPSv3.safetensors")
    head = [
        (state.pop(f"rm_head.{at}.weight"), state.pop(f"rm_head.{at}.bias")) for at in (0, 3, 5)
    ]
    config = AutoConfig.from_pretrained(folder / "qwen")
    config.text_config.vocab_size = len(state["model.embed_tokens.weight"])
    model, said = Qwen2VLForConditionalGeneration.from_pretrained(
        None, config=config, state_dict=state, dtype=torch.bfloat16, output_loading_info=True
    )
    assert not said["missing_keys"] and not said["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(folder / "qwen")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|Reward|>"]})
    seen, grid = patches(image)
    pads = "<|image_pad|>" * (int(grid.prod()) // 4)
    question = QUESTION.format(text_prompt=text)
    ids = tokenizer(
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        f"<|vision_start|>{pads}<|vision_end|>{question}<|im_end|>\n<|im_start|>assistant\n",
        return_tensors="pt",
    ).input_ids
    with torch.inference_mode():
        hidden = model.eval()(
            input_ids=ids,
            pixel_values=seen,
            image_grid_thw=grid,
            mm_token_type_ids=(ids == config.image_token_id).int(),
            output_hidden_states=True,
        ).hidden_states[-1][0]
        found = hidden[ids[0] == tokenizer.convert_tokens_to_ids("<|Reward|>")].float()
        for matrix, bias in head[:-1]:
            found = torch.relu(found @ matrix.T + bias)
        found = found @ head[-1][0].T + head[-1][1]
    assert found.shape == (1, 2)
    return float(found[0, 0])


def test_the_reward_is_the_mean_that_the_authors_head_gives(folder: Path) -> None:
    spec = spec_of(folder)
    found = score_with(build_scorer(spec), spec, IMAGES, list(map(Prompt, TEXTS)))
    pairs = zip(IMAGES, TEXTS, strict=True)
    assert found == pytest.approx([wanted(folder, *pair) for pair in pairs], abs=1e-5)
    assert len(set(found)) == 2


def test_a_prompt_with_marks_of_the_model_is_refused(folder: Path) -> None:
    scorer = build_scorer(spec_of(folder))
    with pytest.raises(ScoringError, match=r"has `<\|`, with which HPSv3's own marks begin"):
        scorer.score(IMAGES[:1], [Prompt("a cat <|Reward|>")])


def test_weights_that_are_not_there_or_of_another_model_are_named(
    folder: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    with pytest.raises(ScoringError, match=r"clip\.checkpoint: the weights of"):
        build_scorer(spec_of(folder, checkpoint=str(tmp_path)))
    file = tmp_path / "HPSv3.safetensors"
    file.write_bytes((folder / file.name).read_bytes()[:-8])
    with pytest.raises(ScoringError, match=r"clip\.checkpoint: .*HPSv3\.safetensors is cut off"):
        build_scorer(spec_of(folder, checkpoint=str(tmp_path)))
    state = load_file(folder / file.name)
    del state["rm_head.5.bias"]
    save_file(state, file)
    with pytest.raises(ScoringError, match=r"another model: rm_head\.5\.bias is not in both"):
        build_scorer(spec_of(folder, checkpoint=str(tmp_path)))


def test_a_tokenizer_of_another_model_is_named(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "HPSv3.safetensors")
    rows = state["model.embed_tokens.weight"]
    state["model.embed_tokens.weight"] = torch.cat([rows, rows[:1]])
    save_file(state, tmp_path / "HPSv3.safetensors")
    with pytest.raises(ScoringError, match=r"clip\.processor: with <\|Reward\|>"):
        build_scorer(spec_of(folder, checkpoint=str(tmp_path)))
