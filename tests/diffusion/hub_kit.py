"""A hub on this machine that answers as the real one does, as far as its library asks; and the
cache that the library fills from it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

REPOSITORY = "painters/tiny"
COMMIT = "0123456789abcdef" * 2 + "01234567"


class Hub:
    """Serves one repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.revisions = {"main": COMMIT, COMMIT: COMMIT}
        self.sent: list[str] = []
        """Files of which bytes were sent, with the range that was asked for."""
        self.asked = 0
        self.status = 0
        """Of all answers, instead of the right one."""
        self.gated = False

    def files(self) -> list[str]:
        found = (path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file())
        return sorted(path.as_posix() for path in found)

    def checksum(self, name: str) -> str:
        """As the hub says it: git's of small files."""
        data = self.read(name)
        if name.endswith(".safetensors"):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def nbytes_sent(self, ending: str) -> int:
        return sum(len(self.read(name.split()[0])) for name in self.sent if name.endswith(ending))

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            hub.asked += 1
            path = unquote(urlsplit(self.path).path)
            if hub.status:
                return self._send(hub.status, b"", {}, with_body)
            if hub.gated:
                return self._send(403, b"", {"X-Error-Code": "GatedRepo"}, with_body)
            place = path.removeprefix("/api/models").removeprefix("/")
            if not place.startswith(REPOSITORY):
                return self._send(401, b"", {"X-Error-Code": "RepoNotFound"}, with_body)
            words = place.removeprefix(REPOSITORY).strip("/").split("/")
            kind, revision = words[0], words[1] if len(words) > 1 else "main"
            commit = hub.revisions.get(revision)
            if commit is None:
                return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"}, with_body)
            if kind == "resolve":
                return self._file("/".join(words[2:]), commit, with_body)
            siblings = [self._sibling(name) for name in hub.files()]
            model = {"id": REPOSITORY, "modelId": REPOSITORY, "sha": commit}
            body: object = {**model, "siblings": siblings}
            if kind == "tree":
                body = [self._entry(name) for name in hub.files()]
            data = json.dumps(body).encode()
            self._send(200, data, {"Content-Type": "application/json"}, with_body)

        def _entry(self, name: str) -> dict[str, object]:
            size, oid = len(hub.read(name)), hub.checksum(name)
            return {"type": "file", "path": name, "size": size, "oid": oid}

        def _sibling(self, name: str) -> dict[str, object]:
            size, oid = len(hub.read(name)), hub.checksum(name)
            if name.endswith(".safetensors"):
                lfs = {"sha256": oid, "size": size, "pointerSize": 134}
                return {"rfilename": name, "size": size, "blobId": "0" * 40, "lfs": lfs}
            return {"rfilename": name, "size": size, "blobId": oid}

        def _file(self, name: str, commit: str, with_body: bool) -> None:
            if name not in hub.files():
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body)
            data, status = hub.read(name), 200
            headers = {"ETag": f'"{hub.checksum(name)}"', "X-Repo-Commit": commit}
            wanted = self.headers.get("range", "")
            if wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                end = min(int(last or len(data)) + 1, len(data))
                headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
                data, status = data[int(first) : end], 206
            if with_body:
                hub.sent.append(name + (f" {wanted}" if wanted else ""))
            self._send(status, data, headers, with_body)

        def _send(self, status: int, data: bytes, headers: dict[str, str], with_body: bool) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if with_body:
                self.wfile.write(data)

    return Handler


@contextmanager
def listening(folder: Path) -> Iterator[tuple[Hub, str]]:
    """A hub that has this folder, and where it listens."""
    hub = Hub(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    host, port = server.server_address[:2]
    try:
        yield hub, f"http://{host}:{port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The library asks this hub, and its cache is empty."""
    with listening(folder) as (hub, here):
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, here)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", here)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        yield hub


def fill_cache(folder: Path, cache: Path) -> Path:
    """Have a cache with all files of a folder, as the library makes it; returns the folder of the
    commit."""
    hub, place = Hub(folder), cache / f"models--{REPOSITORY.replace('/', '--')}"
    (place / "blobs").mkdir(parents=True)
    snapshot = place / "snapshots" / COMMIT
    for name in hub.files():
        blob = shutil.copy(folder / name, place / "blobs" / hub.checksum(name))
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot
