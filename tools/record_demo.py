#!/usr/bin/env python3
"""Records the run that `spotlight dashboard --demo` shows: a real one, of a minute or two on two
cores, of which what the page shows is kept.

    python tools/record_demo.py                  run the example, and keep it in spotlight/web/demo
    python tools/record_demo.py --from RUN       keep a run that is there already
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from spotlight.report.run_view import RunView  # noqa: E402 (it need not be installed)
from spotlight.report.view_building import view_of  # noqa: E402

DEMO = ROOT / "spotlight" / "web" / "demo"
JOB = ROOT / "examples" / "ocr-tiny-priced.yaml"
CHANGES = ("iterations=24", "validation.every=6")
"""Where the job differs from the example, for the sake of its size."""
LARGEST = 300_000
"""Bytes of all files together."""
FILES = ("config.yaml", "metrics.jsonl", "events.jsonl", "states.jsonl", "ledger.json")


def keep(run: Path, place: Path) -> int:
    """Copy what is shown of a run; returns how many bytes that is."""
    view = view_of(run)
    if view.job.outcome != "finished":
        raise SystemExit(f"{run}: is {view.job.outcome}; a demo is of a run that has finished")
    wanted = [run / name for name in FILES if (run / name).exists()]
    wanted += sorted((run / "rollups").glob("*"))
    wanted += sorted({run / name for name in pictures_of(view)})
    kept = {file.relative_to(run): contents(file) for file in wanted}
    nbytes = sum(map(len, kept.values()))
    if nbytes > LARGEST:
        raise SystemExit(f"{run}: what is shown has {nbytes:,} bytes, more than {LARGEST:,}")
    shutil.rmtree(place, ignore_errors=True)
    for name, content in kept.items():
        copy = place / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
    return nbytes


def contents(file: Path) -> bytes:
    """What is kept of a file: of the states of workers, which are most of it, not the date."""
    data = file.read_bytes()
    return re.sub(rb', "at": [0-9.]+', b"", data) if file.name == "states.jsonl" else data


def pictures_of(view: RunView) -> set[str]:
    """Paths of all pictures, thumbnails and whole ones, below the run folder."""
    pictures = view.pictures
    rows = (*pictures.wall, pictures.best, pictures.worst)
    return {path for row in rows for one in row for path in (one.thumb, one.full) if path}


def main() -> None:
    """Run as a command."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    options.add_argument("--from", dest="run", type=Path, help="a run folder")
    run = options.parse_args().run
    with tempfile.TemporaryDirectory() as folder:
        if run is None:
            run = Path(folder) / "run"
            changes = [word for change in CHANGES for word in ("--set", change)]
            command = [sys.executable, "-m", "spotlight", "run", str(JOB), *changes]
            subprocess.run([*command, "--run-folder", str(run)], check=True, cwd=ROOT)
        place = DEMO / "demo"
        sys.stdout.write(f"{place}: {keep(run, place):,} bytes\n")


if __name__ == "__main__":
    main()
