"""`spotlight serve-reward` as a process, and a job's scorer that asks it."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from spotlight.errors import ScoringError
from spotlight.jobs import RewardSpec
from spotlight.jobs.remote_rewards import HttpSpec
from spotlight.permissions import Permissions, RewardSecret
from spotlight.rewards.base import build_scorer
from spotlight.types import Prompt
from tests.rewards.serving.served import Mean

ROOT = Path(__file__).resolve().parents[3]
IMAGES = np.random.default_rng(1).integers(0, 256, (3, 8, 8, 3)).astype(np.uint8)
PROMPTS = [Prompt("a")] * 3
LIMIT_S = 40
SERVED = "tests.rewards.serving.served"


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spotlight.cli", "serve-reward", "--port", "0", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = start(*arguments, **environment)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("serving "), process.communicate(timeout=LIMIT_S)
        yield line.split()[-1], process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def health(url: str) -> Any:
    return httpx2.get(url.replace("/score", "/health")).json()


def reward(url: str, **options: object) -> RewardSpec:
    return RewardSpec(kind="http", http=HttpSpec(url=url, **options), range=None)  # type: ignore[arg-type]


def test_a_job_has_its_images_scored_by_a_class_in_another_process() -> None:
    with serving(f"{SERVED}:Mean", "--options", '{"scale": 20}') as (url, process):
        rewards = build_scorer(reward(url)).score(IMAGES, PROMPTS)
        assert rewards == Mean(20).score(IMAGES, PROMPTS)
        assert health(url)["scored"] == 3
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out, errors) == (0, "", "")


def test_the_authorization_may_come_from_a_file_on_one_side_and_a_variable_on_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "authorization"
    file.write_text("Bearer sesame\n")
    monkeypatch.setenv("OF_THE_JOB", "Bearer sesame")
    with serving(f"{SERVED}:Mean", "--authorization-file", str(file)) as (url, _):
        secret = RewardSecret(host="127.0.0.1", variable="OF_THE_JOB")
        known = build_scorer(
            reward(url, authorization_variable="OF_THE_JOB"), Permissions(secrets=(secret,))
        )
        assert known.score(IMAGES, PROMPTS) == Mean().score(IMAGES, PROMPTS)
        with pytest.raises(ScoringError, match="status 401"):
            build_scorer(reward(url)).score(IMAGES, PROMPTS)


def test_a_scorer_that_hangs_is_an_error_at_the_deadline_and_the_server_still_ends() -> None:
    with serving(f"{SERVED}:Hangs") as (url, process):
        with pytest.raises(ScoringError, match=r"no answer within 0\.5 s"):
            build_scorer(reward(url, timeout_s=0.5, attempts=1)).score(IMAGES, PROMPTS)
        assert health(url)["scoring"] == 3
        process.terminate()
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0


def test_what_its_client_has_given_up_is_not_scored_any_more() -> None:
    with serving(f"{SERVED}:Hangs") as (url, _):
        for _ in range(2):  # the scorer has the first request for ever, the second one waits
            with pytest.raises(ScoringError, match="no answer"):
                build_scorer(reward(url, timeout_s=0.5, attempts=1)).score(IMAGES, PROMPTS)
        deadline = time.monotonic() + LIMIT_S
        while health(url)["waiting"] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert health(url) == {
            "version": 1,
            "scorer": f"{SERVED}:Hangs",
            "waiting": 0,
            "scoring": 3,
            "scored": 0,
            "failed": 0,
        }


def test_a_killed_server_costs_an_error_and_not_a_reward() -> None:
    with serving(f"{SERVED}:Hangs") as (url, process):
        threading.Timer(0.5, process.kill).start()
        with pytest.raises(ScoringError, match=r"Re(ad|mote)|Connect"):
            build_scorer(reward(url, attempts=1)).score(IMAGES, PROMPTS)


REFUSALS: list[tuple[list[str], str]] = [
    (["no_such_module:Mean"], "no_such_module"),
    ([f"{SERVED}:Maen"], "did you mean `Mean`"),
    ([f"{SERVED}:Mean", "--options", '{"size": 3}'], "size"),
    ([f"{SERVED}:Mean", "--options", "3"], "--options is not a JSON object"),
    (["not a name"], "not a name"),
    ([f"{SERVED}:Mean", "--host", "256.0.0.1"], "256.0.0.1"),
    ([f"{SERVED}:Mean", "--authorization-variable", "NOT_THERE"], "NOT_THERE"),
    (["ocr", "--options", '{"size": 3}'], "options"),
    ([f"{SERVED}:Mean", "--host", "0.0.0.0"], "--authorization-file"),
    ([f"{SERVED}:Mean", "--host", "0.0.0.0", "--plain"], "--authorization-file"),
    (
        [f"{SERVED}:Mean", "--host", "0.0.0.0", "--authorization-variable", "HOME"],
        "--certificate and --key, or --plain",
    ),
    ([f"{SERVED}:Mean", "--certificate", "a"], "--certificate and --key, or neither"),
    ([f"{SERVED}:Mean", "--certificate", "a", "--key", "b"], "--certificate a, --key b: they"),
]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [*REFUSALS[:3], *(pytest.param(*each, marks=pytest.mark.slow) for each in REFUSALS[3:])],
)
def test_what_cannot_be_served_is_one_line(arguments: list[str], problem: str) -> None:
    process = start(*arguments)
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert out == ""
    [line] = errors.splitlines()
    assert line.startswith("spotlight: ")
    assert problem in line


def test_with_a_certificate_it_speaks_tls_and_nothing_else(tmp_path: Path) -> None:
    files = tmp_path / "key.pem", tmp_path / "certificate.pem"
    key, certificate = (str(file) for file in files)
    subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -addext"
        f" subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    with serving(f"{SERVED}:Mean", "--certificate", certificate, "--key", key) as (url, _):
        assert url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=certificate)
        answer = httpx2.get(url.replace("/score", "/health"), verify=trusting)
        assert answer.json()["scorer"] == f"{SERVED}:Mean"
        with pytest.raises(httpx2.TransportError):
            health(url)
        with pytest.raises(httpx2.TransportError):
            health(url.replace("https", "http"))


def test_a_page_in_a_browser_gets_nothing_whatever_name_it_has_for_loopback() -> None:
    with serving(f"{SERVED}:Mean") as (url, _):
        for said, status in (
            ({"Host": "evil.example"}, 421),
            ({"Origin": "http://evil.example"}, 403),
        ):
            for method in ("GET", "POST"):
                answer = httpx2.request(
                    method, url, headers=said, content=b"{}" * (method == "POST")
                )
                assert (answer.status_code, answer.json().keys()) == (status, {"error"})


def test_a_port_that_is_taken_is_one_line() -> None:
    with serving(f"{SERVED}:Mean") as (url, _):
        port = url.rpartition(":")[2].partition("/")[0]
        process = start(f"{SERVED}:Mean", "--port", port)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert f"127.0.0.1:{port}" in errors
    assert len(errors.splitlines()) == 1
