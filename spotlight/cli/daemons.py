"""The two daemons as commands: `spotlight-coordinator` and `spotlight-node`.

Both bind to loopback unless told otherwise, end cleanly on SIGTERM, SIGHUP or Ctrl-C, and end with
the process named by `--parent`.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import structlog
import typer

from spotlight.actors.runtime.launcher import die_with_parent, read_secret
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import run
from spotlight.cli.lines import one_line
from spotlight.cli.live_page import page_of_coordinator, wanted_page
from spotlight.cli.node_price import node_price, price_remark
from spotlight.cli.options import (
    JoinOption,
    MirrorOption,
    PricesOption,
    RewardSecretOption,
    StoreOption,
    VersionOption,
    WebCertificateOption,
    WebKeyOption,
    WebPlainOption,
)
from spotlight.errors import ActorDied, UserError
from spotlight.permissions import Permissions
from spotlight.process_start import outlive_notices, standard_streams
from spotlight.store.object_store import open_store
from spotlight.store.runs_folder import RunsFolder, locked
from spotlight.transport import descriptors
from spotlight.transport.addresses import require_known
from spotlight.transport.listening import Listening, data_listening, listening

if TYPE_CHECKING:
    from spotlight.actors.protocol.door import Pool
    from spotlight.cli.node_identity import NodeIdentity
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

NodeNameOption = Annotated[
    str, typer.Option("--name", help="Unique name; default the host's and a number.")
]
PoolOption = Annotated[
    str, typer.Option("--pool", help="reserved or spot; default: that of the join token.")
]
WorkersOption = Annotated[
    int, typer.Option("--workers", min=1, help="Workers: one per accelerator or CPU slot.")
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        help="Keep the key of this reserved node here, so that it need not join again.",
    ),
]
HostOption = Annotated[str, typer.Option("--host", help="Address that this node binds.")]
AdvertiseHostOption = Annotated[
    str,
    typer.Option(
        "--advertise", help="HOST for others to reach it, if it binds another; 0.0.0.0 needs it."
    ),
]
DataUcxOption = Annotated[
    bool,
    typer.Option(
        "--data-ucx", help="Offer weights by UCX as well, on a network that only you can reach."
    ),
]
LinkLocalOption = Annotated[
    bool,
    typer.Option(
        "--allow-link-local",
        help="Let jobs name reward servers with a link-local address (169.254.0.0/16), where"
        " clouds have services that trust this machine.",
    ),
]
LogsOption = Annotated[
    Path | None,
    typer.Option("--logs", help="Folder for the workers' logs, if not one below ~/.local/state."),
]
UsdPerHourOption = Annotated[
    float | None,
    typer.Option(
        "--usd-per-hour",
        metavar="DOLLARS",
        help="What this whole machine costs for an hour; unpriced without it, unless the"
        " coordinator or a job says it.",
    ),
]
OnDemandOption = Annotated[
    float | None,
    typer.Option(
        "--on-demand-usd-per-hour",
        metavar="DOLLARS",
        help="What the same machine costs on demand for an hour.",
    ),
]
NoticeFileOption = Annotated[
    Path | None, typer.Option("--notice-file", help="File in which the launcher gives notice.")
]
TemplateOption = Annotated[
    str, typer.Option("--template", help="Fork workers from this template.", hidden=True)
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
    prices: PricesOption = None,
    address_file: Annotated[
        Path | None, typer.Option(help="Write the control address here once reachable.")
    ] = None,
    run_folder: Annotated[
        Path | None,
        typer.Option(help="A run folder outside of --runs that jobs may name.", hidden=True),
    ] = None,
    permissions: PermissionsOption = "",
    web: Annotated[
        str,
        typer.Option(
            "--web",
            metavar="HOST:PORT",
            help="Serve the live page of the runs there. Whoever is not on this machine needs a"
            " join token for people (`spotlight token new --role observer`).",
        ),
    ] = "",
    web_certificate: WebCertificateOption = None,
    web_key: WebKeyOption = None,
    web_plain: WebPlainOption = False,
    parent: ParentOption = 0,
    version: VersionOption = False,
) -> None:
    place = listening("--listen", listen, advertise, takes_port=True)
    page_at = wanted_page(web, web_certificate, web_key, plain=web_plain)
    allowed = _permissions(permissions, allow_code or ())
    data = data_listening(data_listen, place)
    if advertise:
        require_known("--advertise", place.advertised_host)
    copies = open_store("--mirror", mirror) if mirror else None
    from spotlight.cli.job_files import operator_prices

    costs = operator_prices(prices)
    _make_folder("--runs", runs)
    if parent:
        die_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    from spotlight.cli.coordinator_daemon import CoordinatorDaemon
    from spotlight.cli.coordinator_identity import coordinator_identity
    from spotlight.running.handed_keys import CoordinatorKeys

    handed = CoordinatorKeys.decode(read_secret()) if parent else None
    port = _data_port(data, plain=data_plain)
    with locked(runs):
        identity = coordinator_identity(runs, handed)
        folder = RunsFolder(runs, run_folder)
        page = page_of_coordinator(page_at, runs)
        daemon = CoordinatorDaemon(
            identity, place, data, port, folder, copies, address_file, allowed, costs, page
        )
        run(daemon.serve())


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


def _data_port(data: Listening, *, plain: bool, ucx: bool = False) -> DataPort:
    from spotlight.preflight.packages import require_packages
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


def _node(
    join: JoinOption = "",
    name: NodeNameOption = "",
    pool: PoolOption = "",
    workers: WorkersOption = 1,
    key_file: KeyFileOption = None,
    host: HostOption = "127.0.0.1",
    advertise: AdvertiseHostOption = "",
    data_listen: DataListenOption = "",
    store: StoreOption = None,
    data_plain: DataPlainOption = False,
    data_ucx: DataUcxOption = False,
    allow_code: AllowCodeOption = None,
    reward_secret: RewardSecretOption = None,
    allow_link_local: LinkLocalOption = False,
    logs: LogsOption = None,
    notice_file: NoticeFileOption = None,
    usd_per_hour: UsdPerHourOption = None,
    on_demand_usd_per_hour: OnDemandOption = None,
    template: TemplateOption = "",
    permissions: PermissionsOption = "",
    parent: ParentOption = 0,
    version: VersionOption = False,
) -> None:
    allowed = _permissions(
        permissions, allow_code or (), reward_secret or (), link_local=allow_link_local
    )
    kind = _pool(pool)
    price = node_price(usd_per_hour, on_demand_usd_per_hour, workers)
    place = listening("--host", host, advertise, takes_port=False)
    data = data_listening(data_listen, place)
    if advertise:
        require_known("--advertise", place.advertised_host)
    port = _data_port(data, plain=data_plain, ucx=data_ucx)
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    _require_node(name, workers)
    from spotlight.cli.node_daemon import NodeDaemon
    from spotlight.store.memory_folder import MemoryFolder, usable_base

    base = usable_base("--store", store)
    identity = _identity(join, name, kind, key_file, parent)
    logs = _log_folder(logs, name)
    memory = MemoryFolder(base)
    if remark := price_remark(price):
        structlog.get_logger().warning("price_taken_as_it_is", remark=remark)
    structlog.get_logger().info(
        "node_starts", node=name, coordinator=identity.coordinator, worker_logs=str(logs)
    )
    daemon = NodeDaemon(
        name,
        workers,
        identity,
        place,
        data,
        port,
        logs,
        memory.path,
        allowed,
        watched=not parent,
        notice_file=notice_file,
        template=template,
        price=price,
    )
    try:
        run(daemon.serve())
    finally:
        memory.remove()


def _require_node(name: str, workers: int) -> None:
    from spotlight.jobs import MOST_WORKERS_OF_NODE
    from spotlight.preflight.checks import WORKER_MODULES
    from spotlight.preflight.packages import require_packages
    from spotlight.types import NAME_OF_NODE

    if not re.fullmatch(NAME_OF_NODE, name):
        raise UserError(
            f"--name {name!r}: use at most 100 letters, digits, `-`, `_` and (not first) `.`"
        )
    if workers > MOST_WORKERS_OF_NODE:
        raise UserError(f"--workers {workers}: a node has at most {MOST_WORKERS_OF_NODE}")
    require_packages(WORKER_MODULES, "worker", "the workers of a node need")


def _identity(
    join: str, name: str, pool: Pool | None, key_file: Path | None, parent: int
) -> NodeIdentity:
    """Who the node is: what its token says, or the process that started it for itself."""
    from spotlight.cli.node_identity import handed_identity, joining_identity
    from spotlight.running.join_option import VARIABLE

    if parent:
        die_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        identity = handed_identity(pool, read_secret())
    else:
        identity = joining_identity(join, name, pool, key_file)
    os.environ.pop(VARIABLE, None)  # not for the workers, which may run code of jobs
    return identity


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
