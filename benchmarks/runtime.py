"""How fast actors of two processes talk, beside plain `zmq.asyncio` doing the least that an echo
needs, and beside an asyncio actor of Ray.

    python -m benchmarks.runtime --json [--quick]

Two processes over TCP loopback. Spotlight's figures include everything: mailbox, correlation,
deadlines, typed and validated messages. The comparison is a DEALER and a ROUTER of `zmq.asyncio`
that echo bodies of the same size, with a future per request, and no codec at all. Rounds of all
alternate, so that a busy machine hits all; figures are medians of rounds. Where Ray is not
installed, its figures say so.

Figures: `ask_*` and `tells_per_second` are Spotlight's; `*_per_second` of asks have 64 in flight.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import statistics
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import zmq
import zmq.asyncio

from benchmarks.report import Figure, Report
from benchmarks.runtime_ray import ray_echo
from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, Message, handles
from spotlight.actors.runtime.launcher import LocalLauncher, die_with_parent
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import run
from spotlight.errors import MailboxFull
from spotlight.transport.control import ZeroMQTransport
from spotlight_simulation.open_door import ANYBODY_SAYS_ANYTHING, Everybody

IN_FLIGHT = 64
BODY_BYTES = 128
TIMEOUT_S = 60.0

Ask = Callable[[], Awaitable[object]]


class EchoRequest(Message, frozen=True):
    """Send this back."""

    body: bytes


class EchoReply(Message, frozen=True):
    """What was sent."""

    body: bytes


class Note(Message, frozen=True):
    """Count this."""

    body: bytes


class CountNotes(Message, frozen=True):
    """How many notes came so far?"""


class NoteCount(Message, frozen=True):
    """So many."""

    count: int


class EchoReady(Message, frozen=True):
    """The echo process is up: its actor, and the address of its plain socket."""

    ref: ActorRef
    plain: str


class Echo(Actor):
    """Answers requests and counts notes."""

    def __init__(self) -> None:
        self.notes = 0

    @handles(EchoRequest)
    async def on_request(self, message: EchoRequest) -> EchoReply:
        return EchoReply(message.body)

    @handles(Note)
    async def on_note(self, message: Note) -> None:
        self.notes += 1

    @handles(CountNotes)
    async def on_count(self, message: CountNotes) -> NoteCount:
        return NoteCount(self.notes)


class Greeter(Actor):
    """Waits for the echo process."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[EchoReady] = asyncio.get_running_loop().create_future()

    @handles(EchoReady)
    async def on_ready(self, message: EchoReady) -> None:
        self.ready.set_result(message)


def _system() -> ActorSystem:
    """One that lets everybody in."""
    return ActorSystem(
        ZeroMQTransport(guests=Everybody()), rng=random.Random(0), rights=ANYBODY_SAYS_ANYTHING
    )


# --- the echo process -----------------------------------------------------------------


async def serve(address: str) -> None:
    """Echo on both: an actor, and a plain `zmq.asyncio` ROUTER. Ends by being killed."""
    system = _system()
    await system.start()
    ref = await system.spawn(Echo, "echo", mailbox=65536)
    router = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    ready = EchoReady(ref, f"tcp://127.0.0.1:{port}")
    await system.ask(system.well_known(address, "greeter"), ready, timeout_s=TIMEOUT_S)
    while True:
        await router.send_multipart(await router.recv_multipart())


# --- the measuring process ------------------------------------------------------------


class PlainClient:
    """Requests over a `zmq.asyncio` DEALER, told apart by a number."""

    def __init__(self, address: str) -> None:
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._socket.connect(address)
        self._numbers = itertools.count()
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._reading = asyncio.ensure_future(self._read())

    async def ask(self, body: bytes) -> bytes:
        """Send a body and wait for its echo."""
        number = b"%d" % next(self._numbers)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        await self._socket.send_multipart([number, body])
        return await future

    async def close(self) -> None:
        """Stop reading and close the socket."""
        self._reading.cancel()
        await asyncio.wait((self._reading,))
        self._socket.close(0)
        zmq.asyncio.Context.instance().term()

    async def _read(self) -> None:
        while True:
            number, body = await self._socket.recv_multipart()
            self._waiting.pop(number).set_result(body)


async def ping_pong(ask: Ask, count: int) -> list[float]:
    """Seconds of each of `count` asks, one after the other."""
    times = []
    for _ in range(count):
        began = perf_counter()
        await ask()
        times.append(perf_counter() - began)
    return times


async def pipelined(ask: Ask, count: int) -> float:
    """Asks per second with `IN_FLIGHT` under way."""
    tickets = iter(range(count))

    async def worker() -> None:
        for _ in tickets:
            await ask()

    began = perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return count / (perf_counter() - began)


