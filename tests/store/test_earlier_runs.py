"""A run folder is gone on with by later versions, or refused by what is wrong, and kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import yaml
from run_folder_kit import job

from spotlight import __version__
from spotlight.actors.coordinator.tenant.job_journal import SavedProgress
from spotlight.errors import RunFolderError
from spotlight.jobs import job_to_yaml
from spotlight.store.journal import NAME, Journal
from spotlight.store.run_folder import JOB, PROGRESS, RunFolder

EARLIER = Path(__file__).parents[1] / "data" / "runs"


def files(path: Path) -> dict[Path, bytes]:
    found = [file for file in path.rglob("*") if file.is_file() and file.name != ".lock"]
    return {file.relative_to(path): file.read_bytes() for file in found}


def refused(path: Path, *words: str) -> None:
    """In one line with these words, and nothing is changed."""
    before = files(path)
    with pytest.raises(RunFolderError) as caught:
        RunFolder.reopen(path, None)
    text = str(caught.value)
    assert "\n" not in text
    assert [word for word in words if word not in text] == [], text
    assert files(path) == before


def changed(path: Path, change: Callable[[dict], object]) -> None:
    """Edit the job in a folder by hand."""
    data = yaml.safe_load((path / "config.yaml").read_text())
    change(data)
    (path / "config.yaml").write_text(yaml.safe_dump(data))


@pytest.mark.parametrize("version", sorted(path.name for path in EARLIER.iterdir()))
def test_the_run_folder_of_every_release_opens_with_all_that_its_journal_has(
    tmp_path: Path, version: str
) -> None:
    path = tmp_path / "run"
    shutil.copytree(EARLIER / version, path)
    for term in (3, 4):
        folder, spec = RunFolder.reopen(path, None)
        assert (spec.name, folder.journal.term) == ("earlier-run", term)
        progress = [key for key, _ in folder.journal.items(PROGRESS)]
        assert progress == [f"{PROGRESS}000002"]
        assert len(folder.metrics()) == 3
        folder.close()
    assert not (path / "journal.sqlite").exists()


@pytest.mark.parametrize("version", sorted(path.name for path in EARLIER.iterdir()))
def test_the_progress_of_every_release_is_read(tmp_path: Path, version: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(EARLIER / version, path)
    folder, _ = RunFolder.reopen(path, None)
    bodies = [body for _, body in folder.journal.items(PROGRESS)]
    assert [msgspec.json.decode(body, type=SavedProgress).completed for body in bodies] == [2]
    folder.close()


def test_a_folder_names_the_version_and_the_run_as_its_journal_does(path, folder) -> None:
    stamp = yaml.safe_load((path / "config.yaml").read_text())["spotlight"]
    assert stamp == {"version": __version__, "run": folder.journal.owner}
    assert folder.journal.version_of(JOB) == __version__


def test_two_runs_of_one_job_are_told_apart(path, folder, tmp_path) -> None:
    folder.close()
    other = RunFolder.create(tmp_path / "other", job())
    other.close()
    shutil.copy(tmp_path / "other" / NAME, path / NAME)
    refused(path, NAME, "belongs to the run", "put back the one of this run")


def test_a_run_folder_that_was_moved_is_the_same_run(path, folder, tmp_path) -> None:
    folder.close()
    moved = path.rename(tmp_path / "moved")
    RunFolder.reopen(moved, None)[0].close()


def test_a_job_with_another_model_is_refused_by_its_field(path, folder) -> None:
    folder.close()
    changed(path, lambda data: data["model"]["lora"].update(rank=3))
    refused(path, "config.yaml: model.lora.rank: is 3, and was 16 when the run began")


def test_a_job_may_say_anew_how_it_is_trained(path, folder) -> None:
    folder.close()
    changed(path, lambda data: data["training"].update(learning_rate=1e-5, ranks=2))
    again, spec = RunFolder.reopen(path, None)
    again.close()
    assert spec.training.ranks == 2


def test_a_job_whose_file_lacks_a_field_that_is_new_has_its_default(path, folder) -> None:
    """As if the version that began the run had not known it."""
    folder.close()
    changed(path, lambda data: data["exploration"].pop("probes"))
    RunFolder.reopen(path, None)[0].close()


def test_a_job_of_before_0_1_0_is_read_without_what_asked_for_nothing(path, folder) -> None:
    folder.close()
    changed(path, lambda data: (data.pop("spotlight"), data["exploration"].update(effort="fixed")))
    RunFolder.reopen(path, None)[0].close()


def test_a_field_that_went_is_refused_with_the_version_that_reads_it(path, folder) -> None:
    folder.close()
    changed(path, lambda data: data["exploration"].update(effort="auto"))
    refused(path, "exploration.effort: is no field any more", "(Spotlight before 0.1.0 reads it)")


def test_a_folder_of_a_newer_version_is_refused_with_its_name(path, folder) -> None:
    folder.close()

    def newer(data: dict) -> None:
        data["spotlight"]["version"] = "9.1.0"
        data["training"]["speed"] = 2

    changed(path, newer)
    refused(path, "training.speed: unknown key", "Spotlight 9.1.0 wrote this, and reads it")


def test_a_birth_record_that_cannot_be_read_names_who_wrote_it(path, folder) -> None:
    data = msgspec.to_builtins(job()) | {"speed": 2}
    folder.journal.write({JOB: msgspec.json.encode(data)})
    folder.close()
    refused(path, "the job that the run began with cannot be read (speed: unknown key", __version__)


def test_a_journal_of_a_newer_format_is_refused_with_its_version(path, folder) -> None:
    folder.close()
    data = (path / NAME).read_bytes()
    line = b'"spotlight_journal":4,"version":"9.1.0"'
    data = data.replace(b'"spotlight_journal":3,"version":"%b"' % __version__.encode(), line)
    (path / NAME).write_bytes(data)
    refused(path, NAME, "written by Spotlight 9.1.0", "format 4", "resume with 9.1.0")


def test_a_journal_that_is_damaged_in_its_middle_is_refused_with_the_place(path, folder) -> None:
    folder.journal.write({"a": b"1"})
    begin = (path / NAME).stat().st_size
    folder.journal.write({"b": b"2"})
    folder.close()
    data = bytearray((path / NAME).read_bytes())
    data[begin + 20] ^= 1
    (path / NAME).write_bytes(data)
    refused(path, f"{path / NAME} is damaged at byte {begin:,} of {len(data):,}")


def test_a_journal_with_a_torn_tail_is_gone_on_with_and_says_so(path, folder, tmp_path) -> None:
    folder.journal.write({"a": b"1"})
    shutil.copytree(path, tmp_path / "killed")
    with open(tmp_path / "killed" / NAME, "ab") as file:
        file.write(b"\xf5jrn torn")
    again, _ = RunFolder.reopen(tmp_path / "killed", None)
    assert again.journal.dropped.startswith("9 bytes at the end of")
    assert again.journal.get("a") == b"1"
    again.close()


def test_a_run_of_0_1_0_without_an_identity_takes_that_of_its_journal(tmp_path: Path) -> None:
    tmp_path.joinpath("config.yaml").write_text(job_to_yaml(job()))
    Journal.open(tmp_path / NAME, "whoever").close()
    folder, _ = RunFolder.reopen(tmp_path, None)
    assert folder.journal.owner == "whoever"
    folder.close()
