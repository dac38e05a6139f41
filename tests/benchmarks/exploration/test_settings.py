"""The table of what differs in the jobs of the rivals."""

from __future__ import annotations

from itertools import product

import pytest

from benchmarks.exploration.cases import PROFILES
from benchmarks.exploration.rivals import LADDER_TASKS, RIVALS, TASKS
from benchmarks.exploration.settings import TABLE, Row, settings


@pytest.mark.parametrize("row", TABLE, ids=lambda row: "-".join(row.changes))
def test_every_change_of_a_row_counts_in_some_job(row: Row) -> None:
    jobs = [one for one in product(RIVALS, (*TASKS, *LADDER_TASKS), PROFILES) if row.is_for(*one)]
    for path, value in row.changes.items():
        assert any(settings(*job)[path] == value for job in jobs), path


def test_a_later_row_overrides_an_earlier_one() -> None:
    assert settings("uniform", "compositional", "sol-rl-split")["sampler.micro_batch"] == 1
    assert settings("pipelined", "compositional", "sol-rl-split")["sampler.micro_batch"] == 2
