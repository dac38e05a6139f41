"""The state of training on its way through a store, and what is exported of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from job_kit import job
from safetensors.torch import load_file

from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.diffusion.checkpoints import load_model
from spotlight.errors import CheckpointError, TransferFailed
from spotlight.training.checkpoints import load_checkpoint
from spotlight.transport.tensors import BundleStore

STATE = {"weights/a": torch.randn(3, 4), "updates": torch.tensor(7), "none": torch.zeros(0)}
METADATA = {"job": "job-1", "completed": "3"}


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
    assert state.keys() == STATE.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in STATE.items())
    await store.hand_out("state/1", tmp_path / "checkpoint")
    assert load_checkpoint(tmp_path / "checkpoint")[1] == METADATA


async def test_a_state_outlives_its_place_in_the_store(store: BundleStore) -> None:
    """Its tensors may be mapped from the file."""
    engine = TorchEngine()
    offer = await engine.save_state(store.writable_by("w"), "state/1", STATE, METADATA)
    state = await engine.fetch_state(offer)
    other = {name: tensor + 1 for name, tensor in STATE.items()}
    await engine.save_state(store.writable_by("w"), "state/1", other, METADATA)
    store.delete("state")
    assert all(torch.equal(state[name], tensor) for name, tensor in STATE.items())


async def test_a_state_that_another_has_replaced_is_refused(store: BundleStore) -> None:
    engine = TorchEngine()
    offer = await engine.save_state(store.writable_by("w"), "state/1", STATE, METADATA)
    other = {name: tensor + 1 for name, tensor in STATE.items()}
    await engine.save_state(store.writable_by("w"), "state/1", other, METADATA)
    with pytest.raises(TransferFailed, match="damaged"):
        await engine.fetch_state(offer)


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
    checkpoint = await engine.save_state(store.writable_by("w"), "state/1", averaged, METADATA)
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
