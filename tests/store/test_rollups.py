"""The roll-ups of a run: nothing is lost or counted twice, at any level, after any crash."""

from __future__ import annotations

import math
import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from spotlight.errors import RunFolderError
from spotlight.record.ledger import TIME_STATES, Milliseconds, RollupLine
from spotlight.store.rollups import HALF, RollupReader, Rollups, read_rollups

EVER = (0.0, math.inf)
SMALL = 4000
"""Bytes of a file in tests of what happens when it is full."""


def line(number: int, start_s: float, length_s: float = 10.0, **times: Milliseconds) -> RollupLine:
    end_s = start_s + length_s
    return RollupLine(number=number, start_s=start_s, end_s=end_s, at=1e9 + end_s, times=times)


def steady(count: int, first: int = 1) -> list[RollupLine]:
    """Lines of 10 s of a worker that rolls out."""
    numbers = range(first, first + count)
    return [line(each, (each - 1) * 10.0, w={"rollout": 10_000}) for each in numbers]


def random_lines(seed: int, count: int) -> list[RollupLine]:
    """Of workers that come and go; now and then the coordinator is away."""
    chance, lines, now = random.Random(seed), list[RollupLine](), 0.0
    for number in range(1, count + 1):
        length_s = chance.choice(
            [10.0, 10.0, 10.013, 3.5, 0.0, 700.0, 40_000.0][: chance.randint(1, 7)]
        )
        times = {
            f"n{chance.randrange(12)}/{index}": {
                state: chance.randrange(1, 20_000)
                for state in chance.sample(TIME_STATES, chance.randint(1, 4))
            }
            for index in range(chance.randint(0, 6))
        }
        spent = {"spot": number / 7}
        lines.append(
            RollupLine(
                number=number, start_s=now, end_s=now + length_s, at=now, times=times, spent=spent
            )
        )
        now += length_s
    return lines


def write(folder: Path, lines: Sequence[RollupLine], half: int = HALF) -> None:
    rollups = Rollups(folder, half=half)
    for each in lines:
        rollups.append(each)
    rollups.close()


def sums(lines: Sequence[RollupLine]) -> Counter[tuple[str, str]]:
    found = Counter[tuple[str, str]]()
    for each in lines:
        for worker, times in each.times.items():
            for state, milliseconds in times.items():
                found[worker, state] += milliseconds
    return found


