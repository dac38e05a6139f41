"""How a process finds the coordinator that it is to join."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.errors import (
    ActorError,
    AskTimeout,
    NotAdmitted,
    NotAllowed,
    PeerUnreachable,
    UserError,
)
from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.running.join_option import VARIABLE, resolve, transport_of, unreached
from spotlight.store.secret_files import write_secret_file
from spotlight.transport.control.keys import KeyPair, key_of


def token(number: int, place: str = "127.0.0.1:7070") -> JoinToken:
    return JoinToken(place, KeyPair.new().public, f"token{number}", bytes([number] * SECRET_BYTES))


@pytest.fixture(autouse=True)
def nothing_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)


def test_what_is_given_comes_before_the_environment_and_that_before_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, fourth = map(token, range(4))
    (tmp_path / "runs").mkdir()
    write_secret_file(tmp_path / "runs" / "operator.token", str(fourth))
    write_secret_file(tmp_path / "other", str(second))
    assert resolve("--join", "") == fourth
    monkeypatch.setenv(VARIABLE, str(third))
    assert resolve("--join", "") == third
    monkeypatch.setenv(VARIABLE, "@other")
    assert resolve("--join", "") == second
    assert resolve("--join", str(first)) == first
    assert resolve("--join", f"@{tmp_path / 'other'}") == second


def test_without_any_it_is_said_what_to_do() -> None:
    with pytest.raises(UserError, match="--join: there is no join token; give one as --join TOKEN"):
        resolve("--join", "")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("10.0.0.1:7070", "--join: this is no join token"),
        ("tcp://10.0.0.1:7070", "--join: this is no join token"),
        ("@absent", "--join: absent cannot be read"),
        ("@", "--join: . is a folder, not a file"),
        ("@open", r"--join: open is open to others \(mode 0644\)"),
        ("@garbage", "--join: this is no join token"),
    ],
)
def test_what_is_none_is_one_line_that_shows_no_secret(
    tmp_path: Path, given: str, problem: str
) -> None:
    (tmp_path / "open").write_text(str(token(1)))
    (tmp_path / "open").chmod(0o644)
    write_secret_file(tmp_path / "garbage", "hush")
    with pytest.raises(UserError, match=problem) as error:
        resolve("--join", given)
    assert "\n" not in str(error.value)
    assert not any(word in str(error.value) for word in ("hush", str(token(1))[-22:]))


def test_a_mistyped_token_of_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sl1.nothing")
    with pytest.raises(UserError, match=f"{VARIABLE}: this is no join token"):
        resolve("--join", "")


def test_two_who_have_the_same_token_have_two_addresses_wherever_they_are() -> None:
    join = token(1)
    addresses = {transport_of(join).address for _ in range(8)}
    assert len(addresses) == 8
    assert {key_of(address) for address in addresses} == {join.keys.public}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotAdmitted("x"), r"at 127\.0\.0\.1:7070 does not know this join token \(token1\)"),
        (NotAllowed("x"), r"this join token \(token1\) does not allow that"),
        (PeerUnreachable("refused"), r"no answer from 127\.0\.0\.1:7070 \(refused\)"),
        (AskTimeout("x"), "is spotlight-coordinator running there"),
    ],
)
def test_a_user_is_told_what_to_do_about_each_silence(error: ActorError, said: str) -> None:
    with pytest.raises(UserError, match=said):
        raise unreached(token(1), error)
