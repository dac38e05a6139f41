"""What a journal holds, who may open it, and what it says of damage."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_kit import OWNER, contents, copied, opened

from spotlight import __version__, failpoints
from spotlight.errors import JournalError, RunFolderError
from spotlight.store import journal as journal_module
from spotlight.store import record_formats
from spotlight.store.journal import NAME, Journal
from spotlight.store.journal_content import Content, Write, frame


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / NAME


@pytest.fixture(autouse=True)
def nobody_acts_afterwards():
    yield
    failpoints.install(None)


# ------------------------------------------------------------------------------- keys and values


def test_a_new_journal_is_empty_and_in_its_first_term(path):
    with opened(path) as journal:
        assert (journal.items(), journal.term, journal.dropped) == ([], 1, "")


def test_what_is_written_is_there_after_opening_again(path):
    with opened(path) as journal:
        journal.write({"rollout/2": b"two", "rollout/1": b"", "lease/7": bytes(range(256))})
    assert contents(path) == {"rollout/1": b"", "rollout/2": b"two", "lease/7": bytes(range(256))}


def test_a_write_replaces_and_deletes(path):
    with opened(path) as journal:
        journal.write({"a/1": b"old", "a/2": b"kept", "a/3": b"gone"})
        journal.write({"a/1": b"new", "a/3": None, "a/4": None})
        assert journal.items() == [("a/1", b"new"), ("a/2", b"kept")]


def test_a_prefix_is_dropped_before_the_changes_of_the_same_write(path):
    with opened(path) as journal:
        journal.write({"rollout/1": b"old", "rollout/2": b"old", "rollouts": b"", "plan/1": b""})
        journal.write({"rollout/2": b"new"}, drop=("rollout/",))
        assert journal.items() == [("plan/1", b""), ("rollout/2", b"new"), ("rollouts", b"")]


def test_items_of_a_prefix_come_in_the_order_of_their_keys(path):
    with opened(path) as journal:
        journal.write({f"b/{n}": b"" for n in (3, 1, 2)} | {"a/1": b"", "b": b"", "b0": b""})
        assert [key for key, _ in journal.items("b/")] == ["b/1", "b/2", "b/3"]


class Model:
    """A journal beside the dict that it must equal."""

    keys = st.text(alphabet=["a", "/", "é", "\uffff", "\U0010ffff", "\0"], max_size=3)
    steps = st.lists(
        st.one_of(
            st.tuples(
                st.just("write"),
                st.dictionaries(keys, st.none() | st.binary(max_size=8), max_size=4),
                st.lists(keys, max_size=2),
            ),
            st.tuples(st.just("open again")),
            st.tuples(st.just("be killed")),
        ),
        max_size=12,
    )


@settings(max_examples=60, deadline=None)
@given(steps=Model.steps, prefix=Model.keys)
def test_a_journal_holds_what_a_dict_would(steps, prefix):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        journal, expected, terms = Journal.open(path, OWNER), {}, 1
        try:
            for kind, *arguments in steps:
                if kind == "write":
                    changes, drop = arguments
                    journal.write(changes, drop)
                    expected = {k: v for k, v in expected.items() if not k.startswith(tuple(drop))}
                    expected |= changes
                    expected = {k: v for k, v in expected.items() if v is not None}
                else:
                    terms += 1
                    if kind == "be killed":
                        path = copied(path, Path(folder) / f"{terms}")
                    journal.close()
                    journal = Journal.open(path, OWNER)
            assert journal.items() == sorted(expected.items())
            assert dict(journal.items(prefix)) == {
                k: v for k, v in expected.items() if k.startswith(prefix)
            }
            assert (journal.term, journal.dropped) == (terms, "")
        finally:
            journal.close()


def test_every_opening_begins_a_higher_term(path):
    for term in (1, 2, 3):
        with opened(path) as journal:
            assert journal.term == term


def test_the_term_is_on_disk_before_the_journal_is_handed_out(path, tmp_path):
    with opened(path), opened(copied(path, tmp_path / "after a kill")) as next_one:
        assert next_one.term == 2


# -------------------------------------------------------------------------------- who may open it


def test_the_journal_of_another_owner_is_refused(path):
    with opened(path):
        pass
    with pytest.raises(JournalError, match="belongs to the run job-1, not to job-2"):
        Journal.open(path, "job-2")
    with opened(path) as journal:
        assert journal.term == 2


def test_a_journal_may_be_whoever_it_says(path):
    with opened(path):
        pass
    journal = Journal.read(path, None)
    assert journal.owner == OWNER
    journal.close()


def test_a_journal_of_a_newer_format_names_the_version_that_reads_it(path):
    path.write_bytes(b'{"spotlight_journal":4,"version":"9.1.0","owner":"job-1","more":1}\n\0\0\0')
    with pytest.raises(JournalError) as caught:
        Journal.open(path, OWNER)
    assert f"was written by Spotlight 9.1.0, and this is {__version__}: it has" in str(caught.value)
    assert "it has format 4, and is read in format 3; resume with 9.1.0" in str(caught.value)


def test_nothing_is_changed_before_a_journal_has_begun(path, tmp_path):
    Journal.read(path, OWNER).close()
    assert not path.exists()
    with opened(path) as journal:
        journal.write({"a/1": b"1"})
        left = copied(path, tmp_path / "killed")
    os.truncate(left, left.stat().st_size - 1)
    before = left.read_bytes()
    for _ in range(2):
        journal = Journal.read(left, OWNER)
        assert (journal.term, journal.items()) == (2, [])
        journal.close()
        assert left.read_bytes() == before


@pytest.mark.timeout(20)
def test_a_second_opener_in_the_same_process_is_refused_and_harms_nothing(path):
    with opened(path) as journal:
        journal.write({"a/1": b"1"})
        with pytest.raises(JournalError, match="in use by another coordinator"):
            Journal.open(path, OWNER)
        journal.write({"a/2": b"2"})
    assert contents(path) == {"a/1": b"1", "a/2": b"2"}


def test_a_closed_journal_refuses_writes_and_may_be_closed_again(path):
    with opened(path) as journal:
        journal.close()
        with pytest.raises(JournalError, match="is closed"):
            journal.write({"a/1": b""})


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(JournalError, match="nowhere"):
        Journal.open(tmp_path / "nowhere" / NAME, OWNER)


def test_what_a_kill_left_of_a_creation_does_not_matter(path):
    path.with_name(f"{path.name}.part").write_bytes(b"half")
    assert contents(path) == {}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_creation_is_on_disk_before_it_counts(path, monkeypatch):
    """What is in the file first, then its name, which is safe only when its folder is."""
    synced, real = [], os.fsync

    def fsync(fd: int) -> None:
        synced.append((Path(f"/proc/self/fd/{fd}").readlink().name, path.exists()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with opened(path):
        assert synced == [(f"{NAME}.part", False), (path.parent.name, True)]


def test_a_simulated_kill_before_the_commit_leaves_nothing_of_it(path):
    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        if name == "journal.commit":
            raise Killed

    with opened(path) as journal:
        journal.write({"a/1": b"1"})
        failpoints.install(kill)
        with pytest.raises(Killed):
            journal.write({"a/2": b"2"})
        failpoints.install(None)
    assert contents(path) == {"a/1": b"1"}


def test_an_interrupt_right_behind_the_commit_leaves_the_journal_whole(path, monkeypatch):
    real = os.fdatasync

    def interrupted(fd: int) -> None:
        """Somebody presses Ctrl-C when it has committed."""
        real(fd)
        raise KeyboardInterrupt

    with opened(path) as journal:
        journal.write({"a/1": b"1"})
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                journal.write({"a/2": b"2"})
        with pytest.raises(JournalError, match="a write was interrupted"):
            journal.write({"a/3": b"3"})
    assert contents(path) == {"a/1": b"1", "a/2": b"2"}


def test_a_file_that_is_mostly_of_what_is_gone_is_written_anew(path, monkeypatch):
    monkeypatch.setattr(journal_module, "LEAST_WASTE", 20_000)
    with opened(path) as journal:
        sizes = []
        for number in range(300):
            journal.write({f"a/{number % 10}": bytes([number % 256]) * 300})
            sizes.append(path.stat().st_size)
    assert max(sizes) < 35_000
    assert contents(path) == {f"a/{n}": bytes([(290 + n) % 256]) * 300 for n in range(10)}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_that_is_written_anew_keeps_its_lock_owner_and_term(path, monkeypatch):
    with opened(path):
        pass
    with opened(path) as journal:
        journal.write({"a/1": bytes(1000)})
        monkeypatch.setattr(journal_module, "LEAST_WASTE", -10_000)
        journal.write({"a/1": b"1"})
        with pytest.raises(JournalError, match="in use by another coordinator"):
            Journal.open(path, OWNER)
    with opened(path) as journal:
        assert (journal.term, journal.items()) == (3, [("a/1", b"1")])


# -------------------------------------------------------------------------------------- bad disks


def fails_with_bad_disk(name: str) -> None:
    if name == "journal.commit":
        raise OSError(5, "Input/output error")


def test_a_disk_error_leaves_nothing_of_the_write_and_ends_all_writing(path):
    with opened(path) as journal:
        journal.write({"a/1": b"1"})
        failpoints.install(fails_with_bad_disk)
        with pytest.raises(JournalError, match=r"journal\.records: Input/output error; .*--resume"):
            journal.write({"a/1": None, "a/2": b"2"}, drop=["a/"])
        failpoints.install(None)
        with pytest.raises(JournalError, match="Input/output error"):
            journal.write({"a/3": b"3"})
        assert journal.items() == [("a/1", b"1")]
    assert contents(path) == {"a/1": b"1"}


def test_a_disk_error_at_opening_is_explained_and_releases_the_journal(path):
    failpoints.install(fails_with_bad_disk)
    with pytest.raises(RunFolderError, match="Input/output error"):
        Journal.open(path, OWNER)
    failpoints.install(None)
    assert contents(path) == {}


# ----------------------------------------------------------------------------------------- damage


@pytest.fixture(params=["closed", "killed"])
def damaged(request, path, tmp_path, monkeypatch):
    """A journal that was closed or killed, what it holds, and where its last writes begin."""
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)  # there are thousands of openings
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    with opened(path) as journal:
        journal.write({f"a/{n}": b"%d" % n * 20 for n in range(6)})
        begins = [path.stat().st_size]
        journal.write({"a/3": b"new", "b/1": b"last but one"}, drop=["a/5"])
        begins.append(path.stat().st_size)
        journal.write({"b/2": b"last"})
        held = dict(journal.items())
        if request.param == "killed":
            path = copied(path, tmp_path / "killed")
        else:
            begins.append(path.stat().st_size)
    return path, held, begins


def holds(path: Path, data: bytes) -> tuple[dict[str, bytes], str] | None:
    """What a journal of such a file holds and says it dropped; None if it is refused, and kept."""
    path.write_bytes(data)
    try:
        with opened(path) as journal:
            held = dict(journal.items())
            journal.write({"a/new": b"goes on"})
            assert dict(journal.items()) == held | {"a/new": b"goes on"}
    except JournalError as error:
        assert str(path) in str(error)
        assert path.read_bytes() == data
        return None
    assert contents(path) == held | {"a/new": b"goes on"}
    return held, journal.dropped


def flipped(data: bytes, position: int) -> bytes:
    pattern = 0xFF if position % 3 == 0 else 1 << position % 8
    return data[:position] + bytes([data[position] ^ pattern]) + data[position + 1 :]


def test_a_byte_flipped_anywhere_is_refused_or_in_the_last_write_which_is_dropped_and_said(damaged):
    """The last write of a journal that was closed says nothing."""
    path, held, begins = damaged
    data, last = path.read_bytes(), begins[-1]
    is_killed = len(begins) == 2
    left = {key: body for key, body in held.items() if key != "b/2"} if is_killed else held
    for position in range(len(data)):
        found = holds(path, flipped(data, position))
        if position >= last:
            assert found is not None, position
            assert found[0] == left, position
            assert found[1].startswith(f"{len(data) - last} bytes at the end of {path}"), position
        else:  # a first line that names another version is one
            is_harmless = b'"version":"' in data[:position] and b'","owner"' in data[position:]
            assert found is None or (is_harmless and found == (held, "")), position


def test_a_byte_flipped_in_the_middle_is_refused_with_its_place(path):
    with opened(path) as journal:
        journal.write({"a/1": b"first"})
        begin = path.stat().st_size
        journal.write({"a/2": b"second"})
        journal.write({"a/3": b"third"})
    data = path.read_bytes()
    path.write_bytes(flipped(data, begin + 20))
    with pytest.raises(JournalError) as caught:
        Journal.open(path, OWNER)
    assert str(caught.value) == (
        f"{path} is damaged at byte {begin:,} of {len(data):,}; put it back from a copy, or start"
        " the job again in another run folder"
    )


def test_a_journal_cut_anywhere_holds_the_whole_writes_before_and_says_what_was_dropped(damaged):
    path, held, _ = damaged
    data = path.read_bytes()
    first_line = data.index(b"\n") + 1
    history: list[dict[str, bytes]] = []
    whole = first_line
    for length in range(len(data) + 1):
        found = holds(path, data[:length])
        if length < first_line:
            assert found is None, length
        elif found is not None and found[1] == "":
            history += [found[0]] if found[0] not in history else []
            whole = length
        else:
            assert found is not None, length
            assert found[0] == history[-1], length
            assert found[1].startswith(f"{length - whole} bytes"), length
    first = {f"a/{n}": b"%d" % n * 20 for n in range(6)}
    last_but_one = {key: body for key, body in held.items() if key != "b/2"}
    assert history == [{}, first, last_but_one, held]


@pytest.mark.parametrize("tail", [bytes(5), bytes(5000), b"\xf5jrn" * 9, b"\xff" * 16])
def test_what_a_crash_left_behind_the_last_write_is_dropped(path, tmp_path, tail):
    """Not every file system writes what is new of a file in its order."""
    with opened(path) as journal:
        journal.write({"a/1": b"1"})
        left = copied(path, tmp_path / "killed")
    left.write_bytes(left.read_bytes() + tail)
    with opened(left) as journal:
        assert journal.dropped.startswith(f"{len(tail)} bytes at the end")
        journal.write({"a/2": b"2"})
    assert contents(left) == {"a/1": b"1", "a/2": b"2"}


def test_a_torn_tail_is_said_once(path, tmp_path):
    with opened(path) as journal:
        journal.write({f"a/{n}": bytes(1000) for n in range(40)})
        torn = copied(path, tmp_path / "torn")
    os.truncate(torn, torn.stat().st_size - 1)
    with opened(torn) as journal:
        assert "a write that a crash broke off" in journal.dropped
        assert journal.items() == []
        next_one = copied(torn, tmp_path / "next")
    with opened(next_one) as journal:
        assert journal.dropped == ""


def test_a_frame_that_was_moved_is_damage(path):
    """Even one that is whole: it says what was true elsewhere."""
    with opened(path) as journal:
        begin = path.stat().st_size
        journal.write({"a/1": b"1"})
        end = path.stat().st_size
        journal.write({"a/1": b"2"})
    data = path.read_bytes()
    path.write_bytes(data[:end] + data[begin:end] + data[end:])
    with opened(path) as journal:
        assert journal.items() == [("a/1", b"1")]
        assert journal.dropped


@pytest.mark.parametrize("content", [b"", b"some text\n" * 200, b"{}\n", b"\xff\n"])
def test_a_file_that_is_no_journal_is_refused_and_kept(path, content):
    path.write_bytes(content)
    with pytest.raises(JournalError, match="is no journal, or its first line is damaged"):
        Journal.open(path, OWNER)
    assert path.read_bytes() == content


# ------------------------------------------------------------------------- versions and formats


def written_by(path: Path, version: str, *records: tuple[str, int, bytes | None]) -> None:
    """Make a journal of which another version wrote the last."""
    with opened(path):
        pass
    data = path.read_bytes()
    path.write_bytes(data + frame(Write(version, 2, (), records), len(data)))


def test_every_record_names_the_version_that_wrote_it(path, monkeypatch):
    written_by(path, "9.1.0", ("a/1", 1, b"1"))
    monkeypatch.setattr(journal_module, "LEAST_WASTE", -10_000)  # it is written anew
    with opened(path) as journal:
        journal.write({"a/2": b"2"})
    with opened(path) as journal:
        versions = [journal.version_of(key) for key, _ in journal.items()]
    assert versions == ["9.1.0", __version__]


def test_a_record_of_an_earlier_format_is_brought_up_by_every_step(path, monkeypatch):
    written_by(path, "0.1.0", ("a/1", 1, b'{"x":1}'), ("a/2", 2, b'{"y":5}'), ("ab/1", 1, b"{}"))
    steps = (lambda data: {"y": data["x"]}, lambda data: {"z": data["y"] + 1})
    monkeypatch.setitem(record_formats.STEPS, "a", steps)
    expected = {"a/1": b'{"z":2}', "a/2": b'{"z":6}', "ab/1": b"{}"}
    for _ in range(2):
        assert contents(path) == expected
    with opened(path) as journal:
        assert journal.version_of("a/1") == __version__
        image = journal.image()
    assert {record.body for record in Content.of(path, image).records.values()} == {
        *expected.values()
    }


def test_a_record_of_a_newer_format_names_the_version_and_changes_nothing(path):
    written_by(path, "9.1.0", ("a/1", 2, b"{}"))
    before = path.read_bytes()
    with pytest.raises(JournalError) as caught:
        Journal.open(path, OWNER)
    assert f"was written by Spotlight 9.1.0, and this is {__version__}: the record a/1 has" in str(
        caught.value
    )
    assert path.read_bytes() == before


def test_a_record_of_an_earlier_format_that_is_damaged_is_named(path, monkeypatch):
    written_by(path, "0.1.0", ("a/1", 1, b"{"))
    monkeypatch.setitem(record_formats.STEPS, "a", (lambda data: data,))
    with pytest.raises(JournalError, match=r"is damaged \(the record a/1: "):
        Journal.open(path, OWNER)


# ------------------------------------------------------------------------------------------ images


def test_an_image_is_the_journal_as_it_was_and_the_journal_goes_on(path, tmp_path):
    with opened(path) as journal:
        journal.write({"progress/1": b"far", "request/1": b"a"})
        image = journal.image()
        journal.write({"progress/1": b"further"})
        term = journal.term
    (tmp_path / "copy").write_bytes(image)
    with opened(tmp_path / "copy") as copy:
        assert dict(copy.items()) == {"progress/1": b"far", "request/1": b"a"}
        assert copy.term > term, "no lease of the first journal can be granted again"
    assert contents(path)["progress/1"] == b"further"


def test_an_image_lacks_what_is_left_out_and_its_room(path, tmp_path):
    with opened(path) as journal:
        journal.write({f"request/{number}": bytes(1000) for number in range(200)})
        journal.write({"progress/1": b"far"})
        image, small = journal.image(), journal.image(("request/", "published/"))
    assert len(small) < len(image) / 10
    (tmp_path / "copy").write_bytes(small)
    assert contents(tmp_path / "copy") == {"progress/1": b"far"}


def test_a_closed_journal_has_no_image(path):
    with opened(path) as journal:
        pass
    with pytest.raises(JournalError, match="is closed"):
        journal.image()


# --- a journal that is older than others know ---


def test_a_journal_that_is_lost_is_not_begun_anew(path):
    with pytest.raises(JournalError, match=r"journal\.records is lost; put it back from a copy"):
        Journal.open(path, OWNER, least_term=1)
    assert not path.exists()


def test_an_older_journal_is_refused_as_often_as_it_is_opened(path):
    with opened(path):
        pass
    for _ in range(3):
        with pytest.raises(JournalError, match=r"it was opened 1 times, and they say 2"):
            Journal.open(path, OWNER, least_term=2)
