"""What the operator of a daemon allows, and what jobs may then name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from spotlight.errors import JobError, UserError
from spotlight.jobs import JobSpec, job_from_data
from spotlight.jobs.remote_rewards import HttpSpec
from spotlight.permissions import Permissions, RewardSecret, is_link_local

FILE, HOST = "/run/token", "scores.example.org"


def job(**changes: Any) -> JobSpec:
    data: dict[str, Any] = {
        "name": "small",
        "model": {"checkpoint": "builtin:ocr-tiny"},
        "prompts": {"train": "builtin:ocr-tiny/train", "validation": "builtin:ocr-tiny/validation"},
        "sampler": {"height": 16, "width": 48, "kind": "ode", "steps": 2},
    }
    return job_from_data({**data, **changes})


def http(url: str = f"https://{HOST}/score", **fields: Any) -> HttpSpec:
    return HttpSpec(url=url, **fields)


OWN = job(
    rewards=[{"kind": "python", "python": "my_rewards.parts:Ink"}],
    validation={"rewards": [{"kind": "python", "name": "b", "python": "checks:Other"}]},
    training={"loss": "my_losses:Loss"},
    trackers=[{"kind": "tensorboard"}, {"kind": "my_trackers:Mine"}],
)


@pytest.mark.parametrize(
    ("code", "field"),
    [
        ((), "rewards[0].python"),
        (("my_rewards",), "validation.rewards[0].python"),
        (("my_rewards.parts", "checks"), "trackers[1].kind"),
        (("my_rewards", "checks", "my_trackers"), "training.loss"),
        (("my_reward", "my_rewards.part", "parts"), "rewards[0].python"),
    ],
)
def test_every_place_that_names_code_is_refused_with_its_field(
    code: tuple[str, ...], field: str
) -> None:
    with pytest.raises(JobError) as refused:
        Permissions(code=code).require(OWN)
    assert refused.value.path == field
    assert "--allow-code " in refused.value.problem and "\n" not in refused.value.problem


def test_code_of_allowed_packages_and_of_spotlight_may_run() -> None:
    Permissions(code=("my_rewards", "checks", "my_trackers", "my_losses")).require(OWN)
    Permissions().require(job(training={"loss": "awm"}))
    with pytest.raises(JobError, match="rewards"):
        Permissions().require(OWN.work)


def test_a_job_of_the_users_own_may_do_what_it_names() -> None:
    secret = {"url": f"http://{HOST}:81/x", "authorization_file": FILE}
    mine = job(rewards=[{"kind": "http", "http": secret}], training={"loss": "my_losses:Loss"})
    allowed = Permissions.of(mine)
    allowed.require(mine)
    assert mine.rewards[0].http is not None
    assert allowed.secret_of(mine.rewards[0].http) == RewardSecret(host=f"{HOST}:81", file=FILE)
    assert msgspec.json.decode(msgspec.json.encode(allowed), type=Permissions) == allowed
    with pytest.raises(UserError, match="may not be sent to"):
        allowed.secret_of(http(authorization_file=FILE))


@pytest.mark.parametrize(
    ("url", "is_right"),
    [
        (f"https://{HOST}/score", True),
        (f"https://{HOST.upper()}:443/score?x=1", True),
        (f"http://{HOST}/score", False),
        (f"https://{HOST}:444/score", False),
        (f"https://evil.org/{HOST}:443", False),
        (f"https://{HOST}.evil.org/", False),
    ],
)
def test_a_secret_goes_to_its_host_and_nowhere_else(url: str, is_right: bool) -> None:
    allowed = Permissions.parse((), [f"token={FILE}@{HOST}:443"])
    endpoint = http(url, secret="token")
    if is_right:
        assert allowed.secret_of(endpoint) == RewardSecret(
            name="token", file=FILE, host=f"{HOST}:443"
        )
        return
    with pytest.raises(UserError, match=r"secret: `token` may not be sent to .*--reward-secret"):
        allowed.secret_of(endpoint)


@pytest.mark.parametrize(
    "fields",
    [
        {"secret": "other"},
        {"authorization_file": "/etc/shadow"},
        {"authorization_variable": "HOME"},
    ],
)
def test_what_the_operator_did_not_name_is_refused_with_the_flag(fields: dict[str, str]) -> None:
    allowed = Permissions.parse((), [f"token={FILE}@{HOST}"])
    with pytest.raises(UserError) as refused:
        allowed.secret_of(http(**fields))
    (field,) = fields
    assert str(refused.value).startswith(f"{field}: ")
    assert f"FILE@{HOST}:443" in str(refused.value)
    assert allowed.secret_of(http()) is None


@pytest.mark.parametrize("text", ["", "a", "a=b", "a=@b", "a=b@", "=b@c", "a=b@c/d", "a=b@c d"])
def test_a_malformed_secret_names_the_option(text: str) -> None:
    with pytest.raises(UserError, match="--reward-secret"):
        Permissions.parse((), [text])


@pytest.mark.parametrize("text", ["", "a b", "a:B", "../a", "a/b", "1a", "a."])
def test_what_is_no_package_names_the_option(text: str) -> None:
    with pytest.raises(UserError, match="--allow-code"):
        Permissions.parse([text], ())


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        ("169.254.169.254", True),
        ("fe80::1", True),
        ("fe80::1%eth0", True),
        ("[fe80::1]", True),
        ("::ffff:169.254.1.1", True),
        ("100.100.100.200", True),
        ("fd00:ec2::254", True),
        ("127.0.0.1", False),
        ("10.0.0.5", False),
        ("::1", False),
        ("metadata.google.internal", False),
    ],
)
def test_addresses_of_one_link_and_of_metadata_services_are_known(
    address: str, is_one: bool
) -> None:
    assert is_link_local(address) is is_one
