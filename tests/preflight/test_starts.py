"""The weights that a job begins with are found, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import save_file

from spotlight.assets import resolve_checkpoint
from spotlight.errors import JobError
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.preflight.starts import Start, find_start
from spotlight.preflight.trainable import trainable_shapes
from spotlight.training.checkpoints import load_checkpoint, save_checkpoint
from tests.small_run import write_run

BASE = "builtin:ocr-tiny"
Tuning = Literal["full", "lora"]
LORA = {"rank": 2, "alpha": 4}
PEFT, DIFFUSERS = "adapter_model.safetensors", "pytorch_lora_weights.safetensors"


def trained(tuning: Tuning, **fields: Any) -> ModelSpec:
    """The model of a job."""
    return ModelSpec(checkpoint=BASE, tuning=tuning, **{"lora": LoraSpec(**LORA), **fields})


def begins_with(path: object, tuning: Tuning = "lora", **fields: Any) -> Start:
    return find_start(trained(tuning, start=str(path), **fields))


def refused(path: object, *words: str, tuning: Tuning = "lora", **fields: Any) -> None:
    with pytest.raises(JobError) as error:
        begins_with(path, tuning, **fields)
    text = str(error.value)
    assert text.startswith("model.start: ")
    assert "\n" not in text
    assert [word for word in words if word not in text] == [], text


def adapters(style: str, rank: int = 2) -> dict[str, torch.Tensor]:
    """Adapters for the model, as a library names them."""
    begin, parts = {
        "peft": ("base_model.model.", ("lora_A", "lora_B")),
        "diffusers": ("transformer.", ("lora_A", "lora_B")),
        "old": ("transformer.", ("lora.down", "lora.up")),
    }[style]
    found = {}
    for name, shape in trainable_shapes(trained("lora")).items():
        layer, lowers = name.rsplit(".", 3)[0], ".lora_A." in name
        sized = (rank, shape[1]) if lowers else (shape[0], rank)
        found[f"{begin}{layer}.{parts[not lowers]}.weight"] = torch.zeros(sized)
    return found


def peft_folder(folder: Path, config: Mapping[str, Any], **options: Any) -> Path:
    folder.mkdir()
    save_file(adapters("peft", **options), folder / PEFT)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def run_of(folder: Path, tuning: Tuning = "lora", saved: tuple[int, ...] = (3, 6)) -> Path:
    """A run with checkpoints, of which the first is validated best."""
    write_run(folder, model={"tuning": tuning, "lora": LORA})
    (folder / "checkpoints").mkdir()
    weights = {
        name: torch.zeros(shape) for name, shape in trainable_shapes(trained(tuning)).items()
    }
    tensors = {
        f"{role}/{name}": it.clone() for role in ("ema", "weights") for name, it in weights.items()
    }
    for number in saved:
        path = folder / "checkpoints" / f"iteration-{number:06d}.safetensors"
        save_checkpoint(path, {**tensors, "updates": torch.tensor(2 * number)}, {})
    lines = [
        {"kind": "validation", "time_s": 1.0, "weights_version": number, "score": 1 / number}
        for number in saved
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize(("which", "iteration"), [("", 3), ("@best", 3), ("@last", 6), ("@6", 6)])
def test_a_run_gives_the_average_of_the_checkpoint_that_is_named(
    tmp_path: Path, which: str, iteration: int
) -> None:
    run = run_of(tmp_path / "run")
    start = begins_with(f"{run}{which}")
    assert start.name == f"{run}@{iteration}"
    assert (start.factor, start.score) == (1.0, pytest.approx(1 / iteration))
    assert {name.partition("/")[0] for name in start.pieces} == {"weights"}


def test_a_run_of_two_transformers_is_no_start_for_one(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", saved=(3,))
    path = run / "checkpoints" / "iteration-000003.safetensors"
    tensors, _ = load_checkpoint(path)
    both = {
        name.replace("/", f"/{part}."): it.clone()
        for name, it in tensors.items()
        for part in ("transformer", "transformer_2")
    }
    save_checkpoint(path, both, {})
    refused(run, "has two transformers, and this model one transformer: it is of another model")


def test_a_run_that_trained_adapters_of_another_scale_gives_the_same_product(
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path / "run")
    assert begins_with(run, lora=LoraSpec(rank=2, alpha=1)).factor == 4.0


@pytest.mark.parametrize("style", ["diffusers", "old"])
def test_adapters_of_diffusers_count_as_they_are(tmp_path: Path, style: str) -> None:
    """Their readers multiply by nothing, and this job by 2."""
    save_file(adapters(style), tmp_path / DIFFUSERS)
    for path in (tmp_path, tmp_path / DIFFUSERS):
        start = begins_with(path)
        assert start.factor == 0.5
        assert {name.removeprefix("weights/") for name in start.pieces} == {
            *trainable_shapes(trained("lora"))
        }


def test_the_alpha_of_adapters_is_told_by_tensors_metadata_or_a_configuration(
    tmp_path: Path,
) -> None:
    tensors = adapters("diffusers")
    layers = {name.rsplit(".", 2)[0] for name in tensors}
    alphas = {f"{layer}.alpha": torch.tensor(1.0).bfloat16() for layer in layers}
    save_file({**tensors, **alphas}, tmp_path / "alphas.safetensors")
    told = json.dumps({"transformer.r": 2, "transformer.lora_alpha": 1})
    save_file(tensors, tmp_path / "told.safetensors", {"lora_adapter_metadata": told})
    folder = peft_folder(tmp_path / "peft", {"r": 2, "lora_alpha": 1})
    for path in (tmp_path / "alphas.safetensors", tmp_path / "told.safetensors", folder):
        assert begins_with(path).factor == 0.25, path


def test_rank_stabilised_adapters_are_divided_by_the_root_of_their_rank(tmp_path: Path) -> None:
    config = {"r": 2, "lora_alpha": 2, "use_rslora": True}
    start = begins_with(peft_folder(tmp_path / "peft", config))
    assert start.factor == pytest.approx(2**0.5 / 2)


@pytest.mark.parametrize("folder", ["", "transformer"])
def test_a_transformer_is_found_in_its_folder_and_in_a_pipeline(folder: str) -> None:
    start = begins_with(resolve_checkpoint(BASE) / folder, "full")
    assert len(start.pieces) == len(trainable_shapes(trained("full")))


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias: all"),
        ({"rank_pattern": {"to_q": 4}}, "rank_pattern"),
        ({"modules_to_save": ["proj"]}, "modules_to_save"),
    ],
)
def test_adapters_that_compute_more_than_a_jobs_are_refused(
    tmp_path: Path, config: dict[str, Any], word: str
) -> None:
    refused(peft_folder(tmp_path / "peft", {"r": 2, **config}), word)


def test_adapters_of_another_rank_are_refused_with_what_to_set(tmp_path: Path) -> None:
    folder = peft_folder(tmp_path / "peft", {"r": 3}, rank=3)
    refused(folder, "adapters of rank 3, and this job of rank 2", "set model.lora.rank=3")


def test_adapters_of_other_layers_are_refused_with_what_to_set(tmp_path: Path) -> None:
    some = {name: it for name, it in adapters("diffusers").items() if ".to_q." in name}
    save_file(some, tmp_path / DIFFUSERS)
    refused(tmp_path, "lacks", "of this model; set model.lora.targets=[to_q]")
    out = {name: it for name, it in adapters("diffusers").items() if ".to_out.0." in name}
    save_file({**some, **out}, tmp_path / DIFFUSERS)
    refused(tmp_path, "lacks", "of this model; set model.lora.targets=[to_out.0,to_q]")
    save_file(
        {name.replace("transformer_blocks", "blocks"): it for name, it in some.items()},
        tmp_path / DIFFUSERS,
    )
    refused(tmp_path, "has `blocks.0.", "and this model not")


def test_adapters_of_another_model_are_refused_by_a_shape(tmp_path: Path) -> None:
    wide = {
        name: torch.zeros(it.shape[0], it.shape[1] + 1) if ".lora_A." in name else it
        for name, it in adapters("diffusers").items()
    }
    save_file(wide, tmp_path / DIFFUSERS)
    refused(tmp_path, "of shape [2, ", "it is of another model")


def test_what_is_no_start_is_refused_with_what_would_be_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.safetensors").write_text("no tensors")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    refused(tmp_path / "nothing", "is no run folder and no safetensors file")
    refused(tmp_path / "empty", "neither a transformer (config.json) nor adapters")
    refused(tmp_path / "empty@best", "is no run folder, so nothing of it can be named by @best")
    refused(tmp_path / "text.safetensors", "is not a safetensors file")
    refused(tmp_path / "other.safetensors", "`weight`, which is no adapter")


def test_weights_of_another_tuning_are_refused(tmp_path: Path) -> None:
    save_file(adapters("diffusers"), tmp_path / DIFFUSERS)
    refused(tmp_path, "holds adapters", "set model.tuning=lora", tuning="full")
    refused(resolve_checkpoint(BASE), "whole transformer, and this job trains adapters")
    run = run_of(tmp_path / "run", "full")
    refused(run, "trained `model.tuning: full`, and this job lora")


def test_a_checkpoint_that_a_run_has_not_is_refused_with_those_that_it_has(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    refused(f"{run}@4", "has no checkpoint after 4 iterations; there are: 3, 6")
    (run / "metrics.jsonl").unlink()
    refused(run, "no checkpoint of", "is validated; name one, as")
    assert begins_with(f"{run}@last").name == f"{run}@6"
    for file in (run / "checkpoints").iterdir():
        file.unlink()
    refused(run, "has no checkpoint yet")


def test_only_a_run_has_an_optimizers_state(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    refused(run, "has no optimizer's state", start_optimizer=True)
    save_file(adapters("diffusers"), tmp_path / DIFFUSERS)
    refused(tmp_path, "no optimizer's state; leave out", start_optimizer=True)
