"""Checkpoints of every family, and what is wrong with them, told without loading them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotlight.diffusion.families.registry import open_checkpoint
from spotlight.errors import CheckpointError, JobError, UserError
from spotlight.jobs import JobSpec, job_from_data
from spotlight.preflight import checkpoint_facts
from spotlight.preflight.checks import check, settled
from spotlight_simulation.tiny_families import make_tiny_checkpoint
from tests.diffusion.families.test_qwen_tokens import write_tokenizer

NAMES = (
    "qwen-image",
    "qwen-image-2.1",
    "sd3",
    "flux",
    "flux2-klein",
    "wan",
    "wan-a14b",
    "krea2",
    "z-image",
)

MakeJob = Callable[..., JobSpec]
PADDED = {"text_tokens": 64}


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint of each family; nobody may change it."""
    folder = tmp_path_factory.mktemp("families")
    for name in (*NAMES, "anyflow"):
        make_tiny_checkpoint(name, folder / name)
    return folder


@pytest.fixture
def folder(originals: Path, tmp_path: Path) -> Path:
    """Copies of them, to be damaged."""
    shutil.copytree(originals, tmp_path / "families")
    return tmp_path / "families"


@pytest.fixture
def make_job(folder: Path, tmp_path: Path) -> MakeJob:
    """Builds jobs on a checkpoint; `words` make the last training prompt."""

    def make(name: str, words: str = "cat", **changes: Any) -> JobSpec:
        train, validation = tmp_path / "train.txt", tmp_path / "validation.txt"
        lines = [*(f'picture "{number}"' for number in range(10)), f'"{words}"']
        train.write_text("\n".join(lines))
        validation.write_text('a "dog"\n')
        data: dict[str, Any] = {
            "name": "job",
            "model": {"checkpoint": str(folder / name), **changes.pop("model", {})},
            "prompts": {"train": str(train), "validation": str(validation)},
            "sampler": {"height": 32, "width": 64, **changes.pop("sampler", {})},
        }
        return job_from_data({**data, **changes})

    return make


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refusal(job: JobSpec) -> str:
    with pytest.raises(UserError) as caught:
        check(job)
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_job_passes(make_job: MakeJob, name: str) -> None:
    info = check(make_job(name)).checkpoint
    assert info.family.name == name.removesuffix("-a14b")
    assert info.needs_transformers
    positions = 24 * 24 * 32 if name == "sd3" else 0
    assert info.trainable == info.parameters - positions
    lora = {"tuning": "lora", "lora": {"rank": 1}}
    assert 0 < check(make_job(name, model=lora)).checkpoint.trainable < info.trainable


@pytest.mark.parametrize("name", NAMES)
def test_a_shard_that_is_missing_is_named(make_job: MakeJob, folder: Path, name: str) -> None:
    index = {"weight_map": {"any.weight": "model-00002-of-00002.safetensors"}}
    for part in ("transformer", "text_encoder", "vae"):
        [weights] = (folder / name / part).glob("*.safetensors")
        path = weights.with_name(f"{weights.name}.index.json")
        path.write_text(json.dumps(index))
        problem = refusal(make_job(name))
        assert f"{part}/model-00002-of-00002.safetensors is missing" in problem
        path.unlink()


@pytest.mark.parametrize("name", NAMES)
def test_a_part_that_is_missing_is_named(make_job: MakeJob, folder: Path, name: str) -> None:
    away = folder / "away"
    for part in (*open_checkpoint(folder / name)[1].parts, "scheduler"):
        (folder / name / part).rename(away)
        assert f"{name}/{part} is missing" in refusal(make_job(name))
        away.rename(folder / name / part)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("part", ["transformer", "scheduler", "text_encoder", "vae"])
def test_another_class_of_a_part_is_named(
    make_job: MakeJob, folder: Path, name: str, part: str
) -> None:
    edit_json(folder / name / "model_index.json", **{part: ["diffusers", "Secret"]})
    problem = refusal(make_job(name))
    assert f"model_index.json names no {part} that is known here; known: " in problem
    assert "Secret" not in problem


@pytest.mark.parametrize("name", NAMES)
def test_another_pipeline_of_the_same_transformer_is_refused(
    make_job: MakeJob, folder: Path, name: str
) -> None:
    edit_json(folder / name / "model_index.json", _class_name="SecretPipeline")
    assert "is of another pipeline than" in refusal(make_job(name))


