"""Whole jobs, and sessions of loops of one's own, under faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spotlight.cli.app import app
from spotlight.store import record_files
from spotlight_simulation.chaos import (
    drives_session,
    run_seed,
    run_seeds,
    scenario,
    total_effects,
)
from spotlight_simulation.faults import KINDS, SESSION_KINDS, FaultKind
from spotlight_simulation.job_life import chaos_job

_DIGEST = """
from spotlight.store import record_files
from spotlight_simulation.chaos import run_seed
print(run_seed({seed})[0].digest)
"""


def digest_in_a_process_of_its_own(seed: int, hash_seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _DIGEST.format(seed=seed)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("seed", [3, pytest.param(9, marks=pytest.mark.slow)])
def test_a_seed_gives_one_history_wherever_it_runs(seed: int) -> None:
    assert digest_in_a_process_of_its_own(seed, hash_seed=1) == run_seed(seed)[0].digest


def test_different_seeds_give_different_histories() -> None:
    assert run_seed(3, ())[0].digest != run_seed(7, ())[0].digest


def test_without_faults_nothing_is_done_twice(tmp_path: Path) -> None:
    outcome, history = run_seed(1, kinds=())
    assert outcome.violations == ()
    assert outcome.effective == {}
    assert not outcome.drove_session
    assert [happening["iteration"] for happening in history.all("train")] == [0, 1, 2]
    granted = {request for denoise in history.all("denoise") for request in denoise["requests"]}
    steps = chaos_job(tmp_path).sampler.steps
    assert outcome.steps == steps * len(granted), "no step of any request"


def test_every_fourth_seed_drives_a_session() -> None:
    assert [drives_session(seed) for seed in range(8)] == [False, False, False, True] * 2
    assert run_seed(3, kinds=())[0].drove_session


@pytest.mark.parametrize(
    ("kind", "seeds"),
    [(kind, range(3, 27, 4) if kind in SESSION_KINDS else range(6)) for kind in KINDS],
)
def test_each_kind_of_fault_changes_something_and_harms_nothing(
    kind: FaultKind, seeds: Sequence[int]
) -> None:
    for seed in seeds:
        outcome, _ = run_seed(seed, [kind])
        assert outcome.violations == ()
        if outcome.effective.get(kind, 0):
            return
    pytest.fail(f"{kind} changed nothing")


def test_jobs_and_a_session_survive_all_faults_together() -> None:
    outcomes = list(run_seeds(range(124, 128)))
    assert {o.seed: o.violations for o in outcomes if o.violations} == {}


def test_seeds_that_once_broke_an_invariant_are_sound() -> None:
    """A replaced trainer that nobody told so after a kill of the coordinator, and a check that took
    a going back for done whose coordinator was killed before."""
    outcomes = list(run_seeds([301821, 302285]))
    assert {o.seed: o.violations for o in outcomes if o.violations} == {}


@pytest.mark.slow
def test_all_faults_together_change_something() -> None:
    outcomes = list(run_seeds(range(100, 124)))
    assert {o.seed: o.violations for o in outcomes if o.violations} == {}
    effects = total_effects(outcomes)
    assert all(effects[kind] for kind in KINDS if kind not in SESSION_KINDS)
    assert any(effects[kind] for kind in SESSION_KINDS), "of six sessions"


def test_a_run_whose_events_go_on_in_ever_other_files_is_sound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_files, "LARGEST", 2000)
    for seed in (1, 2):
        assert not run_seed(seed)[0].violations


def test_the_command_prints_what_took_effect() -> None:
    result = CliRunner().invoke(app, ["chaos", "--seeds", "2", "--first", "42"])
    assert result.exit_code == 0
    assert "kill_node" in result.output
    assert "2 seeds in" in result.output
    words = " ".join(result.output.split())
    assert "1 jobs, on 0 clusters several at once, and 1 sessions" in words


def test_the_command_replays_a_seed() -> None:
    result = CliRunner().invoke(app, ["chaos", "--seed", "43"])
    assert result.exit_code == 0
    assert run_seed(43)[0].digest in result.output


def test_the_command_says_which_seed_replays_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    from spotlight_simulation import chaos

    def broken(run: chaos.Run) -> None:
        run.history.violation("nothing is as it should be")

    monkeypatch.setattr(chaos, "check", broken)
    result = CliRunner().invoke(app, ["chaos", "--seeds", "1", "--first", "40", "--processes", "1"])
    assert result.exit_code == 1
    assert "seed 40: nothing is as it should be" in result.output
    assert "spotlight chaos --seed 40" in result.output


def test_trainers_are_together_apart_or_have_somebody_to_spare(tmp_path: Path) -> None:
    layouts = set()
    for seed in range(40):
        made = scenario(seed, tmp_path)
        reserved = [node for node in made.nodes if node.pool == "reserved"]
        ranks = made.job.training.ranks
        layouts.add((ranks, *(node.workers for node in reserved)))
        assert sum(node.workers for node in reserved) >= ranks
        assert all(node.pool == "spot" for node in made.nodes[len(reserved) :])
    assert layouts == {(1, 1), (1, 1, 1), (2, 2), (2, 1, 1), (2, 2, 1)}


def test_any_reserved_node_may_be_struck(tmp_path: Path) -> None:
    for seed in range(200):
        made = scenario(seed, tmp_path)
        last = [node.name for node in made.nodes if node.pool == "reserved"][1:]
        if any(fault.node in last for fault in made.faults):
            return
    pytest.fail("faults meet the first one only")


@pytest.mark.parametrize(
    "seed", [361, 2433, 2600, 2235, 2727, 2785, 4083, 6094, 15644, 1748, 1436, 8116, 32148]
)
def test_what_once_went_wrong_does_not(seed: int) -> None:
    """Weights that were trained again; weights that were dropped with a job that had failed; the
    loss of the last node that held the weights, after new trainers had begun; two sessions that a
    full disk had ended, as a coordinator that was killed since could not say; a worker that was
    stopped while it connected to its node; an answer to a program's predecessor; a preview that was
    given up, as a coordinator that was killed at that moment could not say; weights of which the
    last copy went with a node, while others were trained and previews still needed them; a job that
    had deleted what the next coordinator needed, which did not know that it had ended; random
    seeds that were forgotten before their figures were on record; a trainer that had lost what it
    trained to another job, which its node had worked for in between; and an open validation whose
    weights went with the last nodes that had them, while trainers had trained on."""
    assert run_seed(seed)[0].violations == ()
