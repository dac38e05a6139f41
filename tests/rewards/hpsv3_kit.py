"""A stand-in for the package of HPSv3's authors: a question in the place and by the names of
theirs, in a file that cannot be imported."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

_BEGINNING, _END = "\nRate this image of {text_prompt} from 0 to 10.\n", "\nRating: <|Reward|>\n"
QUESTION = _BEGINNING + _END


def hpsv3_package(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str | None = None) -> Path:
    """Have Python find it in a folder; with another text in its file, if one is given."""
    file = folder / "packages" / "hpsv3" / "dataset" / "data_collator_qwen.py"
    file.parent.mkdir(parents=True)
    theirs = f"""\
import a_module_that_nobody_has
INSTRUCTION = {_BEGINNING!r}
INSTRUCTION_debug = "{{text_prompt}}"
prompt_with_special_token = {_END!r}
"""
    file.write_text(theirs if text is None else text)
    (file.parents[1] / "__init__.py").touch()
    monkeypatch.syspath_prepend(file.parents[2])
    importlib.invalidate_caches()
    return file
