"""Raw HTTP, and a reward server that means no good."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from isal.isal_zlib import crc32

from spotlight.transport.tensors.offers import CHECKSUM
from spotlight.types import StoreEndpoint

_LIMIT_S = 20.0

Answer = tuple[int, Mapping[str, str], bytes]


def talk(store: StoreEndpoint, data: bytes, *, most: int = 65_536) -> bytes:
    """What a store answers on a connection before it is closed; nothing if it is cut."""
    with connection_to(store) as connection:
        answer = b""
        with suppress(OSError):
            connection.sendall(data)
            while len(answer) < most and (part := connection.recv(4096)):
                answer += part
        return answer


def connection_to(store: StoreEndpoint) -> socket.socket:
    """One to its port; encrypted if it is, whoever is there."""
    plain = socket.create_connection((store.host, store.port), _LIMIT_S)
    if not store.fingerprint:
        return plain
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def put(store: StoreEndpoint, target: str, body: bytes, **headers: str) -> int:
    """The status of an upload to whatever `target` says; 0 if the connection was cut."""
    fields = {
        "Host": "x",
        "Authorization": f"Bearer {store.token}",
        CHECKSUM: f"{crc32(body):08x}",
        "Content-Length": str(len(body)),
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    answer = talk(store, f"PUT {target} HTTP/1.1\r\n{lines}\r\n".encode() + body)
    return int(answer.split()[1]) if answer.startswith(b"HTTP/") else 0


class Asked:
    """What a server was asked."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.requests: list[Mapping[str, str]] = []
        """The headers of all requests."""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/score"


@contextmanager
def reward_server(
    host: str, answer: Callable[[list[str]], Answer], port: int = 0
) -> Iterator[Asked]:
    """A reward server that answers so to the ids that it is asked for."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            asked.requests.append({key.lower(): value for key, value in self.headers.items()})
            self.send_response(404)
            self.end_headers()

        def do_POST(self) -> None:
            asked.requests.append({key.lower(): value for key, value in self.headers.items()})
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, headers, data = answer([image["id"] for image in json.loads(body)["images"]])
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    asked = Asked(host, server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def refusing(reason: str) -> Callable[[list[str]], Answer]:
    """No reward for any image, with a reason."""

    def answer(ids: list[str]) -> Answer:
        rewards = [{"id": each, "reward": None, "reason": reason} for each in ids]
        return 200, {}, json.dumps({"version": 1, "rewards": rewards}).encode()

    return answer
