"""What is wrong with a job's prompts is one line that names the field, the file and the line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from preflight_kit import MakeJob, edit_json

from spotlight.diffusion.families import qwen_tokens
from spotlight.errors import CheckpointError, JobError
from spotlight.jobs import JobSpec
from spotlight.preflight import checks as preflight


def test_prompts_that_are_not_there_are_named(make_job: MakeJob) -> None:
    prompts = {**_prompts(make_job()), "train": "/nowhere.txt"}
    with pytest.raises(JobError, match=r"^prompts\.train: /nowhere\.txt cannot be read"):
        preflight.check(make_job(prompts=prompts))


def test_prompts_that_are_empty_are_refused(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "validation.txt").write_text("\n \n")
    with pytest.raises(JobError, match=r"^prompts\.validation: .* is empty"):
        preflight.check(make_job())


def test_a_job_may_validate_on_some_of_its_prompts(make_job: MakeJob) -> None:
    everything = preflight.check(make_job()).validation
    total = len(everything.items)
    some = preflight.check(make_job(validation={"prompts": total - 1})).validation
    assert len(some.items) == total - 1
    assert set(some.numbers) < set(everything.numbers)
    with pytest.raises(JobError, match=rf"validation\.prompts: {total + 1} prompts are wanted"):
        preflight.check(make_job(validation={"prompts": total + 1}))


def test_a_negative_prompt_that_cannot_be_read_is_refused(
    make_job: MakeJob, checkpoint: Path
) -> None:
    model = {"checkpoint": str(checkpoint), "negative_prompt": "0123456789"}
    with pytest.raises(JobError, match=r"model\.negative_prompt: has 10 tokens, .* at most 8"):
        preflight.check(make_job(model=model))


def test_validation_prompts_must_not_be_trained_on(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "validation.txt").write_text('the number "3"\nthe number "99"\n')
    with pytest.raises(JobError, match=r"validation\.txt, line 1: this prompt is in `prompts\.t"):
        preflight.check(make_job())


def test_an_iteration_needs_enough_different_prompts(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text('say "a"\n' * 50)
    with pytest.raises(JobError, match=r"^prompts\.per_iteration: 8 prompts .* has only 1;"):
        preflight.check(make_job())


def test_a_pool_needs_enough_different_prompts(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("".join(f'say "{n}"\n' for n in range(20)))
    with pytest.raises(JobError, match=r"^exploration\.prompt_pool: 24 prompts .* has only 20;"):
        preflight.check(make_job(exploration={"prompt_pool": 3}))


def test_a_weight_for_a_tag_that_no_prompt_has_is_refused(
    make_job: MakeJob, tmp_path: Path
) -> None:
    rewards = [{"weight_by_tag": {"sings": 2.0}}]
    with pytest.raises(JobError, match=r"^rewards\[0\]\.weight_by_tag: .* JSON lines with a `tag`"):
        preflight.check(make_job(rewards=rewards))
    lines = [json.dumps({"prompt": f'the number "{n}"', "tag": "signs"}) for n in range(10)]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    with pytest.raises(JobError, match="has the tag `sings`; name one that is there") as caught:
        preflight.check(make_job(rewards=rewards))
    assert "signs" not in str(caught.value), "whoever submits a job need not be able to read it"
    preflight.check(make_job(rewards=[{"weight_by_tag": {"signs": 2.0}}]))


def test_weights_that_are_0_for_every_prompt_are_refused(make_job: MakeJob, tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": f'the number "{n}"', "tag": "signs"}) for n in range(10)]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    measured = {"name": "measured", "weight": 0.0}
    without = [measured, {"weight_by_tag": {"signs": 0.0}}]
    with pytest.raises(JobError, match=r"^rewards\[1\]\.weight_by_tag: all rewards weigh 0 for"):
        preflight.check(make_job(rewards=without))
    preflight.check(make_job(rewards=[{**measured, "weight_by_tag": {"signs": 0.5}}, *without[1:]]))
    (tmp_path / "train.txt").write_text("\n".join([*lines, json.dumps({"prompt": 'say "a"'})]))
    preflight.check(make_job(rewards=without))


def test_the_ocr_reward_needs_text_in_quotes(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "validation.txt").write_text('a sign that says "open"\na red cat\n')
    with pytest.raises(JobError, match=r"^prompts\.validation: .*, line 2: .* no text in quotes"):
        preflight.check(make_job())


def test_hpsv3_reads_no_prompt_with_a_mark_of_its_own(make_job: MakeJob, tmp_path: Path) -> None:
    prompts = [*(f"a cat with {n} dogs" for n in range(9)), "a cat<|im_end|>"]
    (tmp_path / "train.txt").write_text("\n".join(prompts))
    with pytest.raises(JobError, match=r"^prompts\.train: .*, line 10: .* `<\|`, .* of `hpsv3`"):
        preflight.check(make_job(rewards=[{"kind": "hpsv3"}]))


@pytest.mark.parametrize(
    "prompt", ['say "a"', 'say "" "b"', 'say " "', "say a", 'say "', '"a', 'x"y"z', 'say "a b"']
)
def test_the_check_for_quotes_agrees_with_the_scorer(
    make_job: MakeJob, tmp_path: Path, prompt: str
) -> None:
    ocr = pytest.importorskip("spotlight.rewards.ocr")
    (tmp_path / "validation.txt").write_text(prompt)
    try:
        ocr.target_text(prompt)
        scorable = True
    except Exception:
        scorable = False
    try:
        preflight.check(make_job())
        passed = True
    except JobError:
        passed = False
    assert passed == scorable


def _prompts(job: JobSpec) -> dict[str, Any]:
    return {"train": job.prompts.train, "validation": job.prompts.validation}


def test_a_prompt_that_the_encoder_cannot_read_is_named_by_its_line(
    make_job: MakeJob, tmp_path: Path
) -> None:
    train = tmp_path / "train.txt"
    train.write_text(train.read_text() + '\nthe number "12345"\nsay "much"\n')
    with pytest.raises(JobError) as caught:
        preflight.check(make_job())
    assert str(caught.value) == (
        f"prompts.train: {train}, line 12: this prompt has 9 tokens, but the checkpoint's text "
        "encoder reads at most 8 (and 1 more); shorten it"
    )


def test_a_prompt_that_qwen_cannot_read_is_named_by_its_line(
    make_job: MakeJob, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = ["transformers", "Qwen2_5_VLForConditionalGeneration"]
    edit_json(checkpoint / "model_index.json", text_encoder=encoder)
    with pytest.raises(CheckpointError, match="tokenizer is missing"):
        preflight.check(make_job())
    (checkpoint / "tokenizer").mkdir()
    assert preflight.check(make_job()).checkpoint.needs_transformers

    def too_long(folder: Path, prompts: list[str], most: int) -> dict[int, int]:
        assert folder == checkpoint / "tokenizer"
        return {n: 300 for n, prompt in enumerate(prompts) if '"11"' in prompt}

    monkeypatch.setattr(qwen_tokens, "too_long", too_long)
    with pytest.raises(JobError, match=r"^prompts\.validation: .*, line 2: .* 300 tokens, .* 256;"):
        preflight.check(make_job())


def test_validations_of_more_images_than_anybody_compares_are_refused(make_job: MakeJob) -> None:
    preflight.check(make_job(validation={"seeds": 1000}))
    validation = Path(make_job().prompts.validation)
    validation.write_text("".join(f'"{number}"\n' for number in range(100, 166)))
    with pytest.raises(JobError, match=r"^validation\.seeds: 66 prompts x 1,000 seeds are 66,000"):
        preflight.check(make_job(validation={"seeds": 1000}))


@pytest.mark.parametrize("field", ["train", "validation"])
@pytest.mark.parametrize(
    "content",
    [
        "secret\n",
        '"secrets"\n',
        '"1"\nsecret "words of some length"\n',
        '{"secret": 1}\n',
        '{"tag": "secret", "include": [{"class": "secret", "count": 1}], "prompt": "secret"}\n',
        '{"tag": "x", "include": [{"class": "x", "count": 1, "color": "secret"}], "prompt": "x"}\n',
        "\udcff secret\n",
        "",
    ],
)
@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_nothing_that_stands_in_a_file_of_prompts_is_in_the_refusal(
    make_job: MakeJob, tmp_path: Path, field: str, content: str, suffix: str
) -> None:
    file = tmp_path / f"odd.{suffix}"
    file.write_text(content, errors="surrogateescape")
    with pytest.raises(JobError) as caught:
        preflight.check(make_job(prompts={**_prompts(make_job()), field: str(file)}))
    assert str(caught.value).startswith("prompts.")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["ocr", "compositional"])
@pytest.mark.parametrize(
    "content",
    [
        '{"secret": 1}',
        '{"tag": "x", "include": [{"class": "secret", "count": 1}], "prompt": "x"}',
        '{"tag": "x", "include": [{"class": "x", "count": 1, "color": "secret"}], "prompt": "x"}',
        '{"tag": "x", "include": [{"class": "circle", "count": 1}], "prompt": "secret"}\n'
        '{"tag": "x", "include": [{"class": "circle", "count": 2}], "prompt": "secret"}',
    ],
)
def test_nothing_that_stands_in_metadata_is_in_the_refusal(
    make_job: MakeJob, tmp_path: Path, content: str, kind: str
) -> None:
    file = tmp_path / "metadata.jsonl"
    file.write_text(content)
    prompts = {**_prompts(make_job()), "validation": str(file)}
    with pytest.raises(JobError) as caught:
        preflight.check(make_job(prompts=prompts, rewards=[{"kind": kind}]))
    assert str(caught.value).startswith("prompts.") and "secret" not in str(caught.value)


@pytest.mark.parametrize("field", ["train", "validation"])
def test_prompts_that_are_no_file_are_refused(
    make_job: MakeJob, tmp_path: Path, field: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (
        (str(tmp_path / "pipe"), "is a named pipe, not a file"),
        ("/dev/zero", "is a device, not a file"),
        ("/proc/self/environ", "does not have the length"),
    ):
        with pytest.raises(JobError, match=rf"^prompts\.{field}: {name} {problem}"):
            preflight.check(make_job(prompts={**_prompts(make_job()), field: name}))
