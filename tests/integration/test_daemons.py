"""The daemons by hand: a coordinator, nodes, `submit`, `status`, `cancel`."""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
from pathlib import Path

import pytest

from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.transport.control.keys import KeyPair
from spotlight_simulation.ports import unused_port
from tests.integration.conftest import Workplace, events, metrics, wait_until


def _token(place: str = "127.0.0.1:1") -> str:
    """One of a coordinator that is not there."""
    return str(JoinToken(place, KeyPair.derived(b"nobody").public, "nobody", bytes(SECRET_BYTES)))


def _coordinator(workplace: Workplace, listen: str = "127.0.0.1:0", *options: str) -> str:
    address_file = workplace.folder / "address"
    workplace.daemon(
        "coordinator", "--listen", listen, "--address-file", address_file,
        "--runs", workplace.folder / "runs", *options,
    )  # fmt: skip
    wait_until(address_file.exists, "the coordinator")
    return address_file.read_text()


def _node(workplace: Workplace, name: str, pool: str, *options: str) -> None:
    workplace.daemon(
        "node", "--name", name, "--pool", pool,
        "--logs", workplace.folder / "logs", *options,
    )  # fmt: skip


def _status(workplace: Workplace) -> dict[str, object]:
    answer: dict[str, object] = json.loads(workplace.spotlight("status", "--json").output)
    return answer


@pytest.mark.slow
def test_a_job_submitted_by_hand_runs_on_nodes_that_join_at_any_time(
    workplace: Workplace, template: tuple[str, str]
) -> None:
    """They listen on all interfaces, and others reach them by the address that they advertise. What
    they serve is encrypted, where it could be read on the way."""
    advertise = ("--advertise", "127.0.0.1")
    data_port = unused_port()
    data = ("--data-listen", f"0.0.0.0:{data_port}")
    address = _coordinator(workplace, "0.0.0.0:0", *advertise, *data)
    assert address.startswith("tcp://127.0.0.1:")
    submitted = workplace.spotlight("submit", workplace.job())
    assert submitted.code == 0, submitted.errors
    assert _status(workplace)["phase"] == "preparing"

    _node(workplace, "first", "reserved", *template)
    store = workplace.folder / "store"
    store.mkdir()
    options = ("--host", "0.0.0.0", *advertise, "--store", str(store), *template)
    _node(workplace, "second", "spot", *options)

    run = Path(str(_status(workplace)["run_folder"]))
    wait_until(lambda: is_open(data_port), "the data port")
    assert ssl.get_server_certificate(("127.0.0.1", data_port))
    wait_until(lambda: any(store.glob("spotlight-*/weights/*")), "its copy of the weights")
    wait_until(lambda: bool(events(run, "run_finished")), "the end of the job")
    assert len(metrics(run, "iteration")) == 2
    assert {event["node"] for event in events(run, "node_joined")} == {"first", "second"}


def test_a_node_says_at_once_where_its_workers_log_and_leaves_it_there_when_it_is_killed(
    workplace: Workplace,
) -> None:
    _coordinator(workplace)
    state = workplace.folder / "state"
    script = Path(__file__).parents[2] / "bin" / "spotlight-node"
    node = workplace.start(
        sys.executable, script, "--name", "mine", "--pool", "spot",
        "--store", str(workplace.folder),
        env={**os.environ, "XDG_STATE_HOME": str(state)},
    )  # fmt: skip
    assert node.stdout is not None
    first = json.loads(node.stdout.readline())
    logs = Path(first["worker_logs"])
    assert (first["event"], logs.parent) == ("node_starts", state / "spotlight" / "logs")
    wait_until((logs / "mine-0.log").exists, "the log of its worker")
    node.kill()
    node.wait()
    assert (logs / "mine-0.log").exists()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("daemon", ["coordinator", "node"])
