"""The two daemons as commands: `spotlight-coordinator` and `spotlight-node`.

Both bind to loopback unless told otherwise, end cleanly on SIGTERM, SIGHUP or Ctrl-C, and end with
the process named by `--parent`.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import structlog
import typer

from spotlight.actors.runtime import garbage
from spotlight.actors.runtime.launcher import die_with_parent, read_secret
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import ending_signals, run, until_told
from spotlight.cli.lines import one_line
from spotlight.cli.options import (
    JoinOption,
    MirrorOption,
    RewardSecretOption,
    StoreOption,
    VersionOption,
)
from spotlight.errors import ActorDied, UserError
from spotlight.permissions import Permissions
from spotlight.process_start import NOTICE_SIGNALS, outlive_notices, standard_streams
from spotlight.store.object_store import ObjectStore, open_store
from spotlight.store.runs_folder import RunsFolder, locked
from spotlight.transport import descriptors
from spotlight.transport.addresses import require_known
from spotlight.transport.listening import Listening, data_listening, listening

if TYPE_CHECKING:
    from spotlight.actors.node.node import NodeSettings
    from spotlight.actors.protocol.door import Pool
    from spotlight.actors.runtime import ActorSystem
    from spotlight.cli.coordinator_identity import CoordinatorIdentity
    from spotlight.cli.node_identity import NodeIdentity
    from spotlight.policies.notices import Notice
    from spotlight.transport.tensors import DataPort

ParentOption = Annotated[
    int,
    typer.Option(
        "--parent",
        help="End when this process ends, and read keys from standard input, which it hands over.",
        hidden=True,
    ),
]


PermissionsOption = Annotated[
    str, typer.Option("--permissions", help="What jobs may do here, as JSON.", hidden=True)
]
AllowCodeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="PACKAGE",
        help="Let jobs name classes of this package as rewards, losses and trackers; may be given"
        " repeatedly. Without it no job runs code of its own.",
    ),
]

DataListenOption = Annotated[
    str,
    typer.Option(
        help="HOST:PORT to serve samples and weights on, if not on a free port of the same host."
    ),
]

DataPlainOption = Annotated[
    bool,
    typer.Option(
        "--data-plain",
        help="Do not encrypt samples and weights: the port is on a private network that only you"
        " can reach. On loopback they never are.",
    ),
]


def coordinator() -> None:
    """Entry point of `spotlight-coordinator`."""
    _command(_coordinator, "The coordinator: holds jobs and hands out work to nodes that join.")


def node() -> None:
    """Entry point of `spotlight-node`."""
    _command(_node, "A node: starts the workers of this machine and joins a coordinator.")


def _command(function: Callable[..., None], help_text: str) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command(help=help_text)(function)
    command = Path(sys.argv[0]).name
    outlive_notices()
    with standard_streams(command):
        log_as_json_lines()
        descriptors.raise_limit()
        try:
            app()
        except UserError as error:
            sys.stderr.write(f"{command}: {one_line(error)}\n")
            sys.exit(error.exit_code)
        except ActorDied as error:
            structlog.get_logger().error("daemon_crashed", reason=str(error))
            sys.exit(1)


def _coordinator(
    listen: Annotated[
        str, typer.Option(help="host:port to bind; port 0 picks one.")
    ] = "127.0.0.1:7070",
    advertise: Annotated[
        str,
        typer.Option(
            help="HOST[:PORT] for others to reach it, if it binds another; 0.0.0.0 needs it."
        ),
    ] = "",
    data_listen: DataListenOption = "",
    data_plain: DataPlainOption = False,
    runs: Annotated[Path, typer.Option(help="Folder for run folders.")] = Path("runs"),
    allow_code: AllowCodeOption = None,
    mirror: MirrorOption = "",
    address_file: Annotated[
        Path | None, typer.Option(help="Write the control address here once reachable.")
    ] = None,
    run_folder: Annotated[
        Path | None,
        typer.Option(help="A run folder outside of --runs that jobs may name.", hidden=True),
    ] = None,
    permissions: PermissionsOption = "",
    parent: ParentOption = 0,
    version: VersionOption = False,
) -> None:
    place = listening("--listen", listen, advertise, takes_port=True)
    allowed = _permissions(permissions, allow_code or ())
    data = data_listening(data_listen, place)
    if advertise:
        require_known("--advertise", place.advertised_host)
    copies = open_store("--mirror", mirror) if mirror else None
    _make_folder("--runs", runs)
    if parent:
        die_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    from spotlight.cli.coordinator_identity import coordinator_identity
    from spotlight.running.handed_keys import CoordinatorKeys

    handed = CoordinatorKeys.decode(read_secret()) if parent else None
    port = _data_port(data, plain=data_plain)
    with locked(runs):
        identity = coordinator_identity(runs, handed)
        folder = RunsFolder(runs, run_folder)
        run(_serve_coordinator(identity, place, data, port, folder, copies, address_file, allowed))


def _permissions(
    given: str, code: Sequence[str], secrets: Sequence[str] = (), *, link_local: bool = False
) -> Permissions:
    """What the command line allows; `given` by a process that starts daemons for a job of its
    own."""
    if given:
        return msgspec.json.decode(given, type=Permissions)
    return Permissions.parse(code, secrets, link_local=link_local)


def _make_folder(option: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"{option} {folder}: {problem}; give a folder that can be written"
        ) from error


async def _serve_coordinator(
    identity: CoordinatorIdentity,
    place: Listening,
    data: Listening,
    port: DataPort,
    runs: RunsFolder,
    copies: ObjectStore | None,
    address_file: Path | None,
    permissions: Permissions,
) -> None:
    from spotlight import failpoints
    from spotlight.actors.coordinator.coordinator import MAILBOX, Coordinator
    from spotlight.actors.coordinator.door import Door
    from spotlight.actors.coordinator.job.mirroring import MirrorPlace
    from spotlight.actors.protocol.dialect import own_dialect
    from spotlight.actors.protocol.roles import MAY_SAY
    from spotlight.actors.runtime import ActorSystem
    from spotlight.store.run_folder import replace_file
    from spotlight.timings import Timings
    from spotlight.transport.control import ZeroMQSettings, ZeroMQTransport
    from spotlight.transport.tensors import BundleStore

    failpoints.from_environment()
    rng, timings = random.SystemRandom(), Timings()  # the tokens of stores come from it
    settings = ZeroMQSettings(timings.connections)
    transport = ZeroMQTransport(
        place.bind,
        keys=identity.pair,
        dialect=own_dialect(),
        advertise=place.advertise,
        settings=settings,
    )
    keys = identity.open_ring(transport, timings.door)
    system = ActorSystem(transport, rng=rng, rights=MAY_SAY, timings=timings.runtime)
    mirror = MirrorPlace(copies, rng) if copies is not None else None
    await _bind(system, "--listen")

    def open_artifacts(folder: Path, token: str) -> BundleStore:
        term = secrets.token_hex(16)
        return BundleStore(
            folder, token=token, term=term, port=port, durable=True, timings=timings.transfers
        )

    try:
        await _start(port, data)
        garbage.tune()
        coordinator = Coordinator(
            runs,
            rng,
            open_artifacts,
            keys,
            timings=timings,
            mirror=mirror,
            permissions=permissions,
        )
        await system.spawn(lambda: coordinator, "coordinator", linked=True, mailbox=MAILBOX)
        await system.spawn(lambda: Door(keys, coordinator), "door", linked=True)
        await identity.leave_operator_token(keys, system.address)
        if address_file is not None:
            try:
                replace_file(address_file, system.address.encode())
            except OSError as error:
                raise UserError(
                    f"--address-file {address_file}: {error.strerror}; give a file in a folder that"
                    " can be written"
                ) from error
        log = structlog.get_logger()
        log.info("coordinator_listens", address=system.address)
        # Nodes that leave on this notice give their work back here: it ends when it is told to.
        for number in NOTICE_SIGNALS:
            serve_on = partial(log.warning, "coordinator_serves_until_sigterm", notice=number.name)
            asyncio.get_running_loop().add_signal_handler(number, serve_on)
        await until_told(system)
    finally:
        await system.aclose()
        await port.aclose()
        if mirror is not None:
            mirror.close()


async def _bind(system: ActorSystem, option: str) -> None:
    try:
        await system.start()
    except UserError as error:
        raise type(error)(f"{option}: {error}") from error


def _data_port(data: Listening, *, plain: bool, ucx: bool = False) -> DataPort:
    from spotlight.preflight.checks import require_packages
    from spotlight.timings import Timings
    from spotlight.transport.tensors import DataPort
    from spotlight.transport.tensors.certificates import new_certificate

    encrypted = not (plain or data.is_loopback)
    if encrypted and ucx:
        raise UserError(
            "--data-ucx: UCX does not encrypt, and other machines reach this port; if only you can"
            " reach its network give --data-plain as well, else leave --data-ucx out"
        )
    if ucx:
        require_packages(("ucxx",), "ucx", "--data-ucx needs")
    return DataPort(
        data.host,
        data.port,
        advertise=data.advertised_host,
        certificate=new_certificate() if encrypted else None,
        ucx=ucx,
        timings=Timings().transfers,
    )


async def _start(port: DataPort, data: Listening) -> None:
    try:
        await port.start()
    except OSError as error:
        raise UserError(
            f"--data-listen {data.host}:{data.port}: {error.strerror}; name an address of this"
            " machine and a port that is free"
        ) from error


def _node(
    join: JoinOption = "",
    name: Annotated[str, typer.Option(help="Unique name; default the host's and a number.")] = "",
    pool: Annotated[
        str, typer.Option(help="reserved or spot; default: that of the join token.")
    ] = "",
    workers: Annotated[
        int, typer.Option(min=1, help="Workers: one per accelerator or CPU slot.")
    ] = 1,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="Keep the key of this reserved node here, so that it need not join again."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address that this node binds.")] = "127.0.0.1",
    advertise: Annotated[
        str,
        typer.Option(help="HOST for others to reach it, if it binds another; 0.0.0.0 needs it."),
    ] = "",
    data_listen: DataListenOption = "",
    store: StoreOption = None,
    data_plain: DataPlainOption = False,
    data_ucx: Annotated[
        bool,
        typer.Option(
            "--data-ucx", help="Offer weights by UCX as well, on a network that only you can reach."
        ),
    ] = False,
    allow_code: AllowCodeOption = None,
    reward_secret: RewardSecretOption = None,
    allow_link_local: Annotated[
        bool,
        typer.Option(
            "--allow-link-local",
            help="Let jobs name reward servers with a link-local address (169.254.0.0/16), where"
            " clouds have services that trust this machine.",
        ),
    ] = False,
    logs: Annotated[
        Path | None,
        typer.Option(help="Folder for the workers' logs, if not one below ~/.local/state."),
    ] = None,
    notice_file: Annotated[
        Path | None, typer.Option(help="File in which the launcher gives notice.")
    ] = None,
    template: Annotated[
        str, typer.Option(help="Fork workers from this template.", hidden=True)
    ] = "",
    permissions: PermissionsOption = "",
    parent: ParentOption = 0,
    version: VersionOption = False,
) -> None:
    allowed = _permissions(
        permissions, allow_code or (), reward_secret or (), link_local=allow_link_local
    )
    kind = _pool(pool)
    place = listening("--host", host, advertise, takes_port=False)
    data = data_listening(data_listen, place)
    if advertise:
        require_known("--advertise", place.advertised_host)
    port = _data_port(data, plain=data_plain, ucx=data_ucx)
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    from spotlight.actors.node.node import NodeSettings
    from spotlight.cli.node_identity import handed_identity, joining_identity
    from spotlight.jobs import MOST_WORKERS_OF_NODE
    from spotlight.preflight.checks import WORKER_MODULES, require_packages
    from spotlight.running.join_option import VARIABLE
    from spotlight.store.memory_folder import MemoryFolder, usable_base
    from spotlight.types import NAME_OF_NODE

    if not re.fullmatch(NAME_OF_NODE, name):
        raise UserError(
            f"--name {name!r}: use at most 100 letters, digits, `-`, `_` and (not first) `.`"
        )
    if workers > MOST_WORKERS_OF_NODE:
        raise UserError(f"--workers {workers}: a node has at most {MOST_WORKERS_OF_NODE}")
    require_packages(WORKER_MODULES, "worker", "the workers of a node need")
    base = usable_base("--store", store)
    if parent:
        die_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        identity = handed_identity(kind, read_secret())
    else:
        identity = joining_identity(join, name, kind, key_file)
    os.environ.pop(VARIABLE, None)  # not for the workers, which may run code of jobs
    logs = _log_folder(logs, name)
    memory = MemoryFolder(base)
    structlog.get_logger().info(
        "node_starts", node=name, coordinator=identity.coordinator, worker_logs=str(logs)
    )

    def settings(pool: Pool) -> NodeSettings:
        return NodeSettings(
            name,
            pool,
            workers,
            place.host,
            identity.coordinator,
            logs,
            os.getpid(),
            place.advertised_host,
            allowed,
        )

    try:
        run(
            _serve_node(
                settings,
                identity,
                logs,
                place,
                data,
                port,
                memory.path,
                watched=not parent,
                notice_file=notice_file,
                template=template,
            )
        )
    finally:
        memory.remove()


def _pool(given: str) -> Pool | None:
    match given:
        case "":
            return None
        case "reserved" | "spot":
            return given
    raise UserError(f"--pool: must be `reserved` or `spot`, not `{given}`")


def _log_folder(named: Path | None, node: str) -> Path:
    """The one that the user has named, or a new one."""
    from spotlight.store.log_folder import log_base, new_log_folder

    if named is not None:
        _make_folder("--logs", named)
        return named
    try:
        return new_log_folder(log_base(), node)
    except (OSError, RuntimeError) as error:
        raise UserError(f"--logs: {error}; give a folder that can be written") from error


async def _serve_node(
    settings: Callable[[Pool], NodeSettings],
    identity: NodeIdentity,
    logs: Path,
    place: Listening,
    data: Listening,
    port: DataPort,
    root: Path,
    *,
    watched: bool,
    notice_file: Path | None,
    template: str,
) -> None:
    from spotlight.actors.node.node import NodeScheduler
    from spotlight.actors.protocol.dialect import own_dialect
    from spotlight.actors.protocol.roles import MAY_SAY
    from spotlight.actors.runtime import ActorSystem
    from spotlight.actors.runtime.fork_launcher import ForkLauncher
    from spotlight.running.worker_template import worker_template
    from spotlight.timings import Timings
    from spotlight.transport.control import ZeroMQSettings, ZeroMQTransport
    from spotlight.transport.control.keys import KeyPair
    from spotlight.transport.tensors import BundleStore

    timings = Timings()
    store = BundleStore(root, token=secrets.token_hex(16), port=port, timings=timings.transfers)
    transport = ZeroMQTransport(
        place.bind,
        keys=identity.pair,
        dialect=own_dialect(),
        advertise=place.advertise,
        settings=ZeroMQSettings(timings.connections),
    )
    rng = random.Random(secrets.randbits(64))
    system = ActorSystem(transport, rng=rng, rights=MAY_SAY, timings=timings.runtime)
    stop = asyncio.Event()
    problem: UserError | None = None

    def left(error: UserError | None) -> None:
        nonlocal problem
        problem = error
        stop.set()

    try:
        async with AsyncExitStack() as stack:
            await _bind(system, "--host")
            stack.push_async_callback(system.aclose)
            await _start(port, data)
            await store.start()
            garbage.tune()
            forked_from = await stack.enter_async_context(worker_template(logs, template))
            pool = await identity.settled_pool()
            if pool is None:
                return
            notices = await stack.enter_async_context(
                _notices(stop, watched=watched, file=notice_file)
            )
            launcher = ForkLauncher(forked_from, timings.runtime)
            stack.push_async_callback(launcher.aclose)
            stack.push_async_callback(system.aclose)  # who reads the notices ends before they do
            await system.spawn(
                lambda: NodeScheduler(
                    settings(pool),
                    store,
                    launcher,
                    lambda worker: KeyPair.new(),
                    notices,
                    identity.enrolment,
                    left,
                    timings,
                ),
                "node",
                linked=True,
            )
            await until_told(system, stop)
    finally:
        await store.aclose()
        await port.aclose()
    if problem is not None:
        raise problem


@asynccontextmanager
async def _notices(
    stop: asyncio.Event, *, watched: bool, file: Path | None
) -> AsyncIterator[AsyncIterator[Notice] | None]:
    """What this machine's cloud, launcher and signals say. A node that another process started for
    itself (`--parent`) is told by that one, and ends on SIGTERM.
    """
    numbers = [each for each in ending_signals() if each != signal.SIGINT]
    if not watched:
        for number in numbers:
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        yield None
        return
    from spotlight.cloud.detect import detect, metadata_urls
    from spotlight.cloud.file import NoticeFile
    from spotlight.cloud.notices import NoticeBook, watch_notices
    from spotlight.cloud.signals import grace_s, signals_as_notice

    sources = await detect(metadata_urls(os.environ))
    if file is not None:
        sources.append(NoticeFile(file))
    with signals_as_notice(numbers, NOTICE_SIGNALS, grace_s(os.environ), again=stop.set) as signals:
        async with aclosing(watch_notices([*sources, signals], NoticeBook())) as notices:
            yield notices
