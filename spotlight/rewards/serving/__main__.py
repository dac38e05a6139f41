"""The process of `spotlight serve-reward`: serves one scorer until SIGTERM, SIGINT or SIGHUP.

Its only argument is a `ServingSettings` as JSON. It prints one line once it is reachable, and ends
with status 0 when it is told to, after the requests that it has.
"""

from __future__ import annotations

import errno
import signal
import socket
import sys
from types import FrameType

import msgspec

from spotlight.errors import AddressInUse, MissingDependency, UserError, how_to_install
from spotlight.jobs import RewardSpec
from spotlight.jobs.rewards import RewardKind, scorer_target
from spotlight.permissions import Permissions
from spotlight.process_start import outlive_notices, standard_streams
from spotlight.rewards.authorization import read_authorization
from spotlight.rewards.base import build_scorer
from spotlight.rewards.serving.settings import BUILT_IN, ServingSettings

LAST_REQUESTS_S = 30
"""Seconds that running requests have once the server is told to end."""

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
        )
        server = uvicorn.Server(
            uvicorn.Config(
                service.app(),
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=LAST_REQUESTS_S,
            )
        )

        def end(number: int, frame: FrameType | None) -> None:
            # The server's own handlers raise the signal again behind it: here it does no harm.
            server.should_exit = True

        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(name, end)
        host, port = listener.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        sys.stdout.write(f"serving {settings.scorer} at http://{address}/score\n")
        sys.stdout.flush()
        server.run([listener])
        batcher.close()


def _reward(settings: ServingSettings) -> RewardSpec:
    """What a job would say of the scorer."""
    kind: RewardKind
    try:
        kind = next((kind for kind in BUILT_IN if kind == settings.scorer), "python")
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
