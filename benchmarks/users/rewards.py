"""Scorers, losses and trackers that people write and name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.users.case import Check, Ended, case, require, spotlight
from spotlight.jobs import load_job, parse_job
from spotlight.jobs.template import job_template
from spotlight.store.record_files import whole_event_lines

_EXAMPLE = Path(__file__).parents[2] / "examples" / "ocr-tiny.yaml"
_SCORER = """\
open("was-run", "w")

class Good:
    def score(self, images, prompts):
        return [0.5 for _ in prompts]

class Bad:
    def score(self, images, prompts):
        return self.table[prompts[0].text]

    table = {}

class Without:
    def reward(self, images, prompts): ...

class Inherits(Without): ...

class Short:
    def score(self, images): ...

def function(images): ...

def brightness(images, prompts):
    return [image.mean() / 255 for image in images]

class Loss:
    def terms(self, batch, samples, keys): ...
"""


def _planned(
    folder: Path, changes: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> Ended:
    """`spotlight plan` of the example with other sections, beside a module of one's own."""
    (folder / "mine.py").write_text(_SCORER)
    job = {**yaml.safe_load(_EXAMPLE.read_text(encoding="utf-8")), **changes}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    planned = spotlight(["plan", "job.yaml"], folder, environment)
    require(not (folder / "was-run").exists(), "a plan runs code of the user's")
    return planned


def _named(name: str) -> dict[str, Any]:
    return {"rewards": [{"kind": "python", "python": f"mine:{name}"}]}


def _refusal(name: str, problem: str) -> Check:
    """That a scorer is refused before anything starts."""

    def check(folder: Path) -> None:
        _planned(folder, _named(name)).says(2, "rewards[0].python", problem)

    return check


for _name, (_class, _problem) in {
    "a function that takes no prompts": ("function", "must take 2 arguments"),
    "a class without score": ("Without", "has no method `score`"),
    "a class that inherits no score": ("Inherits", "has no method `score`"),
    "a score that takes no prompts": ("Short", "must take 2 arguments"),
    "a scorer with a typing error in its name": ("Godd", "did you mean `Good`?"),
}.items():
    case(_name, quick=_class == "function")(_refusal(_class, _problem))


@case("a scorer that is as it should be, a class or a function")
def _good(folder: Path) -> None:
    for name in ("Good", "brightness"):
        _planned(folder, _named(name)).says(0)


@case("a loss without evaluate")
def _loss(folder: Path) -> None:
    training = {"loss": "mine:Loss", "updates_per_iteration": 2}
    _planned(folder, {"training": training}).says(2, "training.loss", "has no method `evaluate`")


@case("a scorer that raises: its traceback is in the run folder, and the job says where")
def _raises(folder: Path) -> None:
    (folder / "mine.py").write_text(_SCORER.partition("\n")[2])
    job = {
        **yaml.safe_load(_EXAMPLE.read_text(encoding="utf-8")),
        **_named("Bad"),
        "validation": {"seeds": 1, "prompts": 2},
        "scoring": {"on_failure": "stop", "attempts": 1},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    ended = spotlight(["run", "job.yaml", "--run-folder", "run"], folder)
    ended.says(1, "KeyError", "events.jsonl, which has the traceback")
    lines = whole_event_lines(folder / "run")
    events = [event for event in map(json.loads, lines) if event["event"] == "scorer_failed"]
    require(bool(events), "no scorer_failed")
    require('mine.py", line 8, in score' in events[0]["traceback"], events[0]["traceback"])


_KEYS = ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "NETRC", "WANDB_CONFIG_DIR")


def _with_wandb(folder: Path, **environment: str) -> Ended:
    blank = dict.fromkeys(_KEYS, "")
    return _planned(
        folder,
        {"trackers": [{"kind": "wandb"}]},
        {**blank, "WANDB_MODE": "online", "HOME": str(folder), **environment},
    )


@case("Weights & Biases without a key")
def _without_key(folder: Path) -> None:
    _with_wandb(folder).says(2, "trackers[0].kind", "WANDB_API_KEY", "WANDB_MODE=offline")


@case("Weights & Biases offline")
def _offline(folder: Path) -> None:
    _with_wandb(folder, WANDB_MODE="offline").says(0)


@case("the first job of a newcomer is trained as the example is")
def _first_job(folder: Path) -> None:
    spotlight(["init", "mine.yaml"], folder).says(0)
    mine, example = load_job(folder / "mine.yaml"), load_job(_EXAMPLE)
    require(mine == parse_job(job_template()), "another job than the template")
    for field in ("largest_advantage", "updates_per_iteration", "learning_rate", "options"):
        seen = getattr(mine.training, field), getattr(example.training, field)
        require(seen[0] == seen[1], f"{field}: {seen}")
    require(mine.samples_per_iteration == example.samples_per_iteration, "other samples")
