"""What the operator of a daemon lets jobs and sessions do on its machine: whose code may run there,
and which secrets may be sent to which reward servers.

It is said on the command line of the daemon, and a node hands it to its workers as it starts them.
No message can add to it. `spotlight run` starts its own daemons, and lets them do what its job
names.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from spotlight.errors import JobError, UserError
from spotlight.jobs import JobSpec, RewardSpec, WorkSpec
from spotlight.jobs.losses import LOSSES, loss_target
from spotlight.jobs.remote_rewards import EndpointSpec
from spotlight.jobs.rewards import scorer_target
from spotlight.jobs.trackers import KNOWN_TRACKERS

_PACKAGE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_SECRET = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})=(.+)@([^@/\s]+)")


class RewardSecret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The value of an `Authorization` header, where it is, and to whom it may be sent."""

    host: str
    """A host, for any port of it, or HOST:PORT."""
    name: str = ""
    """The name that jobs have for it; empty for one that they name by its file or variable."""
    file: str | None = None
    variable: str | None = None

    def is_named_by(self, endpoint: EndpointSpec) -> bool:
        """Whether this is the secret that a job wants sent to a server."""
        if endpoint.secret is not None:
            return endpoint.secret == self.name
        if endpoint.authorization_file is not None:
            return endpoint.authorization_file == self.file
        return endpoint.authorization_variable is not None and (
            endpoint.authorization_variable == self.variable
        )

    def is_for(self, endpoint: EndpointSpec) -> bool:
        """Whether that server may have it."""
        host, port = endpoint.place
        return self.host.lower() in (host, f"{host}:{port}")


class OwnCode(NamedTuple):
    """A class that a job names, and where in the job."""

    field: str
    target: str
    """The class, as `module:Class`."""


class Permissions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the module's docstring. By default nothing is allowed."""

    code: tuple[str, ...] = ()
    """Packages and modules whose classes jobs may name, with all that is in them."""
    secrets: tuple[RewardSecret, ...] = ()
    link_local: bool = False
    """Whether a reward server may have a link-local address, as the metadata service of a cloud
    has."""

    @classmethod
    def parse(
        cls, code: Sequence[str], secrets: Sequence[str], *, link_local: bool = False
    ) -> Permissions:
        """From the options of a daemon; raises `UserError` that names the option."""
        for package in code:
            if not _PACKAGE.fullmatch(package):
                raise UserError(f"--allow-code {package!r}: name a package, such as `my_rewards`")
        return cls(code=tuple(code), secrets=tuple(map(_secret, secrets)), link_local=link_local)

    @classmethod
    def of(cls, job: JobSpec | WorkSpec) -> Permissions:
        """All that a job of the user's own names: for daemons that are started for it alone."""
        endpoints = [endpoint for _, endpoint in _endpoints(job)]
        return cls(
            code=tuple(dict.fromkeys(each.target.partition(":")[0] for each in _own_code(job))),
            secrets=tuple(
                RewardSecret(
                    host=":".join(map(str, each.place)),
                    file=each.authorization_file,
                    variable=each.authorization_variable,
                )
                for each in endpoints
                if each.authorization_file or each.authorization_variable
            ),
            link_local=any(is_link_local(each.place[0]) for each in endpoints),
        )

    def plus(self, other: Permissions) -> Permissions:
        """What either of the two allows."""
        return Permissions(
            code=(*self.code, *other.code),
            secrets=(*self.secrets, *other.secrets),
            link_local=self.link_local or other.link_local,
        )

    def require(self, job: JobSpec | WorkSpec) -> None:
        """Raise `JobError` with the field when a job names code that is not allowed."""
        for field, target in _own_code(job):
            self.require_code(field, target)

    def require_code(self, field: str, target: str) -> None:
        """Raise `JobError` unless the class `module:Class` of the user's own may run here."""
        module = target.partition(":")[0]
        if any(module == each or module.startswith(f"{each}.") for each in self.code):
            return
        allowed = ", ".join(f"`{each}`" for each in self.code) or "none"
        raise JobError(
            field,
            f"`{target}` is code of your own, and its package is not among those that the operator"
            f" allowed here ({allowed}); start the coordinator and its nodes with --allow-code"
            f" {module.partition('.')[0]}",
        )

    def require_loss(self, name: str) -> None:
        """Raise `JobError` unless the update rule that a job names so may run here."""
        if name not in LOSSES:
            self.require_code("training.loss", loss_target(name) or name)

    def secret_of(self, endpoint: EndpointSpec) -> RewardSecret | None:
        """What a reward server is to be sent as authorization; None if the job names nothing.
        Raises `UserError` when the job may not use it, or not there.
        """
        named = endpoint.secret or endpoint.authorization_file or endpoint.authorization_variable
        if named is None:
            return None
        host, port = endpoint.place
        found = [secret for secret in self.secrets if secret.is_named_by(endpoint)]
        for secret in found:
            if secret.is_for(endpoint):
                return secret
        flag = f"--reward-secret {endpoint.secret or 'NAME'}=FILE@{host}:{port}"
        if found:
            problem = f"may not be sent to {host}:{port}, only to {found[0].host}"
        else:
            problem = "is none that was named when this node was started"
        field = next(each for each in _SOURCES if getattr(endpoint, each) is not None)
        raise UserError(
            f"{field}: `{named}` {problem}; start nodes, or `spotlight run`, with {flag}"
        )


