"""A small market, a job and its times, for tests of replays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from spotlight.jobs import JobSpec, job_from_data
from spotlight_simulation.market.command import JOB
from spotlight_simulation.market.schedule import Prices, Schedule, Stay
from spotlight_simulation.profile import Profile, load_profile

PRICES = Prices(name="test", currency="USD", reserved_per_gpu_hour=7.2, spot_per_gpu_hour=1.8)
PROFILE_FILE = Path("benchmarks/profiles/sol-rl-split.yaml")


def profile() -> Profile:
    return load_profile(PROFILE_FILE)


def job(**changes: Any) -> JobSpec:
    data: dict[str, Any] = yaml.safe_load(JOB.read_text())
    for section, values in changes.items():
        merged = isinstance(values, Mapping) and section in data
        data[section] = data[section] | values if merged else values
    return job_from_data(data)


def schedule(*stays: Stay, seconds: float = 600.0, pool: int = 4) -> Schedule:
    return Schedule(market="test", is_held=True, pool=pool, seconds=seconds, stays=stays)


def stay(
    node: str, from_s: float, until_s: float, *, notice_s: float = 30.0, is_taken: bool = True
) -> Stay:
    return Stay(
        node=node,
        from_s=from_s,
        until_s=until_s,
        notice_s=notice_s if is_taken else 0.0,
        is_taken=is_taken,
    )
