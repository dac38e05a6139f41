"""The page of a run as a single file: the very page that is served while it goes on, with the view,
its scripts, its styles and its thumbnails in it. It needs nothing else, and says its main figures
without a script.

Its content security policy allows the scripts and styles that are in it by their hashes, and
nothing of any other place but pictures that lie beside it. Text of the run is data in it: it is
never HTML but in the figures that are escaped.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from urllib.parse import quote

import msgspec

import spotlight
from spotlight import __version__
from spotlight.errors import UnreadableFile
from spotlight.files import open_file
from spotlight.report.formatting import duration
from spotlight.report.run_view import PicturesPart, RunView, Shown
from spotlight.report.view_words import main_figures

LARGEST = 5_000_000
"""Bytes of the page."""
_LARGEST_THUMB = 256 * 1024
_STATIC = Path(spotlight.__file__).parent / "web/static"
_STYLE = re.compile(r'<link rel="stylesheet" href="static/([\w.-]+)">\n?')
_SCRIPT = re.compile(r'<script src="static/([\w.-]+)"(?: defer)?></script>\n?')
_ICON = re.compile(r'<link rel="icon" href="static/([\w.-]+)">')
_TITLE = re.compile(r"<title>[^<]*</title>")
_WAITING = re.compile(r'(<p class="waiting" id="waiting">)[^<]*')
_NOSCRIPT = re.compile(r"<noscript>.*?</noscript>", re.DOTALL)
_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"RIFF": "image/webp",
}


def frozen_page(view: RunView, folder: Path) -> str:
    """The whole document, of at most `LARGEST` bytes.

    Args:
        folder: of the run, where its pictures are.
    """
    without = _document(msgspec.structs.replace(view, pictures=PicturesPart()))
    room = LARGEST - len(without.encode())
    pictures = _inlined(view.pictures, folder, room)
    return _document(msgspec.structs.replace(view, pictures=pictures))


def _document(view: RunView) -> str:
    page = (_STATIC / "index.html").read_text(encoding="utf-8")
    scripts = [_asset(name) for name in _SCRIPT.findall(page)]
    styles = "\n".join(_asset(name) for name in _STYLE.findall(page))
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data: file: 'self'; "
        f"script-src {' '.join(map(_hash, scripts))}; style-src {_hash(styles)}"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{styles}</style>'
    )
    data = msgspec.json.encode(view).decode().replace("<", "\\u003c")
    body = f'<script id="view" type="application/json">{data}</script>\n' + "\n".join(
        f"<script>{script}</script>" for script in scripts
    )
    title = f"<title>{escape(view.job.name)} - Spotlight</title>"
    page = _ICON.sub(lambda found: _icon(found[1]), _SCRIPT.sub("", _STYLE.sub("", page)))
    page = _TITLE.sub(lambda _: title, page)
    page = _WAITING.sub(r"\1", page)  # there is nothing to wait for, with a script or without
    page = _NOSCRIPT.sub(lambda _: f"<noscript>{_in_words(view)}</noscript>", page)
    notices = "".join(f"<!--\n{path.read_text()}-->\n" for path in _STATIC.glob("*-LICENSE.txt"))
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{head}', 1)
    return page.replace("</body>", f"{notices}{body}\n</body>", 1)


def _asset(name: str) -> str:
    text = (_STATIC / name).read_text(encoding="utf-8")
    if re.search(r"</(script|style)", text, re.IGNORECASE):
        raise ValueError(f"{name} cannot be a part of a page, of which it would end its element")
    return text


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _icon(name: str) -> str:
    return f'<link rel="icon" href="{_data_url("image/svg+xml", (_STATIC / name).read_bytes())}">'


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


# --- pictures ---


def _inlined(pictures: PicturesPart, folder: Path, room: int) -> PicturesPart:
    """Thumbnails as data, the most telling first, as far as there is room for them; the others, and
    all whole pictures, are links to what lies beside the page."""
    made: dict[Shown, Shown | None] = {}
    by_worth = list(dict.fromkeys(_by_worth(pictures)))
    room -= sum(2 * len(msgspec.json.encode(_linked(one))) for one in by_worth)  # with escapes
    for shown in by_worth:
        data = _picture(folder, shown.thumb)
        made[shown] = None if data is None else _linked(shown)
        if data and len(data) <= room:
            room -= len(data)
            made[shown] = msgspec.structs.replace(_linked(shown), thumb=data)

    def kept(row: tuple[Shown, ...]) -> tuple[Shown, ...]:
        return tuple(found for one in row if (found := made[one]) is not None)

    wall = tuple(row for each in pictures.wall if (row := kept(each)))
    return PicturesPart(wall=wall, best=kept(pictures.best), worst=kept(pictures.worst))


def _by_worth(pictures: PicturesPart) -> Iterator[Shown]:
    """First and latest pictures of the wall, best and worst, and then all others, newest first."""
    for row in pictures.wall:
        yield from dict.fromkeys((row[0], row[-1]))
    yield from (*pictures.best, *pictures.worst)
    others = [shown for row in pictures.wall for shown in row[1:-1]]
    yield from sorted(others, key=lambda shown: -shown.weights_version)


def _picture(folder: Path, name: str) -> str | None:
    """As data, empty if it is too large for that; None of what is not there or no picture."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        return None
    try:
        with open_file(path) as file:
            data = file.read(_LARGEST_THUMB + 1)
    except (UnreadableFile, OSError):
        return None
    media_type = next((kind for head, kind in _BEGINNINGS.items() if data.startswith(head)), None)
    if media_type is None:
        return None
    return _data_url(media_type, data) if len(data) <= _LARGEST_THUMB else ""


def _linked(shown: Shown) -> Shown:
    return msgspec.structs.replace(shown, thumb=quote(shown.thumb), full=quote(shown.full))


# --- words ---


def _in_words(view: RunView) -> str:
    figures = "".join(
        f"<dt>{escape(what)}</dt><dd>{escape(value)}</dd>" for what, value in main_figures(view)
    )
    lines = [*view.alerts, *view.notes]
    lines += [f"{duration(one.time_s)}: {one.text}" for one in view.happened]
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return (
        f"<h1>{escape(view.job.name)}</h1><p>{escape(view.job.about)}</p><dl>{figures}</dl>"
        f"<ul>{items}</ul><p>Written by Spotlight {escape(__version__)}.</p>"
    )
