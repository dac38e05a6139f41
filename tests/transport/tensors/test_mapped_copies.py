"""Tensors as views on the file of a node's copy."""

import gc
import json
import multiprocessing
import struct
import warnings
import zlib
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensor_kit import mapped

from spotlight.errors import TransferFailed
from spotlight.transport.tensors import bundles, content_key
from spotlight.transport.tensors.bundles import map_copy, pack, touch
from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.offers import machine_identity
from spotlight.types import BundleOffer, StoreEndpoint

torch.set_num_threads(1)

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.uint8,
    torch.int64,
    torch.bool,
]
LARGE = 300_000


@pytest.fixture
def root(tmp_path: Path):
    """Where copies are; nothing of it is mapped at the end."""
    Folder(tmp_path).create()
    yield tmp_path
    gc.collect()
    assert mapped(str(tmp_path)) == 0


def keep(root: Path, data: bytes) -> BundleOffer:
    checksum = zlib.crc32(data)
    key = content_key("weights", checksum)
    (root / key).write_bytes(data)
    endpoint = StoreEndpoint("127.0.0.1", 1, "token", machine_identity(), str(root))
    return BundleOffer(key, len(data), checksum, endpoint)


def resident_kb(kind: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (), (3, LARGE)], ids=str)
def test_tensors_come_back_with_type_shape_and_bits(root, dtype, shape):
    tensor = (torch.rand(shape) * 100).to(dtype)
    back = map_copy(keep(root, pack({"a.weight": tensor, "b": torch.ones(2)})))
    assert back is not None and back.keys() == {"a.weight", "b"}
    found = back["a.weight"]
    assert (found.dtype, found.shape, found.requires_grad) == (dtype, tensor.shape, False)
    assert torch.equal(found.flatten().view(torch.uint8), tensor.flatten().view(torch.uint8))


def test_a_bundle_may_be_empty(root):
    assert map_copy(keep(root, pack({}))) == {}


def test_nothing_is_copied(root):
    tensors = {str(i): torch.full((8, LARGE), float(i)) for i in range(4)}
    offer = keep(root, pack(tensors))
    del tensors
    gc.collect()
    before = resident_kb("RssAnon")
    held = [map_copy(offer) for _ in range(3)]
    sums = [sum(float(t[0, 0]) for t in state.values()) for state in held if state is not None]
    assert sums == [6.0] * 3
    assert resident_kb("RssAnon") - before < offer.nbytes // 1024 // 2


