"""What a class of one's own is, told by its source."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from spotlight.errors import JobError
from spotlight.own_classes import require_class


def require(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """That `own_module:Own` can score."""
    (tmp_path / "own_module.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    require_class("rewards[0].python", "own_module:Own", {"score": 2})
    assert "own_module" not in sys.modules, "nothing of it is run"


SCORE = "def score(self, images, prompts): ..."


@pytest.mark.parametrize(
    "source",
    [
        f"class Own:\n    {SCORE}",
        f"class Base:\n    {SCORE}\nclass Own(Base): ...",
        f"class First: ...\nclass Second:\n    {SCORE}\nclass Own(First, Second): ...",
        "class Own:\n    def score(self, images, prompts, more=1): ...",
        "class Old:\n    def score(self): ...\nclass First(Old): ...\n"
        f"class Second(Old):\n    {SCORE}\nclass Own(First, Second): ...",
        "class Own:\n    def score(self, *everything): ...",
        "class Own:\n    @staticmethod\n    def score(images, prompts): ...",
        "class Own:\n    score = print",
        "class Own:\n    if True:\n        def score(self, images): ...",
        # What may be anything is left to the import.
        "from elsewhere import Base\nclass Own(Base): ...",
        "import elsewhere\nclass Own(elsewhere.Base): ...",
        "from elsewhere import Own",
        "from elsewhere import *",
        "Own = make()",
        "@register\nclass Own: ...",
        "class Own(metaclass=Odd): ...",
        "class Own: ...\nOwn.score = print",
        "class Own: ...\nsetattr(Own, 'score', print)",
        "class Own: ...\nfor each in (Own,):\n    each.score = print",
        "class Own: ...\nOwn = better(Own)",
        "try:\n    from fast import Own\nexcept ImportError:\n    class Own: ...",
        "@make_class\ndef Own(): ...",
        "class Own(Own): ...",
    ],
)
def test_what_has_the_method_or_may_have_it_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    require(tmp_path, monkeypatch, source)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("class Own: ...", "has no method `score`; it must be a class with the method `score`"),
        ("class Own(object): ...", "has no method `score`"),
        ("class Base: ...\nclass Own(Base): ...", "has no method `score`"),
        ("class Own:\n    def score_all(self, images, prompts): ...", "has no method `score`"),
        ("def Own(images, prompts): ...", "is a function, not a class"),
        ("async def Own(images, prompts): ...", "is a function, not a class"),
        ("Own = lambda images, prompts: []", "is not a class"),
        ("Own = 7", "is not a class"),
        ("class Own:\n    def score(self, images): ...", "score must take 2 arguments"),
        ("class Own:\n    def score(self, a, b, c): ...", "score must take 2 arguments"),
        ("class Own:\n    def score(self, a, b, *, c): ...", "score must take 2 arguments"),
        ("class Owl:\n    def score(self, a, b): ...", "has no class Own; did you mean `Owl`?"),
    ],
)
def test_what_certainly_lacks_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, problem: str
) -> None:
    with pytest.raises(JobError) as caught:
        require(tmp_path, monkeypatch, source)
    assert problem in str(caught.value)


def test_a_module_that_is_nowhere_is_the_fault_of_the_field() -> None:
    with pytest.raises(JobError, match=r"^rewards\[0\]\.python: .* no module `own_nowhere`"):
        require_class("rewards[0].python", "own_nowhere:Own", {"score": 2})
