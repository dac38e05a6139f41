"""A worker process that gives every image the same reward at once, for what is measured without
scoring.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.traced_worker import change
from spotlight.actors.worker import process, torch_engine


class _Constant:
    def score(self, images: np.ndarray, prompts: Sequence[str]) -> list[float]:
        """See `Scorer.score`."""
        return [0.5] * len(prompts)


def main() -> None:
    """Entry point of the process."""
    change(torch_engine, "build_scorer", lambda build: lambda spec, permissions: _Constant())
    process.main()


if __name__ == "__main__":
    main()
