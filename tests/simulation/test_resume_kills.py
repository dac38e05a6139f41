"""A coordinator may be killed at any place while it takes a run that goes on with other settings:
real actors, virtual time."""

from __future__ import annotations

from spotlight_simulation.resume_kills import resumed_at, resumes


def test_without_a_kill_a_run_goes_on_with_its_new_settings() -> None:
    life = resumed_at(0)
    assert (life.killed_at, life.goes_on, life.problem) == ("", True, "")


def test_a_run_whose_coordinator_is_killed_is_as_before_or_goes_on_with_its_new_settings() -> None:
    found = list(resumes())
    assert [life.problem for life in found] == [""] * len(found)
    assert all(life.killed_at for life in found)
    assert {life.goes_on for life in found} == {False, True}
