"""The files of the page, as they ship with the package: read once, sent as they are or packed."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from aiohttp import web

from spotlight.web.refusing import not_found

FOLDER = Path(__file__).parent / "static"
PAGE = "index.html"
SIGN_IN = "signin.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True)
class _File:
    body: bytes
    packed: bytes
    media_type: str
    tag: str


class StaticFiles:
    """See the module's docstring."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): _read(path)
            for path in sorted(folder.rglob("*"))
            if path.suffix in _TYPES and path.is_file()
        }

    def answer(
        self, request: web.BaseRequest, name: str, status: int = HTTPStatus.OK
    ) -> web.Response:
        """The file of that name below the folder. Raises `Refused` if there is none."""
        file = self._files.get(name)
        if file is None:
            raise not_found(f"there is no file `{name[:100]}`")
        headers = {"ETag": file.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if status == HTTPStatus.OK and request.headers.get("If-None-Match") == file.tag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        headers["Content-Type"] = file.media_type
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return web.Response(body=file.packed, status=status, headers=headers)
        return web.Response(body=file.body, status=status, headers=headers)


def _read(path: Path) -> _File:
    body = path.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return _File(body, gzip.compress(body, mtime=0), _TYPES[path.suffix], tag)
