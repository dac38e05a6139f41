"""Scorers of one's own: found by their name, and refused in one line that says what is wrong."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotlight.errors import JobError
from spotlight.jobs import RewardSpec
from spotlight.permissions import Permissions
from spotlight.rewards.base import Prompt, build_scorer
from spotlight.rewards.plugins import check_plugin

MODULE = """
import marker_of_import

class Scale:
    def __init__(self, by=1.0):
        self.by = by

    def score(self, images, prompts):
        return [self.by * prompt.metadata.get("worth", 1) for prompt in prompts]

class Needs(Scale):
    def __init__(self, key):
        raise ValueError(f"no\\nsuch {key}")

class Inherits(Needs): ...

class Plain:
    def score(self, images, prompts): ...

class Made(Plain):
    def __new__(cls, by=1): ...

@marker_of_import.make
class Data(Plain):
    key: int

class Open(Plain):
    def __init__(self, **options): ...

class Elsewhere(marker_of_import.Base):
    def score(self, images, prompts): ...

class Leaves(Scale):
    def __init__(self):
        raise SystemExit(3)

class Bare(Plain):
    def __init__(self): ...

class OfBare(Bare): ...

class Takes(Bare):
    def __init__(self, by=1): ...

class OfBoth(OfBare, Takes): ...

class Short:
    def score(self, images): ...

class Without: ...

def halves(images, prompts, by=2):
    return [1 / by for _ in prompts]

def short(images): ...

def exact(images, prompts, *, wanted): ...

async def later(images, prompts): ...

thirds = lambda images, prompts: [1 / 3] * len(images)
number = 3
"""
POINTS = "[spotlight.rewards]\nscale = own_scorers.parts : Scale [more]\n"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with scorers, and an entry point of an installed one."""
    package = tmp_path / "own_scorers"
    package.mkdir()
    (package / "__init__.py").write_text("raise_if_imported = True\n")
    (package / "parts.py").write_text(MODULE)
    (package / "broken.py").write_text("def f(:\n")
    (package / "leaving.py").write_text("raise SystemExit(3)\n")
    (package / "loose.py").write_text(
        "try:\n    from nowhere import Odd\nexcept ImportError: ...\n"
    )
    (tmp_path / "marker_of_import.py").write_text("Base, make = object, lambda made: made\n")
    installed = tmp_path / "own_scorers-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: own_scorers\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.startswith(("own_scorers", "marker_of"))]:
        monkeypatch.delitem(sys.modules, name)
    return package


def spec(python: str, **options: Any) -> RewardSpec:
    return RewardSpec(kind="python", python=python, options=options)


@pytest.mark.parametrize("name", ["own_scorers.parts:Scale", "scale"])
def test_a_class_is_found_by_its_module_or_its_entry_point_and_made_with_its_options(
    name: str,
) -> None:
    check_plugin(spec(name))
    assert "marker_of_import" not in sys.modules, "a check runs none of its code"
    scorer = build_scorer(spec(name, by=2.0), Permissions(code=("own_scorers",)))
    prompts = [Prompt("a"), Prompt("b", {"worth": 3})]
    assert scorer.score(np.zeros((2, 4, 4, 3), np.uint8), prompts) == [2.0, 6.0]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "nowhere.at_all:Scale",
            "there is no module `nowhere.at_all` on this machine; install its package",
        ),
        ("own_scorers.none:Scale", "there is no module `own_scorers.none` on"),
        (
            "own_scorers.parts:Scael",
            "own_scorers.parts has no class or function Scael; did you mean `Scale`?",
        ),
        ("own_scorers.broken:Scale", "broken.py cannot be read (invalid syntax"),
        ("unknown", "no installed package has an entry point `unknown` in the group"),
        (
            "own_scorers.parts:Without",
            "own_scorers.parts:Without has no method `score`; it must be a",
        ),
        ("own_scorers.parts:Short", "own_scorers.parts:Short.score must take 2 arguments"),
        ("own_scorers.parts:short", "own_scorers.parts:short must take 2 arguments"),
        ("own_scorers.parts:exact", "exact also needs `wanted`; give it in `options`"),
        ("own_scorers.parts:later", "own_scorers.parts:later must not be `async`"),
        ("own_scorers.parts:number", "own_scorers.parts:number is not a class with the method"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_before_anything_is_imported(
    name: str, problem: str
) -> None:
    with pytest.raises(JobError) as caught:
        check_plugin(spec(name))
    assert problem in caught.value.problem
    assert "\n" not in str(caught.value)
    assert "marker_of_import" not in sys.modules


def test_the_folder_that_spotlight_is_started_in_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "scorer_in_this_folder.py").write_text(
        "class Own:\n    def score(self, images, prompts): ...\n"
    )
    with pytest.raises(JobError, match="start Spotlight in the folder that holds it"):
        check_plugin(spec("scorer_in_this_folder:Own"))
    monkeypatch.chdir(tmp_path / "here")
    check_plugin(spec("scorer_in_this_folder:Own"))


