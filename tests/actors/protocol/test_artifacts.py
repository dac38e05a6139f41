"""The folders of the run's store in which a node may leave bundles are its own alone."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.actors.protocol.artifacts import LEFT_BY_TRAINERS, image_key_of, own_folders
from spotlight.actors.protocol.trainer import state_key
from spotlight.transport.tensors.keys import is_below
from spotlight.types import NAME_OF_NODE

names = st.from_regex(NAME_OF_NODE, fullmatch=True)
AWKWARD = ("a", "aa", "a.b", "0", "0-0", "pictures", "samples", "validation", "state", "_", "-")


def may_write(node: str, key: str) -> bool:
    return any(is_below(key, folder) for folder in own_folders(node))


def keys_of(node: str) -> list[str]:
    worker = f"{node}/0"
    return [
        f"commits/{worker}/11-1-5",
        f"samples/{worker}/11-1",
        image_key_of("pictures/7/1.png", worker),
        image_key_of("validation/000003/1.png", worker),
    ]


@given(node=names | st.sampled_from(AWKWARD), other=names | st.sampled_from(AWKWARD))
def test_no_node_may_leave_anything_where_another_one_does(node: str, other: str) -> None:
    assert all(may_write(node, key) for key in keys_of(node))
    if node != other:
        assert not any(may_write(other, key) for key in keys_of(node))


@pytest.mark.parametrize("node", AWKWARD)
def test_no_node_may_leave_states_weights_or_exports_by_its_own_folders(node: str) -> None:
    assert re.fullmatch(NAME_OF_NODE, node)
    wanted = [*(f"{folder}/{node}/a" for folder in LEFT_BY_TRAINERS), state_key(1), "export/a"]
    for key in (*wanted, "state/checkpoint", "state/joined", f"checkpoint/{node}/a", f"{node}/a"):
        assert not may_write(node, key)
