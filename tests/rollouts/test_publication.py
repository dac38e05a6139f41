"""Publications are checked against the very model that workers load."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal

import pytest
import torch

from spotlight.diffusion.checkpoints import load_model
from spotlight.errors import TransferFailed, WeightsRefused
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.preflight.trainable import trainable_shapes
from spotlight.rollouts.publication import Publications
from spotlight.transport.tensors import BundleStore, fetch
from spotlight.transport.tensors.bundles import unpack
from spotlight_simulation.tiny_families import make_tiny_checkpoint

FULL = ModelSpec(checkpoint="builtin:ocr-tiny")
LORA = ModelSpec(
    checkpoint="builtin:ocr-tiny",
    tuning="lora",
    lora=LoraSpec(rank=2, targets=("to_q", "to_out.0", "img_mlp.net.2")),
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[BundleStore]:
    store = BundleStore(tmp_path, token="secret")
    await store.start()
    yield store
    await store.aclose()


def publications(store: BundleStore, spec: ModelSpec) -> Publications:
    made = Publications(store, spec.tuning)
    made.shapes = trainable_shapes(spec)
    return made


@pytest.mark.parametrize("spec", [FULL, LORA])
def test_the_names_and_shapes_are_those_that_the_loaded_model_trains(spec: ModelSpec) -> None:
    state = load_model(spec).trainable_state()
    assert trainable_shapes(spec) == {name: tuple(t.shape) for name, t in state.items()}


async def test_a_models_own_state_dict_can_be_published(store: BundleStore) -> None:
    model = load_model(FULL)
    published = publications(store, FULL)
    offer = published.pack(0, published.require(0, "full", model.transformer.state_dict()))
    assert (offer.version, offer.evaluation) == (0, ())
    found = unpack(await fetch(*offer.rollout))
    model.load_trainable_state(found)  # raises unless it is exactly what workers want


@pytest.mark.parametrize("prefix", ["", "transformer."])
async def test_adapters_can_be_published_as_peft_gives_them(
    store: BundleStore, prefix: str
) -> None:
    from peft import get_peft_model_state_dict

    model = load_model(LORA)
    given = get_peft_model_state_dict(model.transformer)
    named = {prefix + name: tensor for name, tensor in given.items()}
    model.load_trainable_state(publications(store, LORA).require(0, "lora", named))


@pytest.mark.parametrize("tuning", ["full", "lora"])
async def test_weights_of_two_transformers_keep_what_their_names_begin_with(
    store: BundleStore, tmp_path: Path, tuning: Literal["full", "lora"]
) -> None:
    make_tiny_checkpoint("wan-a14b", tmp_path / "base")
    spec = ModelSpec(checkpoint=str(tmp_path / "base"), tuning=tuning, lora=LoraSpec(rank=2))
    state = load_model(spec, device="cpu").trainable_state()
    for written in (state, {name.replace(".default.", "."): it for name, it in state.items()}):
        named = publications(store, spec).require(0, tuning, written)
        assert all(torch.equal(named[name], it) for name, it in state.items())


State = dict[str, torch.Tensor]


def state_dict() -> State:
    return dict(load_model(FULL).trainable_state())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda state: state.pop("img_in.bias"), "they lack img_in.bias, and are not those"),
        (lambda state: state.update(another=torch.zeros(1)), "they hold another, and are not"),
        (
            lambda state: state.update({"img_in.bias": torch.zeros(3)}),
            r"img_in.bias has shape \(3,\), but the model's is",
        ),
        (
            lambda state: state.update({"img_in.bias": state["img_in.bias"].long()}),
            "img_in.bias is torch.int64, which is not a float type",
        ),
        (
            lambda state: state["img_in.bias"].fill_(torch.nan),
            "img_in.bias has values that are NaN or infinite",
        ),
    ],
)
async def test_weights_of_another_model_are_refused(
    store: BundleStore, change: Callable[[State], object], problem: str
) -> None:
    state = state_dict()
    change(state)
    with pytest.raises(WeightsRefused, match=problem):
        publications(store, FULL).require(0, "full", state)


async def test_another_kind_than_the_sessions_is_refused(store: BundleStore) -> None:
    with pytest.raises(WeightsRefused, match="is `full`, so `lora` weights"):
        publications(store, FULL).require(0, "lora", {})


async def test_versions_only_grow(store: BundleStore) -> None:
    published, state = publications(store, FULL), state_dict()
    published.offers[4] = published.pack(4, published.require(4, "full", state))
    for version in (3, 4):
        with pytest.raises(WeightsRefused, match=f"{version} is not above 4"):
            published.require(version, "full", state)


async def test_versions_that_nobody_needs_are_deleted(store: BundleStore) -> None:
    published, state = publications(store, FULL), state_dict()
    for version in range(3):
        published.offers[version] = published.pack(version, state)
    published.keep({0, 2})
    assert sorted(published.offers) == [0, 2]
    with pytest.raises(TransferFailed, match="no bundle weights/000001"):
        await store.offer("weights/000001")
