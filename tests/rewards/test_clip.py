"""Rewards of CLIP models, with tiny random weights of the same classes, against their authors'
formulas written out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants

from spotlight.errors import ScoringError
from spotlight.jobs import RewardSpec
from spotlight.jobs.clip_rewards import PUBLISHED, ClipSpec
from spotlight.rewards.base import build_scorer
from spotlight.rewards.clip import ROWS, ClipScorer
from spotlight.rewards.validity import score_with
from spotlight.types import Prompt
from tests.diffusion.hub_kit import COMMIT, REPOSITORY, fill_cache
from tests.examples.tiny_hub_models import tiny_aesthetic, tiny_clip

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

TEXTS = ["a cat", "a dog", "a longer prompt"]
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 40, 32, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_clip(tmp_path_factory.mktemp("clip") / "model")


def cosines(folder: Path, prefix: str = "") -> Any:
    """Of each image and its text, one pair after the other, and the model's scale."""
    from transformers import CLIPModel, CLIPProcessor

    model = CLIPModel.from_pretrained(folder).eval()
    processor = CLIPProcessor.from_pretrained(folder)
    found = []
    for image, text in zip(IMAGES, TEXTS, strict=True):
        inputs = processor(text=[prefix + text], images=[image], return_tensors="pt")
        with torch.inference_mode():
            out = model(**inputs)
        found.append(torch.cosine_similarity(out.image_embeds, out.text_embeds)[0])
    return torch.stack(found), model.logit_scale.detach().exp()


@pytest.mark.parametrize(
    ("kind", "prefix", "formula"),
    [
        ("clip", "A photo depicts ", lambda cosine, scale: 2.5 * torch.relu(cosine)),
        ("pickscore", "", lambda cosine, scale: scale * cosine),
        ("hpsv2", "", lambda cosine, scale: cosine),
    ],
)
def test_the_reward_is_that_of_the_authors_formula(
    folder: Path, kind: Any, prefix: str, formula: Callable[[Any, Any], Any]
) -> None:
    spec = RewardSpec(kind=kind, clip=ClipSpec(checkpoint=str(folder)))
    found = score_with(build_scorer(spec), spec, IMAGES, list(map(Prompt, TEXTS)))
    assert found == pytest.approx(formula(*cosines(folder, prefix)).tolist(), abs=1e-5)


def test_the_aesthetic_score_is_linear_in_the_direction_of_the_embedding(tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import CLIPImageProcessor, CLIPVisionModelWithProjection

    folder = tiny_aesthetic(tmp_path / "aesthetic")
    spec = RewardSpec(kind="aesthetic", clip=ClipSpec(checkpoint=str(folder)))
    found = score_with(build_scorer(spec), spec, IMAGES, list(map(Prompt, TEXTS)))

    weights = load_file(folder / "model.safetensors")
    head = [
        (weights[f"layers.{at}.weight"], weights[f"layers.{at}.bias"]) for at in (0, 2, 4, 6, 7)
    ]
    vision = CLIPVisionModelWithProjection.from_pretrained(folder).eval()
    pixels = CLIPImageProcessor.from_pretrained(folder)(images=list(IMAGES), return_tensors="pt")
    with torch.inference_mode():
        wanted = vision(**pixels).image_embeds
    wanted = wanted / wanted.norm(dim=-1, keepdim=True)
    for matrix, bias in head:
        wanted = wanted @ matrix.T + bias
    assert found == pytest.approx(wanted[:, 0].tolist(), abs=1e-5)


def test_a_reward_does_not_depend_on_the_batch_of_its_image(folder: Path) -> None:
    scorer = ClipScorer("pickscore", ClipSpec(checkpoint=str(folder)))
    many = np.concatenate([IMAGES] * 4)
    prompts = list(map(Prompt, TEXTS * 4))
    assert len(many) > ROWS
    alone = [scorer.score(many[at : at + 1], prompts[at : at + 1])[0] for at in range(len(many))]
    assert scorer.score(many, prompts) == alone


def test_weights_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match=r"clip\.checkpoint: the weights of"):
        ClipScorer("clip", ClipSpec(checkpoint=str(tmp_path)))


def test_a_file_that_was_cut_off_is_named(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ScoringError, match=r"clip\.checkpoint: .* cannot be loaded \(Safetensor"):
        ClipScorer("clip", ClipSpec(checkpoint=str(tmp_path / "model")))


@pytest.mark.parametrize("on_hub", [False, True])
def test_quantised_weights_are_refused_where_transformers_would_ignore_their_scales(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_hub: bool
) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    projection = weights["visual_projection.weight"]
    weights["visual_projection.weight_scale"] = projection.abs().max() / 448
    weights["visual_projection.weight"] = projection.to(torch.float8_e4m3fn)
    save_file(weights, file, metadata={"format": "pt"})
    name = str(tmp_path / "model")
    if on_hub:
        name = f"hf:{REPOSITORY}@{COMMIT}"
        fill_cache(tmp_path / "model", tmp_path / "cache")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ScoringError, match=r"clip\.checkpoint: .* `F8_E4M3`: quantised weights"):
        ClipScorer("pickscore", ClipSpec(checkpoint=name))


def test_each_kind_has_the_range_of_its_formula_unless_the_job_gives_another() -> None:
    for kind, published in PUBLISHED.items():
        assert RewardSpec(kind=kind).range == published.range  # type: ignore[arg-type]
    assert RewardSpec(kind="pickscore", range=(0.0, 40.0)).range == (0.0, 40.0)


def test_numbers_that_a_file_lacks_are_never_drawn_at_random(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_aesthetic(tmp_path / "model")
    file = folder / "model.safetensors"
    weights = load_file(file)
    del weights["layers.7.bias"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ScoringError, match=r"has no layers\.7\.bias and is no model for the `aes"):
        ClipScorer("aesthetic", ClipSpec(checkpoint=str(folder)))
