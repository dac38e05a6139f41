"""A worker process: one accelerator, and the actors that use it. Started by a node, ends with it.

Run as `python -m spotlight.actors.worker.process`; the node passes the arguments, and the keys over
standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
import signal
import sys

import msgspec
import structlog

from spotlight.actors.protocol.dialect import own_dialect
from spotlight.actors.protocol.handed_keys import WorkerKeys
from spotlight.actors.runtime.launcher import PARENT, die_with_parent, read_secret
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import open_first_stream, run, until_told
from spotlight.process_start import outlive_notices, use_lossy_streams

log = structlog.get_logger(__name__)


def main() -> None:
    """Entry point of the process."""
    arguments = _parse()
    die_with_parent(int(os.environ[PARENT]))
    keys = WorkerKeys.decode(read_secret())
    use_lossy_streams()  # code of users prints, and must not fail for a full disk
    log_as_json_lines()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # What a service manager sends to all processes is the node's to handle: it has its workers
        # give back what they hold, and ends them.
        signal.signal(number, signal.SIG_IGN)
    outlive_notices()
    run(_serve(arguments, keys))


async def _serve(arguments: argparse.Namespace, keys: WorkerKeys) -> None:
    from spotlight.actors.protocol.roles import MAY_SAY
    from spotlight.actors.runtime import ActorSystem
    from spotlight.actors.worker.threads import SystemThreads
    from spotlight.actors.worker.torch_engine import TorchEngine
    from spotlight.actors.worker.worker_actors import start_actors
    from spotlight.actors.worker.worker_state import EXIT_CODE, WorkerContext
    from spotlight.files import cache_folder
    from spotlight.permissions import Permissions
    from spotlight.timings import Timings
    from spotlight.transport.control import Guests, ZeroMQSettings, ZeroMQTransport
    from spotlight.transport.listening import listening

    rng, timings = random.Random(secrets.randbits(64)), Timings()
    place = listening("--host", arguments.host, arguments.advertise, takes_port=False)
    # Ranks bind what their peers reach them by: a group has one address for both.
    embeddings = cache_folder() / "embeddings"
    permissions = msgspec.json.decode(arguments.permissions, type=Permissions)
    engine = TorchEngine(
        place.advertised_host or place.host, timings, embeddings, permissions=permissions
    )
    epoch = secrets.randbits(48)
    # All that a worker holds is there from the start, and does not grow with what it does first.
    threads = SystemThreads()
    threads.begin()
    await open_first_stream()
    context = WorkerContext(
        arguments.name,
        epoch,
        arguments.node,
        engine.limit_threads,
        threads,
        timings=timings,
        fault_of=engine.fault_of,
    )
    # Nobody watches a worker: its node asks it whether it is there, and its leases end.
    settings = ZeroMQSettings(timings.connections, heartbeats=False)
    transport = ZeroMQTransport(
        place.bind,
        keys=keys.pair,
        guests=Guests(keys.guests),
        dialect=own_dialect(),
        advertise=place.advertise,
        settings=settings,
    )
    system = ActorSystem(transport, rng=rng, rights=MAY_SAY, timings=timings.runtime)
    await system.start()
    try:
        await start_actors(system, context, engine, keys.start)
        await until_told(system, context.ends)
        # It has a moment to say why. Then it ends at once: what a lost accelerator still has to do
        # may never be done.
        await asyncio.sleep(timings.worker.farewell_s)
        log.error("worker_ends", worker=arguments.name, reason=context.ends_because)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_CODE)
    finally:
        await system.aclose()
        context.close()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Spotlight worker; started by spotlight-node.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--node", required=True, help="control address of the node")
    parser.add_argument("--host", required=True, help="address to bind")
    parser.add_argument("--advertise", default="", help="address that others reach it by")
    parser.add_argument("--permissions", default="{}", help="what jobs may do here, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
