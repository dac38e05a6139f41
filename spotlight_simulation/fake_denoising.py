"""A simulated model and its batches (`engine.Model`, `engine.Denoising`): steps take virtual time,
and give fingerprints in place of latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from spotlight.actors.protocol.gradients import SliceOrder
from spotlight.actors.worker import engine
from spotlight.actors.worker.engine import Origin
from spotlight.errors import CommitRefused
from spotlight.types import Commit, Request
from spotlight_simulation import fingerprints
from spotlight_simulation.fake_hardware import FakeHardware
from spotlight_simulation.fingerprints import Row
from spotlight_simulation.virtual_threads import sleep


class CommitBundle(msgspec.Struct, frozen=True):
    """The bytes of a commit."""

    origin: Origin
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class State:
    """Where a batch is (`engine.Progress`)."""

    weights: str
    step: int
    latents: tuple[str, ...]

    def rows(self, requests: Sequence[Request]) -> tuple[Row, ...]:
        """One by one."""
        return tuple(
            Row(request, self.weights, self.step, each)
            for request, each in zip(requests, self.latents, strict=True)
        )


class FakeDenoising:
    """See `engine.Denoising`."""

    def __init__(self, model: FakeModel, requests: Sequence[Request], state: State) -> None:
        self._model = model
        self.requests = tuple(requests)
        self.steps = requests[0].settings.steps
        self.first = state.step
        self.state = state
        self.copied = state.step
        """Step of the last commit taken."""

    @property
    def steps_taken(self) -> int:
        """See `engine.Denoising`."""
        return self.state.step

    @property
    def done(self) -> bool:
        """See `engine.Denoising`."""
        return self.state.step >= self.steps

    def step(self) -> None:
        """See `engine.Denoising`."""
        self.reach(self.computed(1), counts=True)

    def computed(self, members: int) -> State:
        """What this rank's part of the next step gives, after the time that it takes."""
        model = self._model
        model.hardware.compute(model.worker)
        sleep(model.hardware.step_s(model.node, members))
        at = self.state
        latents = tuple(fingerprints.denoised(each, at.step) for each in at.latents)
        return State(model.weights, at.step + 1, latents)

    def reach(self, state: State, *, counts: bool) -> None:
        """The step is taken; it counts for one rank of its group."""
        model = self._model
        if state.weights != self.state.weights:
            model.hardware.history.violation(f"{model.worker} changed its weights within a batch")
        self.state = state
        if counts:
            model.hardware.step_taken(model.worker, self)

    def progress(self) -> State:
        """See `engine.Denoising`."""
        sleep(self._model.hardware.times.copy_s)
        self.copied = self.state.step
        return self.state

    def adopt(self, ahead: FakeDenoising) -> None:
        """See `engine.Denoising`."""
        self.state = ahead.state


class FakeModel:
    """See `engine.Model`."""

    shares_processor = False

    def __init__(self, hardware: FakeHardware, worker: str) -> None:
        self.hardware = hardware
        self.worker = worker
        self.node = worker.partition("/")[0]
        self.weights = ""

    def use(self, weights: engine.Weights) -> None:
        """See `engine.Model`."""
        self.weights = cast(str, weights)

    def begin(self, requests: Sequence[Request], progress: engine.Progress | None) -> FakeDenoising:
        """See `engine.Model`."""
        if progress is None:
            latents = tuple(fingerprints.noise(self.weights, request) for request in requests)
            state = State(self.weights, 0, latents)
        else:
            state = cast(State, progress)
        return FakeDenoising(self, requests, state)

    def decode(self, requests: Sequence[Request], progress: engine.Progress) -> tuple[Row, ...]:
        """See `engine.Model`; an image is a row."""
        return cast(State, progress).rows(requests)

    def slice_gradient(
        self,
        order: SliceOrder,
        bundles: Mapping[str, bytes],
        use: Callable[[engine.WeightsRole], None],
        wanted: Callable[[], bool],
    ) -> bytes | None:
        """See `engine.Model`."""
        hardware = self.hardware
        hardware.compute(self.worker)
        rows = {key: decode_commit(data).rows for key, data in bundles.items()}
        latents = [rows[sample.bundle.key][sample.row].latents for sample in order.samples]
        use("old")
        old = self.weights
        use("current")
        for _ in range(2):
            sleep(hardware.slice_s / 2 * hardware.slow.get(self.node, 1.0))
            if not wanted():
                return None
        return fingerprints.gradient(self.weights, old, latents, order.slice).encode()

    def unpack(
        self,
        origin: Origin,
        requests: Sequence[Request],
        commits: Sequence[Commit],
        bundles: Mapping[str, bytes],
    ) -> State:
        """See `engine.Model`."""
        opened = {key: decode_commit(data) for key, data in bundles.items()}
        rows = []
        for index, (request, commit) in enumerate(zip(requests, commits, strict=True)):
            bundle = opened[commit.bundle.key]
            if bundle.origin != origin:
                raise CommitRefused("made with other weights of the same version", (index,))
            row = bundle.rows[commit.row]
            if row.request.work != request.work or row.step != commit.step:
                self.hardware.history.violation(
                    f"the commit of {request.id} at step {commit.step} holds"
                    f" {row.request.id} at step {row.step}"
                )
                raise CommitRefused("of another request", (index,))
            rows.append(row)
        if len({row.step for row in rows}) != 1:
            self.hardware.history.violation(f"{requests[0].id} is granted with another step")
        return State(rows[0].weights, rows[0].step, tuple(row.latents for row in rows))


def decode_commit(data: bytes) -> CommitBundle:
    """Of a bundle that `encode_commit` made."""
    return msgspec.msgpack.decode(data, type=CommitBundle)


def encode_commit(origin: Origin, rows: Sequence[Row]) -> bytes:
    """As a bundle."""
    return msgspec.msgpack.encode(CommitBundle(origin, tuple(rows)))
