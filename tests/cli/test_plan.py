"""The plan that is printed before a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file

from spotlight.cli.plan import amount, plan_lines
from spotlight.jobs import job_from_data
from spotlight.preflight.checks import check
from spotlight_simulation.tiny_families import make_tiny_checkpoint


def _plan(width: int = 80, **changes: Any) -> str:
    job = job_from_data(
        {
            "name": "first",
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {
                "train": "builtin:ocr-tiny/train",
                "validation": "builtin:ocr-tiny/validation",
            },
            "sampler": {"height": 32, "width": 64},
            **changes,
        }
    )
    console = Console(width=width, color_system=None, no_color=True)
    with console.capture() as capture:
        console.print(plan_lines(job, check(job), Path("/runs/first-001")))
    return capture.get()


def _words(**changes: Any) -> str:
    return " ".join(_plan(width=300, **changes).split())


def test_the_plan_says_what_the_job_will_do() -> None:
    plan = _words(threads=2)
    for words in (
        "job first",
        "qwen-image from builtin:ocr-tiny, 1.28 M parameters, all trained",
        "64 x 32 pixels (width x height), 128 tokens of 4 x 4 pixels",
        "512 to train on, 32 to validate on",
        "40, each of 8 prompts x 8 = 64 samples; a checkpoint every 5",
        "DiffusionNFT, 2 updates an iteration at learning rate 0.0003, on 1 worker",
        "at most 4 previews per kept seed (256 previews an iteration)",
        "128 images every 5 iterations",
        "1 coordinator; reserved 1 node with 1 worker; spot 1 node with 1 worker",
        "2 threads per worker",
        "run folder /runs/first-001",
    ):
        assert words in plan, words


def test_the_plan_fits_eighty_columns_of_plain_text() -> None:
    plan = _plan()
    assert max(map(len, plan.splitlines())) <= 80
    assert plan.isascii()


def test_adapters_are_counted() -> None:
    model = {"checkpoint": "builtin:ocr-tiny", "tuning": "lora"}
    assert "147 k trained in adapters of rank 16" in _words(model=model)


def test_a_stochastic_sampler_says_its_noise() -> None:
    sampler = {"height": 32, "width": 64, "kind": "flow_sde", "guidance": 4}
    assert "flow_sde, 8 steps, noise 0.7 in 2 steps, guidance 4" in _words(sampler=sampler)


def test_two_transformers_are_said_and_the_guidance_of_both(tmp_path: Path) -> None:
    make_tiny_checkpoint("wan-a14b", tmp_path / "base")
    model = {"checkpoint": str(tmp_path / "base"), "guidance_2": 3}
    words = _words(model=model, sampler={"height": 32, "width": 64, "guidance": 4})
    assert "75.5 k parameters in two transformers, all trained" in words
    assert "guidance 4 and then 3" in words


def test_guidance_of_training_is_said_where_it_is_not_that_of_rollouts() -> None:
    guided = {"height": 32, "width": 64, "guidance": 4}
    assert "on 1 worker, without guidance" in _words(sampler=guided)
    assert "on 1 worker, guidance 2" in _words(sampler=guided, training={"guidance": 2})
    same = _words(sampler=guided, training={"guidance": 4})
    assert "guidance" not in same.partition("on 1 worker")[2] and "guidance" not in _words()


def test_the_degree_is_said_where_there_is_one() -> None:
    four = {"spot": {"workers": 6}}
    assert "batches of 8, up to 4 workers together on one" in _words(pools=four)
    sampler = {"height": 32, "width": 64, "degree": 2}
    assert "batches of 8, 2 workers together on each" in _words(sampler=sampler)
    assert "together" not in _words(), "nodes of one worker"


def test_no_exploration_is_said() -> None:
    assert "exploration none" in _words(exploration={"mode": "none"})
    assert "always 4 previews per kept seed" in _words(exploration={"budget": "fixed"})


def test_previews_with_a_solver_of_their_own_name_it() -> None:
    exploration = {"preview_steps": 4, "preview_solver": "dpmpp_2m"}
    assert "4 steps each by dpmpp_2m" in _words(exploration=exploration)
    assert "4 steps each by" not in _words(exploration={"preview_steps": 4})


def test_a_pool_without_nodes_is_left_out() -> None:
    assert "spot" not in _words(pools={"spot": {"nodes": 0}}).split("processes")[1].split("disk")[0]


def test_more_workers_than_cores_are_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert "more than the 2 cores here" in _words(pools={"spot": {"nodes": 2, "workers": 2}})
    assert "more than" not in _words()


@pytest.mark.parametrize(
    ("value", "text"),
    [(7, "7 "), (1234, "1.23 k"), (1_278_512, "1.28 M"), (20_430_000_000, "20.4 G")],
)
def test_amounts_have_three_digits(value: int, text: str) -> None:
    assert amount(value) == text


def test_the_plan_says_what_an_hour_costs_and_where_the_prices_are_from() -> None:
    plan = _words(
        prices={"reserved": 6.88, "spot": 1.62}, pools={"spot": {"nodes": 2, "workers": 4}}
    )
    assert "price $19.84 an hour with all nodes, by the job" in plan


def test_the_plan_says_what_has_no_price() -> None:
    plan = _words(prices={"spot": 1.62}, pools={"reserved": {"workers": 2}})
    assert "$1.62 an hour with all nodes, by the job; 2 workers without a price" in plan
    assert "price" not in _words(), "nothing is priced"


def test_the_plan_says_what_of_prices_may_be_a_slip() -> None:
    assert "is above on demand (1)" in _words(prices={"spot": 2, "on_demand": 1})


def test_the_plan_says_the_budget() -> None:
    plan = _words(prices={"spot": 2}, budget={"usd": 50, "hours": 2.5})
    assert "budget $50.00 or 2.5 h, then it stops and can be resumed" in plan


def test_the_plan_says_where_each_scorer_computes(tmp_path: Path) -> None:
    save_file({"a": np.zeros(1_000, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    rewards: list[dict[str, Any]] = [
        {},
        {"kind": "http", "name": "taste", "http": {"url": "http://127.0.0.1:8200/score"}},
        {"kind": "pickscore", "clip": {"checkpoint": str(tmp_path), "device": "cpu"}},
    ]
    said = _words(rewards=rewards)
    assert "ocr in every worker on the CPU; taste on 127.0.0.1:8200; " in said
    assert "; pickscore in every worker on the CPU, 4.00 kB" in said
