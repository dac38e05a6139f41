"""The ledger in its file: whole, or a line of what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotlight.errors import RunFolderError
from spotlight.record.ledger import Ledger, NodeBill, Price
from spotlight.store.ledger_file import NAME, read_ledger, write_ledger

BILL = NodeBill(
    node="spot-1",
    pool="spot",
    process="a1",
    workers=2,
    from_at=1_700_000_000.0,
    to_at=1_700_000_010.5,
    price=Price(1.25, on_demand=4.0, source="job"),
    times={"spot-1/0": {"rollout": 9000, "idle": 1500}, "spot-1/1": {"starting": 10500}},
)
LEDGER = Ledger(number=7, at=1_700_000_010.5, time_s=10.5, bills=(BILL,))


def test_a_ledger_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_ledger(tmp_path, LEDGER)
    assert read_ledger(tmp_path) == LEDGER
    assert os.listdir(tmp_path) == [NAME]


def test_a_ledger_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    write_ledger(tmp_path, LEDGER)
    write_ledger(tmp_path, Ledger(number=8))
    assert read_ledger(tmp_path) == Ledger(number=8)


def test_where_none_was_written_it_is_empty(tmp_path: Path) -> None:
    assert read_ledger(tmp_path) == Ledger()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "is damaged (Input data was truncated)"),
        (b'{"format":1,"number":7,"bil', "is damaged (Input data was truncated)"),
        (b"[]", "is damaged (Expected `object`, got `array`)"),
        (b"{}", "is damaged (Object missing required field `format`)"),
        (b'{"format":1,"number":"7"}', "is damaged (Expected `int`, got `str` - at `$.number`)"),
        (b"\xff\xfe", "is damaged (JSON is malformed: invalid character (byte 0))"),
        (
            b'{"format":1,"bills":[{"node":"n","pool":"spot","process":"p","workers":1,'
            b'"from_at":1.0,"to_at":2.0,"times":{"n/0":{"idle":-5}}}]}',
            "is damaged (Expected `int` >= 0 - at `$.bills[0].times[...][...]`)",
        ),
    ],
)
def test_a_damaged_ledger_is_named_with_what_to_do(
    tmp_path: Path, text: bytes, problem: str
) -> None:
    (tmp_path / NAME).write_bytes(text)
    with pytest.raises(RunFolderError) as caught:
        read_ledger(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / NAME} {problem}; put it back from a copy")


def test_a_ledger_of_a_later_version_is_refused_as_that(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'{"format":2,"entries":{}}')
    with pytest.raises(RunFolderError, match="has format 2, of a later Spotlight"):
        read_ledger(tmp_path)


def test_no_ledger_is_read_from_a_folder_of_that_name(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(RunFolderError, match="is a folder, not a file"):
        read_ledger(tmp_path)


def test_a_ledger_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    write_ledger(tmp_path, LEDGER)
    (tmp_path / f"{NAME}.part").mkdir()
    with pytest.raises(RunFolderError, match=r"ledger\.json\.part: Is a directory"):
        write_ledger(tmp_path, Ledger(number=8))
    assert read_ledger(tmp_path) == LEDGER
