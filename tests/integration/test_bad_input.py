"""What a user can get wrong: each is one clear line, a non-zero exit code, and no traceback."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog

from spotlight.cli.app import main
from tests.integration.conftest import Finished, Workplace


def _is_one_clear_line(done: Finished, *words: str) -> None:
    assert done.code == 2, done.output + done.errors
    assert "Traceback" not in done.errors + done.output
    lines = [line for line in done.errors.splitlines() if line.strip()]
    assert len(lines) == 1, done.errors
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"iteratoins": 3}, ("iteratoins", "did you mean `iterations`")),
        ({"sampler": {"stpes": 3}}, ("sampler.stpes", "did you mean `steps`")),
        ({"iterations": "many"}, ("iterations", "a whole number")),
        ({"group_size": 1}, ("group_size", "at least 2")),
        ({"sampler": {"micro_batch": 0}}, ("sampler.micro_batch", "at least 1")),
        ({"sampler": {"height": 17}}, ("sampler.height", "17")),
        ({"training": {"updates_per_iteration": 3}}, ("training.updates_per_iteration",)),
        ({"training": {"ranks": 2}}, ("training.ranks", "reserved")),
        ({"training": {"loss": "flow_grpo", "options": {}}}, ("sampler.kind", "flow_sde")),
        ({"training": {"loss": "flow_grpo"}}, ("training.options.times", "belongs to")),
        ({"training": {"options": {"tims": 2}}}, ("training.options.tims", "`times`")),
        ({"training": {"loss": "flow_gppo"}}, ("training.loss", "`flow_grpo`", "`module:Class`")),
        ({"training": {"loss": "nowhere:Loss"}}, ("training.loss", "no module `nowhere`")),
        ({"model": {"checkpoint": "nowhere"}}, ("model.checkpoint", "nowhere")),
        ({"model": {"checkpoint": "builtin:huge"}}, ("builtin:huge", "builtin:ocr-tiny")),
        ({"prompts": {"train": "absent.txt"}}, ("prompts", "absent.txt")),
        ({"prompts": {"validation": "train.txt"}}, ("prompts.validation",)),
        ({"prompts": {"per_iteration": 1000}}, ("prompts.per_iteration",)),
        (
            {"prompts": {"train": "~no-such-user/train.txt"}},
            ("prompts.train", "does not lead anywhere"),
        ),
        ({"prompts": {"train": "a\0b"}}, ("prompts.train", "control characters")),
        (
            {"prompts": {"train": "/proc/self/environ"}},
            ("prompts.train", "does not have the length"),
        ),
        ({"group_size": 10**9}, ("group_size", "at most 16,384")),
        ({"sampler": {"height": 16_000, "width": 16_000}}, ("sampler.height", "16,000 x 16,000")),
        ({"sampler": {"kind": "sde"}}, ("sampler.kind", "`flow_sde`, `dance_sde` or `cps`")),
        ({"exploration": {"preview_steps": 5}}, ("exploration.preview_steps", "sampler.steps")),
        ({"pools": {"spot": {"nodes": 10**6}}}, ("pools.spot.nodes", "at most 1,024")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_field_is_named(
    workplace: Workplace,
    changes: dict[str, Any],
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In this process, to be quick; the other tests start the command."""
    command = ["spotlight", "run", str(workplace.job(**changes)), "--run-folder", "run"]
    monkeypatch.chdir(workplace.folder)
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    structlog.reset_defaults()
    done = Finished(ended.value.code, *capfd.readouterr())

    _is_one_clear_line(done, *words)
    assert not (workplace.folder / "run").exists()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("job.yaml", ("job.yaml", "named pipe")),
        ("train.txt", ("prompts.train", "train.txt", "named pipe")),
        ("run/config.yaml", ("run/config.yaml", "named pipe")),
    ],
)
def test_a_named_pipe_is_not_waited_for(
    workplace: Workplace, what: str, words: tuple[str, ...]
) -> None:
    job = workplace.job()
    (workplace.folder / "run").mkdir()
    (workplace.folder / what).unlink(missing_ok=True)
    os.mkfifo(workplace.folder / what)

    resumes = what.startswith("run")
    done = workplace.spotlight("run", *(("--resume", "run") if resumes else (job,)))

    _is_one_clear_line(done, *words)
    assert not (workplace.folder / "runs").exists()


def test_a_job_file_that_is_nested_without_end_is_named(workplace: Workplace) -> None:
    job = workplace.folder / "job.yaml"
    job.write_text("[" * 100_000)

    _is_one_clear_line(workplace.spotlight("run", job), "job.yaml", "line 1", "nested")


def test_a_key_with_a_line_end_does_not_make_two_lines(workplace: Workplace) -> None:
    done = workplace.spotlight("run", workplace.job(**{"iter\nations": 1}))

    _is_one_clear_line(done, r"iter\nations", "did you mean `iterations`")


def test_a_missing_job_file_is_named(workplace: Workplace) -> None:
    _is_one_clear_line(workplace.spotlight("run", "absent.yaml"), "absent.yaml")


def test_resuming_a_folder_that_is_no_run_is_refused(workplace: Workplace) -> None:
    _is_one_clear_line(workplace.spotlight("run", "--resume", workplace.folder), "config.yaml")


def test_a_run_folder_that_cannot_be_made_is_named(workplace: Workplace) -> None:
    blocked = workplace.folder / "file"
    blocked.write_text("")

    done = workplace.spotlight("run", workplace.job(), "--run-folder", Path(blocked) / "run")

    _is_one_clear_line(done, str(blocked))
