"""Who may say what: for every type of message, the roles of the keys that may send it to another
process.

A key has one role (`door.Role`). The runtime refuses what comes from another one, and sends no
message that is in no row. Inside a process nothing is checked. Who of a role may say it of what, a
worker of its own lease, say, is up to the actor that handles it (`handles(..., only=...)`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spotlight.actors.protocol.door import (
    AccessRevoked,
    Enroll,
    Enrolled,
    GetGuests,
    GuestList,
    NameUnknown,
    NewToken,
    NotEnrolled,
    RevokeAccess,
    Role,
    TokenMade,
)
from spotlight.actors.protocol.down import (
    DropBundles,
    Grant,
    NodePlan,
    NodeRefused,
    Recall,
    Receipt,
    Revoke,
    WorkerPlan,
)
from spotlight.actors.protocol.gradients import AddSlices
from spotlight.actors.protocol.peers import CannotFollow, Follow, Introduce
from spotlight.actors.protocol.sessions import (
    BeginSession,
    EndSession,
    Fleet,
    GetFleet,
    GroupsDone,
    OfferWeights,
    SessionBegan,
    SessionRefused,
    SubmitGroups,
    TakeGroups,
    WithdrawGroups,
)
from spotlight.actors.protocol.trainer import (
    ExportModel,
    GetTrainer,
    Publish,
    SaveState,
    StartTrainer,
    Train,
    TrainerReport,
)
from spotlight.actors.protocol.up import (
    CommitSteps,
    Completed,
    LeaseFailed,
    NodeReport,
    Pull,
    ReturnLease,
    WorkerReport,
    WorkerUp,
)
from spotlight.actors.protocol.users import (
    Acknowledged,
    CancelJob,
    CancelRefused,
    ConsentNeeded,
    DrainNode,
    DrainRefused,
    GetStatus,
    JobAccepted,
    JobList,
    JobRefused,
    JobStatus,
    JobUnknown,
    ListJobs,
    NodeUnknown,
    PreemptNode,
    SubmitJob,
)
from spotlight.actors.runtime.envelopes import (
    Done,
    Down,
    Ended,
    Failure,
    PushedBack,
    Unwatch,
    Watch,
)
from spotlight.transport.control import Message

_Row = tuple[tuple[Role, ...], tuple[type[Message], ...]]

_ROWS: tuple[_Row, ...] = (
    # Whoever has a token for nodes, until its own key is enrolled.
    (("joiner", "operator"), (Enroll,)),
    # Users and their programs, to the coordinator.
    (("operator",), (PreemptNode, DrainNode, NewToken, RevokeAccess)),
    (("operator", "submitter"), (SubmitJob, CancelJob, BeginSession, EndSession)),
    (("operator", "submitter"), (OfferWeights, SubmitGroups, WithdrawGroups, TakeGroups, GetFleet)),
    (("operator", "observer"), (GetGuests,)),
    (("operator", "submitter", "observer"), (GetStatus, ListJobs)),
    # Nodes, to the coordinator and to their own workers.
    (("node",), (NodeReport, WorkerPlan)),
    # Workers, to their node, to the job and to the others of their group.
    (("worker", "trainer"), (WorkerUp, WorkerReport)),
    (("worker", "trainer"), (Pull, CommitSteps, Completed, ReturnLease, LeaseFailed)),
    (("worker", "trainer"), (Introduce, Follow, CannotFollow)),
    (("trainer",), (TrainerReport,)),
    # The coordinator, to nodes, workers and trainers, and what it answers.
    (("coordinator",), (NodePlan, DropBundles, NodeRefused)),
    (("coordinator",), (Grant, Revoke, Recall, Receipt)),
    (
        ("coordinator",),
        (StartTrainer, GetTrainer, Publish, SaveState, Train, AddSlices, ExportModel),
    ),
    (
        ("coordinator",),
        (JobAccepted, JobRefused, JobStatus, CancelRefused, NodeUnknown, Acknowledged),
    ),
    (
        ("coordinator",),
        (JobList, JobUnknown, ConsentNeeded, DrainRefused),
    ),
    (("coordinator",), (SessionBegan, SessionRefused, GroupsDone, Fleet)),
    (
        ("coordinator",),
        (Enrolled, NotEnrolled, TokenMade, AccessRevoked, NameUnknown, GuestList),
    ),
    # The runtimes, to each other. Only coordinator and nodes watch: each other, and a program.
    (("coordinator", "node"), (Watch, Unwatch, Done)),
    (("coordinator", "node", "operator", "submitter"), (Ended,)),
    (("coordinator", "node", "worker", "trainer"), (Failure, PushedBack)),
    # An actor hears of an end from its own runtime alone.
    ((), (Down,)),
)


def _by_type(rows: Iterable[_Row]) -> Mapping[type[Message], frozenset[Role]]:
    table: dict[type[Message], frozenset[Role]] = {}
    for roles, types in rows:
        for message_type in types:
            if message_type in table:
                raise ValueError(f"{message_type.__name__} has two rows; keep one")
            table[message_type] = frozenset(roles)
    return table


MAY_SAY: Mapping[type[Message], frozenset[Role]] = _by_type(_ROWS)
"""See the module's docstring."""
