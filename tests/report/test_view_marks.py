"""What is marked across the curves."""

from __future__ import annotations

from spotlight.report.run_view import Mark
from spotlight.report.view_marks import KeptMarks


def _lost(number: int, time_s: float) -> Mark:
    return Mark(time_s=time_s, usd=None, iteration=0.0, kind="lost", text=f"spot-{number} lost")


def test_few_marks_are_kept_as_they_are() -> None:
    marks = KeptMarks()
    for number in range(5):
        marks.add(_lost(number, 10.0 * number))
    assert [mark.text for mark in marks.all()] == [f"spot-{number} lost" for number in range(5)]


def test_many_marks_are_as_dense_at_the_beginning_as_at_the_end() -> None:
    marks = KeptMarks(most=64)
    for number in range(10_000):
        marks.add(_lost(number, 7.0 * number))
    times = [mark.time_s for mark in marks.all()]
    assert 32 <= len(times) <= 64
    assert sum(time_s < 35_000.0 for time_s in times) >= len(times) // 2 - 1
    assert marks.all()[0].text.startswith("spot-0 lost, and ")


def test_marks_of_different_kinds_stay_apart() -> None:
    marks = KeptMarks()
    marks.add(_lost(1, 10.0))
    marks.add(Mark(time_s=10.0, usd=None, iteration=0.0, kind="restart", text="came back"))
    marks.add(_lost(2, 10.1))
    assert [mark.text for mark in marks.all()] == ["spot-1 lost, and 1 more", "came back"]
