"""Jobs in YAML: what is written is read back, and what cannot be read is named with its file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from smallest_job import SMALLEST, with_field

from spotlight.errors import JobError
from spotlight.jobs import (
    LARGEST_JOB_FILE,
    JobSpec,
    job_from_data,
    job_to_yaml,
    load_job,
    parse_job,
)


def test_a_job_survives_the_way_through_yaml() -> None:
    data = with_field("sampler.shift", 1e-5, with_field("training.learning_rate", 1e-7))
    job = job_from_data(with_field("model.lora.targets", ["to_q"], data))
    text = job_to_yaml(job)
    assert parse_job(text) == job
    assert job_to_yaml(parse_job(text)) == text


def test_the_yaml_of_a_job_shows_every_default() -> None:
    written = yaml.safe_load(job_to_yaml(job_from_data(SMALLEST)))
    assert set(written) == set(JobSpec.__struct_fields__)
    assert written["pools"]["spot"] == {"nodes": 1, "workers": 1}
    assert written["sampler"]["shift"] is None


def test_a_byte_order_mark_before_a_job_is_none_of_it(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(SMALLEST), encoding="utf-8-sig")
    assert load_job(tmp_path / "job.yaml").name == SMALLEST["name"]


@pytest.mark.parametrize("number", ["1e-4", "1E-4", "+1e-4", "1.0e-4", ".1e-3", "0.0001"])
def test_numbers_with_an_exponent_are_numbers(number: str) -> None:
    text = yaml.safe_dump(SMALLEST) + f"training:\n  learning_rate: {number}\n"
    assert parse_job(text).training.learning_rate == pytest.approx(1e-4)


def test_yaml_that_does_not_parse_is_refused_with_file_and_line() -> None:
    with pytest.raises(JobError, match=r"^job\.yaml: is not valid YAML at line 2"):
        parse_job("name: x\nmodel: [", source="job.yaml")


def test_a_key_given_twice_is_refused_with_its_line() -> None:
    text = yaml.safe_dump(SMALLEST) + "iterations: 3\niterations: 4\n"
    with pytest.raises(JobError, match=r"at line \d+: key `iterations` is given twice"):
        parse_job(text)


@pytest.mark.parametrize("text", ["", "just words", "- a\n- b", "3"])
def test_yaml_that_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(JobError, match="must hold a mapping"):
        parse_job(text)


def test_yaml_cannot_make_objects() -> None:
    with pytest.raises(JobError, match="is not valid YAML"):
        parse_job("name: !!python/object/apply:os.system ['true']")


def test_relative_paths_start_from_the_job_file(tmp_path: Path) -> None:
    data = with_field("prompts.train", "train.txt", with_field("model.checkpoint", "../model"))
    file = tmp_path / "jobs" / "job.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(data))
    job = load_job(file)
    assert job.prompts.train == str(tmp_path / "jobs" / "train.txt")
    assert job.model.checkpoint == str(tmp_path / "model")
    assert job.prompts.validation == "builtin:ocr-tiny/validation"


def test_a_path_may_start_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    job = parse_job(yaml.safe_dump(with_field("model.checkpoint", "~/model")), base=Path("/jobs"))
    assert job.model.checkpoint == str(tmp_path / "model")


@pytest.mark.parametrize("path", ["model.checkpoint", "prompts.train", "prompts.validation"])
def test_the_home_of_nobody_is_refused_with_its_field(tmp_path: Path, path: str) -> None:
    name = "~no-such-user/file"
    data = with_field(path, name)
    with pytest.raises(JobError, match=f"^{path}: `{name}` does not lead anywhere"):
        parse_job(yaml.safe_dump(data), base=tmp_path)


@pytest.mark.parametrize("base", ["/" + "x" * 4090, "/a\nb", "/a\udcff"])
def test_a_path_that_becomes_one_that_cannot_be_is_refused(base: str) -> None:
    data = with_field("prompts.train", "train.txt")
    with pytest.raises(JobError, match=r"^prompts\.train: `train\.txt` leads to a path that must"):
        parse_job(yaml.safe_dump(data), base=Path(base))


def test_links_in_a_circle_are_refused_with_their_field(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(JobError, match=r"^prompts\.train: "):
        parse_job(yaml.safe_dump(with_field("prompts.train", "circle/file")), base=tmp_path)


def test_a_job_file_of_twenty_megabytes_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(SMALLEST) + "# much ado\n" * 2_000_000)
    with pytest.raises(JobError, match=r"job\.yaml: has 22,000,[0-9]+ bytes"):
        load_job(file)


def test_the_largest_job_fits_into_a_job_file() -> None:
    """So that a run that it began can be resumed."""
    longest = "/" + "\N{GRINNING FACE}" * 1023
    data = {
        **SMALLEST,
        "model": {"checkpoint": longest, "lora": {"targets": ["x" * 200] * 1000}},
        "prompts": {"train": longest, "validation": longest},
    }
    assert len(job_to_yaml(job_from_data(data))) < LARGEST_JOB_FILE


def test_a_job_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"none\.yaml: cannot be read \(No such file"):
        load_job(tmp_path / "none.yaml")


def test_a_job_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobError, match="is not UTF-8 text"):
        load_job(file)
