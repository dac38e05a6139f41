"""Every program on the page about loops of one's own runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-loop.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
LOOP, ASYNCHRONOUS, TRAINER, TWIN, ACTORS = PROGRAMS


def output_of(program: str) -> list[str]:
    """Lines that it prints; it says nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_loop_of_the_page_is_the_example_which_runs_elsewhere() -> None:
    assert (ROOT / "examples" / "own_loop.py").read_text(encoding="utf-8") == LOOP


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_program_with_an_event_loop_runs() -> None:
    first, second, last = output_of(ASYNCHRONOUS)
    for line in (first, second):
        assert re.fullmatch(r"1 \[(\d\.\d+(, )?){4}\]", line), line
    workers, previews = map(int, last.split())
    assert workers == 2 and previews > 0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_loop_with_a_loss_of_the_box_trains() -> None:
    lines = output_of(TRAINER)
    assert [line.partition(": loss ")[0] for line in lines] == ["step 0", "step 1", "step 2"]
    assert all(float(line.split()[-1]) > 0 for line in lines)


def test_the_application_of_the_page_has_the_routes_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPOTLIGHT_TWIN_TOKEN", "a-token-of-the-clients")
    names: dict[str, Any] = {}
    exec(TWIN, names)
    routes = {
        f"{max(route.methods - {'HEAD'})} {route.path.partition('/{')[0]}"
        for route in names["app"].routes
    }
    assert routes == set(re.findall(r"`((?:PUT|POST|GET) /[a-z]+)", PAGE))


def test_the_actors_with_messages_of_their_own_take_24_lines_and_talk() -> None:
    assert output_of(ACTORS) == ["Total(value=2)"]
    body = [line for line in ACTORS.splitlines() if line and "import" not in line]
    assert len(body) <= 24
