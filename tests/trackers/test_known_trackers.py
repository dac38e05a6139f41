"""TensorBoard, Weights & Biases and trackio: what is logged is read back with their own readers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from PIL import Image

from spotlight.jobs import TrackerSpec
from spotlight.record.run_events import RunFinished, RunStarted
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.trackers import Callback, ShownPicture, ValidationPictures
from spotlight.trackers.building import named_trackers
from spotlight.trackers.callback import deliver
from spotlight.trackers.tracked_run import TrackedRun
from tests.small_run import small_job

REWARDS = (0.25, 0.5, 0.75)
SCORES = {0: 0.125, 3: 0.875}


def make(kind: str, folder: Path) -> Callback:
    tracker = TrackerSpec(kind=kind, project="tests")
    run = TrackedRun(id="small-1", job=small_job(), folder=folder, tracker=tracker)
    (named,) = named_trackers([run])
    return named.make()


def pictures(folder: Path) -> ValidationPictures:
    """Of version 3: a thumbnail that is there, and one that went."""
    file = folder / "p000.webp"
    if not file.exists():
        Image.new("RGB", (48, 16), "red").save(file, lossless=True)
    return ValidationPictures(
        3,
        3,
        (
            ShownPicture("p000", "a sign", 0.5, file),
            ShownPicture("p001", "gone", 0.25, folder / "gone.webp"),
        ),
    )


def tell(tracker: Callback, folder: Path) -> None:
    """A short run."""
    tracker.on_event(RunStarted(job="small"))
    tracker.on_validation(ValidationMetrics(weights_version=0, score=SCORES[0]))
    for iteration, reward in enumerate(REWARDS):
        metrics = IterationMetrics(iteration=iteration, reward_mean=reward)
        tracker.on_iteration(metrics, {"kl": reward / 2})
    tracker.on_validation(ValidationMetrics(weights_version=3, iteration=3, score=SCORES[3]))
    deliver(pictures(folder), tracker)
    tracker.on_event(RunFinished())


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    tell(make("tensorboard", tmp_path), tmp_path)

    (file,) = (tmp_path / "tensorboard").iterdir()
    found: dict[str, dict[int, float]] = {}
    images: dict[tuple[str, int], Any] = {}
    for data in records(file.read_bytes()):
        event = Event.FromString(data)
        for value in event.summary.value:
            found.setdefault(value.tag, {})[event.step] = value.simple_value
            if value.HasField("image"):
                images[value.tag, event.step] = value.image
    assert found["iteration/reward_mean"] == dict(enumerate(REWARDS))
    assert found["loss/kl"] == {step: reward / 2 for step, reward in enumerate(REWARDS)}
    assert found["validation/score"] == SCORES
    ((name, image),) = images.items()
    assert name == ("pictures/p000 a sign", 3) and (image.width, image.height) == (48, 16)
    assert image.encoded_image_string == (tmp_path / "p000.webp").read_bytes()


def records(data: bytes) -> list[bytes]:
    """Those of a TFRecord file: a length of 8 bytes, a checksum of 4, the data, one of 4."""
    found = []
    while data:
        length = int.from_bytes(data[:8], "little")
        found.append(data[12 : 12 + length])
        data = data[16 + length :]
    return found


def test_wandb_has_what_was_logged_while_it_is_offline(tmp_path: Path) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    code = (
        "import sys; from pathlib import Path;"
        "from tests.trackers.test_known_trackers import make, tell;"
        "folder = Path(sys.argv[1]); tell(make('wandb', folder), folder)"
    )
    environment = {**os.environ, "WANDB_MODE": "offline"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    (file,) = tmp_path.glob("wandb/offline-run-*/run-small-1.wandb")
    rewards, scores, shown = {}, {}, {}
    for data in log_records(file.read_bytes()):
        items = {
            "/".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in Record.FromString(data).history.item
        }
        if "iteration/reward_mean" in items:
            rewards[items["completed"]] = items["iteration/reward_mean"]
        if "validation/score" in items:
            scores[items["completed"]] = items["validation/score"]
        if any(name.startswith("pictures") for name in items):
            shown[items["completed"]] = json.dumps(items)
    assert rewards == dict(enumerate(REWARDS))
    assert scores == SCORES
    assert "0.500  a sign" in shown[3]


def log_records(data: bytes, header: int = 7, block: int = 32 * 1024) -> Iterator[bytes]:
    """Those of a log of LevelDB, which wandb writes: a checksum of 4 bytes, a length of 2, and a
    kind of 1 (1: whole, 2: begin, 3: middle, 4: end) before each piece; none crosses a block.
    """
    place, record = header, b""
    while place < len(data):
        left = block - place % block
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


class FakeImage(NamedTuple):
    """A picture of trackio, as its documentation has it."""

    value: str
    caption: str


class FakeRun:
    """A run of trackio, as its documentation has it."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.logged: list[tuple[int | None, dict[str, Any]]] = []
        self.finished = False

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        assert not self.finished
        self.logged.append((step, metrics))

    def finish(self) -> None:
        self.finished = True


def test_trackio_is_told_of_what_was_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trackio = ModuleType("trackio")
    runs: list[FakeRun] = []

    def init(**options: Any) -> FakeRun:
        runs.append(FakeRun(**options))
        return runs[-1]

    trackio.init = init  # type: ignore[attr-defined]
    trackio.Image = FakeImage  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    monkeypatch.delitem(sys.modules, "spotlight.trackers.trackio_tracker", raising=False)
    tell(make("trackio", tmp_path), tmp_path)
    monkeypatch.delitem(sys.modules, "spotlight.trackers.trackio_tracker")

    (run,) = runs
    assert run.finished
    assert (run.options["project"], run.options["name"]) == ("tests", "small-1")
    assert [step for step, _ in run.logged] == [0, 0, 1, 2, 3, 3]
    assert run.logged[2][1]["iteration/reward_mean"] == REWARDS[1]
    assert run.logged[-2][1]["validation/score"] == SCORES[3]
    image = FakeImage(str(tmp_path / "p000.webp"), "0.500  a sign")
    assert run.logged[-1][1] == {"pictures/p000": image}
