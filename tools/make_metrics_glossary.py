#!/usr/bin/env python3
"""Writes docs/metrics.md from the docstrings of the records of a run.

python tools/make_metrics_glossary.py           write the page
python tools/make_metrics_glossary.py --check   exit with 1 when the page is not up to date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "metrics.md"
RECORDS = ("run_metrics.py", "run_events.py", "trainer_events.py")
SOURCES = [ROOT / "spotlight" / "record" / name for name in RECORDS]

sys.path.insert(0, str(ROOT))

from spotlight.docstrings import read_docstrings  # noqa: E402 (it need not be installed)
from spotlight.record.run_events import EVENTS  # noqa: E402
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics  # noqa: E402

INTRODUCTION = """\
# Metrics and events of a run

<!-- Written by tools/make_metrics_glossary.py from spotlight/record/run_metrics.py,
run_events.py and trainer_events.py; edit the docstrings there. -->

The lines of `metrics.jsonl` have a `kind`, `iteration` or `validation`; those of `events.jsonl`
have an `event`, their name. When `events.jsonl` is large it becomes the next of
`events-000001.jsonl` and so on, and another begins. One kind of event, `worker_state`, has files of
its own, `states.jsonl` and `states-older.jsonl`, which have the last hour or two. Callbacks
([trackers](trackers.md)) get the same as typed records.

All have `time_s`, seconds of run time, and `at`, the same moment in seconds since 1970 (UTC), which
lines of version 0.1.0 do not have. Run time includes earlier, interrupted runs of the same folder.
It goes on while a coordinator is away in the middle of a job, by the wall clock and at most for a
day, and not between the end of a job and its resumption. It never goes back, also where a clock
does. Times are in seconds, spreads are standard deviations, and values that were not measured are
`null`.

Trackers call these numbers `iteration/NAME` and `validation/NAME`, and the metrics of the loss
`loss/NAME`.
"""


def glossary() -> str:
    """The whole page."""
    docs: dict[str, str] = {}
    for source in SOURCES:
        docs |= read_docstrings(source)
    return INTRODUCTION + "".join(_parts(docs))


def _parts(docs: dict[str, str]) -> Iterator[str]:
    for record in (IterationMetrics, ValidationMetrics):
        yield f"\n## `{record.__struct_config__.tag}`\n\n{docs[record.__name__]}\n\n"
        yield from _table(record, docs)
    yield "\n## Events\n"
    for name, event in EVENTS.items():
        yield f"\n### `{name}`\n\n{docs[event.__name__]}\n"
        if _fields(event):
            yield "\n"
        yield from _table(event, docs)


def _table(record: type[msgspec.Struct], docs: dict[str, str]) -> Iterator[str]:
    if not _fields(record):
        return
    yield "| field | meaning |\n|---|---|\n"
    for name in _fields(record):
        yield f"| `{name}` | {docs[f'{record.__name__}.{name}'].replace('|', chr(92) + '|')} |\n"


def _fields(record: type[msgspec.Struct]) -> list[str]:
    fields = (field.name for field in msgspec.structs.fields(record))
    return [name for name in fields if name not in ("time_s", "at")]


def main() -> int:
    """Write or check the page."""
    text = glossary()
    if "--check" in sys.argv[1:]:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
