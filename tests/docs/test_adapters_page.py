"""The programs on the page about adapters are the examples, which run elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
RAY, *_ = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_program_under_ray_is_the_example() -> None:
    assert (ROOT / "examples" / "ray_loop.py").read_text(encoding="utf-8") == RAY
