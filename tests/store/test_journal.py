"""What a journal holds, who may open it, and what it says of damage.

Damage at every byte is tried on a journal with small pages, so that all kinds of pages fit in a few
kilobytes.
"""

import os
import sqlite3
import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_kit import OWNER, contents, copied, log_of, opened

from spotlight import failpoints
from spotlight.errors import JournalError, RunFolderError
from spotlight.store import journal as journal_module
from spotlight.store.journal import Journal, packed


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture(autouse=True)
def nobody_acts_afterwards():
    yield
    failpoints.install(None)


def connect_with(monkeypatch: pytest.MonkeyPatch, kind: type[sqlite3.Connection]) -> None:
    """Have journals use connections of this kind."""
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=kind))


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
        path = Path(folder) / "journal.sqlite"
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
    with pytest.raises(JournalError, match="belongs to the job job-1, not to job-2"):
        Journal.open(path, "job-2")
    with opened(path) as journal:
        assert journal.term == 2


def test_a_journal_of_another_format_is_refused(path):
    with opened(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(JournalError, match="has format 1 and this Spotlight reads format 2"):
        Journal.open(path, OWNER)


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
        Journal.open(tmp_path / "nowhere" / "journal.sqlite", OWNER)


def test_what_a_kill_left_of_a_creation_does_not_matter(path):
    for end in ("", "-journal", "-wal"):
        path.with_name(f"{path.name}.part{end}").write_bytes(b"half")
    assert contents(path) == {}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_creation_is_on_disk_before_it_counts(path, monkeypatch):
    """The new name is safe only when its folder is."""
    synced, real = [], os.fsync

    def fsync(fd: int) -> None:
        synced.append((Path(f"/proc/self/fd/{fd}").readlink(), path.exists()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with opened(path):
        assert synced == [(path.parent, True)]


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
    interrupting = False

    class Interrupted(sqlite3.Connection):
        """A connection, and somebody who presses Ctrl-C when it has committed."""

        def execute(self, query: str, *arguments) -> sqlite3.Cursor:
            cursor = super().execute(query, *arguments)
            if query == "COMMIT" and interrupting:
                raise KeyboardInterrupt
            return cursor

    connect_with(monkeypatch, Interrupted)
    with opened(path) as journal:
        journal.write({"a/1": b"1"})
        interrupting = True
        with pytest.raises(KeyboardInterrupt):
            journal.write({"a/2": b"2"})
        interrupting = False
        with pytest.raises(JournalError, match="a write was interrupted"):
            journal.write({"a/3": b"3"})
    assert contents(path) == {"a/1": b"1", "a/2": b"2"}


def test_a_long_log_is_moved_into_the_database(path, monkeypatch):
    monkeypatch.setattr(journal_module, "LOG_BYTES", 50_000)
    with opened(path) as journal:
        sizes = []
        for number in range(60):
            journal.write({f"a/{number}": bytes(300)})
            sizes.append(log_of(path).stat().st_size)
    assert max(sizes) < 80_000
    assert len(contents(path)) == 60


# -------------------------------------------------------------------------------------- bad disks


def fails_with_bad_disk(name: str) -> None:
    if name == "journal.commit":
        raise OSError(5, "Input/output error")


def test_a_disk_error_leaves_nothing_of_the_write_and_ends_all_writing(path):
    with opened(path) as journal:
        journal.write({"a/1": b"1"})
        failpoints.install(fails_with_bad_disk)
        with pytest.raises(JournalError, match=r"journal\.sqlite: Input/output error; .*--resume"):
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


class WithSmallPages(sqlite3.Connection):
    """A connection that syncs nothing: there are thousands of openings."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.execute("PRAGMA page_size = 512")

    def execute(self, query: str, *arguments) -> sqlite3.Cursor:
        return super().execute(query.replace("synchronous = FULL", "synchronous = OFF"), *arguments)


@pytest.fixture(params=["closed", "killed"])
def damaged(request, path, tmp_path, monkeypatch):
    """A journal with small pages, closed or with its last writes in the log, and its contents."""
    connect_with(monkeypatch, WithSmallPages)
    with opened(path) as journal:
        journal.write({f"a/{n}": b"%d" % n * 40 for n in range(12)})
        if request.param == "killed":
            with monkeypatch.context() as patched:
                patched.setattr(journal_module, "LOG_BYTES", 0)  # so that the log is emptied first
                journal.write({"a/3": b"new", "b/1": b"last but one"})
            journal.write({"b/2": b"last"})
            path = copied(path, tmp_path / "killed")
        held = dict(journal.items())
    return path, held


class Files:
    """The files of a journal, to be damaged again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = log_of(path).read_bytes() if log_of(path).exists() else b""
        self.database = path.read_bytes()

    def opened(self, database: bytes, log: bytes) -> tuple[dict[str, bytes], str] | None:
        """What a journal of such files holds and says it dropped; None if it is refused."""
        self.path.write_bytes(database)
        log_of(self.path).unlink(missing_ok=True)
        if log:
            log_of(self.path).write_bytes(log)
        try:
            with opened(self.path) as journal:
                held = dict(journal.items())
                journal.write({"a/new": b"goes on"})
                assert dict(journal.items()) == held | {"a/new": b"goes on"}
                return held, journal.dropped
        except JournalError as error:
            assert "start the job again in another run folder" in str(error)
            return None


def flipped(data: bytes, position: int) -> bytes:
    pattern = 0xFF if position % 3 == 0 else 1 << position % 8
    return data[:position] + bytes([data[position] ^ pattern]) + data[position + 1 :]


def test_a_byte_flipped_anywhere_in_the_database_is_refused_or_does_not_matter(damaged):
    path, held = damaged
    files = Files(path)
    refused = 0
    for position in range(len(files.database)):
        found = files.opened(flipped(files.database, position), files.log)
        assert found in (None, (held, "")), position
        refused += found is None
    assert refused > 100


@pytest.mark.parametrize("damaged", ["killed"], indirect=True)
def test_a_byte_flipped_anywhere_in_the_log_is_refused_or_its_last_write_dropped_and_said(damaged):
    path, held = damaged
    files = Files(path)
    before_the_last = {key: body for key, body in held.items() if key != "b/2"}
    last_frame = len(files.log) - 536
    for position in range(len(files.log)):
        found = files.opened(files.database, flipped(files.log, position))
        if position < last_frame:
            assert found is None, position
        else:
            assert found is not None, position
            assert found[0] == before_the_last, position
            assert "a write that a crash broke off" in found[1], position


@pytest.mark.parametrize("damaged", ["killed"], indirect=True)
def test_a_log_cut_anywhere_holds_the_whole_writes_before_and_says_what_was_dropped(damaged):
    path, held = damaged
    files = Files(path)
    history, lengths_of_whole_writes = [], 0
    for length in range(len(files.log) + 1):
        found = files.opened(files.database, files.log[:length])
        assert found is not None, length
        if found[1] == "":
            history.append(found[0])
            lengths_of_whole_writes = length
        else:
            assert found[0] == history[-1], length
            assert found[1].startswith(f"{length - lengths_of_whole_writes} bytes"), length
    first = {key: body for key, body in held.items() if not key.startswith("b/")}
    first["a/3"] = b"3" * 40
    last_but_one = {key: body for key, body in held.items() if key != "b/2"}
    assert history == [first, first, last_but_one, held]  # nothing, a header, two writes


def test_a_torn_tail_is_said_once(path, tmp_path):
    with opened(path) as journal:
        journal.write({f"a/{n}": bytes(1000) for n in range(40)})
        torn = copied(path, tmp_path / "torn")
    os.truncate(log_of(torn), log_of(torn).stat().st_size - 1)
    with opened(torn) as journal:
        assert "a write that a crash broke off" in journal.dropped
        assert journal.items() == []
        next_one = copied(torn, tmp_path / "next")
    with opened(next_one) as journal:
        assert journal.dropped == ""


def test_a_database_cut_anywhere_is_refused(damaged):
    path, held = damaged
    files = Files(path)
    for length in range(0, len(files.database), 7):
        found = files.opened(files.database[:length], files.log)
        assert found is None or (found == (held, "") and files.log), length


def test_a_log_without_its_database_is_refused_and_kept(path, tmp_path):
    with opened(path) as journal:
        journal.write({"a/1": b"1"})
        left = copied(path, tmp_path / "left")
    left.unlink()
    log = log_of(left).read_bytes()
    for make in (lambda: None, left.touch):
        make()
        with pytest.raises(JournalError, match=r"is lost, though its log journal\.sqlite-wal"):
            Journal.open(left, OWNER)
        assert log_of(left).read_bytes() == log


def test_a_record_that_vanished_without_a_trace_is_missed(path):
    """As when the disk forgets a page and gives back what was there before."""
    with opened(path) as journal:
        journal.write({"a/1": b"1", "a/2": b"2"})
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM record WHERE key = ?", (b"a/1",))
    connection.commit()
    connection.close()
    with pytest.raises(JournalError, match="1 records do not add up to 2"):
        Journal.open(path, OWNER)


def test_a_changed_record_is_named(path):
    with opened(path) as journal:
        journal.write({"a/1": b"1", "a/2": b"2"})
    connection = sqlite3.connect(path)
    connection.execute("UPDATE record SET body = ? WHERE key = ?", (b"!", b"a/2"))
    connection.commit()
    connection.close()
    with pytest.raises(JournalError, match="a/2"):
        Journal.open(path, OWNER)


@pytest.mark.parametrize("content", [b"", b"some text\n" * 200])
def test_a_file_that_is_no_journal_is_refused_and_kept(path, content):
    path.write_bytes(content)
    with pytest.raises(JournalError, match="damaged"):
        Journal.open(path, OWNER)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_refused(path):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA user_version = 2")
    connection.execute("CREATE TABLE state (whatever)")
    connection.close()
    with pytest.raises(JournalError, match="its tables are not a journal's"):
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


def test_a_packed_image_lacks_what_is_left_out_and_its_room(path, tmp_path):
    with opened(path) as journal:
        journal.write({f"request/{number}": bytes(1000) for number in range(200)})
        journal.write({"progress/1": b"far"})
        image = journal.image()
    small = packed(image, OWNER, ("request/", "published/"))
    assert len(small) < len(image) / 10
    (tmp_path / "copy").write_bytes(small)
    assert contents(tmp_path / "copy") == {"progress/1": b"far"}


def test_an_image_that_is_damaged_is_not_packed(path):
    with opened(path) as journal:
        image = journal.image()
    with pytest.raises(JournalError):
        packed(image[: len(image) // 2], OWNER, ())
    with pytest.raises(JournalError, match="belongs to the job"):
        packed(image, "another", ())


def test_a_closed_journal_has_no_image(path):
    with opened(path) as journal:
        pass
    with pytest.raises(JournalError, match="is closed"):
        journal.image()


# --- a journal that is older than others know ---


def test_a_journal_that_is_lost_is_not_begun_anew(path):
    with pytest.raises(JournalError, match=r"journal\.sqlite is lost; put it back from a copy"):
        Journal.open(path, OWNER, least_term=1)
    assert not path.exists()


def test_a_journal_without_its_log_is_refused_as_often_as_it_is_opened(path, tmp_path):
    with opened(path) as journal:
        journal.write({"a": b"1"})
        left = copied(path, tmp_path / "killed")
    log_of(left).unlink()
    for _ in range(3):
        with pytest.raises(JournalError, match=r"or its log journal\.sqlite-wal is lost"):
            Journal.open(left, OWNER, least_term=1)


def test_a_journal_that_was_opened_as_often_as_others_know_is_opened(path):
    for _ in range(3):
        Journal.open(path, OWNER).close()
    Journal.open(path, OWNER, least_term=3).close()
