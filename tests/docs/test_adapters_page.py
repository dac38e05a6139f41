"""The programs on the page about adapters are the examples, which run under Ray elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
RAY, VERL = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize(("program", "file"), [(RAY, "ray_loop.py"), (VERL, "verl_replica.py")])
def test_the_programs_are_the_examples(program: str, file: str) -> None:
    assert (ROOT / "examples" / file).read_text(encoding="utf-8") == program
