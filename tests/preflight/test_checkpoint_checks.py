"""What a checkpoint can do, and what is wrong with it, told without loading it."""

from __future__ import annotations

import json
import os
import shutil
import struct
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest
from preflight_kit import TRANSFORMER, MakeJob, edit_json, write_safetensors, write_text_encoder

from spotlight.diffusion.geometry import Geometry
from spotlight.errors import CheckpointError, JobError
from spotlight.jobs import job_from_data
from spotlight.preflight import checks as preflight


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


def test_model_index_may_begin_with_a_byte_order_mark(make_job: MakeJob, checkpoint: Path) -> None:
    index = checkpoint / "model_index.json"
    index.write_bytes(BOM_UTF8 + index.read_bytes())
    preflight.check(make_job())


@pytest.mark.parametrize("part", ["transformer", "text_encoder"])
def test_a_byte_order_mark_in_what_the_libraries_read_is_named(
    make_job: MakeJob, checkpoint: Path, part: str
) -> None:
    config = checkpoint / part / "config.json"
    config.write_bytes(BOM_UTF8 + config.read_bytes())
    with pytest.raises(
        CheckpointError, match=r"config\.json begins with a byte order mark, .* save"
    ):
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
        ({"num_attention_heads": 0}, "Expected `int` >= 1 - at `.*num_attention_heads`"),
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
    (checkpoint / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds no weights"):
        preflight.check(make_job())


@pytest.mark.parametrize(
    "content",
    [b"", b"version https://git-lfs.github.com/spec/v1\n", struct.pack("<Q", 4) + b"[1]\n"],
)
def test_weights_that_are_no_safetensors_are_refused(
    make_job: MakeJob, checkpoint: Path, content: bytes
) -> None:
    (checkpoint / "transformer" / "diffusion_pytorch_model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        preflight.check(make_job())


def test_weights_that_are_cut_off_are_refused(make_job: MakeJob, checkpoint: Path) -> None:
    file = checkpoint / "transformer" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is cut off at"):
        preflight.check(make_job())


def test_a_shard_that_is_missing_is_named(make_job: MakeJob, checkpoint: Path) -> None:
    index = {"weight_map": {"img_in.weight": "model-00001-of-00002.safetensors"}}
    (checkpoint / "transformer" / "diffusion_pytorch_model.safetensors.index.json").write_text(
        json.dumps(index)
    )
    with pytest.raises(CheckpointError, match=r"model-00001-of-00002\.safetensors is missing"):
        preflight.check(make_job())


@pytest.mark.parametrize(
    "part",
    [
        "model_index.json",
        "transformer/config.json",
        "transformer/diffusion_pytorch_model.safetensors",
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
    [file] = (checkpoint / part).glob("*.safetensors")
    file.write_bytes(content)
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
    index = checkpoint / "transformer" / "diffusion_pytorch_model.safetensors.index.json"
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
    write_safetensors(checkpoint / "vae" / "diffusion_pytorch_model.safetensors", {"any": [1]})
    vae = {"z_dim": 4, "temperal_downsample": [False, True, True]}
    (checkpoint / "vae" / "config.json").write_text(json.dumps(vae))
    info = preflight.check(make_job()).checkpoint
    assert (info.geometry.pixels_per_token, info.pixel_space) == (16, False)
    with pytest.raises(JobError, match=r"sampler\.height: 40 pixels .* patches of 16"):
        preflight.check(make_job(sampler={"height": 40, "width": 64}))