@pytest.mark.parametrize(
    ("name", "other"), [("sd3", "wan"), ("flux", "qwen-image"), ("wan", "sd3")]
)
def test_a_vae_of_another_family_is_named(
    make_job: MakeJob, folder: Path, name: str, other: str
) -> None:
    shutil.rmtree(folder / name / "vae")
    shutil.copytree(folder / other / "vae", folder / name / "vae")
    assert f"{name}/vae/config.json is not of a AutoencoderKL" in refusal(make_job(name))


@pytest.mark.parametrize(
    ("name", "part", "change", "problem"),
    [
        ("sd3", "vae", {"latent_channels": 8}, "has in_channels 4, but the VAE's is 8"),
        ("sd3", "text_encoder_3", {"d_model": 48}, "has joint_attention_dim 32, but d_model"),
        ("sd3", "text_encoder_2", {"projection_dim": 8}, "has pooled_projection_dim 32, but"),
        ("flux", "vae", {"latent_channels": 8}, "has in_channels 16, but four times .* is 32"),
        ("flux", "text_encoder", {"hidden_size": 8}, "has pooled_projection_dim 16, but"),
        ("flux", "text_encoder_2", {"d_model": 48}, "has joint_attention_dim 32, but d_model"),
        ("flux", "transformer", {"axes_dims_rope": [4, 4, 4]}, "add up to 12"),
        ("flux2-klein", "vae", {"latent_channels": 8}, "in_channels 16, but four times .* is 32"),
        ("flux2-klein", "vae", {"patch_size": [1, 1]}, "has patch_size"),
        ("flux2-klein", "text_encoder", {"hidden_size": 48}, "joint_attention_dim 96, but three"),
        ("flux2-klein", "text_encoder", {"num_hidden_layers": 26}, "has 26 layers"),
        ("flux2-klein", "transformer", {"guidance_embeds": True}, "gives no guidance to"),
        ("flux2-klein", "transformer", {"axes_dims_rope": [4, 4, 4, 2]}, "add up to 14"),
        ("krea2", "transformer", {"num_text_layers": 3}, "num_text_layers 3, but that of Krea 2"),
        ("krea2", "text_encoder", {"text_config": {"hidden_size": 32}}, "has 32 layers"),
        ("qwen-image-2.1", "vae", {"z_dim": 8}, "has in_channels 4, but z_dim of the VAE is 8"),
        ("qwen-image-2.1", "vae", {"out_channels": 3}, "makes 3 colours"),
        ("z-image", "text_encoder", {"hidden_size": 48}, "has cap_feat_dim 32, but hidden_size"),
        ("z-image", "transformer", {"siglip_feat_dim": 8}, "give a text-to-image checkpoint"),
        ("wan", "vae", {"z_dim": 8}, "has in_channels 4, but z_dim of the VAE is 8"),
        ("wan", "text_encoder", {"d_model": 48}, "has text_dim 32, but d_model"),
        ("wan", "transformer", {"patch_size": [2, 2, 2]}, "it must be"),
        ("wan", "transformer", {"image_dim": 1280}, "give a text-to-video checkpoint"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_named(
    make_job: MakeJob, folder: Path, name: str, part: str, change: dict[str, Any], problem: str
) -> None:
    edit_json(folder / name / part / "config.json", **change)
    with pytest.raises(CheckpointError, match=problem):
        check(make_job(name))


def test_a_scheduler_that_is_not_for_flow_matching_is_refused(
    make_job: MakeJob, folder: Path
) -> None:
    edit_json(folder / "wan" / "scheduler" / "scheduler_config.json", use_flow_sigmas=False)
    assert "scheduler_config.json has no use_flow_sigmas" in refusal(make_job("wan"))


def test_a_model_that_was_distilled_to_steps_of_its_own_is_refused(
    make_job: MakeJob, folder: Path
) -> None:
    edit_json(folder / "qwen-image-2.1" / "model_index.json", sample_sigmas=[1.0, 0.5])
    assert "give the one that it was distilled from" in refusal(make_job("qwen-image-2.1"))


@pytest.mark.parametrize("name", ["krea2", "flux2-klein"])
def test_a_model_that_was_distilled_to_few_steps_is_refused(
    make_job: MakeJob, folder: Path, name: str
) -> None:
    edit_json(folder / name / "model_index.json", is_distilled=True)
    assert "give the base one to be trained" in refusal(make_job(name))


def test_a_model_of_average_velocities_is_no_model_to_train(make_job: MakeJob) -> None:
    with pytest.raises(JobError, match=r"^model\.checkpoint: is of anyflow, .* train another"):
        check(make_job("anyflow"))


def test_times_that_are_not_known_are_refused(make_job: MakeJob, folder: Path) -> None:
    edit_json(folder / "anyflow" / "transformer" / "config.json", deltatime_type="squared")
    assert "deltatime_type" in refusal(make_job("anyflow"))


def test_two_transformers_are_refused_where_only_one_could_be_trained(
    make_job: MakeJob, folder: Path
) -> None:
    two = ["diffusers", "SD3Transformer2DModel"]
    edit_json(folder / "sd3" / "model_index.json", transformer_2=two)
    assert "model_index.json names two transformers, of which" in refusal(make_job("sd3"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"boundary_ratio": None}, "names two transformers, but no boundary_ratio between 0 and 1"),
        ({"boundary_ratio": 1.5}, "names two transformers, but no boundary_ratio between 0 and 1"),
        ({"boundary_ratio": "Secret"}, "names two transformers, but no boundary_ratio between"),
        ({"transformer_2": [None, None]}, "has a boundary_ratio, but names no transformer_2"),
        ({"transformer_2": ["diffusers", "Secret"]}, "names no transformer_2 that is known here"),
        ({"_class_name": "WanImageToVideoPipeline"}, "is of another pipeline than WanPipeline"),
    ],
)
def test_two_transformers_that_do_not_follow_each_other_are_named(
    make_job: MakeJob, folder: Path, changes: dict[str, Any], problem: str
) -> None:
    edit_json(folder / "wan-a14b" / "model_index.json", **changes)
    said = refusal(make_job("wan-a14b"))
    assert f"wan-a14b/model_index.json {problem}" in said
    assert "Secret" not in said and "\n" not in said


@pytest.mark.parametrize("changes", [{"num_layers": 3}, {"in_channels": 36}, {"image_dim": 8}])
def test_two_transformers_of_different_sizes_are_named(
    make_job: MakeJob, folder: Path, changes: dict[str, Any]
) -> None:
    edit_json(folder / "wan-a14b" / "transformer_2" / "config.json", **changes)
    [(field, value)] = changes.items()
    said = refusal(make_job("wan-a14b"))
    assert f"wan-a14b/transformer_2/config.json has {field} {value}, but that of the first" in said


def test_a_guidance_of_a_second_transformer_wants_one(make_job: MakeJob) -> None:
    assert check(make_job("wan-a14b", model={"guidance_2": 3.0}))
    said = refusal(make_job("wan", model={"guidance_2": 3.0}))
    assert said.startswith("model.guidance_2: ")
    assert "has one transformer, whose guidance is `sampler.guidance`; leave it out" in said


def test_the_weights_of_both_transformers_count(make_job: MakeJob) -> None:
    one, two = (check(make_job(name)).checkpoint for name in ("wan", "wan-a14b"))
    assert (one.transformers, two.transformers) == (1, 2)
    assert (two.parameters, two.trainable) == (2 * one.parameters, 2 * one.trainable)
    assert len(two.matrices) == 2 * len(one.matrices)


@pytest.mark.parametrize(
    ("name", "sampler", "problem"),
    [
        ("sd3", {"height": 34}, "sampler.height: 34 pixels cannot be cut into patches of 4"),
        ("sd3", {"width": 100}, "sampler.width: 100 pixels are more than the model has positions"),
        ("flux", {"width": 46}, "sampler.width: 46 pixels cannot be cut into patches of 4"),
        ("wan", {"height": 40}, "sampler.height: 40 pixels cannot be cut into patches of 16"),
        ("wan", {"frames": 6}, "sampler.frames: 6 frames cannot be cut into .* use 5 or 9"),
        ("wan", {"frames": 129}, "sampler.frames: 129 frames are more than .* at most 125"),
        ("qwen-image", {"frames": 5}, "sampler.frames: 5 frames .* draws images; leave it out"),
        ("sd3", {"frames": 5}, "sampler.frames: 5 frames .* draws images; leave it out"),
        ("flux", {"frames": 5}, "sampler.frames: 5 frames .* draws images; leave it out"),
        ("wan", {"degree": 16}, "sampler.degree: 8 image tokens leave some of 16 members"),
    ],
)
def test_a_size_that_the_model_cannot_do_is_named(
    make_job: MakeJob, name: str, sampler: dict[str, Any], problem: str
) -> None:
    with pytest.raises(JobError, match=problem):
        check(make_job(name, sampler=sampler))


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_for_a_module_that_is_not_there_is_named(make_job: MakeJob, name: str) -> None:
    model = {"tuning": "lora", "lora": {"targets": ["to_q", "to_nothing"]}}
    problem = refusal(make_job(name, model=model))
    assert "model.lora.targets: no linear module `to_nothing`" in problem


@pytest.mark.parametrize(("name", "most"), [("sd3", 256), ("flux", 512), ("wan", 512)])
def test_a_prompt_that_the_encoder_cannot_read_is_named_by_its_line(
    make_job: MakeJob, name: str, most: int
) -> None:
    others = len('""') + 1  # and a mark for the end
    check(make_job(name, words="x" * (most - others)))
    with pytest.raises(JobError, match=rf"line 11: .* {most + 1} tokens, .* reads at most {most}"):
        check(make_job(name, words="x" * (most - others + 1)))


@pytest.mark.parametrize(("name", "part"), [("sd3", "tokenizer_3"), ("wan", "tokenizer")])
def test_a_tokenizer_that_cannot_be_read_is_named(
    make_job: MakeJob, folder: Path, name: str, part: str
) -> None:
    (folder / name / part / "tokenizer.json").write_text("{")
    assert f"{part}/tokenizer.json is no tokenizer" in refusal(make_job(name, words="x" * 600))


@pytest.fixture
def qwen_tokenizer(folder: Path) -> None:
    """The checkpoint of Qwen-Image has a tokenizer that knows the words of its template."""
    shutil.rmtree(folder / "qwen-image" / "tokenizer")
    write_tokenizer(folder / "qwen-image" / "tokenizer")


@pytest.mark.usefixtures("qwen_tokenizer")
@pytest.mark.parametrize(
    ("letters", "tokens"), [(1, 64), (57, 64), (58, 128), (121, 128), (122, 256)]
)
def test_prompts_are_padded_to_the_least_length_that_holds_all_of_them(
    make_job: MakeJob, letters: int, tokens: int
) -> None:
    job = make_job("qwen-image", "x" * letters)
    chosen = settled(job, check(job))
    assert chosen.sampler.text_tokens == tokens
    assert settled(chosen, check(chosen)) == chosen


@pytest.mark.usefixtures("qwen_tokenizer")
def test_the_negative_prompt_must_fit_the_same_length(make_job: MakeJob) -> None:
    job = make_job("qwen-image", model={"negative_prompt": "x" * 100})
    assert settled(job, check(job)).sampler.text_tokens == 128
    with pytest.raises(JobError, match=r"^model\.negative_prompt: has 105 tokens, .* is 64"):
        check(make_job("qwen-image", "x", model={"negative_prompt": "x" * 100}, sampler=PADDED))


@pytest.mark.usefixtures("qwen_tokenizer")
def test_a_prompt_that_is_longer_than_the_jobs_padding_is_named_by_its_line(
    make_job: MakeJob,
) -> None:
    check(make_job("qwen-image", "x" * 57, sampler=PADDED))
    with pytest.raises(
        JobError, match=r"^prompts\.train: .*, line 11: this prompt has 65 tokens, but `sampler\."
    ):
        check(make_job("qwen-image", "x" * 58, sampler=PADDED))


@pytest.mark.parametrize(
    ("name", "tokens", "problem"),
    [
        ("qwen-image", 100, "cannot be padded to 100 tokens; use one of 64, 128, 256"),
        ("sd3", 64, "cannot be padded to 64 tokens; leave it out"),
    ],
)
def test_a_length_that_the_family_does_not_know_is_refused(
    make_job: MakeJob, name: str, tokens: int, problem: str
) -> None:
    with pytest.raises(JobError, match=rf"^sampler\.text_tokens: .*{problem}"):
        check(make_job(name, sampler={"text_tokens": tokens}))


@pytest.mark.parametrize("name", ["sd3", "flux", "wan"])
def test_where_padding_means_something_there_is_one_length(make_job: MakeJob, name: str) -> None:
    job = make_job(name)
    assert settled(job, check(job)) == job


def test_where_nobody_counts_tokens_the_family_has_its_longest(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_facts, "find_spec", lambda name: None)
    job = make_job("qwen-image")
    assert settled(job, check(job)) == job
