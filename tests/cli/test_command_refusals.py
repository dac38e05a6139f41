"""What a command refuses before it does anything, in one line."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import structlog

from spotlight.cli import daemons
from spotlight.cli.app import main
from spotlight.errors import AskTimeout
from spotlight.jobs import job_to_yaml
from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.running import local_run
from spotlight.transport.control.keys import KeyPair
from tests.small_run import small_job, write_run


def token(place: str) -> str:
    """One of a coordinator that is not there."""
    return str(JoinToken(place, KeyPair.new().public, "nobody", bytes(SECRET_BYTES)))


EXTRAS = {"torch", "diffusers", "safetensors", "numpy", "PIL", "psutil", "onnxruntime"}


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command sets up the logs of its process, which here is that of all tests."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        pytest.fail(f"something was started: {arguments}")

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(daemons, "run", fail)


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The one line with which `spotlight` answers these words."""

    def refuse(*words: str | Path, entry: Any = main, plan: bool = False) -> str:
        monkeypatch.setattr(sys, "argv", ["spotlight", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            entry()
        assert ended.value.code == 2
        output = capsys.readouterr()
        assert bool(output.out) == plan and len(output.err.splitlines()) == 1, output.err
        return output.err

    return refuse


def test_a_run_that_is_resumed_cannot_move(refusal: Any, tmp_path: Path) -> None:
    line = refusal("run", "--resume", tmp_path, "--run-folder", tmp_path / "other")
    assert "--run-folder: a run that is resumed stays in its folder" in line


@pytest.mark.parametrize("words", [("run", "--resume"), ("resume",)])
def test_a_change_that_a_run_may_not_have_is_refused(
    refusal: Any, tmp_path: Path, words: tuple[str, ...]
) -> None:
    run = write_run(tmp_path / "run")
    before = {file: file.read_bytes() for file in run.iterdir()}
    for change, problem in (
        ("group_size=4", "--set group_size: was 2 when the run began"),
        ("group_siz=4", "a job has no field `group_siz`; did you mean `group_size`"),
        ("iterations=0", "iterations: must be at least 1"),
    ):
        assert problem in refusal(*words, run, "--set", change)
    assert {file: file.read_bytes() for file in run.iterdir()} == before


def test_what_is_no_run_cannot_be_forked(refusal: Any, tmp_path: Path) -> None:
    line = refusal("fork", tmp_path / "nothing")
    assert "is not a run folder: it has no config.yaml" in line


def test_a_fork_names_an_iteration_that_a_run_has_kept(refusal: Any, tmp_path: Path) -> None:
    line = refusal("fork", f"{write_run(tmp_path / 'run')}@3")
    assert "no checkpoint after 3 iterations; write RUN@ITERATION (none is kept yet)" in line


def test_a_job_that_begins_with_nothing_is_refused(refusal: Any, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(job_to_yaml(small_job()))
    line = refusal("run", job, "--set", f"model.start={tmp_path}", "--run-folder", tmp_path / "run")
    assert "model.start:" in line and "neither a transformer (config.json) nor adapters" in line
    assert not (tmp_path / "run").exists()


def test_a_job_and_a_run_are_not_given_together(refusal: Any, tmp_path: Path) -> None:
    for words in ((), ("job.yaml", "--resume", tmp_path)):
        assert "give either a job file or --resume RUN" in refusal("run", *words)


@pytest.mark.parametrize(
    "option", [("--run-folder", "a\nb"), ("--run-folder", "a\udcff"), ("--run-folder", "x" * 5000)]
)
def test_a_folder_that_cannot_be_is_refused_with_its_option(
    refusal: Any, option: tuple[str, str]
) -> None:
    assert f"{option[0]}: must" in refusal("run", "job.yaml", *option)


def test_a_folder_of_which_no_run_folder_can_be_made_is_named(
    refusal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text(job_to_yaml(small_job()))
    (tmp_path / "a\nb").mkdir()
    monkeypatch.chdir(tmp_path / "a\nb")
    assert "runs/small-001 must not hold control characters" in refusal("run", "../job.yaml")
    assert "--run-folder: must not" in refusal("submit", "../job.yaml", "--run-folder", "run")
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    "command", [("submit", "job.yaml"), ("status",), ("cancel",), ("preempt", "node")]
)
def test_every_command_refuses_what_is_no_join_token(
    refusal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(job_to_yaml(small_job()))
    assert "--join: this is no join token" in refusal(*command, "--join", "10.0.0.1:7070")
    assert "--join: there is no join token; give one as --join TOKEN" in refusal(*command)


def test_a_host_that_nobody_knows_is_not_dialled(refusal: Any) -> None:
    line = refusal("status", "--join", token("no.invalid:7070"))
    assert "--join: the host `no.invalid` cannot be found" in line


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--join", "10.0.0.1:7070", "--join: this is no join token"),
        ("--pool", "spots", "--pool: must be `reserved` or `spot`, not `spots`"),
        ("--advertise", "no.invalid", "--advertise: the host `no.invalid` cannot be"),
        ("--data-listen", "127.0.0.1:x", "--data-listen '127.0.0.1:x': the port"),
        ("--host", "a b", "--host 'a b': names no host"),
    ],
)
def test_a_node_does_not_dial_for_ever_what_is_no_address(
    refusal: Any, option: str, value: str, problem: str
) -> None:
    assert problem in refusal(option, value, entry=daemons.node)


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--listen", "127.0.0.1", "--listen '127.0.0.1': names no port"),
        ("--advertise", "no.invalid:80", "--advertise: the host `no.invalid` cannot be"),
        ("--advertise", "127.0.0.1:0", "--advertise '127.0.0.1:0': the port"),
        ("--data-listen", "http://127.0.0.1:1", "--data-listen 'http://127.0.0.1:1': names no"),
    ],
)
def test_a_coordinator_refuses_what_is_no_address(
    refusal: Any, option: str, value: str, problem: str
) -> None:
    assert problem in refusal(option, value, entry=daemons.coordinator)


