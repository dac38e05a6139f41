"""A server of rewards that fails as real ones do, when it is told to.

It runs in threads of its own, on loopback, and speaks HTTP by the standard library alone, so that
it is not the code that it is to test. The reward of an image is the mean of its pixels, in [0, 1].
"""

from __future__ import annotations

import base64
import io
import json
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image

Fault = Literal["error_500", "hang", "null", "nan", "out_of_range", "cut_connection", "wrong_count"]
FAULTS: tuple[Fault, ...] = get_args(Fault)

_HANG_S = 60.0


class FaultyRewardServer:
    """Use it as a context manager; it listens within."""

    def __init__(self, next_fault: Callable[[], Fault | None] = lambda: None) -> None:
        """`next_fault` is asked for each request, one at a time, what is to go wrong with it."""
        self._next_fault = next_fault
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self.injected: Counter[Fault] = Counter()
        """Faults so far, by kind."""
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        """Headers, in lower case, and bodies, without their images."""
        self.answer_version = 1
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                service._answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False  # they are joined when the server is closed
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        """Where it scores."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/score"

    def __enter__(self) -> FaultyRewardServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ending.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        rewards = [{"id": each["id"], "reward": mean_of(each["image"])} for each in body["images"]]
        for image in body["images"]:
            del image["image"]
        with self._lock:
            headers = {name.lower(): value for name, value in handler.headers.items()}
            self.requests.append((headers, body))
            fault = self._next_fault()
            if fault is not None:
                self.injected[fault] += 1
        if fault == "hang":
            self._ending.wait(_HANG_S)
            handler.close_connection = True
            return
        if fault == "null":
            rewards[-1] = {**rewards[-1], "reward": None, "reason": "the model is out of memory"}
        elif fault == "nan":
            rewards[-1]["reward"] = float("nan")
        elif fault == "out_of_range":
            rewards[-1]["reward"] = -7.0
        elif fault == "wrong_count":
            rewards = rewards[1:] if len(self.requests) % 2 else [*rewards, rewards[0]]
        text = json.dumps({"version": self.answer_version, "rewards": rewards}).encode()
        handler.send_response(500 if fault == "error_500" else 200)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text[: len(text) // 2] if fault == "cut_connection" else text)
        if fault == "cut_connection":
            handler.close_connection = True


def mean_of(image: str) -> float:
    """The reward of a file in base64."""
    with Image.open(io.BytesIO(base64.b64decode(image))) as file:
        return float(np.asarray(file.convert("RGB")).mean() / 255)