@pytest.mark.slow
def test_a_data_port_that_is_taken_is_one_clear_line(workplace: Workplace, daemon: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        others = {"coordinator": ("--listen", "127.0.0.1:0"), "node": ("--join", _token())}[daemon]
        started = workplace.daemon(daemon, "--data-listen", place, *others)
        output = started.communicate(timeout=120)[0]
    assert started.returncode == 2
    assert f"--data-listen {place}" in output.splitlines()[-1]
    assert "in use" in output.splitlines()[-1]
    assert "Traceback" not in output


def test_a_store_that_cannot_be_used_is_one_clear_line(workplace: Workplace) -> None:
    missing = workplace.folder / "missing"
    node = workplace.daemon("node", "--store", missing)
    output = node.communicate(timeout=120)[0]
    assert (node.returncode, output.count("\n")) == (2, 1)
    assert f"--store {missing}: No such file or directory" in output
    run = workplace.spotlight("run", workplace.job(), "--store", missing)
    assert (run.code, run.errors.count("\n")) == (2, 1)
    assert f"--store {missing}: No such file or directory" in run.errors
    assert not (workplace.folder / "runs").exists()


def test_a_node_that_others_reach_offers_ucx_on_a_private_network_alone(
    workplace: Workplace,
) -> None:
    started = workplace.daemon("node", "--host", "0.0.0.0", "--advertise", "10.0.0.1", "--data-ucx")
    output = started.communicate(timeout=120)[0]
    assert started.returncode == 2
    assert "--data-ucx: UCX does not encrypt, and other machines" in output.splitlines()[-1]
    assert "give --data-plain" in output.splitlines()[-1]
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_job_waits_until_the_one_before_it_is_cancelled(workplace: Workplace) -> None:
    _coordinator(workplace)
    _node(workplace, "only", "reserved")
    long = workplace.job("long.yaml", name="long", iterations=1000)
    assert workplace.spotlight("submit", long).code == 0
    run = workplace.folder / "runs" / "long-001"
    wait_until(lambda: bool(events(run, "checkpoint_saved")), "the first checkpoint")

    assert workplace.spotlight("submit", workplace.job()).code == 0
    jobs = json.loads(workplace.spotlight("list", "--json").output)
    assert [(job["name"], job["state"]) for job in jobs] == [
        ("long", "running"),
        ("small", "queued"),
    ]

    assert workplace.spotlight("cancel", "long").code == 0
    assert workplace.spotlight("watch", "small").code == 0
    after = workplace.folder / "runs" / "small-001"
    assert events(after, "run_finished")[0]["outcome"] == "finished"


def test_a_refused_submission_is_one_line_and_leaves_nothing(workplace: Workplace) -> None:
    _coordinator(workplace)
    job = workplace.job(prompts={"train": "/proc/self/environ"})
    refused = workplace.spotlight("submit", job, "--run-folder", "runs/run")
    assert refused.code == 2
    (line,) = refused.errors.splitlines()
    assert "prompts.train" in line and "does not have the length" in line
    assert [path.name for path in workplace.folder.glob("runs/[!.]*")] == ["operator.token"]


@pytest.mark.parametrize(
    ("daemon", "option", "value", "problem"),
    [
        ("node", "--join", _token("no.invalid:7070"), ": the host `no.invalid` cannot be found"),
        ("node", "--host", "no.invalid", ": cannot bind tcp://no.invalid:0"),
        ("coordinator", "--listen", "no.invalid:0", ": cannot bind tcp://no.invalid:0"),
        ("coordinator", "--data-listen", "no.invalid:0", " no.invalid:0: Name or service not"),
    ],
)
@pytest.mark.slow
def test_an_address_that_leads_nowhere_is_one_line_that_names_its_option(
    workplace: Workplace, daemon: str, option: str, value: str, problem: str
) -> None:
    others = {"coordinator": ("--listen", "127.0.0.1:0"), "node": ("--join", _token())}[daemon]
    started = workplace.daemon(daemon, *others, option, value)
    output = started.communicate(timeout=120)[0]

    assert started.returncode == 2
    assert f"{option}{problem}" in output.splitlines()[-1]
    assert "Traceback" not in output


def test_a_port_in_use_is_one_clear_line(workplace: Workplace) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        daemon = workplace.daemon("coordinator", "--listen", f"127.0.0.1:{port}")
        output = daemon.communicate(timeout=120)[0]

    assert daemon.returncode == 2
    assert f"--listen: tcp://127.0.0.1:{port} is in use" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("daemon", "option", "value"),
    [("coordinator", "--listen", "0.0.0.0:0"), ("node", "--host", "0.0.0.0")],
)
@pytest.mark.slow
def test_listening_on_all_interfaces_asks_which_address_others_use(
    workplace: Workplace, daemon: str, option: str, value: str
) -> None:
    started = workplace.daemon(daemon, option, value)
    output = started.communicate(timeout=120)[0]

    assert started.returncode == 2
    assert len(output.splitlines()) == 1
    assert f"{option} {value}" in output
    assert "--advertise" in output


@pytest.mark.parametrize(
    ("daemon", "option", "value", "said"),
    [
        ("coordinator", "--listen", "192.0.2.1:0", "192.0.2.1"),
        ("node", "--host", "192.0.2.1", "192.0.2.1"),
        ("coordinator", "--address-file", "absent/address", "--address-file absent/address: "),
    ],
)
@pytest.mark.slow
def test_what_only_the_system_can_tell_is_one_clear_line_too(
    workplace: Workplace, daemon: str, option: str, value: str, said: str
) -> None:
    others = {"coordinator": ("--listen", "127.0.0.1:0"), "node": ("--join", _token())}[daemon]
    started = workplace.daemon(daemon, *others, option, value)
    output = started.communicate(timeout=120)[0]

    assert started.returncode == 2
    assert said in output.splitlines()[-1]
    assert "give a" in output.splitlines()[-1]
    assert "Traceback" not in output


def test_a_node_whose_name_cannot_be_part_of_a_path_is_told_so(workplace: Workplace) -> None:
    started = workplace.daemon("node", "--name", "../spot\x1b[2J")
    output = started.communicate(timeout=120)[0]

    assert started.returncode == 2
    assert len(output.splitlines()) == 1
    assert output.strip().isprintable()
    assert "--name" in output


def test_no_coordinator_at_the_address_is_one_clear_line(workplace: Workplace) -> None:
    done = workplace.spotlight("status", "--join", _token())

    assert (done.code, done.errors.count("\n")) == (2, 1)
    assert "no answer from 127.0.0.1:1" in done.errors
    assert "is spotlight-coordinator running there?" in done.errors
