import json
import struct
import warnings
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.errors import TransferFailed
from spotlight.transport.tensors.bundles import metadata_of, pack, unpack

torch.set_num_threads(1)

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.uint8,
    torch.int64,
    torch.bool,
]


def file_with(header: dict, nbytes: int) -> bytes:
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + bytes(nbytes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), ()], ids=str)
def test_tensors_come_back_with_type_shape_and_bits(dtype, shape):
    tensor = (torch.rand(shape) * 100).to(dtype)
    back = unpack(pack({"a.weight": tensor}))["a.weight"]
    assert (back.dtype, back.shape) == (dtype, tensor.shape)
    assert torch.equal(back, tensor)


def test_values_without_a_number_keep_their_bits():
    tensor = torch.tensor([float("nan"), float("inf"), -0.0])
    back = unpack(pack({"a": tensor}))["a"]
    assert torch.equal(back.view(torch.int32), tensor.view(torch.int32))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).T,
        torch.arange(12.0)[::2],
        torch.ones(1).expand(4),
        torch.ones(3, requires_grad=True),
    ],
    ids=["transposed", "strided", "expanded", "trained"],
)
def test_any_layout_can_be_packed(tensor):
    assert torch.equal(unpack(pack({"a": tensor}))["a"], tensor.detach())


def test_tensors_that_share_memory_come_back_apart():
    whole = torch.arange(6.0)
    back = unpack(pack({"whole": whole, "tied": whole, "part": whole[2:4]}))
    back["whole"].zero_()
    assert torch.equal(back["tied"], torch.arange(6.0))
    assert torch.equal(back["part"], torch.tensor([2.0, 3.0]))


def test_packing_leaves_the_tensors_as_they_are():
    tensor = torch.ones(3, requires_grad=True)
    pack({"a": tensor})
    assert tensor.requires_grad


def test_the_same_tensors_give_the_same_bytes():
    tensors = {"b": torch.ones(2), "a": torch.zeros(3)}
    assert pack(tensors) == pack(dict(reversed(tensors.items())))


def test_unpacked_tensors_can_be_written_to():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = unpack(pack({"a": torch.ones(2)}))["a"]
    back += 1
    assert back.tolist() == [2.0, 2.0]


def test_a_bundle_may_be_empty():
    assert unpack(pack({})) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04N.",  # a pickle
        b"\xff" * 64,
        pack({"a": torch.ones(8)})[:-1],
        pack({"a": torch.ones(8)}) + b"x",
        file_with({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, 1),
        file_with({"a": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}, 0),
        file_with({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}, 4),
    ],
    ids=["empty", "pickle", "noise", "short", "long", "unknown-type", "overflow", "huge"],
)
def test_what_is_not_a_bundle_is_refused(data):
    with pytest.raises(TransferFailed, match=rf"bundle of {len(data)} bytes is malformed"):
        unpack(data)


def test_a_bundle_says_what_it_is():
    data = pack({"a": torch.ones(8)}, {"kind": "a commit", "of": '{"step": 3}'})
    assert metadata_of(data) == {"kind": "a commit", "of": '{"step": 3}'}
    assert torch.equal(unpack(data)["a"], torch.ones(8))
    assert metadata_of(pack({"a": torch.ones(8)})) == {}


WHOLE = pack({"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.int64)}, {"kind": "whole"})


@settings(max_examples=100, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4
    ),
    length=st.one_of(st.just(len(WHOLE)), st.integers(0, len(WHOLE))),
)
def test_damage_gives_tensors_or_a_typed_error(changes, length):
    damaged = bytearray(WHOLE)
    for place, value in changes:
        damaged[place] = value
    with suppress(TransferFailed):
        tensors = unpack(bytes(damaged[:length]))
        assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
    with suppress(TransferFailed):
        metadata = metadata_of(bytes(damaged[:length]))
        assert all(isinstance(text, str) for text in metadata.values())
