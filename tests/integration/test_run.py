"""`spotlight run` from job file to report, on real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from spotlight.store.run_folder import checkpoint_path
from tests.integration.conftest import Finished, Workplace, events, metrics, open_workplace


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """Where all tests look at one run."""
    with open_workplace(tmp_path_factory.mktemp("place")) as place:
        yield place


@pytest.fixture(scope="module")
def done(place: Workplace) -> Finished:
    """What its command said."""
    return place.spotlight("run", place.job(), "--run-folder", "run")


@pytest.fixture
def run(place: Workplace, done: Finished) -> Path:
    """Its folder."""
    return place.folder / "run"


def test_a_run_trains_validates_and_reports(run: Path, done: Finished) -> None:
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


def test_a_local_run_leaves_no_key_behind(run: Path) -> None:
    names = {path.name for path in run.rglob("*")}
    assert "metrics.jsonl" in names
    assert not names & {".coordinator.key", "operator.token", ".door.json"}


def test_the_export_is_what_was_validated_best_and_diffusers_loads_it(run: Path) -> None:
    from diffusers import QwenImageTransformer2DModel

    exported = QwenImageTransformer2DModel.from_pretrained(run / "export")

    (event,) = events(run, "model_exported")
    scores = {line["weights_version"]: line["score"] for line in metrics(run, "validation")}
    trained = {version: score for version, score in scores.items() if version > 0}
    assert event["score"] == pytest.approx(max(trained.values()), abs=1e-6)
    assert trained[event["iteration"]] == max(trained.values())
    checkpoint = load_file(run / checkpoint_path(event["iteration"]))
    validated = {
        name.removeprefix("ema/"): tensor
        for name, tensor in checkpoint.items()
        if name.startswith("ema/")
    }
    assert validated.keys() == exported.state_dict().keys()
    for name, tensor in exported.state_dict().items():
        assert torch.equal(tensor, validated[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["best", "newest"])
def test_any_weights_of_a_run_can_be_exported_again(
    place: Workplace, run: Path, weights: str
) -> None:
    done = place.spotlight("export", run, "--weights", weights)

    assert done.code == 0, done.errors
    folder = Path(done.output.rpartition(": ")[2].strip())
    assert folder.parent == run / "exports"
    file = "diffusion_pytorch_model.safetensors"
    exported, first = load_file(folder / file), load_file(run / "export" / file)
    is_the_same = all(torch.equal(exported[name], first[name]) for name in first)
    assert is_the_same or weights != "best"
    again = place.spotlight("export", run, "--weights", weights)
    assert again.code == 2 and "already exists; give a new or an empty folder" in again.errors


def test_another_run_does_not_overwrite_it(place: Workplace, run: Path) -> None:
    before = (run / "metrics.jsonl").read_bytes()

    refused = place.spotlight("run", place.job(), "--run-folder", "run")

    assert refused.code == 2
    assert "already holds a run; continue it with --resume" in refused.errors
    assert (run / "metrics.jsonl").read_bytes() == before


def test_report_prints_the_figures_of_a_run_as_json(place: Workplace, run: Path) -> None:
    figures = json.loads(place.spotlight("report", run, "--json").output)
    assert figures["outcome"] == "finished"
    assert figures["samples"] == 16
    assert figures["validation_end"] == metrics(run, "validation")[-1]["score"]
    for worker in figures["workers"].values():
        assert sum(worker["states"].values()) == worker["seconds"]


FLOW_GRPO = {"loss": "flow_grpo", "options": {}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "training", "model"),
    [
        ({"kind": "cps", "window": {"length": 1, "latest": 2}}, FLOW_GRPO, {}),
        ({"kind": "flow_sde", "window": {"length": 2, "latest": 3}}, FLOW_GRPO, {}),
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
            training={"ranks": ranks, "advantage_clip": 5.0},
            pools={"reserved": {"workers": ranks}, "spot": {"nodes": 0}},
        )
        done = workplace.spotlight("run", job, "--run-folder", run)
        assert done.code == 0, done.errors + done.output
        weights.append(load_file(run / "checkpoints" / "iteration-000001.safetensors"))

    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-4, atol=1e-6)
