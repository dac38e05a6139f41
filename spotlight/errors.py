"""Every error that Spotlight raises on purpose.

SpotlightError
├── UserError                 something the user can fix; the CLI prints it as one line
│   ├── JobError              a field of the job is wrong; carries the field's path
│   ├── UnreadableFile        a named file is missing or cannot be read; carries its path
│   ├── CheckpointError       a model checkpoint is missing or does not fit the job
│   │   └── HubUnreachable    a checkpoint of the hub could not be downloaded; it may later
│   ├── CannotShard           a transformer cannot be divided over an SP group like this
│   ├── MissingDependency     an optional package is not installed
│   ├── AddressInUse          a port that was asked for is taken
│   ├── RunFolderError        the run folder belongs to another job, is full, or not writable
│   │   └── JournalError      the journal is damaged, of another job, or could not be written
│   │       ├── JournalInUse          another process has it open
│   │       └── JournalUnwritable     the disk refuses to read or write it
│   ├── MirrorError           a copy of a run in object storage cannot be written, or is damaged
│   ├── WeightsRefused        a publication does not fit the model, or an earlier publication
│   ├── VersionGone           a requested weights version is no longer kept
│   ├── AccessRefused         a coordinator lets this process in not at all; says why
│   │   └── AccessLost            it did, and does not any more
│   ├── UnknownJob            no job has that id or name, or several have; says which there are
│   ├── UnknownNode           no node has that name; says which there are
│   └── RequestRefused        the coordinator refuses, with the reason
│       └── ConsentMissing        it asks whether that is meant: a job could not go on then
├── SessionEnded              a session with a coordinator is over; carries why
├── ActorError                an actor could not be reached or did not answer
│   ├── MailboxFull           the receiver pushes back; retry later
│   ├── PeerUnreachable       no connection to the process of the receiver
│   │   ├── NotAdmitted       the process of the receiver does not take connections of our key
│   │   └── OtherVersion      the process of the receiver is of another build of Spotlight
│   ├── NotAllowed            the receiver does not take this message from our key
│   ├── AskTimeout            no answer in time; the request may have run
│   ├── ActorDied             the receiver ended before it answered
│   └── RemoteError           the handler raised; carries type name, message and traceback
├── TransportError            bytes did not arrive
│   ├── FrameRejected         a frame that is malformed, too large, or of an unknown type
│   └── TransferFailed        a tensor bundle could not be sent or fetched
│       ├── TransferRefused   the store refuses; carries the status of HTTP
│       └── WrongCertificate  who answers is not the process that made the offer
├── WrongWeights              a worker does not hold the weights version that was asked for
├── CommitRefused             saved progress does not belong to the request it came with
├── NotFinite                 samples are NaN or infinite; carries their places in the batch
├── TrainingDiverged          a loss or a gradient is not finite
├── SliceRefused              a slice's gradient is not the one that an update counts next
├── LossFailed                a user's loss raised, or returned something that is not a loss
├── StopJob                   raised by a callback that wants the job to end
└── ScoringError              a scorer failed; never turned into a reward
"""

from __future__ import annotations

import copyreg
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any


class SpotlightError(Exception):
    """Root of all errors raised on purpose. Frameworks that carry errors from process to process,
    such as Ray and `concurrent.futures`, carry them with their types and fields.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """As of any object: an exception's own would call `__init__`, which may take other
        arguments than the message.
        """
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UserError(SpotlightError):
    """Something the user can fix: the message names the field or path and says what to do."""

    exit_code = 2


class JobError(UserError):
    """A field of the job is wrong."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class UnreadableFile(UserError):
    """A file that was named cannot be read, is not a regular file, is too large, or is not text."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path
        self.problem = problem


class CheckpointError(UserError):
    """A model checkpoint is missing or does not fit the job."""


class HubUnreachable(CheckpointError):
    """A checkpoint of the hub is not on this machine, and could not be downloaded this time."""


class CannotShard(UserError):
    """A transformer, or this forward pass of it, cannot be divided over an SP group."""


class MissingDependency(UserError):
    """An optional package is not installed."""


def how_to_install(extra: str) -> str:
    """The command that installs what an extra of ours has."""
    return f'pip install ".[{extra}]" in a clone of Spotlight'


class AddressInUse(UserError):
    """A port that was asked for is taken."""


class RunFolderError(UserError):
    """The run folder belongs to another job, is full, or is not writable."""


def is_disk_full(error: BaseException) -> bool:
    """Whether an error comes of a disk that has no room, or lets its user have no more."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        cause = cause.__cause__
    return False


class JournalError(RunFolderError):
    """The journal is damaged, belongs to another job or format, is in use, or could not be
    written."""

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(f"{problem}; {advice}" if advice else problem)
        self.problem = problem
        """What is wrong, without what to do about it: that differs by what the journal is of."""


