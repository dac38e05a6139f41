"""Two builds have one fingerprint where they understand each other, and only there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import make_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from spotlight import __version__
from spotlight.actors.protocol.dialect import fingerprint, own_dialect
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.protocol.trainer import Train
from spotlight.transport.control import ActorRef, Message
from spotlight.types import Record
from tests.other_build import PARTS, Change, make_build

TELL = "from spotlight.actors.protocol.dialect import own_dialect; print(own_dialect().messages)"


def record(*fields: Any, name: str = "Said", **options: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct(name, fields, bases=(Record,), frozen=True, **options)


PART: Any = record(("x", int), name="Part")
PLAIN = record(("a", int), ("b", str))
OTHERS = {
    "a field more": record(("a", int), ("b", str), ("c", str, "")),
    "a field less": record(("a", int)),
    "a field of another name": record(("a", int), ("c", str)),
    "a field that is sent by another name": record(("a", int), ("b", str), rename="upper"),
    "a field of another type": record(("a", int), ("b", bytes)),
    "a field that may be none": record(("a", int), ("b", str | None)),
    "a bound": record(("a", Annotated[int, msgspec.Meta(ge=0)]), ("b", str)),
    "another bound": record(("a", Annotated[int, msgspec.Meta(ge=1)]), ("b", str)),
    "a pattern": record(("a", int), ("b", Annotated[str, msgspec.Meta(pattern="x")])),
    "words": record(("a", int), ("b", Literal["x", "y"])),
    "more words": record(("a", int), ("b", Literal["x", "y", "z"])),
    "one or many": record(("a", int), ("b", tuple[str, ...])),
    "one of two": record(("a", int), ("b", tuple[str, str])),
    "by name": record(("a", int), ("b", dict[str, str])),
    "a record": record(("a", int), ("b", PART)),
    "another record": record(("a", int), ("b", record(("x", float), name="Part"))),
    "many records": record(("a", int), ("b", tuple[PART, ...])),
    "numbers with names": record(("a", int), ("b", Enum("Kind", {"x": 1}))),
    "more numbers with names": record(("a", int), ("b", Enum("Kind", {"x": 1, "y": 2}))),
    "another order": record(("b", str), ("a", int)),
    "another name": record(("a", int), ("b", str), name="Told"),
    "a tag": record(("a", int), ("b", str), tag=True),
    "another tag": record(("a", int), ("b", str), tag="told"),
    "another field for the tag": record(("a", int), ("b", str), tag=True, tag_field="is"),
    "elements without names": record(("a", int), ("b", str), array_like=True),
}


def test_each_change_of_what_is_read_or_written_has_another_fingerprint() -> None:
    found = {name: fingerprint([kind]) for name, kind in OTHERS.items()}
    found["as it was"] = fingerprint([PLAIN])
    assert len(set(found.values())) == len(found)
    assert all(len(each) == 32 for each in found.values())


def test_what_is_read_alike_has_one_fingerprint() -> None:
    def told(*names: str) -> Any:
        return Literal[names]

    same = [
        PLAIN,
        record(("a", int, 5), ("b", str, "x")),
        record(("a", int), ("b", str), kw_only=True),
        record(("a", int), ("b", str), namespace={"__doc__": "In words.", "of": lambda self: 1}),
    ]
    assert len({fingerprint([kind]) for kind in same}) == 1
    one, other = record(("a", int | str)), record(("a", str | int))
    assert fingerprint([one]) == fingerprint([other])
    one, other = record(("a", told("x", "y"))), record(("a", told("y", "x")))
    assert fingerprint([one]) == fingerprint([other])


def test_the_order_in_which_types_are_named_changes_nothing() -> None:
    assert fingerprint([PLAIN, ActorRef]) == fingerprint([ActorRef, PLAIN]) != fingerprint([PLAIN])


class Plain:
    pass


Data = make_dataclass("Data", [("a", int)], frozen=True)


class Typed(TypedDict):
    a: int


class Lenient(msgspec.Struct):
    a: int


class Sparing(Record, frozen=True, omit_defaults=True):
    a: int = 1


@pytest.mark.parametrize("kind", [Plain, Data, Typed])
def test_a_field_whose_type_drops_what_it_does_not_know_is_no_part_of_a_message(
    kind: Any,
) -> None:
    with pytest.raises(TypeError, match=r"make it a `Record`"):
        fingerprint([record(("part", tuple[kind, ...]))])


@pytest.mark.parametrize("kind", [Lenient, Sparing])
def test_a_record_that_drops_or_leaves_out_fields_is_no_part_of_a_message(
    kind: type[msgspec.Struct],
) -> None:
    with pytest.raises(TypeError, match=kind.__name__):
        fingerprint([record(("part", kind | None))])


@pytest.mark.parametrize("kind", MAY_SAY, ids=lambda kind: kind.__name__)
def test_each_type_of_message_counts(kind: type[Message]) -> None:
    assert fingerprint(each for each in MAY_SAY if each is not kind) != fingerprint(MAY_SAY)


def test_the_own_dialect_has_the_version_of_spotlight_and_is_taken_once() -> None:
    assert own_dialect().software == __version__
    assert own_dialect() is own_dialect()


def told_by(env: dict[str, str] | None, code: str = TELL) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_what_a_program_imports_and_defines_besides_changes_nothing(tmp_path: Path) -> None:
    first = "import spotlight_simulation.memory_cluster; from spotlight import Message\n"
    own = "class Mine(Message):\n    field: int\n"
    env = make_build(tmp_path) | {"PYTHONHASHSEED": "7"}
    assert told_by(env, first + own + TELL) == told_by(env) == own_dialect().messages


NARROWER: Change = ("types.py", "lt=2**32", "lt=2**31")
SILENT: Change = ("actors/protocol/users.py", '"""Progress of the job, for people;', '"""Progress;')


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (PARTS, True),
        (NARROWER, True),
        (("jobs/spec.py", "    seed: Anno", "    luck: int = 1\n    seed: Anno"), True),
        (("transport/control/codec.py", "TELL = 0", "TELL = 7"), True),
        (SILENT, False),
    ],
    ids=["a field of a message", "a bound of a record", "a field of a job", "the header", "a text"],
)
def test_a_build_in_which_a_line_is_another(change: Change, differs: bool, tmp_path: Path) -> None:
    assert (told_by(make_build(tmp_path, change)) != own_dialect().messages) == differs


def test_an_order_for_a_part_is_refused_by_a_build_that_knows_no_parts(tmp_path: Path) -> None:
    order = msgspec.msgpack.encode(Train(3, 0, (), part="first"))
    code = (
        "from spotlight.actors.protocol.trainer import Train\n"
        "from spotlight.transport.control import BadInput, decode_message\n"
        f"try: print(decode_message({order!r}))\n"
        "except BadInput as error: print(error)"
    )
    said = told_by(make_build(tmp_path, PARTS), code)
    assert said == "a message Train was refused: Object contains unknown field `part`"