@pytest.mark.parametrize(
    ("entry", "option", "value"),
    [
        (daemons.coordinator, "--runs", "file/runs"),
        (daemons.node, "--logs", "file/logs"),
        (daemons.node, "--workers", "257"),
    ],
)
def test_a_daemon_says_which_option_cannot_be(
    refusal: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entry: Any,
    option: str,
    value: str,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPOTLIGHT_JOIN", token("127.0.0.1:1"))
    assert f"{option} {value}: " in refusal(option, value, entry=entry)


def test_a_coordinator_that_is_not_there_is_named(refusal: Any) -> None:
    assert "no answer from 127.0.0.1:1" in refusal("status", "--join", token("127.0.0.1:1"))


def test_a_spot_node_keeps_its_key_in_no_file(refusal: Any, tmp_path: Path) -> None:
    words = ("--join", token("127.0.0.1:1"), "--pool", "spot", "--key-file", tmp_path / "key")
    assert "--key-file: the key of a spot node is in its memory alone" in refusal(
        *words, entry=daemons.node
    )
    assert not list(tmp_path.iterdir())


@pytest.fixture
def plain_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if only what everyone needs were installed."""
    find_spec = importlib.util.find_spec

    def find(name: str) -> ModuleSpec | None:
        return None if name in EXTRAS else find_spec(name)

    monkeypatch.setattr("spotlight.preflight.packages.find_spec", find)


@pytest.mark.usefixtures("plain_wheel")
def test_a_node_says_what_to_install(refusal: Any) -> None:
    line = refusal("--join", token("127.0.0.1:1"), entry=daemons.node)
    assert 'pip install ".[worker]"' in line


@pytest.mark.usefixtures("plain_wheel")
def test_a_run_says_what_to_install(refusal: Any, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(job_to_yaml(small_job()))
    line = refusal("run", tmp_path / "job.yaml", "--run-folder", tmp_path / "run")
    assert 'pip install ".[worker]"' in line and not (tmp_path / "run").exists()


def test_simulated_chaos_loads_nothing_but_the_plain_wheel() -> None:
    code = "import json, sys, spotlight_simulation.command; print(json.dumps(list(sys.modules)))"
    done = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert not EXTRAS & set(json.loads(done.communicate(timeout=60)[0]))


def test_a_coordinator_that_does_not_answer_a_submission_is_one_line(
    refusal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        join = None

        async def submit(self, *arguments: Any, **options: Any) -> None:
            raise AskTimeout("it did not answer within 60 s")

    @asynccontextmanager
    async def cluster(*arguments: Any) -> AsyncIterator[Any]:
        yield Silent()

    monkeypatch.setattr(local_run, "local_cluster", cluster)
    monkeypatch.setattr(local_run, "connect", cluster)
    (tmp_path / "job.yaml").write_text(job_to_yaml(small_job()))
    line = refusal("run", tmp_path / "job.yaml", "--run-folder", tmp_path / "run", plan=True)
    assert "did not accept the job (it did not answer within 60 s); see " in line
    assert str(tmp_path / "run" / "logs" / "coordinator.log") in line


@pytest.mark.parametrize("entry", [main, daemons.coordinator])
def test_a_mirror_that_cannot_be_is_refused_before_anything_starts(
    refusal: Any, entry: Any, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(job_to_yaml(small_job()))
    words = ["run", tmp_path / "job.yaml"] if entry is main else []
    problem = refusal(*words, "--mirror", "http://host/runs", entry=entry)
    assert "--mirror 'http://host/runs'" in problem and "s3://" in problem


def test_a_place_without_a_run_is_not_restored(refusal: Any, tmp_path: Path) -> None:
    problem = refusal("restore", f"file://{tmp_path}/runs", tmp_path / "run")
    assert f"file://{tmp_path}/runs holds no run" in problem
    assert "URL 'runs'" in refusal("restore", "runs", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_plan_is_refused_where_the_gpu_is_too_small_or_unknown(refusal: Any) -> None:
    job = Path(__file__).parents[2] / "examples" / "ocr-tiny.yaml"
    assert "training.activation_checkpointing: " in refusal("plan", job, "--gpu", "2.02g")
    assert "--gpu tpu: is not known" in refusal("plan", job, "--gpu", "tpu")


def test_a_plan_says_what_every_part_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = Path(__file__).parents[2] / "examples" / "ocr-tiny.yaml"
    words = ["spotlight", "plan", str(job), "--gpu", "h100-80g", "--store", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "Memory of h100-80g (85.5 GB)" in said
    for part in (
        "transformer",
        "Adam's moments",
        "while training: activations",
        "most at one time",
    ):
        assert part in said
