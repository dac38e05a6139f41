"""Input that is almost right: messages of every type with fields that are not theirs, and bytes and
texts with pieces replaced, removed, doubled and inserted.

All chance comes from the generator that is handed in: the seed of one says the input. Hypothesis
can hand in its own, and makes what it finds as small as it gets.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

import spotlight.actors
from spotlight.jobs import JobSpec, SamplerSpec, TrainingSpec, job_from_data
from spotlight.jobs.spec import WorkSpec
from spotlight.transport.control import KeyPair, Message

Make = Callable[[Random], Any]
"""Makes up an input."""

_WITH_TORCH = ("torch", "process", "batch_work", "engine")
"""How the names of modules begin that need PyTorch; no message is defined there."""
_INTEGERS = (0, 1, 7, 255, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63))
_FLOATS = (0.0, 1.0, -1.0, 0.5, 1e9, 1e300, float("inf"), float("-inf"), float("nan"))
_TEXTS = (
    "",
    "a",
    "spot-7",
    "\x1b[2J",
    "\u202e",
    "\n",
    "x" * 3000,
    "../../x",
    "tcp://127.0.0.1:1",
    f"tcp://127.0.0.1:1/{KeyPair.derived(b'fuzz').public}",
    KeyPair.derived(b"fuzz").public,
    "0" * 64,
    "rollout-0-0-0-1",
)
_JOB = {
    "name": "fuzz",
    "model": {"checkpoint": "builtin:ocr-tiny"},
    "prompts": {"train": "builtin:ocr-tiny/train", "validation": "builtin:ocr-tiny/validation"},
    "sampler": {"height": 16, "width": 48, "steps": 8},
}
_LONGEST = max(map(len, _TEXTS))
_PIECES = (b"", b"\0", b"\xff", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x91")


def message_types() -> list[type[Message]]:
    """All that the package defines."""
    for module in pkgutil.walk_packages(spotlight.actors.__path__, "spotlight.actors."):
        if not module.name.rpartition(".")[2].startswith(_WITH_TORCH):
            importlib.import_module(module.name)
    found = {kind.__name__: kind for kind in _below(Message)}
    return [found[name] for name in sorted(found)]


def _below(kind: type[Message]) -> Iterator[type[Message]]:
    for below in kind.__subclasses__():
        if below.__module__.startswith("spotlight."):
            yield below
            yield from _below(below)


# --- data of a type ---------------------------------------------------------------------


@functools.cache
def data_of(kind: type) -> Make:
    """What MessagePack carries of a type: of the declared types and ranges. The type may refuse it
    all the same, for what no declaration says."""
    return _data(inspect.type_info(kind))


def _data(kind: inspect.Type) -> Make:
    match kind:
        case inspect.NoneType():
            return lambda rng: None
        case inspect.BoolType():
            return lambda rng: rng.random() < 0.5
        case inspect.AnyType() | inspect.RawType():
            return anything
        case inspect.IntType():
            return _one_of(n for n in _INTEGERS if _is_in_range(kind, n))
        case inspect.FloatType():
            return _one_of(x for x in _FLOATS if _is_in_range(kind, x))
        case inspect.StrType():
            pattern, most = re.compile(kind.pattern or ""), kind.max_length or _LONGEST
            return _one_of(text for text in _TEXTS if len(text) <= most and pattern.search(text))
        case inspect.BytesType():
            return lambda rng: rng.randbytes(rng.randrange(20))
        case inspect.LiteralType():
            return _one_of(kind.values)
        case inspect.EnumType():
            return _one_of(member.value for member in kind.cls)
        case inspect.UnionType():
            return _any_of([_data(each) for each in kind.types])
        case inspect.TupleType():
            return _each_of([_data(each) for each in kind.item_types])
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
            item, least = _data(kind.item_type), kind.min_length or 0
            return lambda rng: [item(rng) for _ in range(least + rng.choice((0, 1, 3)))]
        case inspect.DictType():
            key, value = _data(kind.key_type), _data(kind.value_type)
            return lambda rng: {key(rng): value(rng) for _ in range(rng.choice((0, 1, 3)))}
        case inspect.StructType():
            return lambda rng: _struct(kind.cls)(rng)
    raise TypeError(f"nobody has said how to make up a {kind}")


def _is_in_range(kind: inspect.IntType | inspect.FloatType, number: float) -> bool:
    return not (
        (kind.ge is not None and number < kind.ge)
        or (kind.gt is not None and number <= kind.gt)
        or (kind.le is not None and number > kind.le)
        or (kind.lt is not None and number >= kind.lt)
    )


def _one_of(values: Any) -> Make:
    choices = tuple(values)
    assert choices, "nothing that is made up here is in that range, or has that pattern; add some"
    return lambda rng: rng.choice(choices)


def _any_of(makes: list[Make]) -> Make:
    return lambda rng: rng.choice(makes)(rng)


def _each_of(makes: list[Make]) -> Make:
    return lambda rng: [make(rng) for make in makes]


@functools.cache
def _jobs() -> dict[type, Any]:
    """Of these, all fields must fit together."""
    job = job_from_data(_JOB)
    made = {
        JobSpec: job,
        WorkSpec: job.work,
        SamplerSpec: job.sampler,
        TrainingSpec: job.training,
    }
    return {kind: msgspec.json.decode(msgspec.json.encode(each)) for kind, each in made.items()}


@functools.cache
def _struct(kind: type[msgspec.Struct]) -> Make:
    if kind in _jobs():
        return lambda rng: _jobs()[kind]
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    fields = [(field.encode_name, field.required, _data(field.type)) for field in info.fields]
    tag = {} if info.tag_field is None else {info.tag_field: info.tag}

    def as_map(rng: Random) -> dict[str, Any]:
        there = [(name, make) for name, required, make in fields if required or rng.random() < 0.7]
        return {**tag, **{name: make(rng) for name, make in there}}

    def as_array(rng: Random) -> list[Any]:
        return [*tag.values(), *(make(rng) for _, _, make in fields)]

    return as_array if info.array_like else as_map


# --- what is wrong with it --------------------------------------------------------------


def anything(rng: Random, depth: int = 3) -> Any:
    """Any value of MessagePack."""
    match rng.randrange(9 if depth else 7):
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2:
            return rng.choice(_INTEGERS)
        case 3:
            return rng.choice(_FLOATS)
        case 4:
            return rng.choice(_TEXTS)
        case 5:
            return rng.randbytes(rng.randrange(20))
        case 6:
            return msgspec.msgpack.Ext(rng.randrange(128), rng.randbytes(rng.randrange(9)))
        case 7:
            return [anything(rng, depth - 1) for _ in range(rng.randrange(4))]
        case _:
            return {rng.choice(_TEXTS): anything(rng, depth - 1) for _ in range(rng.randrange(4))}


def altered(data: Any, rng: Random) -> Any:
    """Data with some places that hold something else, lack, or are too many; often with none."""
    for _ in range(rng.choice((0, 0, 1, 2))):
        data = _with_another(data, rng)
    return data


def _with_another(data: Any, rng: Random) -> Any:
    if not isinstance(data, list | dict) or not data or rng.randrange(6) == 0:
        return anything(rng)
    if isinstance(data, list):
        place = rng.randrange(len(data))
        return [*data[:place], _with_another(data[place], rng), *data[place + 1 :]]
    name = rng.choice(list(data))
    match rng.randrange(5):
        case 0:
            return {key: value for key, value in data.items() if key != name}
        case 1:
            return {**data, rng.choice(_TEXTS): anything(rng)}
        case _:
            return {**data, name: _with_another(data[name], rng)}


def packed(data: Any) -> bytes:
    """Data as MessagePack."""
    return msgspec.msgpack.encode(data)


def mutated(valid: bytes, rng: Random) -> bytes:
    """Bytes with pieces replaced, removed, doubled and inserted, or cut short; often with none."""
    data = bytearray(valid)
    for _ in range(rng.choice((0, 0, 0, 1, 2, 6))):
        start = rng.randint(0, len(data))
        end = min(len(data), start + rng.choice((0, 1, 1, 4, 8)))
        piece = rng.choice(
            (*_PIECES, rng.randbytes(rng.randrange(1, 9)), bytes(data[start:end]) * 2)
        )
        data[start:end] = piece
    if rng.randrange(12) == 0:
        del data[rng.randint(0, len(data)) :]
    return bytes(data)


def mistyped(valid: str, rng: Random) -> str:
    """The same of text."""
    text = valid
    for _ in range(rng.choice((0, 0, 1, 1, 2, 6))):
        start = rng.randint(0, len(text))
        end = min(len(text), start + rng.choice((0, 1, 1, 3)))
        instead = rng.choice(
            ("", ".", "/", ":", "tcp://", "@", "A", "=", " ", "\n", "\0", "é", "٣")
        )
        text = text[:start] + rng.choice((instead, text[start:end] * 2)) + text[end:]
    return text
