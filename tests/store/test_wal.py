"""The logs are SQLite's own; where SQLite ignores something, so must we, and say so."""

import sqlite3
import struct

import pytest

from spotlight.store.wal import FRAME_HEADER_BYTES, HEADER_BYTES, WalDamaged, torn_bytes

PAGE_BYTES = 512
FRAME = FRAME_HEADER_BYTES + PAGE_BYTES


def frame_at(number: int) -> int:
    return HEADER_BYTES + number * FRAME


@pytest.fixture
def database(tmp_path):
    """Path and connection; its log is kept open, as a kill leaves it."""
    path = tmp_path / "some.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("CREATE TABLE one (body BLOB)")
    connection.execute("CREATE TABLE two (body BLOB)")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    yield path, connection
    connection.close()


def log_of(path) -> bytes:
    return path.with_name(path.name + "-wal").read_bytes()


def insert(connection, tables) -> None:
    connection.execute("BEGIN")
    for table in tables:
        connection.execute(f"INSERT INTO {table} VALUES (randomblob(20))")
    connection.execute("COMMIT")


@pytest.fixture
def log(database) -> bytes:
    """Transactions of 1, 2 and 2 frames: ends at frames 1, 3 and 5."""
    path, connection = database
    insert(connection, ["one"])
    insert(connection, ["one", "two"])
    insert(connection, ["one", "two"])
    assert len(log_of(path)) == frame_at(5)
    return log_of(path)


def rows_seen_by_sqlite(path, log: bytes, copy) -> int:
    copy.write_bytes(path.read_bytes())
    copy.with_name(copy.name + "-wal").write_bytes(log)
    connection = sqlite3.connect(copy)
    try:
        return connection.execute(
            "SELECT (SELECT count(*) FROM one) + (SELECT count(*) FROM two)"
        ).fetchone()[0]
    finally:
        connection.close()


def test_an_empty_log_and_one_without_frames_have_no_torn_end(log):
    assert torn_bytes(b"") == 0
    assert torn_bytes(log[:HEADER_BYTES]) == 0


def test_a_whole_log_has_no_torn_end(log):
    assert torn_bytes(log) == 0


def test_a_log_cut_at_any_byte_is_torn_after_its_last_whole_transaction(log):
    ends = [0, HEADER_BYTES, frame_at(1), frame_at(3), frame_at(5)]
    for length in range(len(log) + 1):
        last_end = max(end for end in ends if end <= length)
        assert torn_bytes(log[:length]) == length - last_end, length


@pytest.mark.parametrize(("frames", "rows"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5)])
def test_what_is_not_torn_is_what_sqlite_reads(database, log, tmp_path, frames, rows):
    path, _ = database
    cut = log[: frame_at(frames)]
    assert rows_seen_by_sqlite(path, cut, tmp_path / "copy.sqlite") == rows
    assert torn_bytes(cut) == 0 if frames in (1, 3, 5) else torn_bytes(cut) == FRAME


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_byte_flipped_anywhere_is_never_passed_over(log, flip):
    """Behind it a transaction ends, except in the frame that ends the last one."""
    for position in range(len(log)):
        flipped = bytearray(log)
        flipped[position] ^= flip
        if position >= frame_at(4):
            assert torn_bytes(bytes(flipped)) == 2 * FRAME, position
        else:
            with pytest.raises(WalDamaged):
                torn_bytes(bytes(flipped))


def test_a_damaged_header_with_nothing_behind_is_torn(log):
    assert torn_bytes(bytes(HEADER_BYTES)) == HEADER_BYTES
    assert torn_bytes(b"\xff" + log[1:HEADER_BYTES]) == HEADER_BYTES


def test_the_message_says_which_bytes_are_damaged(log):
    damaged = log[: frame_at(1)] + bytes(FRAME) + log[frame_at(2) :]
    with pytest.raises(WalDamaged, match=f"bytes {frame_at(1)} and {frame_at(2)}"):
        torn_bytes(damaged)


def test_a_bad_frame_with_only_the_rest_of_an_unfinished_transaction_behind_is_torn(database):
    """No transaction ended there, so none was acknowledged."""
    path, connection = database
    insert(connection, ["one"])
    insert(connection, ["one", "two"])
    log = log_of(path)
    begun = log[frame_at(1) : frame_at(2)]
    assert torn_bytes(log[: frame_at(1)] + begun * 3) == 3 * FRAME


def test_frames_left_from_an_earlier_use_of_the_file_are_no_damage(database, tmp_path):
    path, connection = database
    for _ in range(4):
        insert(connection, ["one", "two"])
    connection.execute("PRAGMA wal_checkpoint(RESTART)")
    insert(connection, ["one"])
    log = log_of(path)
    assert len(log) == frame_at(8)
    assert torn_bytes(log) == 7 * FRAME
    assert rows_seen_by_sqlite(path, log, tmp_path / "copy.sqlite") == 9


def test_a_log_summed_in_big_endian_words_is_read_as_well(log):
    """As a machine of that byte order writes it."""
    swapped = bytearray(log)
    struct.pack_into(">I", swapped, 0, 0x377F0683)
    sums = put_sums(swapped, 24, swapped[:24], (0, 0))
    for number in range(5):
        start = frame_at(number)
        summed = swapped[start : start + 8] + swapped[start + FRAME_HEADER_BYTES :][:PAGE_BYTES]
        sums = put_sums(swapped, start + 16, summed, sums)
    assert torn_bytes(bytes(swapped)) == 0
    assert torn_bytes(bytes(swapped[:-1])) == 2 * FRAME - 1


def put_sums(log: bytearray, at: int, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    first, second = sums
    words = struct.unpack(f">{len(data) // 4}I", data)
    for i in range(0, len(words), 2):
        first = (first + words[i] + second) % 2**32
        second = (second + words[i + 1] + first) % 2**32
    struct.pack_into(">II", log, at, first, second)
    return first, second