def test_touched_tensors_are_in_memory_before_they_are_read(root):
    offer = keep(root, pack({str(i): torch.full((8, LARGE), float(i)) for i in range(4)}))
    held = map_copy(offer)
    assert held is not None
    before = resident_kb("VmRSS")
    touch(held)
    assert resident_kb("VmRSS") - before > 0.5 * offer.nbytes / 1024
    assert [float(tensor.sum()) for tensor in held.values()] == [i * 8 * LARGE for i in range(4)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_any_type_and_shape_can_be_touched(root, dtype):
    tensors = {str(shape): torch.zeros(shape, dtype=dtype) for shape in [(3, 4), (0, 4), ()]}
    held = map_copy(keep(root, pack(tensors)))
    assert held is not None
    touch(held)


def test_the_map_is_gone_with_the_last_tensor(root):
    offer = keep(root, pack({"a": torch.ones(LARGE), "b": torch.ones(LARGE)}))
    held = map_copy(offer)
    assert held is not None and mapped(str(root)) >= 1
    last = held["b"][5:]
    del held
    gc.collect()
    assert mapped(str(root)) >= 1
    assert last.sum() == LARGE - 5
    del last
    gc.collect()
    assert mapped(str(root)) == 0


@pytest.mark.parametrize("happens", ["deleted", "replaced"])
def test_what_happens_to_the_file_is_harmless_for_those_who_map_it(root, happens):
    offer = keep(root, pack({"a": torch.arange(float(LARGE))}))
    held = map_copy(offer)
    assert held is not None
    path = root / offer.key
    if happens == "replaced":
        (root / "new").write_bytes(bytes(offer.nbytes))
        (root / "new").replace(path)
    else:
        path.unlink()
    assert torch.equal(held["a"], torch.arange(float(LARGE)))
    assert (map_copy(offer) is None) if happens == "deleted" else path.exists()


def _hold(offer: bytes, pipe: Connection) -> None:
    """A worker: maps the copy, and says what is in it whenever it is asked."""
    state = map_copy(msgspec.json.decode(offer, type=BundleOffer))
    assert state is not None
    while True:
        pipe.send_bytes(str(float(state["a"].sum())).encode())
        if pipe.recv_bytes() == b"end":
            return


def test_a_worker_keeps_a_version_that_its_node_has_dropped(root):
    offer = keep(root, pack({"a": torch.ones(LARGE)}))
    here, there = multiprocessing.get_context("spawn").Pipe()
    worker = multiprocessing.get_context("spawn").Process(
        target=_hold, args=(msgspec.json.encode(offer), there)
    )
    worker.start()
    assert here.poll(60) and here.recv_bytes() == b"300000.0"
    (root / offer.key).unlink()
    keep(root, pack({"a": torch.zeros(LARGE)}))
    here.send_bytes(b"again")
    assert here.poll(60) and here.recv_bytes() == b"300000.0"
    here.send_bytes(b"end")
    worker.join(60)
    assert worker.exitcode == 0
    worker.close()


def test_what_is_written_to_the_tensors_reaches_neither_the_file_nor_others(root):
    data = pack({"a": torch.ones(LARGE)})
    offer = keep(root, data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        held, other = map_copy(offer), map_copy(offer)
        assert held is not None and other is not None
        held["a"].fill_(7.0)
    assert (root / offer.key).read_bytes() == data
    assert other["a"].sum() == LARGE


def test_a_read_only_file_can_be_mapped(root):
    offer = keep(root, pack({"a": torch.ones(3)}))
    (root / offer.key).chmod(0o400)
    held = map_copy(offer)
    assert held is not None and held["a"].tolist() == [1.0, 1.0, 1.0]


def test_what_is_not_a_copy_of_this_machine_must_be_fetched(root):
    offer = keep(root, pack({"a": torch.ones(3)}))
    assert map_copy(msgspec.structs.replace(offer, key="weights")) is None
    elsewhere = msgspec.structs.replace(offer.store, machine="another")
    assert map_copy(msgspec.structs.replace(offer, store=elsewhere)) is None


def test_a_file_that_is_deleted_as_it_is_looked_at_must_be_fetched(root, monkeypatch):
    offer = keep(root, pack({"a": torch.ones(3)}))
    monkeypatch.setattr(bundles, "own_file", lambda _: root / "gone")
    assert map_copy(offer) is None


# --- malformed ---


def file_with(header: dict, nbytes: int) -> bytes:
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + bytes(nbytes)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04N.",  # a pickle
        b"\xff" * 64,
        pack({"a": torch.ones(8)})[:-1],
        pack({"a": torch.ones(8)}) + b"x",
        file_with({"a": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}, 0),
        file_with({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}, 4),
    ],
    ids=["empty", "pickle", "noise", "short", "long", "overflow", "huge"],
)
def test_what_is_not_a_bundle_is_refused(root, data):
    offer = keep(root, data)
    with pytest.raises(TransferFailed, match=rf"bundle {offer.key} is malformed"):
        map_copy(offer)


WHOLE = pack({"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.int64)}, {"kind": "whole"})


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4
    ),
    length=st.one_of(st.just(len(WHOLE)), st.integers(0, len(WHOLE))),
)
def test_damage_gives_tensors_or_a_typed_error(root, changes, length):
    damaged = bytearray(WHOLE)
    for place, value in changes:
        damaged[place] = value
    offer = keep(root, bytes(damaged[:length]))
    try:
        held = map_copy(offer)
    except TransferFailed:
        pass
    else:
        assert held is not None
        assert all(isinstance(tensor, torch.Tensor) for tensor in held.values())
    (root / offer.key).unlink()
