"""The live view: complete, plain without colours, within 80 columns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from spotlight.actors.protocol.users import MirrorStatus, NodeStatus
from spotlight.cli.live import plain_line, render, sparkline, summary_table


def _worker(
    name: str, pool: str, state: str, detail: str = "", leader: str = "", members: int = 1
) -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        node=name.split("/")[0],
        pool=pool,
        state=state,
        detail=detail,
        leader=leader,
        members=members,
    )


def _status(**changes: Any) -> Any:
    status: dict[str, Any] = {
        "job": "first",
        "phase": "rollout",
        "iteration": 11,
        "iterations": 40,
        "weights_version": 11,
        "elapsed_s": 151.2,
        "done": 48,
        "wanted": 64,
        "images_per_s": 53.12,
        "reward_mean": 0.412,
        "validation": ((3.0, 0.334), (30.0, 0.459), (60.0, 0.58)),
        "workers": (
            _worker("spot-0/0", "spot", "score", "32 images " * 20),
            _worker("reserved-0/0", "reserved", "rollout", "8 images of iteration 11"),
        ),
        "previews": 1204,
        "previews_late": 31,
        "handed_on": 8,
        "results_ignored": 12,
        "given_up": (),
        "preemptions": 0,
        "outcome": "",
        "reason": "",
        "run_folder": "/runs/first-001",
        "note": "",
        "troubles": (),
        "id": "first-3f9a",
        "nodes": (),
        "mirror": None,
        "spent": None,
        "currency": "USD",
        "price_sources": (),
    }
    return SimpleNamespace(**{**status, **changes})


def _drawn(renderable: Any, width: int = 80, **options: Any) -> str:
    console = Console(width=width, color_system=None, no_color=True, **options)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_the_view_says_all_that_matters() -> None:
    view = " ".join(_drawn(render(_status())).split())
    for words in (
        "first 11 of 40 iterations rollout",
        "2 m 31 s",
        "28%",
        "validation 0.334 ▁▅█ 0.580",
        "reward 0.412",
        "48 of 64 samples, 53.1 images/s",
        "version 11",
        "8 images of iteration 11",
        "1,204 previews, 31 more that came too late, 8 requests handed to other workers, 12 results"
        " that did not count",
        "/runs/first-001",
    ):
        assert words in view, words


def test_one_of_a_kind_is_said_in_the_singular() -> None:
    view = _drawn(render(_status(handed_on=1, results_ignored=1, preemptions=1)))
    said = "1 request handed to other workers, 1 result that did not count, 1 node preempted"
    assert said in " ".join(view.split())


def test_the_view_fits_eighty_columns() -> None:
    assert max(map(len, _drawn(render(_status())).splitlines())) <= 80


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_narrow_terminal_gets_a_narrow_view(width: int) -> None:
    assert max(map(len, _drawn(render(_status()), width=width).splitlines())) <= width


def test_an_ascii_terminal_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "encoding", "ascii")
    view = _drawn(render(_status()))
    assert view.isascii() and "0.334 to 0.580" in view


def test_reserved_workers_come_first() -> None:
    view = _drawn(render(_status()))
    assert view.index("reserved-0/0") < view.index("spot-0/0")


def test_workers_of_a_group_say_so() -> None:
    group = {"leader": "spot-0/0", "members": 4}
    leader = _worker("spot-0/0", "spot", "rollout", "8 images of iteration 11", **group)
    follower = _worker("spot-0/1", "spot", "rollout", **group)
    view = _drawn(render(_status(workers=(leader, follower))))
    assert "group of 4: 8 images of iteration 11" in view
    assert any(line.rstrip().endswith("group of 4, led by spot-0/0") for line in view.splitlines())


def test_many_workers_are_summed_up() -> None:
    workers = tuple(_worker(f"spot-{i:02d}/0", "spot", "explore") for i in range(30))
    view = _drawn(render(_status(workers=workers)))
    assert "spot-11/0" in view and "spot-12/0" not in view
    assert "and 18 workers more: 18 explore" in view


def test_the_nodes_of_the_job_are_counted_and_those_that_go_are_named() -> None:
    nodes = [NodeStatus(f"spot-{n}", "spot", 1, "there", 9.0, job="first-3f9a") for n in range(3)]
    nodes.append(NodeStatus("spot-3", "spot", 1, "moves", 9.0, job="first-3f9a"))
    nodes.append(
        NodeStatus("spot-4", "spot", 1, "has notice", 9.0, job="first-3f9a", notice_left_s=25.0)
    )
    nodes.append(NodeStatus("spot-5", "spot", 1, "has notice", 9.0, job="another"))
    view = " ".join(_drawn(render(_status(nodes=tuple(nodes)))).split())
    assert "nodes 5, spot-3 moves, spot-4 has notice (25 s left)" in view
    assert "spot-5" not in view


def test_what_was_spent_is_said_with_the_sources_of_prices() -> None:
    assert "spent" not in _drawn(render(_status()))
    drawn = _drawn(render(_status(spent=12.345, price_sources=("the job", "a list"))))
    assert "spent" in drawn and "$12.35 (prices: the job, a list)" in drawn


def test_workers_that_load_are_counted() -> None:
    workers = tuple(_worker(f"a/{n}", "spot", "loading", "model") for n in range(2))
    ready = _worker("a/2", "spot", "idle")
    view = " ".join(_drawn(render(_status(workers=(*workers, ready)))).split())
    assert "loading 1 of 3 workers are ready (model)" in view
    assert "loading" not in _drawn(render(_status(workers=(ready,))))


def test_the_time_left_is_at_the_end_of_the_headline() -> None:
    headline = _drawn(render(_status(), 3700.0)).splitlines()[0]
    assert headline.endswith("2 m 31 s, about 1 h 02 m left")


def test_names_are_never_read_as_markup() -> None:
    worker = _worker("[bold]w[/]", "spot", "idle", "[red]x[/nothing]")
    view = _drawn(render(_status(job="[b]job", workers=(worker,))))
    assert "[bold]w[/]" in view and "[red]x[/nothing]" in view and "[b]job" in view


def test_a_job_that_only_prepares_has_no_numbers_yet() -> None:
    status = _status(
        phase="preparing",
        iteration=0,
        done=0,
        wanted=0,
        images_per_s=0.0,
        reward_mean=None,
        validation=(),
        workers=(),
    )
    view = _drawn(render(status))
    assert "starting workers and loading the model" in view
    assert "no worker has joined yet" in view and "reward" not in view


def test_without_a_job_the_view_says_so() -> None:
    nobody = _drawn(render(_status(job="", iterations=0, workers=())))
    assert nobody.split() == ["no", "job", "is", "running", "no", "worker", "has", "joined", "yet"]


def test_between_jobs_the_workers_that_are_there_are_shown() -> None:
    view = _drawn(render(_status(job="", iterations=0)))
    assert "no job is running" in view
    assert "spot-0/0" in view and "reserved-0/0" in view


def test_what_the_job_waits_for_is_said() -> None:
    waiting = _status(note="reserved-0/0 trains and is unreachable")
    assert "reserved-0/0 trains and is unreachable" in _drawn(render(waiting))
    assert plain_line(waiting).endswith("reserved-0/0 trains and is unreachable")


def test_how_far_the_copy_of_a_run_is_is_said() -> None:
    behind = _status(mirror=MirrorStatus(completed=9, committed=11, failures=2, problem="it hangs"))
    view = " ".join(_drawn(render(behind)).split())
    assert "mirror the run after 9 iterations, of 11 that are committed; 2 failed attempts" in view
    assert "the run is not copied: it hangs" in view
    assert plain_line(behind).endswith("the run is not copied: it hangs")
    begun = _status(mirror=MirrorStatus(committed=1))
    assert "mirror nothing is copied yet" in " ".join(_drawn(render(begun)).split())
    assert plain_line(begun) == plain_line(_status())


def test_what_is_wrong_with_workers_is_said_of_the_first_of_many() -> None:
    given_up = "spot-0/0 is given up after 5 tries: the accelerator is lost"
    status = _status(troubles=(given_up, *(f"spot-0/{n}: no memory" for n in range(1, 9))))
    view = " ".join(_drawn(render(status)).split())
    assert given_up in view and "spot-0/3: no memory" in view
    assert "spot-0/4" not in view and "and 5 more have trouble" in view
    assert given_up in plain_line(status)


def test_a_failure_says_its_reason() -> None:
    status = _status(outcome="failed", reason="the trainer is lost", phase="finished")
    assert "failed" in _drawn(render(status)) and "the trainer is lost" in _drawn(render(status))
    assert "failed: the trainer is lost" in plain_line(status)


def test_a_plain_line_changes_only_with_what_it_says() -> None:
    line = plain_line(_status())
    assert line == "first  11/40 iterations  rollout  reward 0.412  validation 0.580  8 handed on"
    assert plain_line(_status(elapsed_s=160.0, done=50, images_per_s=50.0)) == line
    assert plain_line(_status(phase="train")) != line
    assert "\n" not in line


def test_a_sparkline_runs_from_lowest_to_highest() -> None:
    assert sparkline([0.1, 0.2, 0.3]) == "▁▅█"
    assert sparkline([0.5, 0.5]) == "▁▁"


def test_the_summary_shows_the_figures_of_the_run() -> None:
    share = {"rollout": 0.3, "train": 0.6, "idle": 0.096, "starting": 0.004}
    pool = {"seconds": 362.0, "share": share}
    summary = {
        "outcome": "finished",
        "reason": "",
        "validation_start": 0.334,
        "validation_end": 0.713,
        "validation_best": 0.72,
        "exported": {"iteration": 35, "score": 0.72},
        "rewards": {
            "pick": {"is_trained": True, "validation_start": 19.5, "validation_end": 21.25},
            "strict": {"is_trained": False, "validation_start": 0.8, "validation_end": 0.25},
        },
        "reward_start": 0.3,
        "reward_end": 0.7,
        "run_seconds": 171.0,
        "iterations": 40,
        "samples": 2560,
        "images_per_s": 51.2,
        "scoring_s": 72.4,
        "previews": 7600,
        "previews_late": 110,
        "exploration": {"sentence": "Exploration paid: 1.26 times."},
        "pools": {"reserved": pool},
        "nodes_lost": 1,
        "requests_handed_on": 8,
        "groups_dropped": 0,
    }
    table = " ".join(_drawn(summary_table(summary, [("spent", "$12.50")])).split())
    assert "spent $12.50" in table
    assert "exported the average after 35 iterations, validation 0.720" in table
    for words in (
        "outcome finished",
        "validation 0.334 to 0.713, best 0.720",
        "pick 19.500 to 21.250 strict",
        "strict 0.800 to 0.250 (not trained on)",
        "2 m 51 s for 40 iterations",
        "2,560, 51.2 images/s in rollouts",
        "7,600, and 110 more that came too late",
        "scoring 1 m 12 s of worker time (20%), also beside other states",
        "exploration Exploration paid: 1.26 times.",
        "reserved time train 60%, rollout 30%, idle 10%",
        "1 node lost, 8 requests handed on, 0 prompt groups dropped",
    ):
        assert words in table, words
    unmeasured = (
        "validation_start",
        "validation_end",
        "images_per_s",
        "scoring_s",
    )
    nothing = {**summary, **dict.fromkeys(unmeasured)}
    drawn = " ".join(_drawn(summary_table(nothing)).split())
    assert "validation not measured" in drawn


def test_a_session_has_no_iterations_to_show() -> None:
    drawn = _drawn(render(_status(job="session-ab", phase="session", iterations=0, iteration=0)))
    assert "session-ab  serves the loop of another program" in drawn
    assert "iterations" not in drawn and "%" not in drawn
    assert "48 of 64 samples" in drawn