def at_all_levels(folder: Path) -> list[Counter[tuple[str, str]]]:
    """What lines add up to, from as fine as there are to as coarse as there are."""
    return [sums(read_rollups(folder, *EVER, most)) for most in (10**9, 2000, 300, 20, 3, 1)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "rollups"


def test_lines_are_read_as_they_were_appended(folder: Path) -> None:
    lines = random_lines(0, 50)
    write(folder, lines)
    read = read_rollups(folder, *EVER, 1000)
    assert read == lines


def test_there_are_none_where_nothing_was_written(folder: Path) -> None:
    assert read_rollups(folder, *EVER, 240) == []
    write(folder, [])
    assert read_rollups(folder, *EVER, 240) == []


@pytest.mark.parametrize("seed", range(5))
def test_all_levels_say_the_same(folder: Path, seed: int) -> None:
    lines = random_lines(seed, 600)
    write(folder, lines)
    assert at_all_levels(folder) == [sums(lines)] * 6


@pytest.mark.parametrize("most", [1, 2, 7, 240, 5000])
def test_there_are_at_most_as_many_lines_as_are_wanted(folder: Path, most: int) -> None:
    write(folder, steady(500))
    read = read_rollups(folder, *EVER, most)
    assert most / 2 <= len(read) <= most or len(read) == 500
    assert (read[0].start_s, read[-1].end_s, read[-1].number) == (0.0, 5000.0, 500)
    assert all(one.end_s == other.start_s for one, other in pairwise(read))


def test_a_short_time_is_shown_finely_and_a_long_one_coarsely(folder: Path) -> None:
    write(folder, steady(4000))
    assert len(read_rollups(folder, 1000.0, 2000.0, 240)) == 100
    lengths = [each.end_s - each.start_s for each in read_rollups(folder, *EVER, 330)]
    assert set(lengths[:-1]) == {120.0, 240.0} and lengths.count(240.0) < 6


@pytest.mark.parametrize("cuts", [[35.0], [0.0, 3.3, 17.2, 1e4, 5e4], [2e3, 2e3 + 1 / 3, 2e4]])
def test_times_beside_each_other_add_up_to_the_whole(folder: Path, cuts: list[float]) -> None:
    lines = random_lines(3, 60)
    write(folder, lines)
    edges = [0.0, *cuts, math.inf]
    parts = [sums(read_rollups(folder, *times, 10**9)) for times in pairwise(edges)]
    assert sum(parts, Counter()) == sums(lines)


def test_of_a_time_without_a_coordinator_a_part_counts_in_proportion(folder: Path) -> None:
    away = line(2, 10.0, 1000.0, w={"rollout": 300_001, "idle": 700_000})
    write(folder, [*steady(1), away, line(3, 1010.0, w={"rollout": 10_000})])
    (first,) = read_rollups(folder, 10.0, 260.0, 240)
    (rest,) = read_rollups(folder, 260.0, 1010.0, 240)
    assert first.times == {"w": {"rollout": 75_000, "idle": 175_000}}
    assert rest.times == {"w": {"rollout": 225_001, "idle": 525_000}}
    assert (first.at, rest.at) == (1e9 + 260.0, 1e9 + 1010.0)


def test_a_time_without_a_coordinator_stays_whole_at_every_level(folder: Path) -> None:
    away = line(2, 10.0, 100_000.0, w={"idle": 100_000_000})
    later = [line(number, 100_010.0 + 10 * number, w={"rollout": 9}) for number in range(3, 3000)]
    write(folder, [*steady(1), away, *later])
    assert away in read_rollups(folder, *EVER, 10**9)
    for most in (800, 60, 8):
        first = read_rollups(folder, *EVER, most)[0]
        assert (first.end_s, first.times["w"]["idle"]) == (away.end_s, 100_000_000)


@pytest.mark.parametrize("seed", range(4))
def test_full_files_lose_fineness_and_nothing_else(folder: Path, seed: int) -> None:
    lines = random_lines(seed, 900)
    write(folder, lines, SMALL)
    assert (folder / "10s-older.rollup").exists()
    assert all(file.stat().st_size <= SMALL for file in folder.iterdir())
    read = read_rollups(folder, *EVER, 10**9)
    coarsest_forgot = (folder / "8h-older.rollup").exists()
    assert len(read) < len(lines)
    if not coarsest_forgot:
        assert at_all_levels(folder) == [sums(lines)] * 6
    assert read[-1] == lines[-1], "the latest are as fine as ever"


def test_only_the_coarsest_level_forgets(folder: Path) -> None:
    lines = random_lines(1, 4000)
    write(folder, lines, SMALL)
    assert (folder / "8h-older.rollup").exists()
    read = read_rollups(folder, *EVER, 10**9)
    known = [
        each for each in lines if each.start_s >= read[0].start_s and each.end_s > read[0].start_s
    ]
    assert read[0].start_s > 0.0
    assert sums(read) == sums(known)


def test_lines_that_the_ledger_does_not_account_for_are_dropped(folder: Path) -> None:
    lines = random_lines(2, 400)
    write(folder, lines, SMALL)
    rollups = Rollups(folder, half=SMALL)
    rollups.drop_after(390)
    assert rollups.last == 390
    again = [*lines[:390], *random_lines(9, 420)[390:]]
    for each in again[390:]:
        rollups.append(each)
    rollups.close()
    assert at_all_levels(folder) == [sums(again)] * 6


def test_a_reader_leaves_out_what_the_ledger_does_not_account_for(folder: Path) -> None:
    lines = steady(100)
    write(folder, lines)
    assert read_rollups(folder, *EVER, 1000, until=97) == lines[:97]
    assert sums(read_rollups(folder, *EVER, 3, until=97)) == sums(lines[:97])


def test_without_a_ledger_all_lines_are_dropped(folder: Path) -> None:
    write(folder, steady(300))
    rollups = Rollups(folder)
    rollups.drop_after(0)
    for each in steady(5):
        rollups.append(each)
    rollups.close()
    assert read_rollups(folder, *EVER, 240) == steady(5)


@pytest.mark.parametrize("seed", range(12))
def test_a_crash_at_any_byte_leaves_what_was_written_before(folder: Path, seed: int) -> None:
    """The coordinator dies again and again in the middle of a write, and goes on each time from
    what its ledger accounts for."""
    chance = random.Random(seed)
    lines = random_lines(seed, 700)
    done = 0  # what the ledger accounts for
    while done < len(lines):
        rollups = Rollups(folder, half=SMALL * 3)
        rollups.drop_after(done)
        assert rollups.last == done
        for each in lines[done : done + chance.randint(1, 150)]:
            sizes = {file: file.stat().st_size for file in folder.iterdir()}
            rollups.append(each)
            done = each.number
        rollups.close()
        newest = folder / "10s.rollup"
        grown = newest.stat().st_size - sizes.get(newest, 0)
        if grown > 0 and chance.random() < 0.8:
            os.truncate(newest, sizes.get(newest, 0) + chance.randrange(grown))
            done -= 1  # the line is appended before the ledger is written
        elif chance.random() < 0.5:
            done -= 1
    assert at_all_levels(folder) == [sums(lines)] * 6


def test_a_file_that_ends_at_any_byte_is_read_up_to_the_last_whole_line(folder: Path) -> None:
    write(folder, lines := random_lines(5, 12)[:8])
    whole = (folder / "10s.rollup").read_bytes()
    for end in range(len(whole)):
        (folder / "10s.rollup").write_bytes(whole[:end])
        read = read_rollups(folder, *EVER, 1000)
        finest = [each for each in read if each in lines]
        assert finest == lines[-len(finest) :] or finest == lines[: len(finest)]
        rollups = Rollups(folder)
        assert rollups.last <= 8
        rollups.close()


def test_a_damaged_line_is_left_out(folder: Path) -> None:
    write(folder, lines := steady(100))
    file = folder / "10s.rollup"
    text = bytearray(file.read_bytes())
    text[len(text) // 2] ^= 0xFF
    file.write_bytes(text)
    read = read_rollups(folder, *EVER, 1000)
    assert sums(read)["w", "rollout"] >= sums(lines[:96])["w", "rollout"] - 10_000
    rollups = Rollups(folder)
    rollups.append(line(101, 1000.0))
    rollups.close()


def test_levels_that_somebody_removed_are_made_again_of_those_below(folder: Path) -> None:
    write(folder, lines := random_lines(6, 400))
    for name in ("2min", "30min", "8h"):
        (folder / f"{name}.rollup").unlink()
    Rollups(folder).close()
    assert (folder / "2min.rollup").stat().st_size > 1000
    assert at_all_levels(folder) == [sums(lines)] * 6


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"\x00\x01\n", "is damaged (JSON is malformed"),
        (b"[]\n", "is damaged (Expected `object`"),
        (b'{"format":2}\n', "has format 2, of a later Spotlight; use the Spotlight that wrote it"),
        (b'{"format":1,"states":["dreaming"]}\n', "has format 1, of a later Spotlight"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(folder: Path, text: bytes, problem: str) -> None:
    write(folder, steady(2))
    (folder / "2min.rollup").write_bytes(text)
    for use in (lambda: read_rollups(folder, *EVER, 240), lambda: Rollups(folder)):
        with pytest.raises(RunFolderError) as caught:
            use()
        assert str(caught.value).startswith(f"{folder / '2min.rollup'} {problem}")


@pytest.mark.parametrize("name", ["10s.rollup", "8h-older.rollup"])
def test_no_line_goes_where_a_link_leads(folder: Path, tmp_path: Path, name: str) -> None:
    write(folder, steady(2))
    (tmp_path / "elsewhere").write_bytes((folder / "10s.rollup").read_bytes())
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match=f"{name} is a link, not a file; remove it"):
        Rollups(folder)


def test_the_folder_is_no_link(folder: Path, tmp_path: Path) -> None:
    folder.symlink_to(tmp_path)
    with pytest.raises(RunFolderError, match="rollups is a link, not a folder"):
        Rollups(folder)


def test_states_of_an_earlier_version_are_understood(folder: Path) -> None:
    write(folder, steady(2))
    file = folder / "10s.rollup"
    earlier = file.read_bytes().replace(b',"lost"', b"")
    assert earlier != file.read_bytes()
    file.write_bytes(earlier)
    write(folder, [line(3, 20.0, w={"lost": 10_000})])
    assert [each.times["w"] for each in read_rollups(folder, *EVER, 240)] == [
        {"rollout": 10_000},
        {"rollout": 10_000},
        {"lost": 10_000},
    ]


@pytest.mark.parametrize("bad", [line(3, 30.0), line(4, 30.0, -1.0)])
def test_a_line_that_does_not_follow_is_refused(folder: Path, bad: RollupLine) -> None:
    rollups = Rollups(folder)
    for each in steady(3):
        rollups.append(each)
    with pytest.raises(ValueError, match=f"line {bad.number} "):
        rollups.append(bad)
    rollups.close()
    assert read_rollups(folder, *EVER, 240) == steady(3)


def test_a_full_disk_leaves_whole_lines_and_may_be_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollups = Rollups(folder)
    rollups.append(line(1, 0.0, w={"idle": 1}))
    write_some = os.write
    with monkeypatch.context() as full:
        calls = iter([10])

        def write(file: int, data: bytes) -> int:
            if (some := next(calls, 0)) == 0:
                raise OSError(28, "No space left on device")
            return write_some(file, data[:some])

        full.setattr(os, "write", write)
        with pytest.raises(RunFolderError, match="No space left on device; free some space"):
            rollups.append(line(2, 10.0, w={"idle": 2}))
    assert len(read_rollups(folder, *EVER, 240)) == 1
    rollups.append(line(2, 10.0, w={"idle": 2}))
    rollups.close()
    assert sums(read_rollups(folder, *EVER, 240)) == {("w", "idle"): 3}


# --- following ---


@pytest.mark.parametrize("half", [SMALL, HALF])
def test_a_reader_is_given_each_line_once(folder: Path, half: int) -> None:
    lines, given, chance = random_lines(7, 300), list[RollupLine](), random.Random(7)
    reader = RollupReader(folder)
    assert reader.read() == []
    rollups = Rollups(folder, half=half)
    for each in lines:
        rollups.append(each)
        if chance.random() < 0.3:
            given += reader.read() or []
    given += reader.read() or []
    rollups.close()
    reader.close()
    assert given == lines


def test_a_reader_begins_after_a_line(folder: Path) -> None:
    write(folder, lines := random_lines(7, 150), SMALL)
    reader = RollupReader(folder, after=140)
    assert reader.read() == lines[140:]
    assert reader.read() == []
    reader.close()


def test_a_reader_is_told_that_what_it_was_given_does_not_hold(folder: Path) -> None:
    write(folder, steady(5))
    reader = RollupReader(folder)
    assert reader.read() == steady(5)
    rollups = Rollups(folder)
    rollups.drop_after(4)
    rollups.append(line(5, 40.0, 7.5, w={"idle": 7_500}))
    rollups.close()
    assert reader.read() is None
    reader.close()


def test_a_reader_waits_for_the_whole_of_a_line(folder: Path) -> None:
    write(folder, steady(3))
    reader = RollupReader(folder)
    assert reader.read() == steady(3)
    before = (folder / "10s.rollup").read_bytes()
    later = line(4, 30.0, x={"idle": 10_000})
    write(folder, [later])
    after = (folder / "10s.rollup").read_bytes()
    for end in range(len(before), len(after)):
        (folder / "10s.rollup").write_bytes(after[:end])
        assert reader.read() == []
    (folder / "10s.rollup").write_bytes(after)
    assert reader.read() == [later]
    reader.close()


def test_a_reader_that_slept_too_long_is_told_so(folder: Path) -> None:
    write(folder, lines := random_lines(8, 30), SMALL)
    reader = RollupReader(folder)
    assert reader.read() == lines
    rollups = Rollups(folder, half=SMALL)
    for each in random_lines(8, 600)[30:]:
        rollups.append(each)
    rollups.close()
    assert reader.read() is None
    reader.close()
    shutil.rmtree(folder)
