"""Exports that are brought to the hub, over HTTP, and what hinders them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_stand_in import TOKEN, Hub, listening
from safetensors.torch import load_file

from spotlight.diffusion.checkpoints import load_model
from spotlight.errors import UserError
from spotlight.exports.hub import push, require_pushable
from spotlight.store.run_folder import checkpoint_path
from spotlight.training.checkpoints import save_checkpoint
from tests.small_run import small_job, write_run

constants = pytest.importorskip("huggingface_hub.constants")
LORA = {"checkpoint": "builtin:ocr-tiny", "tuning": "lora"}
NAME = "painters/digits"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """The library of this process brings things here, with a token that may."""
    with listening() as (found, here):
        monkeypatch.setattr(constants, "ENDPOINT", here)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An export."""
    made = tmp_path / "export"
    made.mkdir()
    (made / "README.md").write_text("# digits\n")
    (made / "weights.safetensors").write_bytes(b"many numbers")
    return made


def test_an_export_becomes_a_private_repository_with_its_files(hub: Hub, folder: Path) -> None:
    require_pushable(NAME)
    assert push(folder, NAME).endswith(f"/{NAME}")
    assert hub.repositories == {NAME: True}
    assert hub.files == {"README.md": b"# digits\n", "weights.safetensors": b"many numbers"}


def test_a_missing_token_is_said_before_anything_is_exported(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError) as caught:
        require_pushable(NAME)
    assert str(caught.value) == (
        "--push-to-hub: no token of the hub is here; give one that may write, with `hf auth login`"
        " or HF_TOKEN"
    )


@pytest.mark.parametrize("name", ["digits", "a/b/c", "../up", "painters/", "https://hub/a/b"])
def test_a_name_that_is_no_repository_is_refused(hub: Hub, name: str) -> None:
    with pytest.raises(UserError, match=r"--push-to-hub: .* write ORGANISATION/NAME"):
        require_pushable(name)


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_may_not_write_is_said_in_one_line(
    hub: Hub, folder: Path, status: int
) -> None:
    hub.refuses = status
    with pytest.raises(UserError) as caught:
        push(folder, NAME)
    assert "\n" not in str(caught.value) and TOKEN not in str(caught.value)
    assert str(caught.value).endswith(
        "give a token that may write there, with `hf auth login` or HF_TOKEN, and push what is"
        f" there: hf upload {NAME} {folder}"
    )


def test_a_hub_that_does_not_answer_leaves_the_export_where_it_is(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        with pytest.raises(UserError, match=f"hf upload {NAME} {folder}") as caught:
            push(folder, NAME)
    assert "\n" not in str(caught.value)
    assert (folder / "weights.safetensors").exists()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has trained adapters for two iterations."""
    run = write_run(tmp_path / "run", model=LORA)
    (run / "checkpoints").mkdir()
    state = load_model(small_job(model=LORA).model, device="cpu").trainable_state()
    tensors = {f"ema/{name}": tensor for name, tensor in state.items()}
    save_checkpoint(run / checkpoint_path(2), tensors, {})
    line = {"kind": "validation", "weights_version": 2, "iteration": 2, "score": 0.5}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return run


def test_the_command_exports_and_pushes_with_a_card(run: Path, tmp_path: Path) -> None:
    with listening() as (hub, here):
        env = {"HF_ENDPOINT": here, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
        argv = [sys.executable, "-m", "spotlight", "export", str(run), "--format", "comfyui"]
        done = subprocess.run(
            [*argv, "--to", str(tmp_path / "out"), "--push-to-hub", NAME],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"pushed to {here}/{NAME}"
    assert hub.files.keys() == {"README.md", "spotlight_lora.safetensors"}
    assert b"spotlight_lora.safetensors" in hub.files["README.md"]
    (tmp_path / "sent").write_bytes(hub.files["spotlight_lora.safetensors"])
    assert any(name.endswith(".alpha") for name in load_file(tmp_path / "sent"))
