"""Embeddings that one worker made are those that the others read, or none."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from spotlight.diffusion.embedding_cache import EmbeddingCache
from spotlight.errors import CheckpointError

ENCODER = "an encoder"
ENCODED = {"embeds": torch.linspace(-1, 1, 30).view(5, 6), "pooled": torch.arange(4).float()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "embeddings"


@pytest.fixture
def cache(folder: Path) -> EmbeddingCache:
    return EmbeddingCache(folder)


def same(found: dict[str, torch.Tensor] | None) -> bool:
    return found is not None and all(torch.equal(found[name], it) for name, it in ENCODED.items())


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_another_process_reads_what_one_has_written_to_the_bit(
    cache: EmbeddingCache, folder: Path
) -> None:
    assert cache.read(ENCODER, "a cat") is None
    cache.write(ENCODER, "a cat", ENCODED)
    assert same(EmbeddingCache(folder).read(ENCODER, "a cat"))


@pytest.mark.parametrize(("encoder", "prompt"), [("another encoder", "a cat"), (ENCODER, "A cat")])
def test_nothing_is_found_for_another_encoder_or_prompt(
    cache: EmbeddingCache, encoder: str, prompt: str
) -> None:
    cache.write(ENCODER, "a cat", ENCODED)
    assert cache.read(encoder, prompt) is None


def test_what_was_made_in_bfloat16_takes_half_the_space_and_keeps_its_bits(
    cache: EmbeddingCache, folder: Path
) -> None:
    rounded = {"embeds": torch.randn(64, 64).bfloat16().float()}
    cache.write(ENCODER, "a cat", rounded)
    (file,) = files(folder)
    assert file.stat().st_size < 64 * 64 * 3
    found = cache.read(ENCODER, "a cat")
    assert found is not None
    assert found["embeds"].dtype == torch.float32
    assert torch.equal(found["embeds"], rounded["embeds"])


@pytest.mark.parametrize("where", [0, 20, -1])
def test_a_file_with_one_damaged_byte_is_as_good_as_none(
    cache: EmbeddingCache, folder: Path, where: int
) -> None:
    cache.write(ENCODER, "a cat", ENCODED)
    (file,) = files(folder)
    data = bytearray(file.read_bytes())
    data[where] ^= 1
    file.write_bytes(data)
    assert cache.read(ENCODER, "a cat") is None
    cache.write(ENCODER, "a cat", ENCODED)
    assert same(cache.read(ENCODER, "a cat"))


@pytest.mark.parametrize("left", [0, 7, 40, 200])
def test_a_file_that_is_cut_off_is_as_good_as_none(
    cache: EmbeddingCache, folder: Path, left: int
) -> None:
    cache.write(ENCODER, "a cat", ENCODED)
    (file,) = files(folder)
    file.write_bytes(file.read_bytes()[:left])
    assert cache.read(ENCODER, "a cat") is None


def test_several_may_write_and_read_the_same_one_at_once(folder: Path) -> None:
    def work(_: int) -> bool:
        cache = EmbeddingCache(folder)
        cache.write(ENCODER, "a cat", ENCODED)
        return same(cache.read(ENCODER, "a cat"))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(64)))
    assert len(files(folder)) == 1


def test_a_folder_that_cannot_be_written_keeps_nothing_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = EmbeddingCache(tmp_path / "file" / "embeddings")
    cache.write(ENCODER, "a cat", ENCODED)
    assert cache.read(ENCODER, "a cat") is None


def test_the_folder_keeps_below_its_size_and_what_was_used_last_stays(folder: Path) -> None:
    cache = EmbeddingCache(folder, most_nbytes=100_000)
    large = {"embeds": torch.randn(50, 50)}
    cache.write(ENCODER, "often used", large)
    for number in range(130):
        cache.write(ENCODER, f"prompt {number}", large)
        assert cache.read(ENCODER, "often used") is not None
        assert sum(file.stat().st_size for file in files(folder)) < 100_000 + 65 * 11_000
    cache = EmbeddingCache(folder, most_nbytes=100_000)
    cache.write(ENCODER, "one more", large)
    assert sum(file.stat().st_size for file in files(folder)) <= 100_000
    assert cache.read(ENCODER, "often used") is not None


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    folder = tmp_path / "text_encoder"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_bytes(b"{}")
    return folder


def test_the_checksum_is_of_what_the_files_hold(
    cache: EmbeddingCache, encoder: Path, tmp_path: Path
) -> None:
    before = cache.checksum([encoder])
    copied = tmp_path / "elsewhere" / "text_encoder"
    copied.parent.mkdir()
    encoder.rename(copied)
    assert cache.checksum([copied]) == before
    kept = (copied / "config.json").stat()
    (copied / "config.json").write_bytes(b"[]")
    os.utime(copied / "config.json", ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert cache.checksum([copied]) != before


def test_files_are_read_for_their_checksum_only_once(
    cache: EmbeddingCache, encoder: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cache.checksum([encoder])
    monkeypatch.setattr("spotlight.diffusion.embedding_cache.open_file", None)
    assert EmbeddingCache(folder).checksum([encoder]) == before


def test_a_file_that_cannot_be_read_is_named(cache: EmbeddingCache, encoder: Path) -> None:
    (encoder / "config.json").unlink()
    os.mkfifo(encoder / "config.json")
    assert cache.checksum([encoder])  # what is no file is not the encoder's
    (encoder / "config.json").unlink()
    (encoder / "config.json").symlink_to("/proc/self/mem")
    with pytest.raises(CheckpointError, match=r"^model\.checkpoint: .*config\.json"):
        cache.checksum([encoder])
