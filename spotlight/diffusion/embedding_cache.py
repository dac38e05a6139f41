"""Embeddings of prompts on the disk of a node: what one of its workers has encoded, all of them
read, in this job and in later ones.

Invariants:
- An embedding is found again only for the same prompt, the same files of the encoder, and whatever
  else decides its bits: versions of the libraries, device, dtype and, on a CPU, the threads.
- A file is written beside its place and moved there, so it is whole or absent. Two workers that
  write the same one write the same bytes.
- One that is damaged is as good as none. So is one that cannot be written: it is made again.
- The folder keeps below a size; the files go that were not used for longest.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
import torch
from torch import Tensor

from spotlight.errors import CheckpointError, TransferFailed, UnreadableFile
from spotlight.files import MEBIBYTE, open_file, read_bytes
from spotlight.transport.tensors.bundles import metadata_of, pack, unpack

log = structlog.get_logger(__name__)

FORMAT = 1
"""Changes when the same prompt comes to be encoded in another way."""
MOST_NBYTES = 16 * 1024 * MEBIBYTE
"""Most bytes of the folder: some thousand prompts of the largest encoders."""
_LARGEST_FILE = 256 * MEBIBYTE
_TRIM_EVERY = 64
"""How many files are written between two looks at the size."""
_LEFT_AFTER_TRIM = 0.9
_BLOCK = 8 * MEBIBYTE
_DIGEST_DIGITS = 64


class EmbeddingCache:
    """See the module's docstring. Used by one thread at a time, and by several processes."""

    def __init__(self, folder: Path, *, most_nbytes: int = MOST_NBYTES) -> None:
        self._folder = folder
        self._most_nbytes = most_nbytes
        self._written = 0

    def read(self, encoder: str, prompt: str) -> dict[str, Tensor] | None:
        """The embedding of a prompt, named float32 tensors on the CPU; None if it is not there.
        `encoder` stands for all that decides it besides the prompt.
        """
        path = self._path(encoder, prompt)
        if not path.exists():
            return None
        try:
            data = read_bytes(path, most=_LARGEST_FILE)
            tensors = unpack(data)
            if metadata_of(data) != _metadata(prompt, tensors):
                raise TransferFailed("its tensors are not those that were written")
        except (UnreadableFile, TransferFailed) as error:
            log.warning("embedding_damaged", path=str(path), reason=str(error))
            return None
        with suppress(OSError):  # it only goes sooner then
            os.utime(path)
        return {
            name: tensor.float() if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }

    def write(self, encoder: str, prompt: str, tensors: dict[str, Tensor]) -> None:
        """Keep an embedding; one that cannot be kept is noted in the log."""
        small = {name: _smallest(tensor) for name, tensor in tensors.items()}
        self._keep(self._path(encoder, prompt), pack(small, _metadata(prompt, small)))

    def checksum(self, folders: Sequence[Path]) -> str:
        """Of the contents of all files in these folders; read once as long as they stay the same.
        Raises `CheckpointError` naming the file that cannot be read.
        """
        found = hashlib.sha256()
        for folder in folders:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    name = path.relative_to(folder.parent).as_posix()
                    found.update(f"{name} {self._checksum(path)}\n".encode())
        return found.hexdigest()

    def _checksum(self, path: Path) -> str:
        stat = path.stat()
        times = (stat.st_mtime_ns, stat.st_ctime_ns)
        signature = (os.fspath(path.resolve()), stat.st_dev, stat.st_ino, stat.st_size, *times)
        memo = self._folder / "files" / _digest(signature)
        with suppress(UnreadableFile):
            known = read_bytes(memo, most=_DIGEST_DIGITS).decode("ascii", errors="replace")
            if len(known) == _DIGEST_DIGITS:
                return known
        digest = hashlib.sha256()
        try:
            with open_file(path) as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
        except UnreadableFile as error:
            raise CheckpointError(f"model.checkpoint: {error}; copy it again") from error
        self._keep(memo, digest.hexdigest().encode())
        return digest.hexdigest()

    def _path(self, encoder: str, prompt: str) -> Path:
        return self._folder / _digest((FORMAT, encoder)) / f"{_digest(prompt)}.safetensors"

    def _keep(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
            try:
                with os.fdopen(part, "wb") as file:
                    file.write(data)
                os.replace(name, path)
            except OSError:
                os.unlink(name)
                raise
        except OSError as error:
            log.warning("embedding_not_kept", path=str(path), reason=str(error))
            return
        self._written += 1
        if self._written % _TRIM_EVERY == 1:
            self._trim()

    def _trim(self) -> None:
        """Another worker may do so at the same time."""
        files: list[tuple[int, int, Path]] = []
        for path in self._folder.glob("*/*"):
            with suppress(OSError):  # it went meanwhile
                stat = path.stat()
                files.append((stat.st_mtime_ns, stat.st_size, path))
        nbytes = sum(size for _, size, _ in files)
        if nbytes <= self._most_nbytes:
            return
        for _, size, path in sorted(files):
            if nbytes <= _LEFT_AFTER_TRIM * self._most_nbytes:
                break
            with suppress(OSError):
                path.unlink()
            nbytes -= size


def _digest(what: object) -> str:
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()


def _metadata(prompt: str, tensors: dict[str, Tensor]) -> dict[str, str]:
    checksum = 0
    for name in sorted(tensors):
        flat = tensors[name].contiguous().flatten().view(torch.uint8)
        checksum = zlib.crc32(flat.numpy().data, checksum)
    return {"prompt": prompt, "crc32": f"{checksum:08x}"}


def _smallest(tensor: Tensor) -> Tensor:
    """What an encoder made in bfloat16 needs no more than that."""
    half = tensor.bfloat16() if tensor.dtype == torch.float32 else tensor
    return half if torch.equal(half.float(), tensor.float()) else tensor
