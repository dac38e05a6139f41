"""The small job of benchmarks with real processes, for a model that two cores train in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def job_data(base: Path, name: str, **changes: Any) -> dict[str, Any]:
    """A job as its file says it, with some fields changed. Its prompts are written into the folder.

    An iteration takes about a second. The budget of exploration is fixed, so that a run has the
    same bits whatever happens to it.
    """
    for kind, first, count in (("train", 0, 16), ("validation", 16, 4)):
        numbers = range(first, first + count)
        lines = "".join(f'the number "{n * 617 % 10000:04d}"\n' for n in numbers)
        (base / f"{kind}.txt").write_text(lines)
    return {
        "name": name,
        "model": {"checkpoint": "builtin:ocr-tiny"},
        "prompts": {
            "train": str(base / "train.txt"),
            "validation": str(base / "validation.txt"),
            "per_iteration": 4,
        },
        "sampler": {"height": 16, "width": 48, "steps": 16, "micro_batch": 4},
        "group_size": 8,
        "checkpoint_every": 1,
        "training": {"micro_batch": 4, "options": {"times": 2}},
        "exploration": {"budget": "fixed", "candidates": 2, "preview_steps": 8},
        "validation": {"seeds": 1, "every": 2},
        **changes,
    }
