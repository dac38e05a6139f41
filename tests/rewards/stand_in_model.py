"""A process that stands in for a vision-language model behind an OpenAI-compatible endpoint.

Its argument is a JSON object: what it answers about an image, by the red of the first pixel, and
about several by theirs (`9-4`). It prints its port. A request that is no greedy chat completion
about images, with the question behind them, is refused.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from PIL import Image

ANSWERS = json.loads(sys.argv[1])


class Model(BaseHTTPRequestHandler):
    """One conversation."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            assert self.path == "/v1/chat/completions", self.path
            assert self.headers["authorization"] == "Bearer sesame"
            assert request["model"] == "tiny-vl"
            assert request["temperature"] == 0
            [message] = request["messages"]
            assert message["role"] == "user"
            *images, text = message["content"]
            assert text["type"] == "text"
            reds = (_first_red(image["image_url"]["url"]) for image in images)
            answer = ANSWERS["-".join(map(str, reds))]
            content = answer.replace("{question}", text["text"]) if answer is not None else None
            choice = {"index": 0, "finish_reason": "stop", "message": {"content": content}}
            self._answer(200, {"object": "chat.completion", "choices": [choice]})
        except (AssertionError, KeyError, ValueError) as error:
            self._answer(400, {"error": {"message": repr(error)}})

    def _answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _first_red(url: str) -> int:
    head, _, data = url.partition(",")
    assert head in ("data:image/png;base64", "data:image/webp;base64"), head
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        return image.convert("RGB").getpixel((0, 0))[0]  # type: ignore[index, no-any-return]


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
sys.stdout.write(f"{server.server_address[1]}\n")
sys.stdout.flush()
server.serve_forever()