def test_what_only_an_import_can_tell_is_left_to_it() -> None:
    check_plugin(spec("own_scorers.loose:Odd"))
    check_plugin(spec("own_scorers.loose:Even"))


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("nowhere:Scale", {}, "nowhere cannot be imported here (ModuleNotFoundError"),
        ("own_scorers.broken:Scale", {}, "cannot be imported here (SyntaxError"),
        ("own_scorers.parts:Scael", {}, "no class or function Scael; did you mean `Scale`?"),
        ("own_scorers.parts:Scale", {"bye": 1}, "cannot be made with the options ['bye'] (TypeErr"),
        ("own_scorers.parts:Needs", {"key": "x"}, "(ValueError: no such x)"),
        ("own_scorers.parts:Leaves", {}, "(SystemExit: 3)"),
        ("own_scorers.leaving:Scale", {}, "cannot be imported here (SystemExit: 3)"),
        ("own_scorers.parts:Short", {}, "must take two arguments, `images` and `prompts`"),
        ("own_scorers.parts:Without", {}, "is not a class with a method `score(images, prompts)`"),
        ("own_scorers.parts:short", {}, "must take two arguments, `images` and `prompts`"),
        ("own_scorers.parts:halves", {"bye": 1}, "`prompts`, and the options ['bye']"),
        ("own_scorers.parts:later", {}, "is neither a function of `images` and `prompts` nor a"),
        ("own_scorers.parts:number", {}, "is neither a function of `images` and `prompts` nor a"),
        ("unknown", {}, "there is `scale`"),
    ],
)
def test_what_cannot_score_is_refused_in_one_line(
    name: str, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(JobError) as caught:
        build_scorer(spec(name, **options), Permissions(code=("own_scorers", "nowhere")))
    assert problem in caught.value.problem
    assert caught.value.path == "reward `python`"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "reward"),
    [
        ("own_scorers.parts:halves", {}, 0.5),
        ("own_scorers.parts:halves", {"by": 4}, 0.25),
        ("own_scorers.parts:thirds", {}, 1 / 3),
    ],
)
def test_a_function_scores_every_batch_with_its_options(
    name: str, options: dict[str, Any], reward: float
) -> None:
    check_plugin(spec(name, **options))
    assert "marker_of_import" not in sys.modules, "a check runs none of its code"
    scorer = build_scorer(spec(name, **options), Permissions(code=("own_scorers",)))
    assert scorer.score(np.zeros((1, 4, 4, 3), np.uint8), [Prompt("a")]) == [reward]


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("halves", {"bye": 1}, r"must take 2 arguments and the options \['bye'\]"),
        ("Scale", {"bye": 1}, r"parts:Scale does not take the options \['bye'\]"),
        ("Plain", {"by": 1}, r"parts:Plain does not take the options \['by'\]"),
        ("Needs", {}, "parts:Needs also needs `key`; give it in `options`"),
        ("Inherits", {}, "parts:Inherits also needs `key`; give it in `options`"),
    ],
)
def test_options_that_are_not_taken_or_lack_are_refused_before_anything_is_imported(
    name: str, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(JobError, match=problem):
        check_plugin(spec(f"own_scorers.parts:{name}", **options))
    assert "marker_of_import" not in sys.modules


@pytest.mark.parametrize("name", ["Made", "Data", "Open", "Elsewhere", "OfBoth"])
def test_a_class_that_may_take_any_option_is_left_to_its_import(name: str) -> None:
    check_plugin(spec(f"own_scorers.parts:{name}", by=1))
    check_plugin(spec(f"own_scorers.parts:{name}"))


@pytest.mark.parametrize("name", ["own_scorers.parts:Scale", "scale"])
@pytest.mark.parametrize("code", [(), ("own_scorer", "parts", "own_scorers.part")])
def test_code_of_a_package_that_was_not_allowed_is_not_imported(
    name: str, code: tuple[str, ...]
) -> None:
    with pytest.raises(JobError) as caught:
        build_scorer(spec(name), Permissions(code=code))
    assert caught.value.path == "reward `python`"
    assert "--allow-code own_scorers" in caught.value.problem
    assert "marker_of_import" not in sys.modules