async def tell_rate(system: ActorSystem, ref: ActorRef, count: int) -> float:
    """Tells per second, until the last one is handled."""
    note = Note(b"x" * BODY_BYTES)
    before = await system.ask(ref, CountNotes(), timeout_s=TIMEOUT_S)
    assert isinstance(before, NoteCount)
    began = perf_counter()
    for _ in range(count):
        while True:
            try:
                system.tell(ref, note)
                break
            except MailboxFull:
                await asyncio.sleep(0)
    after = await system.ask(ref, CountNotes(), timeout_s=TIMEOUT_S)
    assert isinstance(after, NoteCount)
    assert after.count - before.count == count, "a tell was lost"
    return count / (perf_counter() - began)


async def measure(rounds: int, quick: bool) -> dict[str, Figure]:
    """Start the echo processes and take all figures."""
    async with ray_echo() as rays:
        return await _measure(rounds, quick, rays)


async def _measure(
    rounds: int, quick: bool, rays: Callable[[bytes], Awaitable[bytes]] | None
) -> dict[str, Figure]:
    pings, asks, tells = (200, 4000, 8000) if quick else (1000, 20000, 40000)
    body = b"x" * BODY_BYTES
    system = _system()
    await system.start()
    greeter = Greeter()
    await system.spawn(lambda: greeter, "greeter")
    with TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "benchmarks.runtime", "--serve", str(os.getpid())]
        log_path = Path(folder) / "echo.log"
        child = await LocalLauncher().start(
            [*argv, system.address], dict(os.environ), "echo", log_path
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                ready = await greeter.ready
            plain = PlainClient(ready.plain)

            async def ask_actor() -> object:
                return await system.ask(ready.ref, EchoRequest(body), timeout_s=TIMEOUT_S)

            async def ask_plain() -> object:
                return await plain.ask(body)

            async def ask_ray() -> object:
                assert rays is not None
                return await rays(body)

            for ask in (ask_actor, ask_plain):
                await pipelined(ask, asks // 4)
            ours, theirs, our_rates, their_rates, tell_rates = [], [], [], [], []
            rays_times, ray_rates = list[float](), list[float]()
            for _ in range(rounds):
                ours += await ping_pong(ask_actor, pings)
                theirs += await ping_pong(ask_plain, pings)
                our_rates.append(await pipelined(ask_actor, asks))
                their_rates.append(await pipelined(ask_plain, asks))
                tell_rates.append(await tell_rate(system, ready.ref, tells))
                if rays is not None:
                    rays_times += await ping_pong(ask_ray, pings)
                    ray_rates.append(await pipelined(ask_ray, asks // 10))
            await plain.close()
        finally:
            child.kill()
            await child.wait()
            await system.aclose()
    ask_rate, plain_rate = statistics.median(our_rates), statistics.median(their_rates)
    return {
        "ask_median_us": round(statistics.median(ours) * 1e6, 1),
        "ask_p99_us": round(statistics.quantiles(ours, n=100)[98] * 1e6, 1),
        "ask_per_second": round(ask_rate),
        "tells_per_second": round(statistics.median(tell_rates)),
        "zmq_asyncio_ask_median_us": round(statistics.median(theirs) * 1e6, 1),
        "zmq_asyncio_ask_per_second": round(plain_rate),
        "ratio": round(ask_rate / plain_rate, 2),
        **_beside_ray(ask_rate, statistics.median(ours), ray_rates, rays_times),
    }


def _beside_ray(
    ask_rate: float, ask_s: float, ray_rates: list[float], ray_times: list[float]
) -> dict[str, Figure]:
    names = ("ray_ask_per_second", "ray_ask_median_us", "ask_rate_vs_ray", "ask_latency_vs_ray")
    if not ray_rates:
        return dict.fromkeys(names, "Ray is not installed")
    ray_rate, ray_s = statistics.median(ray_rates), statistics.median(ray_times)
    figures = (round(ray_rate), round(ray_s * 1e6, 1), ask_rate / ray_rate, ask_s / ray_s)
    return {name: round(figure, 3) for name, figure in zip(names, figures, strict=True)}


def main() -> None:
    """Measure, or serve as the second process."""
    if sys.argv[1:2] == ["--serve"]:
        parent, address = sys.argv[2:]
        die_with_parent(int(parent))
        run(serve(address))
        return
    report = Report("runtime", __doc__, minutes=3)
    quick = report.begin().quick
    log_as_json_lines(logging.ERROR)
    report.add(run(measure(report.times(9, quick=3), quick)))
    report.finish()


if __name__ == "__main__":
    main()
