"""`spotlight replay`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from market_kit import PROFILE_FILE
from typer.testing import CliRunner

from spotlight.cli.app import app
from spotlight.errors import UserError

NEVER = '{"metadata": {"gap_seconds": 600}, "data": [0, 0, 0]}'
DEEP = ("--depth", "actors")
ZONED = ("--trace", "skynomad/h100_16_launchable_counts.csv", "--zone", "us-east4-a")


def run(*options: str, trace: str = "bamboo/p3-trace.csv", prices: str = "paper-73") -> Any:
    words = ["replay", "--trace", trace, "--prices", prices, "--profile", str(PROFILE_FILE)]
    return CliRunner().invoke(app, [*words, *options], env={"COLUMNS": "120"})


def figures(*options: str, **inputs: str) -> dict[str, Any]:
    result = run(*options, "--json", **inputs)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def refusal(*options: str, **inputs: str) -> str:
    result = run(*options, **inputs)
    assert isinstance(result.exception, UserError), result.output
    assert result.exception.exit_code == 2
    return str(result.exception)


def test_a_trace_is_replayed_to_its_end() -> None:
    found = figures()
    assert found["hours"] == pytest.approx(11.37, abs=0.01)
    assert found["market"] == "bamboo/p3-trace"
    assert sum(found["nodes_share"]) == pytest.approx(1.0)
    assert (found["is_finished"], found["is_held"], found["violations"]) == (False, True, [])


def test_a_month_repeats_a_trace_of_half_a_day() -> None:
    day, month = figures(), figures("--hours", "720")
    assert month["hours"] == 720
    assert month["money"] / 720 == pytest.approx(day["money"] / day["hours"], rel=0.02)


def test_a_trace_of_a_moment_is_not_repeated_for_a_month(tmp_path: Path) -> None:
    file = tmp_path / "moment.csv"
    file.write_text("0,4\n1,4\n")
    said = refusal("--hours", "720", trace=str(file))
    assert "would be repeated 2,592,000,000 times" in said
    assert "--hours" in said


def test_a_replay_may_begin_anywhere_in_a_trace() -> None:
    assert figures("--start", "11", "--hours", "2")["hours"] == 2
    assert "cannot be begun with" in refusal("--start", "12")


def test_other_nodes_are_taken_with_another_seed() -> None:
    assert figures("--seed", "1")["money"] != figures("--seed", "2")["money"]
    assert figures("--seed", "1")["money"] == figures("--seed", "1")["money"]


def test_both_depths_tell_the_same_of_a_few_minutes() -> None:
    model = figures("--hours", "0.2", "--boot", "60")
    actors = figures("--hours", "0.2", "--boot", "60", *DEEP)
    assert (model["depth"], actors["depth"]) == ("model", "actors")
    assert actors["money"] == pytest.approx(model["money"], rel=0.005)
    assert abs(actors["iterations"] - model["iterations"]) < 3


def test_people_get_a_table() -> None:
    output = run().output
    for part in ("iterations", "USD, at paper-73", "previews per sample"):
        assert part in output
    assert "time with 1 spot node " in output
    assert "time with 4 spot nodes " in output
    assert "nodes were held until they were taken" in output


def test_launch_probes_are_marked() -> None:
    assert "overstates how often" in run(*ZONED, "--hours", "24").output


def test_a_zone_that_is_never_up_is_said(tmp_path: Path) -> None:
    file = tmp_path / "never.json"
    file.write_text(NEVER)
    result = run(trace=str(file))
    assert result.exit_code == 0
    assert "never" in result.output
    assert figures(trace=str(file))["nodes_share"][0] == 1.0


def test_a_hole_is_refused_or_left_out() -> None:
    assert "--skip-holes" in refusal(*ZONED)
    assert figures(*ZONED, "--skip-holes")["hours"] == pytest.approx(350.67, abs=0.01)


def test_it_is_said_that_holes_are_left_out() -> None:
    (remark,) = figures(*ZONED, "--skip-holes")["remarks"]
    assert remark == "1 hole in the data left out"


def test_prices_of_a_job_in_another_currency_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("{reserved: 3, spot: 1, currency: EUR}")
    assert figures(prices=str(file))["currency"] == "EUR"
    said = refusal("--set", "prices={reserved: 3, spot: 1}", prices=str(file))
    assert "a replay has one currency" in said


def test_a_profile_without_a_row_is_refused(tmp_path: Path) -> None:
    lines = PROFILE_FILE.read_text().splitlines()
    file = tmp_path / "profile.yaml"
    file.write_text("\n".join(line for line in lines if not line.startswith("rows:")))
    assert "missing required field `rows`" in refusal("--profile", str(file))


def test_a_pool_without_nodes_is_refused() -> None:
    assert refusal("--set", "pools.spot.nodes=0").startswith("pools.spot.nodes: must be 1 at least")


@pytest.mark.parametrize("change", ["pools.reserved.nodes=0", "training.ranks=8"])
def test_a_job_whose_reserved_pool_is_too_small_to_train_is_refused(change: str) -> None:
    assert refusal("--set", change).startswith("pools.reserved: has")


def test_a_pool_that_is_larger_than_the_market_is_refused_by_its_field() -> None:
    assert "100 (`pools.spot.nodes`)" in refusal("--set", "pools.spot.nodes=100")


def test_without_what_simulates_a_replay_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "greenlet", None)
    for name in [name for name in sys.modules if name.startswith("spotlight_simulation")]:
        monkeypatch.delitem(sys.modules, name)
    assert "pip install 'spotlight-rl[simulation]'" in refusal()


def test_both_depths_bill_the_same_nodes_where_a_trace_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "short.csv"
    file.write_text("0,0\n60000,4\n300000,4\n")
    stretch = ("--hours", "0.2", "--boot", "10")
    model, actors = (figures(*stretch, *more, trace=str(file)) for more in ((), DEEP))
    assert model["losses"] == actors["losses"] == 8
    assert actors["money"] == pytest.approx(model["money"], rel=0.005)
