import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.exploration_tables import TABLES, covers, table_figures
from spotlight.policies.exploration.reward_spread import Evidence


@pytest.mark.parametrize("count", [3, 8, 60])
def test_nine_of_ten_standard_deviations_that_are_believed_are_covered(count: int) -> None:
    rng = random.Random(count)
    belief = Evidence(count, count * 0.04)
    stds = [(belief.total / (2 * rng.gammavariate(count / 2, 1))) ** 0.5 for _ in range(4000)]
    assert sum(covers(belief, std) for std in stds) / len(stds) == pytest.approx(0.9, abs=0.02)


def test_what_is_not_believed_at_all_covers_nothing() -> None:
    assert not covers(Evidence(), 0.2)
    assert not covers(Evidence(10, 0.4), 0.0)


def tables() -> Iterator[Path]:
    yield from sorted(TABLES.glob("*.json"))


@pytest.mark.parametrize("path", tables(), ids=lambda path: path.stem)
def test_every_prompt_of_a_table_has_64_rewards_within_limits(path: Path) -> None:
    table = json.loads(path.read_text())
    assert len(table) >= 32
    assert all(len(row) == 64 and 0 <= min(row) <= max(row) <= 1 for row in table)


def test_the_worst_figure_is_that_of_the_worst_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.exploration_tables.CELLS", ((4, 2),))
    figures = table_figures(shuffles=4)
    worst = [figures[f"{path.stem}_worst"] for path in tables()]
    assert figures["contrast_vs_uniform_worst"] == min(worst)
