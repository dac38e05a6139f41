"""A job file that says something in words of an earlier version is read, and told what to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.cli.job_files import read_job
from spotlight.errors import JobError

JOB = """\
name: small
model: {checkpoint: builtin:ocr-tiny}
prompts: {train: builtin:ocr-tiny/train, validation: builtin:ocr-tiny/validation}
sampler: {height: 16, width: 48}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(f"{JOB}training: {{nft_times: 8, nft_strength: 0.1, awm_kl: 1.0}}\n")
    return path


def test_fields_that_have_moved_are_named_on_one_line(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = read_job(file).training.options
    assert (options["times"], options["strength"]) == (8, 0.1)
    said = capsys.readouterr().err
    assert said == (
        f"spotlight: {file}: `training.nft_strength` is now `training.options.strength`,"
        " `training.nft_times` is now `training.options.times`; write that\n"
    )


def test_one_that_is_set_on_the_command_line_is_named_too(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(JOB)
    job = read_job(file, ["training.nft_noisiest=0.5", "training.options.times=2"])
    assert (job.training.options["noisiest"], job.training.options["times"]) == (0.5, 2)
    assert "`training.nft_noisiest` is now `training.options.noisiest`" in capsys.readouterr().err


def test_of_a_file_in_words_of_today_nothing_is_said(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(JOB)
    read_job(file)
    assert capsys.readouterr().err == ""


def test_a_field_whose_loss_is_another_is_refused_by_name(file: Path) -> None:
    sampler = "sampler: {height: 16, width: 48, kind: cps}"
    text = JOB.replace("sampler: {height: 16, width: 48}", sampler)
    file.write_text(f"{text}training: {{loss: flow_grpo, nft_times: 8}}\n")
    with pytest.raises(JobError, match=r"^training\.nft_times: is no field any more; .*0\.1\.0"):
        read_job(file)