class JournalInUse(JournalError):
    """Another process has the journal open."""


class JournalUnwritable(JournalError):
    """The disk refuses to read or write the journal: it may be full."""


class MirrorError(UserError):
    """A copy of a run in object storage cannot be written or read, is damaged, or is another
    run's; the message names the file.
    """


class AccessRefused(UserError):
    """The coordinator does not let this process in; the message says why. `soon` if it may let it
    in in a minute; `is_expected` if it will in some minutes, unless the node comes that is expected
    under the name."""

    def __init__(self, message: str, *, soon: bool = False, is_expected: bool = False) -> None:
        super().__init__(message)
        self.soon = soon
        self.is_expected = is_expected


class AccessLost(AccessRefused):
    """The coordinator had let this process in, and does not any more: its node was revoked, for
    example. To start it again is of no use."""

    exit_code = 3


class UnknownJob(UserError):
    """No job or session of a coordinator has that id or name, or several have; the message says
    which there are."""

    exit_code = 4


class UnknownNode(UserError):
    """No node of a coordinator has that name; the message says which there are."""

    exit_code = 4


class RequestRefused(UserError):
    """The coordinator refuses; the message gives its reason."""


class ConsentMissing(RequestRefused):
    """Nothing was done: a job could not go on then. It is done for who says that they mean it."""

    exit_code = 5


class WeightsRefused(UserError):
    """Published weights have other names or shapes than the model's, or an already used version."""


class VersionGone(UserError):
    """Rollouts were requested with a weights version that is no longer kept."""


class SessionEnded(SpotlightError):
    """The session with the coordinator is over; the message says why."""


class ActorError(SpotlightError):
    """An actor could not be reached or did not answer."""


class MailboxFull(ActorError):
    """The receiver's mailbox is at its bound; the sender should slow down and retry."""


class PeerUnreachable(ActorError):
    """There is no connection to the receiver's process."""


class NotAdmitted(PeerUnreachable):
    """Who was dialled is there and takes no connections of this process's key: it is not known
    there, or not any more."""


class OtherVersion(PeerUnreachable):
    """Who was dialled is there, and of a build of Spotlight that says other things than this one;
    the message names both."""


class NotAllowed(ActorError):
    """The receiver does not take this message from whoever has our key; nothing was done."""


class AskTimeout(ActorError):
    """No answer came before the deadline; the request may or may not have run."""


class ActorDied(ActorError):
    """The receiver ended before it answered."""


class RemoteError(ActorError):
    """The receiver's handler raised an error."""

    def __init__(self, type_name: str, message: str, remote_traceback: str = "") -> None:
        super().__init__(f"{type_name}: {message}")
        self.type_name = type_name
        self.message = message
        self.remote_traceback = remote_traceback


class TransportError(SpotlightError):
    """Bytes did not arrive."""


class FrameRejected(TransportError):
    """A frame is malformed, too large, or of an unknown type."""


class TransferFailed(TransportError):
    """A tensor bundle could not be sent or fetched."""


class TransferRefused(TransferFailed):
    """A store refuses to send or to take a bundle."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status
        """The status of HTTP: 401 for a wrong token, 403 for one that is not for this bundle, 404
        for a bundle that is not there, 413 for too many bytes, 416 for a range that it does not
        have, 507 for a store that is full, 409 else."""


class WrongCertificate(TransferFailed):
    """Who answers at a store's address has another certificate than the offer names."""


class WrongWeights(SpotlightError):
    """A worker was asked to use a weights version that it does not hold."""


class CommitRefused(SpotlightError):
    """Saved progress is damaged, gone, or does not belong to the request it came with."""

    def __init__(self, problem: str, rows: tuple[int, ...] = ()) -> None:
        super().__init__(problem)
        self.rows = rows
        """Whose progress of the batch; that of all if none is named."""


class NotFinite(SpotlightError):
    """Latents or images are NaN or infinite: decoded, they would be black images that score 0."""

    def __init__(self, problem: str, rows: tuple[int, ...]) -> None:
        super().__init__(problem)
        self.rows = rows
        """Which samples of the batch; nothing is wrong with the others."""


class TrainingDiverged(SpotlightError):
    """A loss or a gradient is not finite; the weights are those before the update."""


class SliceRefused(SpotlightError):
    """The gradient of a slice is not the one that is counted next, does not fit, or is not finite:
    nothing of it is counted."""


class LossFailed(SpotlightError):
    """A user's loss raised an error, or returned something that is not a loss; the weights are
    those before the update.
    """


class StopJob(SpotlightError):
    """Raise it in a callback to end the job, with the reason; the run can be resumed."""


class ScoringError(SpotlightError):
    """A scorer failed. It is retried or reported, and never becomes a reward."""
