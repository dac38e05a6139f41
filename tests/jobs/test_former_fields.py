"""A job of an earlier version is read, or refused by the field that went and who reads it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from smallest_job import SMALLEST, with_field

from spotlight import __version__
from spotlight.errors import JobError
from spotlight.jobs import (
    job_from_data,
    job_of_run,
    job_to_yaml,
    parse_job,
    parse_job_of_run,
)
from spotlight.jobs.former_fields import FORMER, LATER, Former, brought_up
from spotlight.jobs.loading import job_paths
from spotlight.jobs.losses import LOSSES
from spotlight.jobs.stamp import Stamp

TIMES = Former("0.1.0", default=4, to="training.options.times", losses=frozenset({"awm"}))
TABLE = {"training.times": TIMES, "speed": Former("0.1.0", default=1, advice="buy more")}


def given(times: Any = 8, **training: Any) -> dict[str, Any]:
    return {"training": {"times": times, **training}}


def test_a_field_that_moved_is_found_where_it_is_now() -> None:
    before = given(loss="awm", ranks=2)
    after = brought_up(before, TABLE)
    assert after == {"training": {"loss": "awm", "ranks": 2, "options": {"times": 8}}}
    assert before == given(loss="awm", ranks=2), "what was given stays as it is"


def test_a_default_moves_as_well_since_another_may_hold_by_now() -> None:
    assert brought_up(given(4, loss="awm"), TABLE)["training"]["options"] == {"times": 4}


def test_a_field_that_moved_joins_others_that_are_there() -> None:
    data = given(loss="awm", options={"strength": 2})
    assert brought_up(data, TABLE)["training"]["options"] == {"strength": 2, "times": 8}


def test_a_field_that_is_given_in_both_places_is_refused() -> None:
    with pytest.raises(JobError, match=r"^training\.times: is now `training\.options\.times`"):
        brought_up(given(loss="awm", options={"times": 8}), TABLE)


def test_a_field_whose_new_place_is_no_section_is_refused() -> None:
    with pytest.raises(JobError, match="`options` above that is no section"):
        brought_up(given(loss="awm", options=3), TABLE)


@pytest.mark.parametrize("data", [given(4), {"speed": 1}])
def test_a_field_that_asks_for_nothing_is_dropped(data: dict[str, Any]) -> None:
    assert brought_up(data, TABLE) in ({"training": {}}, {})


def test_a_field_that_asks_for_what_is_gone_names_who_reads_it() -> None:
    with pytest.raises(JobError) as caught:
        brought_up({"speed": 2}, TABLE)
    assert str(caught.value) == ("speed: is no field any more; buy more (Spotlight 0.1.0 reads it)")


def test_a_section_that_is_none_is_left_to_the_checks_of_this_version() -> None:
    assert brought_up({"training": 5}, TABLE) == {"training": 5}


def test_no_field_of_today_is_a_former_one_and_every_new_place_is_one() -> None:
    known = job_paths()
    assert not set(FORMER) & set(known)
    assert {field.to for field in FORMER.values() if field.to} <= set(known)


def test_effort_as_everybody_had_it_is_read_and_another_is_refused() -> None:
    assert job_from_data(with_field("exploration.effort", "fixed")) == job_from_data(SMALLEST)
    with pytest.raises(JobError, match=r"^exploration\.effort: is no .*Spotlight before 0\.1\.0"):
        job_from_data(with_field("exploration.effort", "auto"))


def test_a_former_field_can_be_set_from_the_command_line() -> None:
    text = yaml.safe_dump(SMALLEST)
    assert parse_job(text, changes=["exploration.effort=fixed"]) == job_from_data(SMALLEST)


NEW_NAMES = {
    "nft_strength": ("strength", 1.0, 0.1),
    "nft_times": ("times", 4, 8),
    "nft_noisiest": ("noisiest", 1.0, 0.5),
    "nft_shared_noise": ("shared_noise", False, True),
    "awm_kl": ("old_kl", 1.0, 2.0),
    "clip_range": ("clip_range", None, 0.2),
}
"""Of the fields that are options of losses since then: the name, the default, and another value."""
LOSSES_THEN = ("diffusion_nft", "flow_grpo", "grpo_guard", "awm")
DEFAULTS = {field: default for field, (_, default, _) in NEW_NAMES.items()}


@pytest.mark.parametrize("field", NEW_NAMES)
@pytest.mark.parametrize("loss", LOSSES_THEN)
def test_a_field_of_one_loss_is_an_option_of_those_that_had_it(loss: str, field: str) -> None:
    option, _, value = NEW_NAMES[field]
    training = {"loss": loss, field: value}
    if option in LOSSES[loss].options.__struct_fields__:
        assert brought_up({"training": training})["training"] == {
            "loss": loss,
            "options": {option: value},
        }
        return
    with pytest.raises(JobError) as refused:
        brought_up({"training": training})
    assert str(refused.value) == (
        f"training.{field}: is no field any more; put it under `training.options` if your loss"
        " takes it, or leave it out (Spotlight 0.1.0 reads it)"
    )


@pytest.mark.parametrize("loss", [*LOSSES_THEN, "my_losses:Mine"])
def test_a_run_that_says_every_field_has_the_options_that_it_had(loss: str) -> None:
    kind = LOSSES[loss].samplers[-1] if loss in LOSSES else "ode"
    data = with_field("sampler.kind", kind)
    job = job_from_data({**data, "training": {"loss": loss, **DEFAULTS}})
    assert job == job_from_data({**data, "training": {"loss": loss}})


def test_what_a_loss_of_the_users_own_was_told_of_its_rows_stays() -> None:
    training = {"loss": "my_losses:Mine", **DEFAULTS, "nft_times": 8}
    assert brought_up({"training": training})["training"]["options"] == {"times": 8}
    with pytest.raises(JobError, match=r"^training\.clip_range: is no field any more"):
        brought_up({"training": {"loss": "my_losses:Mine", "clip_range": 0.2}})


# --- what a run did before a field was there ---


def test_a_run_of_before_goes_on_to_train_with_the_guidance_of_its_rollouts() -> None:
    guided = with_field("sampler.guidance", 4.5)
    said = with_field("training.loss", "diffusion_nft", guided)
    before = copy.deepcopy(said)
    assert job_of_run(said).training.guidance == 4.5
    assert said == before, "what was given stays as it is"
    assert parse_job_of_run(yaml.safe_dump(said), source="run").training.guidance == 4.5
    assert job_from_data(said).training.guidance is None, "a job is none of before"


def test_a_run_of_today_keeps_to_the_guidance_that_follows_from_its_loss() -> None:
    job = job_from_data(with_field("sampler.guidance", 4.5))
    assert parse_job_of_run(job_to_yaml(job), source="run") == job


def test_fields_that_came_later_and_what_decided_them_are_fields_of_today() -> None:
    assert {*LATER, *LATER.values()} <= set(job_paths())


# --- who wrote a file ---


def test_a_job_with_a_stamp_is_the_job() -> None:
    job = job_from_data(SMALLEST)
    text = job_to_yaml(job, Stamp(version=__version__, run="r1"))
    assert text.startswith(f"spotlight:\n  version: {__version__}\n  run: r1\nname:")
    assert parse_job(text) == job


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("exploration.hurry", 1, "exploration.hurry: unknown key"),
        ("model.tuning", "half", "model.tuning: must be `full` or `lora`"),
    ],
)
def test_what_a_newer_version_wrote_is_refused_with_its_name(
    field: str, value: Any, problem: str
) -> None:
    data = with_field(field, value) | {"spotlight": {"version": "9.1.0"}}
    with pytest.raises(JobError) as caught:
        job_from_data(data)
    text = str(caught.value)
    assert text.startswith(problem)
    assert text.endswith(f"(Spotlight 9.1.0 wrote this, and reads it; this is {__version__})")


def test_what_this_version_wrote_needs_no_other() -> None:
    data = with_field("exploration.hurry", 1) | {"spotlight": {"version": __version__}}
    with pytest.raises(JobError) as caught:
        job_from_data(data)
    assert "wrote this" not in str(caught.value)


@pytest.mark.parametrize("stamp", [3, "0.1.0", {"version": 1}, {"author": "me"}])
def test_a_stamp_that_is_none_is_refused(stamp: Any) -> None:
    with pytest.raises(JobError, match=r"^spotlight: is written by Spotlight itself"):
        job_from_data({**SMALLEST, "spotlight": stamp})
