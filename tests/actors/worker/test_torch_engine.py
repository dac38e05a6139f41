"""The state of training on its way through a store, and what is exported of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from job_kit import job
from safetensors.torch import load_file
from torch import Tensor

from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.diffusion.checkpoints import load_model
from spotlight.errors import CheckpointError, TransferFailed
from spotlight.training.checkpoints import State, load_checkpoint
from spotlight.training.state_files import StateFile, StateFiles
from spotlight.training.weights import Rows
from spotlight.transport.tensors import BundleStore
from tests.training.fakes import same_bits

TENSORS = {"weights/a": torch.randn(3, 4), "updates": torch.tensor(7), "weights/b": torch.zeros(0)}
STATE = State(TENSORS)
METADATA = {"job": "job-1", "completed": "3"}


def whole(*files: StateFile) -> dict[str, Tensor]:
    """All tensors in the files of a state."""
    rows = {name: Rows(shape, 0, shape) for name, shape in (("a", (3, 4)), ("b", (0,)))}
    return dict(StateFiles(files).for_rank(rows))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[BundleStore]:
    store = BundleStore(tmp_path / "store", token="t")
    await store.start()
    yield store
    await store.aclose()


async def test_a_state_comes_back_to_the_bit(store: BundleStore, tmp_path: Path) -> None:
    engine = TorchEngine()
    offer = await engine.save_state(store.writable_by("w"), "state/1", STATE, METADATA)
    state = await engine.fetch_state(offer)
    assert same_bits(whole(state), TENSORS)
    await store.hand_out("state/1", tmp_path / "checkpoint")
    assert load_checkpoint(tmp_path / "checkpoint")[1] == METADATA


async def test_a_state_outlives_its_place_in_the_store(store: BundleStore) -> None:
    """Its tensors may be mapped from the file."""
    engine = TorchEngine()
    offer = await engine.save_state(store.writable_by("w"), "state/1", STATE, METADATA)
    state = await engine.fetch_state(offer)
    other = State({name: tensor + 1 for name, tensor in TENSORS.items()})
    await engine.save_state(store.writable_by("w"), "state/1", other, METADATA)
    store.delete("state")
    assert same_bits(whole(state), TENSORS)


async def test_a_state_that_another_has_replaced_is_refused(store: BundleStore) -> None:
    engine = TorchEngine()
    offer = await engine.save_state(store.writable_by("w"), "state/1", STATE, METADATA)
    other = State({name: tensor + 1 for name, tensor in TENSORS.items()})
    await engine.save_state(store.writable_by("w"), "state/1", other, METADATA)
    with pytest.raises(TransferFailed, match="damaged"):
        await engine.fetch_state(offer)


async def test_the_parts_of_several_ranks_become_one_checkpoint(
    store: BundleStore, tmp_path: Path
) -> None:
    engine, parts = TorchEngine(), []
    for number, (first, last) in enumerate([(0, 2), (2, 3), (3, 3)]):
        a = TENSORS["weights/a"][first:last]
        rows = {"a": Rows((3, 4), first, tuple(a.shape)), "b": Rows((0,), 0, (0,))}
        state = State({**TENSORS, "weights/a": a}, rows)
        key = f"state/1-{number}"
        parts.append(await engine.save_state(store.writable_by("w"), key, state, METADATA))
    await store.join([part.key for part in parts], "state/joined")
    await store.hand_out("state/joined", tmp_path / "checkpoint")
    tensors, metadata = load_checkpoint(tmp_path / "checkpoint")
    assert metadata == METADATA
    wanted = {name: it for name, it in TENSORS.items() if it.numel()}
    assert same_bits(tensors, wanted)


async def test_parts_of_different_states_are_not_joined(store: BundleStore) -> None:
    for number, completed in enumerate("34"):
        rows = {"a": Rows((6, 4), 3 * number, (3, 4)), "b": Rows((0,), 0, (0,))}
        await TorchEngine().save_state(
            store.writable_by("w"), f"state/1-{number}", State(TENSORS, rows), {"n": completed}
        )
    with pytest.raises(TransferFailed, match="different states"):
        await store.join(["state/1-0", "state/1-1"], "state/joined")
    with pytest.raises(TransferFailed, match="no part has row 0 of it"):
        await store.join(["state/1-1"], "state/joined")
    with pytest.raises(TransferFailed, match="No such file"):
        await store.join(["state/1-0", "state/1-2"], "state/joined")


async def test_a_bundle_that_is_no_state_is_refused(store: BundleStore) -> None:
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        await TorchEngine().fetch_state(store.put("state/1", b"something else"))


async def test_the_averaged_weights_of_a_checkpoint_are_left_in_files_of_the_store(
    store: BundleStore, tmp_path: Path
) -> None:
    engine, model = TorchEngine(), job().model
    averaged = {
        f"ema/{name}": tensor + 1 for name, tensor in load_model(model).trainable_state().items()
    }
    checkpoint = await engine.save_state(
        store.writable_by("w"), "state/1", State(averaged), METADATA
    )
    files = await engine.export(model, checkpoint, store.writable_by("w"))
    assert all(file.key.startswith("export/") for file in files)
    for file in files:
        await store.hand_out(file.key, tmp_path / file.key)
    (weights,) = (tmp_path / "export").rglob("*.safetensors")
    exported = load_file(weights)
    assert len(exported) == len(averaged)
    assert all(
        torch.equal(exported[name.removeprefix("ema/")], it) for name, it in averaged.items()
    )


def test_workers_with_other_versions_of_torch_are_of_other_kinds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = TorchEngine()
    before = engine.device_kind
    assert before == engine.device_kind
    monkeypatch.setattr(torch, "__version__", "1.0.0")
    assert engine.device_kind != before and "1.0.0" in engine.device_kind
