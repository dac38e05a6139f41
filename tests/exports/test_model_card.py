"""The model card says what others need to know, and nothing of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotlight.diffusion import hub
from spotlight.exports.card import CardFacts, model_card
from spotlight.exports.plan import plan_export
from spotlight.record.run_metrics import ValidationMetrics
from spotlight.store.run_folder import checkpoint_path
from spotlight.types import ExportFormat
from tests.small_run import small_job, write_run

COMMIT = "0" * 40


def validations(*scores: float) -> list[ValidationMetrics]:
    return [
        ValidationMetrics(weights_version=5 * n, iteration=5 * n, score=score, score_error=0.01)
        for n, score in enumerate(scores)
    ]


def card(
    format: ExportFormat = "diffusers",
    *,
    scores: tuple[float, ...] = (0.25, 0.75),
    iteration: int = 5,
    prompts: tuple[str, ...] = ('the number "1"',),
    licence: str | None = None,
    of_two: bool = False,
    changes_images: bool = False,
    **changes: Any,
) -> str:
    facts = CardFacts(
        format=format,
        iteration=iteration,
        validations=validations(*scores),
        prompts=prompts,
        licence=licence,
        of_two=of_two,
        changes_images=changes_images,
    )
    return model_card(small_job(**changes), facts)


def head(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return found


LORA = {"checkpoint": f"hf:painters/base@{COMMIT}", "tuning": "lora"}


def test_its_head_names_the_base_and_what_reads_it() -> None:
    said = head(card(model=LORA, licence="apache-2.0"))
    assert said["base_model"] == "painters/base"
    assert said["base_model_relation"] == "adapter"
    assert said["license"] == "apache-2.0"
    assert (said["library_name"], said["pipeline_tag"]) == ("diffusers", "text-to-image")
    assert said["tags"] == ["reinforcement-learning", "lora"]
    assert head(card("peft", model=LORA))["library_name"] == "peft"


def test_its_head_says_what_the_pipeline_makes_of_what() -> None:
    video = {"frames": 5}
    assert head(card(sampler=video))["pipeline_tag"] == "text-to-video"
    assert head(card(changes_images=True))["pipeline_tag"] == "image-to-image"


@pytest.mark.parametrize("tuning", ["full", "lora"])
@pytest.mark.parametrize("format", ["diffusers", "peft", "comfyui"])
def test_both_transformers_have_a_word_of_use(format: ExportFormat, tuning: str) -> None:
    use = card(format, of_two=True, model=LORA | {"tuning": tuning}).partition("## Use")[2]
    assert ("transformer_2" in use, "high_noise" in use) in ((True, False), (False, True))


def test_a_whole_pipeline_is_no_adapter() -> None:
    said = head(card("pipeline", model=LORA))
    assert "base_model_relation" not in said and "lora" not in said["tags"]


def test_the_curve_has_every_validation_and_marks_the_one_that_is_exported() -> None:
    text = card(scores=(0.25, 0.5, 0.75), iteration=10)
    rows = [line for line in text.splitlines() if "±" in line]
    assert [row.split("|")[1].strip() for row in rows] == ["0", "5", "**10**"]
    assert "0.750 ± 0.010" in rows[2]
    assert [row.count("█") for row in rows] == sorted(row.count("█") for row in rows)


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    rows = [line for line in card(scores=(0.5,) * 200).splitlines() if "±" in line]
    assert len(rows) == 20
    assert [rows[n].split("|")[1].strip() for n in (0, -1)] == ["0", "995"]


def test_the_curve_says_how_the_images_were_made() -> None:
    sampler = {"guidance": 4.5, "steps": 10}
    assert "at guidance 4.5 and 10 steps" in card(sampler=sampler)
    other = card(sampler={**sampler, "evaluation_steps": 40}, validation={"guidance": 1.0})
    assert "at guidance 1 and 40 steps" in other


def test_without_a_validation_there_is_no_curve() -> None:
    assert "## Validation" not in card(scores=())


def test_guidance_rewards_and_prompts_are_said() -> None:
    text = card(sampler={"guidance": 4.5}, rewards=[{}, {"name": "again", "weight": 0.5}])
    assert "guidance 4.5" in text
    assert "ocr (weight 1), again (weight 0.5)" in text
    assert '- the number "1"' in text


def test_text_of_prompts_stays_text() -> None:
    assert "- a \\| b &lt;script>" in card(prompts=("a | b\n<script>",))


@pytest.mark.parametrize("licence", ["apache-2.0", None])
def test_the_licence_is_that_of_the_base(licence: str | None) -> None:
    text = card(model=LORA, licence=licence).partition("## Licence")[2]
    assert "[painters/base](https://huggingface.co/painters/base)" in text
    assert (licence or "its own page names it") in text


def exported(tmp_path: Path, **changes: Any) -> str:
    run = write_run(tmp_path / "run", **changes)
    (run / "checkpoints").mkdir()
    (run / checkpoint_path(4)).touch()
    line = {"kind": "validation", "weights_version": 4, "iteration": 4, "score": 0.5}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return plan_export(run, weights="best", format="diffusers").card


def test_the_card_of_a_run_has_its_validations_and_prompts(tmp_path: Path) -> None:
    text = exported(tmp_path)
    assert "| **4** | 0.500 |" in text
    assert "## Prompts" in text


def test_the_card_names_no_folder_of_this_machine_and_the_licence_of_the_base(
    tmp_path: Path,
) -> None:
    base = tmp_path / "base-model"
    base.mkdir()
    (base / "README.md").write_text("---\nlicense: openrail++\n---\n# Base\n")
    prompts = tmp_path / "mine.txt"
    prompts.write_text("a cat\na dog\n")
    text = exported(
        tmp_path,
        model={"checkpoint": str(base)},
        prompts={"train": str(prompts), "validation": str(tmp_path / "gone.txt")},
    )
    assert str(tmp_path) not in text
    assert "`base-model`" in text and "mine.txt" in text
    assert head(text)["license"] == "openrail++"


def test_a_base_in_the_cache_of_the_hub_says_its_licence_and_what_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "README.md").write_text("---\nlicense: openrail++\n---\n# Base\n")
    index = {
        "_class_name": "QwenImageEditPlusPipeline",
        "transformer": ["diffusers", "QwenImageTransformer2DModel"],
    }
    (base / "model_index.json").write_text(json.dumps(index))
    monkeypatch.setattr(hub, "cached", lambda name: base if name.is_pinned else None)
    said = head(exported(tmp_path, model=LORA))
    assert (said["license"], said["pipeline_tag"]) == ("openrail++", "image-to-image")
    (tmp_path / "other").mkdir()
    other = head(exported(tmp_path / "other", model=LORA | {"checkpoint": "hf:painters/base@main"}))
    assert "license" not in other and other["pipeline_tag"] == "text-to-image"


@pytest.mark.parametrize("text", ["---\n# Base\n", "---\nlicense: openrail++", "---\n: : [\n---\n"])
def test_a_base_whose_own_card_cannot_be_read_names_no_licence(tmp_path: Path, text: str) -> None:
    (tmp_path / "base-model").mkdir()
    (tmp_path / "base-model" / "README.md").write_text(text)
    card = exported(tmp_path, model={"checkpoint": str(tmp_path / "base-model")})
    assert "license" not in head(card)
