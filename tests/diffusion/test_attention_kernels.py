"""Which attention kernels a job asks for."""

from __future__ import annotations

from importlib.util import find_spec

import diffusers
import pytest

from spotlight.diffusion.checkpoints import load_model
from spotlight.errors import MissingDependency
from spotlight.jobs import ModelSpec

CHECKPOINT = "builtin:ocr-tiny"


@pytest.mark.skipif(find_spec("flash_attn") is not None, reason="flash-attn is installed")
def test_kernels_that_are_not_installed_are_named_with_what_to_do() -> None:
    with pytest.raises(MissingDependency, match=r"model.attention: flash_varlen.*flash-attn"):
        load_model(ModelSpec(checkpoint=CHECKPOINT, attention="flash_varlen"), device="cpu")


def test_the_transformer_is_told_which_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    kind = diffusers.QwenImageTransformer2DModel
    monkeypatch.setattr(kind, "set_attention_backend", lambda _, name: asked.append(name))
    load_model(ModelSpec(checkpoint=CHECKPOINT), device="cpu")
    assert asked == [], "torch chooses"
    load_model(ModelSpec(checkpoint=CHECKPOINT, attention="flash"), device="cpu")
    assert asked == ["flash"]
