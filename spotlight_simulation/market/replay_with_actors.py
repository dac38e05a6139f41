"""A job on a spot market with the real coordinator and nodes, on virtual time."""

from __future__ import annotations

from spotlight.jobs import JobSpec
from spotlight_simulation.market.outcome import Outcome
from spotlight_simulation.market.schedule import Prices, Schedule
from spotlight_simulation.profile import Profile


def replay_with_actors(
    schedule: Schedule, prices: Prices, profile: Profile, job: JobSpec
) -> Outcome:
    """Run the job until it is done or the schedule ends, and say what it came to."""
    raise NotImplementedError
