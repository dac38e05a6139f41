"""What is checked before anything starts: each problem is one line with a field or a path."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotlight.diffusion.families import qwen_tokens
from spotlight.diffusion.geometry import Geometry
from spotlight.errors import (
    CheckpointError,
    JobError,
    MissingDependency,
    RunFolderError,
    UserError,
)
from spotlight.jobs import JobSpec, job_from_data
from spotlight.preflight import checks as preflight

ROOT = Path(__file__).resolve().parents[2]
TRANSFORMER = {
    "patch_size": 4,
    "in_channels": 16,
    "out_channels": 1,
    "num_layers": 1,
    "attention_head_dim": 32,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "axes_dims_rope": [8, 8, 16],
}
SHAPES = {
    "img_in.weight": [64, 16],
    "txt_in.weight": [64, 32],
    "transformer_blocks.0.attn.to_q.weight": [64, 64],
    "transformer_blocks.0.attn.to_q.bias": [64],
}


def write_safetensors(path: Path, shapes: dict[str, list[int]]) -> None:
    """A file of zeros with a safetensors header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * _product(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def write_text_encoder(folder: Path, length: int = 8) -> None:
    """One that reads two words, digits and quotes."""
    config = {"dim": 32, "length": length, "words": ["the", "number"], "characters": '"0123456789'}
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", {"table": [15, 32], "positions": [length, 32]})


def _product(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A tiny pixel-space checkpoint in diffusers layout."""
    folder = tmp_path / "checkpoint"
    for part in ("transformer", "scheduler", "text_encoder"):
        (folder / part).mkdir(parents=True)
    index = {
        "_class_name": "QwenImagePipeline",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["spotlight", "TokenTextEncoder"],
        "tokenizer": [None, None],
        "transformer": ["diffusers", "QwenImageTransformer2DModel"],
        "vae": [None, None],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    (folder / "transformer" / "config.json").write_text(json.dumps(TRANSFORMER))
    write_text_encoder(folder / "text_encoder")
    write_safetensors(folder / "transformer" / "model.safetensors", SHAPES)
    return folder


MakeJob = Callable[..., JobSpec]


@pytest.fixture
def make_job(checkpoint: Path, tmp_path: Path) -> MakeJob:
    """Builds jobs on the tiny checkpoint with ten training and two validation prompts."""
    train, validation = tmp_path / "train.txt", tmp_path / "validation.txt"
    train.write_text("".join(f'the number "{i}"\n' for i in range(10)))
    validation.write_text('the number "10"\nthe number "11"\n')

    def make(**changes: Any) -> JobSpec:
        data: dict[str, Any] = {
            "name": "job",
            "model": {"checkpoint": str(checkpoint)},
            "prompts": {"train": str(train), "validation": str(validation)},
            "sampler": {"height": 32, "width": 64},
        }
        return job_from_data({**data, **changes})

    return make


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_sound_job_gets_a_description_of_its_checkpoint(
    make_job: MakeJob, checkpoint: Path
) -> None:
    info = preflight.check(make_job()).checkpoint
    assert (info.folder, info.family.name) == (checkpoint, "qwen-image")
    assert info.parameters == info.trainable == 64 * 16 + 64 * 32 + 64 * 64 + 64
    assert (info.geometry, info.pixel_space) == (Geometry(4, 4, 16, longest_edge=4096), True)
    assert info.tokens(32, 64) == 8 * 16


def test_the_checkpoint_that_ships_passes() -> None:
    data = {
        "name": "first",
        "model": {"checkpoint": "builtin:ocr-tiny"},
        "prompts": {
            "train": "builtin:ocr-tiny/train",
            "validation": "builtin:ocr-tiny/validation",
        },
        "sampler": {"height": 32, "width": 64},
    }
    assert preflight.check(job_from_data(data)).checkpoint.pixel_space


def test_adapters_train_rank_times_inputs_and_outputs(make_job: MakeJob, checkpoint: Path) -> None:
    lora = {"rank": 4, "targets": ["to_q"]}
    job = make_job(model={"checkpoint": str(checkpoint), "tuning": "lora", "lora": lora})
    info = preflight.check(job).checkpoint
    assert info.trainable == 4 * (64 + 64) < info.parameters


def test_an_adapter_for_a_module_that_is_not_there_is_named(
    make_job: MakeJob, checkpoint: Path
) -> None:
    lora = {"targets": ["to_q", "o_q"]}
    job = make_job(model={"checkpoint": str(checkpoint), "tuning": "lora", "lora": lora})
    with pytest.raises(CheckpointError, match=r"model\.lora\.targets: no linear module `o_q`"):
        preflight.check(job)


def test_neither_torch_nor_numpy_is_imported() -> None:
    code = (
        "import sys; from spotlight.jobs import load_job; import spotlight.preflight.checks;"
        "import spotlight.report.rendering, spotlight.cli.plan, spotlight.cli.live;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'diffusers')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, cwd=ROOT)


# --- checkpoint ---------------------------------------------------------------------------------


def test_a_checkpoint_that_is_not_there_is_named(make_job: MakeJob) -> None:
    with pytest.raises(CheckpointError, match=r"model\.checkpoint: /nowhere is not a folder"):
        preflight.check(make_job(model={"checkpoint": "/nowhere"}))


@pytest.mark.parametrize(
    "part", ["model_index.json", "transformer/config.json", "text_encoder/config.json"]
)
def test_a_file_that_is_missing_is_named(make_job: MakeJob, checkpoint: Path, part: str) -> None:
    (checkpoint / part).unlink()
    with pytest.raises(CheckpointError, match=f"{part} cannot be read .No such file"):
        preflight.check(make_job())


@pytest.mark.parametrize("part", ["transformer", "scheduler", "text_encoder"])
def test_a_part_that_is_missing_is_named(make_job: MakeJob, checkpoint: Path, part: str) -> None:
    shutil.rmtree(checkpoint / part)
    with pytest.raises(CheckpointError, match=f"{part} is missing; copy the whole checkpoint"):
        preflight.check(make_job())


def test_a_file_that_is_not_json_is_named(make_job: MakeJob, checkpoint: Path) -> None:
    (checkpoint / "transformer" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not what it should be"):
        preflight.check(make_job())


def test_an_unknown_family_is_refused_with_those_that_are_known(
    make_job: MakeJob, checkpoint: Path
) -> None:
    edit_json(checkpoint / "model_index.json", transformer=["diffusers", "UNet2DModel"])
    with pytest.raises(
        CheckpointError, match=r"no transformer that is known .*: Flux.*, QwenImage.*, SD3.*, Wan"
    ):
        preflight.check(make_job())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"attention_head_dim": 48}, "attention_head_dim 48, but its axes_dims_rope .* to 32"),
        ({"axes_dims_rope": [15, 1, 16]}, "each must be even and positive"),
        ({"num_attention_heads": 0}, "num_attention_heads 0; it must be at least 1"),
        ({"num_attention_heads": 3}, r"img_in.weight of shape \[96, 16\]"),
        ({"num_layers": "two"}, "Expected `int`, got `str` - at `.*num_layers`"),
        ({"axes_dims_rope": [16, 16]}, "at `.*axes_dims_rope`"),
        ({"out_channels": 3}, "makes 48 channels .* in_channels 16"),
        ({"joint_attention_dim": 16}, "txt_in.weight of shape"),
    ],
)
def test_a_configuration_that_cannot_work_is_named(
    make_job: MakeJob, checkpoint: Path, change: dict[str, Any], problem: str
) -> None:
    edit_json(checkpoint / "transformer" / "config.json", **change)
    with pytest.raises(CheckpointError, match=problem):
        preflight.check(make_job())


def test_a_text_encoder_of_another_width_is_refused(make_job: MakeJob, checkpoint: Path) -> None:
    edit_json(checkpoint / "text_encoder" / "config.json", dim=48)
    with pytest.raises(CheckpointError, match=r"has dim 48, but .* joint_attention_dim is 32"):
        preflight.check(make_job())


def test_a_checkpoint_without_weights_is_refused(make_job: MakeJob, checkpoint: Path) -> None:
    (checkpoint / "transformer" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds no weights"):
        preflight.check(make_job())


@pytest.mark.parametrize(
    "content",
    [b"", b"version https://git-lfs.github.com/spec/v1\n", struct.pack("<Q", 4) + b"[1]\n"],
)
def test_weights_that_are_no_safetensors_are_refused(
    make_job: MakeJob, checkpoint: Path, content: bytes
) -> None:
    (checkpoint / "transformer" / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        preflight.check(make_job())


def test_weights_that_are_cut_off_are_refused(make_job: MakeJob, checkpoint: Path) -> None:
    file = checkpoint / "transformer" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is cut off at"):
        preflight.check(make_job())


def test_a_shard_that_is_missing_is_named(make_job: MakeJob, checkpoint: Path) -> None:
    index = {"weight_map": {"img_in.weight": "model-00001-of-00002.safetensors"}}
    (checkpoint / "transformer" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model-00001-of-00002\.safetensors is missing"):
        preflight.check(make_job())


@pytest.mark.parametrize(
    "part",
    [
        "model_index.json",
        "transformer/config.json",
        "transformer/model.safetensors",
        "transformer/other",
        "text_encoder/config.json",
        "text_encoder/model.safetensors",
        "scheduler/scheduler_config.json",
    ],
)
@pytest.mark.parametrize("what", ["pipe", "link"])
def test_where_a_worker_would_wait_for_ever_or_find_nothing_is_named(
    make_job: MakeJob, checkpoint: Path, part: str, what: str
) -> None:
    (checkpoint / part).unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(checkpoint / part)
    else:
        (checkpoint / part).symlink_to("/nowhere/at/all")
    with pytest.raises(CheckpointError, match=f"{part} (is a named pipe|is missing|cannot be r)"):
        preflight.check(make_job())


def test_a_file_in_place_of_a_part_is_named(make_job: MakeJob, checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "scheduler")
    (checkpoint / "scheduler").write_text("")
    with pytest.raises(CheckpointError, match=r"scheduler cannot be read .Not a directory"):
        preflight.check(make_job())


def header(nbytes: int = 0, **tensors: Any) -> bytes:
    """A file of zeros with any header."""
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text + bytes(nbytes)


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<Q", 500_000) + b"[" * 500_000,
        struct.pack("<Q", 2_500_000) + b'{"a":' * 500_000,
        header(x={"shape": [-5], "data_offsets": [0, 0]}),
        header(x={"shape": [10**400], "data_offsets": [0, 0]}),
        header(x={"shape": [2**62] * 16, "data_offsets": [0, 0]}),
        header(4, x={"shape": [5 * 8], "data_offsets": [0, 4]}),
        header(x={"shape": "secret", "data_offsets": [0, 0]}),
        header(x=["secret"]),
    ],
    ids=lambda content: str(content[8:40]),
)
@pytest.mark.parametrize("part", ["transformer", "text_encoder"])
def test_a_header_of_no_tensors_is_refused(
    make_job: MakeJob, checkpoint: Path, part: str, content: bytes
) -> None:
    (checkpoint / part / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a safetensors file") as caught:
        preflight.check(make_job())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("transformer/config.json", "[" * 100_000),
        ("transformer/config.json", '{"more": ' + "[" * 100_000),
        ("transformer/config.json", json.dumps({**TRANSFORMER, "num_layers": 10**30})),
        ("transformer/config.json", json.dumps({**TRANSFORMER, "num_layers": 10**7})),
        ("transformer/config.json", " " * (2**24 + 1)),
        ("text_encoder/config.json", '{"dim": 32, "length": 8}'),
        ("text_encoder/config.json", '{"dim": 0, "length": 8, "words": [], "characters": ""}'),
        ("text_encoder/config.json", '{"dim": 32, "length": 9, "words": [], "characters": ""}'),
        ("model_index.json", '{"transformer": ["diffusers", ["secret"]]}'),
        ("model_index.json", '{"transformer": {"secret": 1}}'),
        ("model_index.json", '["secret"]'),
    ],
    ids=lambda value: value[:40],
)
def test_a_part_that_says_what_cannot_be_is_named(
    make_job: MakeJob, checkpoint: Path, part: str, content: str
) -> None:
    (checkpoint / part).write_text(content)
    with pytest.raises(CheckpointError, match=rf"^model\.checkpoint: .*{part} ") as caught:
        preflight.check(make_job())
    assert "secret" not in str(caught.value) and len(str(caught.value)) < 400


def test_an_unknown_text_encoder_is_refused_with_those_that_are_known(
    make_job: MakeJob, checkpoint: Path
) -> None:
    edit_json(checkpoint / "model_index.json", text_encoder=["transformers", "T5"])
    with pytest.raises(CheckpointError, match=r"no text_encoder that is known .* TokenTextEncoder"):
        preflight.check(make_job())


def test_a_shard_of_no_known_name_is_missing_without_its_name(
    make_job: MakeJob, checkpoint: Path
) -> None:
    index = checkpoint / "transformer" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../../secret"}}))
    with pytest.raises(CheckpointError, match=r"a file that .*index\.json names is") as caught:
        preflight.check(make_job())
    assert "secret" not in str(caught.value)


def test_a_checkpoint_that_may_not_be_looked_at_is_named(
    make_job: MakeJob, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(CheckpointError, match=f"{checkpoint} is not a folder that can be read"):
        preflight.check(make_job())


# --- image size ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("height", "width", "message"),
    [
        (30, 64, "sampler.height: 30 pixels cannot be cut into patches of 4 pixels; use 28 or 32"),
        (32, 66, "sampler.width: 66 pixels cannot be cut into patches of 4 pixels; use 64 or 68"),
        (3, 64, "sampler.height: 3 pixels cannot be cut into patches of 4 pixels; use 4"),
        (32, 20000, "sampler.width: 20000 pixels are more than the model has positions for; "
                    "use at most 16384"),
    ],
)  # fmt: skip
def test_an_impossible_size_is_one_line_that_names_the_field(
    make_job: MakeJob, height: int, width: int, message: str
) -> None:
    with pytest.raises(JobError) as caught:
        preflight.check(make_job(sampler={"height": height, "width": width}))
    assert str(caught.value) == message


# --- degree -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "degree", "message"),
    [
        ({"height": 32, "width": 64}, 9, r"8 text tokens .* 9 members .*one of 1, 2$"),
        ({"height": 32, "width": 64}, 1000, r"128 image tokens .*; use `auto` or one of 1, 2$"),
        ({"height": 4, "width": 4}, 2, r"1 image tokens .*; use `auto` or one of 1$"),
    ],
)
def test_a_degree_that_cannot_be_is_refused_with_the_number_that_forbids_it(
    make_job: MakeJob, size: dict[str, int], degree: int, message: str
) -> None:
    with pytest.raises(JobError, match=r"^sampler\.degree: .*" + message):
        preflight.check(make_job(sampler={**size, "degree": degree}))


def test_every_member_needs_a_token_of_the_text(make_job: MakeJob, checkpoint: Path) -> None:
    write_text_encoder(checkpoint / "text_encoder", length=1)
    with pytest.raises(JobError, match="1 text tokens"):
        preflight.check(make_job(sampler={"height": 32, "width": 64, "degree": 2}))


@pytest.mark.parametrize("degree", ["auto", 1, 2])
def test_a_degree_that_can_be_passes(make_job: MakeJob, degree: int | str) -> None:
    sampler = {"height": 32, "width": 64, "degree": degree}
    info = preflight.check(make_job(sampler=sampler)).checkpoint
    assert (info.heads, info.text_tokens, info.degrees(8, 128)) == (2, 8, (1, 2))


def test_a_degree_that_needs_a_ring_is_only_planned_if_it_is_wished(make_job: MakeJob) -> None:
    info = preflight.check(make_job(sampler={"height": 32, "width": 64, "degree": 3})).checkpoint
    assert info.degrees(8, 128, wished=3) == (1, 2, 3)
    assert info.degrees(2, 128, wished=3) == (1, 2), "a node with two workers cannot"
    assert info.degrees(16, 128, wished=9) == (1, 2), "a text of 8 tokens cannot"


def test_attention_that_cannot_be_shared_out_is_denoised_alone(
    make_job: MakeJob, checkpoint: Path
) -> None:
    flash = {"checkpoint": str(checkpoint), "attention": "flash_varlen"}
    size = {"height": 32, "width": 64}
    info = preflight.check(make_job(model=flash, sampler=size)).checkpoint
    assert info.degrees(8, 128) == (1,)
    with pytest.raises(JobError, match=r"sampler.degree: attention of `model.attention"):
        preflight.check(make_job(model=flash, sampler=size | {"degree": 2}))


def test_the_fingerprint_is_that_of_the_shape_of_the_model(
    make_job: MakeJob, checkpoint: Path
) -> None:
    before = preflight.check(make_job()).checkpoint.fingerprint
    write_safetensors(checkpoint / "transformer" / "more.safetensors", {"other": [1]})
    assert preflight.check(make_job()).checkpoint.fingerprint == before
    edit_json(checkpoint / "transformer" / "config.json", num_layers=2)
    assert preflight.check(make_job()).checkpoint.fingerprint != before


def test_with_a_vae_a_token_is_sixteen_pixels_wide(make_job: MakeJob, checkpoint: Path) -> None:
    edit_json(checkpoint / "model_index.json", vae=["diffusers", "AutoencoderKLQwenImage"])
    (checkpoint / "vae").mkdir()
    write_safetensors(checkpoint / "vae" / "model.safetensors", {"any": [1]})
    vae = {"z_dim": 4, "temperal_downsample": [False, True, True]}
    (checkpoint / "vae" / "config.json").write_text(json.dumps(vae))
    info = preflight.check(make_job()).checkpoint
    assert (info.geometry.pixels_per_token, info.pixel_space) == (16, False)
    with pytest.raises(JobError, match=r"sampler\.height: 40 pixels .* patches of 16"):
        preflight.check(make_job(sampler={"height": 40, "width": 64}))


# --- prompts ------------------------------------------------------------------------------------


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


def test_the_ocr_reward_needs_text_in_quotes(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "validation.txt").write_text('a sign that says "open"\na red cat\n')
    with pytest.raises(JobError, match=r"^prompts\.validation: .*, line 2: .* no text in double"):
        preflight.check(make_job())


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


# --- this machine -------------------------------------------------------------------------------


def _without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    monkeypatch.setattr(
        preflight, "find_spec", lambda name: None if name in missing else SimpleNamespace()
    )


def test_packages_of_workers_are_asked_for(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without(monkeypatch, "torch", "diffusers")
    with pytest.raises(MissingDependency, match=r'torch, diffusers.*pip install "spotlight-rl\[w'):
        preflight.check(make_job())


def test_the_packages_of_the_scorer_are_asked_for(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without(monkeypatch, "rapidocr_onnxruntime")
    with pytest.raises(MissingDependency, match=r"`rewards\[0\]\.kind: ocr` needs .*\[rewards\]"):
        preflight.check(make_job())


def test_adapters_need_peft(
    make_job: MakeJob, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without(monkeypatch, "peft", "transformers")
    preflight.check(make_job())
    lora = {"tuning": "lora", "lora": {"targets": ["to_q"]}}
    with pytest.raises(MissingDependency, match="peft"):
        preflight.check(make_job(model={"checkpoint": str(checkpoint), **lora}))


def test_trainer_ranks_need_as_many_reserved_workers_of_this_machine(make_job: MakeJob) -> None:
    ranks = {"training": {"ranks": 4}}
    with pytest.raises(JobError, match=r"training\.ranks: .* has only 1; raise") as raised:
        preflight.check(make_job(**ranks))
    assert raised.value.path == "training.ranks"
    preflight.check(make_job(**ranks, pools={"reserved": {"nodes": 2, "workers": 2}}))


def test_a_run_on_this_machine_needs_a_reserved_worker(make_job: MakeJob) -> None:
    with pytest.raises(JobError, match=r"training\.ranks: .* has only 0"):
        preflight.check(make_job(pools={"reserved": {"nodes": 0}}))


def test_without_local_workers_pools_limit_nothing(make_job: MakeJob) -> None:
    preflight.check(make_job(training={"ranks": 4}), local_workers=False)


def test_without_local_workers_no_package_is_needed(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without(monkeypatch, "torch", "rapidocr_onnxruntime")
    preflight.check(make_job(), local_workers=False)


def test_a_full_disk_is_said_with_how_much_is_needed(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    folder = tmp_path / "not" / "there" / "yet"
    with pytest.raises(RunFolderError, match=r"yet: the run needs about .* GB, but only 0\.0 GB"):
        preflight.check(make_job(), run_folder=folder)


def test_a_store_without_room_for_the_weights_is_said_with_its_option(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = make_job()
    files = preflight.check(job, run_folder=tmp_path)
    # Two versions in the smallest dtype, and two states of training: weights, average, two moments.
    needed = 36 * files.checkpoint.trainable
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=needed))
    preflight.check_store(job, files, tmp_path)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    with pytest.raises(UserError, match=r"need at least .* MB, but only .* MB .* --store") as said:
        preflight.check_store(job, files, tmp_path)
    assert str(said.value).startswith(f"{tmp_path}: ")
    with pytest.raises(UserError, match=r"^/dev/shm: |^/tmp"):
        preflight.check_store(job, files, None)


def test_a_run_folder_that_cannot_be_looked_at_is_named(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(preflight.shutil, "disk_usage", refuse)
    with pytest.raises(RunFolderError, match="Permission denied; choose another run folder"):
        preflight.check(make_job(), run_folder=tmp_path)


def test_every_problem_is_the_users_to_mend() -> None:
    for error in (CheckpointError, JobError, MissingDependency, RunFolderError):
        assert issubclass(error, UserError)
