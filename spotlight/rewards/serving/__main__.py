"""The process of `spotlight serve-reward`: serves one scorer until SIGTERM, SIGINT or SIGHUP.

Its only argument is a `ServingSettings` as JSON. It prints one line once it is reachable, and ends
with status 0 when it is told to, after the requests that it has.
"""

from __future__ import annotations

import errno
import signal
import socket
import ssl
import sys
from types import FrameType

import msgspec

from spotlight.errors import AddressInUse, MissingDependency, UserError, how_to_install
from spotlight.jobs import RewardSpec
from spotlight.jobs.clip_rewards import PUBLISHED, ClipSpec
from spotlight.jobs.rewards import RewardKind, scorer_target
from spotlight.permissions import Permissions
from spotlight.process_start import outlive_notices, standard_streams
from spotlight.rewards.authorization import read_authorization
from spotlight.rewards.base import build_scorer
from spotlight.rewards.serving.settings import BUILT_IN, ServingSettings
from spotlight.transport.addresses import is_loopback

LAST_REQUESTS_S = 30
"""Seconds that running requests have once the server is told to end."""

_MOST_CONNECTIONS = 1000
_MEBIBYTE = 1024 * 1024


def serve(settings: ServingSettings) -> None:
    """Serve until told to end. Raises `UserError`."""
    try:
        import uvicorn

        from spotlight.rewards.serving.app import Service
        from spotlight.rewards.serving.batching import Batcher
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"serving a reward needs {error.name}; {how_to_install('serve')}"
        ) from error
    authorization = read_authorization(settings.authorization_file, settings.authorization_variable)
    is_local, tls = is_loopback(settings.host), _tls(settings)
    if not is_local and authorization is None:
        raise UserError(
            f"--host {settings.host}: other machines reach it, so say with --authorization-file or"
            " --authorization-variable what they must know"
        )
    if not (is_local or settings.plain or tls is not None):
        raise UserError(
            f"--host {settings.host}: what other machines send could be read on its way; give"
            " --certificate and --key, or --plain if their network is private"
        )
    reward = _reward(settings)
    with _listening(settings.host, settings.port) as listener:
        batcher = Batcher(
            build_scorer(reward, _permissions(reward)),
            largest_batch=settings.largest_batch,
            most_waiting=settings.most_waiting,
        )
        service = Service(
            batcher,
            name=settings.scorer,
            largest_request=settings.largest_request_mb * _MEBIBYTE,
            authorization=authorization,
            hosts=() if is_local else None,
        )
        config = uvicorn.Config(
            service.app(),
            log_config=None,
            access_log=False,
            lifespan="off",
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=LAST_REQUESTS_S,
        )
        config.load()
        config.ssl = tls
        server = uvicorn.Server(config)

        def end(number: int, frame: FrameType | None) -> None:
            # The server's own handlers raise the signal again behind it: here it does no harm.
            server.should_exit = True

        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(name, end)
        host, port = listener.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        scheme = "http" if tls is None else "https"
        sys.stdout.write(f"serving {settings.scorer} at {scheme}://{address}/score\n")
        sys.stdout.flush()
        server.run([listener])
        batcher.close()


def _tls(settings: ServingSettings) -> ssl.SSLContext | None:
    if settings.certificate is None and settings.key is None:
        return None
    if settings.certificate is None or settings.key is None:
        raise UserError("give --certificate and --key, or neither of them")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key, password=lambda: b"")
    except OSError as error:  # that of TLS, too
        raise UserError(
            f"--certificate {settings.certificate}, --key {settings.key}: they cannot be used"
            f" ({error.strerror or error}); give PEM files, without a password"
        ) from error
    return context


def _reward(settings: ServingSettings) -> RewardSpec:
    """What a job would say of the scorer."""
    kind: RewardKind
    try:
        kind = next((kind for kind in BUILT_IN if kind == settings.scorer), "python")
        if kind in PUBLISHED:
            return RewardSpec(kind=kind, clip=msgspec.convert(settings.options, ClipSpec))
        python = settings.scorer if kind == "python" else ""
        return RewardSpec(kind=kind, python=python, options=settings.options)
    except ValueError as error:  # with the field in front, as a job's section says it
        raise UserError(f"`{settings.scorer}`: {str(error).replace('|', ' ', 1)}") from error


def _permissions(reward: RewardSpec) -> Permissions:
    """Whoever starts the server names its scorer: that may run."""
    target = scorer_target(reward.python) if reward.kind == "python" else None
    return Permissions(code=(target.partition(":")[0],) if target else ())


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        problem = f"{host}:{port} cannot be listened at ({error.strerror or error})"
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(f"{problem}; choose another --port, or 0 for any") from error
        raise UserError(f"{problem}; choose another --host or --port") from error


def main() -> None:
    """Run as a process."""
    outlive_notices()
    with standard_streams("spotlight"):
        try:
            serve(msgspec.json.decode(sys.argv[1], type=ServingSettings))
        except UserError as error:
            sys.stderr.write(f"spotlight: {' '.join(str(error).split())}\n")
            sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
