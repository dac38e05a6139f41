"""What changed from one view to the next."""

from __future__ import annotations

from spotlight.report.run_view import CURVES, JobPart, RunView
from spotlight.web.view_changes import change_between

ROW = (1.0, *[None] * (len(CURVES) - 1))
OTHER = (2.0, *[None] * (len(CURVES) - 1))


def view(*rows: tuple[float | None, ...], phase: str = "") -> RunView:
    return RunView(job=JobPart(name="a", phase=phase), rows=rows)


def test_nothing_changes_between_views_that_are_the_same() -> None:
    assert change_between(view(ROW), view(ROW)) == {}


def test_a_field_that_changed_is_told_whole() -> None:
    change = change_between(view(phase="rollout"), view(phase="train"))
    assert change == {"job": JobPart(name="a", phase="train")}


def test_rows_are_told_from_the_first_that_changed() -> None:
    assert change_between(view(ROW), view(ROW, OTHER)) == {"rows_from": 1, "rows": (OTHER,)}
    assert change_between(view(ROW, ROW), view(ROW, OTHER)) == {"rows_from": 1, "rows": (OTHER,)}


def test_rows_that_are_gone_are_told_of() -> None:
    assert change_between(view(ROW, OTHER), view(ROW)) == {"rows_from": 1, "rows": ()}