_SOURCES = ("secret", "authorization_file", "authorization_variable")


def is_link_local(address: str) -> bool:
    """Whether an IP address belongs to one link alone, or to the metadata service of a cloud; False
    for a name.
    """
    try:
        found = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    found = mapped or found
    return found.is_link_local or found in _METADATA_SERVICES


_METADATA_SERVICES = tuple(
    map(ipaddress.ip_address, ("100.100.100.200", "100.96.0.96", "fd00:ec2::254"))
)
"""The addresses of Alibaba, BytePlus and AWS: the other clouds use a link-local address."""


def _own_code(job: JobSpec | WorkSpec) -> Iterator[OwnCode]:
    """All code that a job names and that is none of Spotlight's."""
    for field, reward in _rewards(job):
        if reward.kind == "python":
            yield OwnCode(f"{field}.python", scorer_target(reward.python) or reward.python)
    if isinstance(job, JobSpec):
        for index, tracker in enumerate(job.trackers):
            if tracker.kind not in KNOWN_TRACKERS:
                yield OwnCode(f"trackers[{index}].kind", tracker.kind)
        if (loss := job.training.loss) not in LOSSES:
            yield OwnCode("training.loss", loss_target(loss) or loss)


def _endpoints(job: JobSpec | WorkSpec) -> Iterator[tuple[str, EndpointSpec]]:
    for field, reward in _rewards(job):
        if (endpoint := reward.http or reward.judge) is not None:
            yield f"{field}.{reward.kind}", endpoint


def _rewards(job: JobSpec | WorkSpec) -> Iterator[tuple[str, RewardSpec]]:
    if isinstance(job, JobSpec):
        lists = {"rewards": job.rewards, "validation.rewards": job.validation.rewards}
    else:
        names = ("rewards", "measured_rewards", "drawn_again")
        lists = {name: getattr(job, name) for name in names}
    for name, rewards in lists.items():
        for index, reward in enumerate(rewards):
            yield f"{name}[{index}]", reward


def _secret(text: str) -> RewardSecret:
    found = _SECRET.fullmatch(text)
    if found is None:
        raise UserError(
            f"--reward-secret {text}: write NAME=FILE@HOST or NAME=FILE@HOST:PORT, where FILE holds"
            " the value of the Authorization header"
        )
    name, file, host = found.groups()
    return RewardSecret(name=name, file=file, host=host)
