"""A hub on this machine that takes commits as the real one does, as far as its library asks."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "hf_of_a_test"


class Hub:
    """What was brought to it."""

    def __init__(self) -> None:
        self.repositories: dict[str, bool] = {}
        """Whether each is private."""
        self.files: dict[str, bytes] = {}
        """Those of all commits, by their path."""
        self.large: dict[str, bytes] = {}
        """Large files by their checksum, before a commit names them."""
        self.refuses = 0
        """The status with which it refuses to make a repository."""


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_PUT(self) -> None:
            hub.large[self.path.rpartition("/")[2]] = self._body()
            self._send(200, {})

        def do_POST(self) -> None:
            body = self._body()
            if self.path.endswith("/objects/batch"):
                return self._send(200, self._places(json.loads(body)))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._send(401, {"error": "Invalid credentials"})
            if hub.refuses:
                return self._send(hub.refuses, {"error": "You may not write here"})
            if self.path == "/api/repos/create":
                asked = json.loads(body)
                name = "/".join([asked["organization"], asked["name"]])
                hub.repositories[name] = asked.get("private", asked.get("visibility") == "private")
                return self._send(200, {"url": f"{self._here}/{name}", "id": name})
            if "/preupload/" in self.path:
                files = [self._mode(file["path"]) for file in json.loads(body)["files"]]
                return self._send(200, {"files": files})
            if "/commit/" in self.path:
                for line in body.decode().splitlines():
                    self._take(json.loads(line))
                name = self.path.removeprefix("/api/models/").partition("/commit/")[0]
                url = f"{self._here}/{name}/commit/{'0' * 40}"
                return self._send(200, {"commitUrl": url, "commitOid": "0" * 40, "success": True})
            self._send(200, {"errors": [], "warnings": []})

        @property
        def _here(self) -> str:
            return f"http://{self.headers['Host']}"

        def _mode(self, path: str) -> dict[str, object]:
            mode = "lfs" if path.endswith(".safetensors") else "regular"
            return {"path": path, "uploadMode": mode, "shouldIgnore": False}

        def _places(self, asked: dict[str, list[dict[str, object]]]) -> dict[str, object]:
            objects = [
                {**one, "actions": {"upload": {"href": f"{self._here}/large/{one['oid']}"}}}
                for one in asked["objects"]
            ]
            return {"transfer": "basic", "objects": objects}

        def _take(self, line: dict[str, dict[str, str]]) -> None:
            value = line["value"]
            if line["key"] == "file":
                hub.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                hub.files[value["path"]] = hub.large[value["oid"]]

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _send(self, status: int, said: object) -> None:
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Connection", "close")  # else a thread waits for the next request
            self.end_headers()
            self.wfile.write(data)

    return Handler


@contextmanager
def listening() -> Iterator[tuple[Hub, str]]:
    """A hub that has nothing yet, and where it listens."""
    hub = Hub()
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
