"""`spotlight run` from job file to report, on real processes."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.conftest import Workplace, events, metrics


def test_a_run_trains_validates_reports_and_leaves_nothing_running(workplace: Workplace) -> None:
    run = workplace.folder / "run"

    done = workplace.spotlight("run", workplace.job(), "--run-folder", run)

    assert done.code == 0, done.errors + done.output
    assert [line["iteration"] for line in metrics(run, "iteration")] == [0, 1]
    assert [line["samples"] for line in metrics(run, "iteration")] == [8, 8]
    assert [line["weights_version"] for line in metrics(run, "validation")] == [0, 1, 2]
    assert [line["images"] for line in metrics(run, "validation")] == [4, 4, 4]
    assert metrics(run, "iteration")[1]["previews"] == 16
    assert "previews" in done.output
    assert (run / "report.html").stat().st_size > 1000
    assert {path.name for path in (run / "validation").iterdir()} == {"v000000", "v000002"}
    assert len(list((run / "validation" / "v000002").glob("*.png"))) == 4
    assert events(run)[-1]["outcome"] == "finished"


def test_the_export_is_what_was_validated_and_diffusers_loads_it(workplace: Workplace) -> None:
    from diffusers import QwenImageTransformer2DModel

    run = workplace.folder / "run"
    assert workplace.spotlight("run", workplace.job(iterations=1), "--run-folder", run).code == 0

    exported = QwenImageTransformer2DModel.from_pretrained(run / "export")

    checkpoint = load_file(run / "checkpoints" / "iteration-000001.safetensors")
    validated = {
        name.removeprefix("ema/"): tensor
        for name, tensor in checkpoint.items()
        if name.startswith("ema/")
    }
    assert validated.keys() == exported.state_dict().keys()
    for name, tensor in exported.state_dict().items():
        assert torch.equal(tensor, validated[name]), name


def test_report_prints_the_figures_of_a_run_as_json(workplace: Workplace) -> None:
    run = workplace.folder / "run"
    assert workplace.spotlight("run", workplace.job(iterations=1), "--run-folder", run).code == 0

    done = workplace.spotlight("report", run, "--json")

    figures = json.loads(done.output)
    assert figures["outcome"] == "finished"
    assert figures["samples"] == 8
    assert figures["validation_end"] == metrics(run, "validation")[-1]["score"]
    for worker in figures["workers"].values():
        assert sum(worker["states"].values()) == worker["seconds"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "training", "model"),
    [
        ({"kind": "cps", "window": {"length": 1, "latest": 2}}, {"loss": "flow_grpo"}, {}),
        ({"kind": "flow_sde", "window": {"length": 2, "latest": 3}}, {"loss": "flow_grpo"}, {}),
        ({}, {"rollout_decay": 0.5, "kl": 1e-3}, {"tuning": "lora", "lora": {"rank": 4}}),
    ],
    ids=["flow-grpo-cps", "flow-grpo-sde", "nft-lora"],
)
def test_every_recipe_runs(
    workplace: Workplace,
    sampler: dict[str, object],
    training: dict[str, object],
    model: dict[str, object],
) -> None:
    run = workplace.folder / "run"
    job = workplace.job(sampler=sampler, training=training, model=model)

    done = workplace.spotlight("run", job, "--run-folder", run)

    assert done.code == 0, done.errors + done.output
    figures = metrics(run, "iteration")
    assert len(figures) == 2
    if training.get("loss") == "flow_grpo":
        assert [line["first_ratio_deviation"] for line in figures] == [0.0, 0.0]
    if model:
        assert (run / "export" / "pytorch_lora_weights.safetensors").exists()


@pytest.mark.slow
def test_two_trainer_ranks_make_the_update_of_one(workplace: Workplace) -> None:
    weights = []
    for ranks in (1, 2):
        run = workplace.folder / f"ranks-{ranks}"
        job = workplace.job(
            iterations=1,
            training={"ranks": ranks},
            pools={"reserved": {"workers": ranks}, "spot": {"nodes": 0}},
        )
        done = workplace.spotlight("run", job, "--run-folder", run)
        assert done.code == 0, done.errors + done.output
        weights.append(load_file(run / "checkpoints" / "iteration-000001.safetensors"))

    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-4, atol=1e-6)
