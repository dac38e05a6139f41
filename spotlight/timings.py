"""Every limit on time in the system, in one frozen `Timings` that is handed in.

Limits depend on each other: who waits must wait longer than what is waited for may take. Each
group, and `Timings` as a whole, has a table `ORDER` that says what must be longer than what, and
why; no object that breaks it can be made.

    >>> Timings().dispatch.lease_s
    15.0

How long hardware takes is not a limit, and neither is what a user or a cloud says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import ClassVar


class _Ordered:
    """What all groups of limits have in common."""

    ORDER: ClassVar[dict[str, str]] = {}
    """Why, by rule: `a_s > b_s + 2 * c_s` says that one limit is longer than others, added up."""

    def __post_init__(self) -> None:
        """Raises `ValueError`, which names the fields, unless all are positive and in order."""
        group = type(self).__name__
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            for seconds in value if isinstance(value, tuple) else (value,):
                if not isinstance(seconds, _Ordered) and not 0 < seconds < math.inf:
                    raise ValueError(f"{group}.{field.name} must be above 0, not {seconds!r}")
        broken = [f"not {rule} ({why})" for rule, why in self.ORDER.items() if not self._has(rule)]
        if broken:
            raise ValueError(f"{group} is out of order: {'; '.join(broken)}")

    def _has(self, rule: str) -> bool:
        longer, shorter = rule.split(" > ")
        return self._seconds(longer) > sum(map(self._seconds, shorter.split(" + ")))

    def _seconds(self, term: str) -> float:
        times, _, path = term.rpartition(" * ")
        seconds: float = attrgetter(path)(self)
        return int(times or 1) * seconds


@dataclass(frozen=True, kw_only=True)
class ConnectionTimings(_Ordered):
    """What ends, or repeats, a connection of the control channel."""

    heartbeat_interval_s: float = 0.5
    """A process that is watched, or watches, pings whom it connected to so often."""
    heartbeat_timeout_s: float = 1.5
    """An end that does not answer a ping for so long is gone, and so is a machine that does not
    confirm for so long that bytes have arrived."""
    keepalive_s: float = 10.0
    """A machine that has been silent for so long is asked by the system whether it is there."""
    guard_period_s: float = 0.25
    """Connections that hold back a part of a message are looked for so often."""
    handshake_timeout_s: float = 2.0
    """The handshake, in which both sides prove their keys, must be over by then."""
    connect_timeout_s: float = 3.0
    """A peer that was not reached for so long is given up."""
    redial_after_s: float = 0.5
    """A peer that was given up is not dialled again for so long; one that was never reached, for
    twice as long after each try, until it is `longest_redial_s`."""
    longest_redial_s: float = 5.0
    """A peer that was never reached is dialled again at least this often."""
    reconnect_s: float = 0.1
    """libzmq makes a connection that broke again after this time; each further try waits longer."""
    longest_reconnect_s: float = 1.0
    """libzmq never waits longer."""
    retry_s: float = 0.02
    """A send that was refused is tried again after this time at the latest."""
    farewell_s: float = 0.2
    """A refusal has so long to reach the peer before its connection ends."""
    handover_s: float = 0.05
    """The thread of libzmq has so long to take the last messages before a socket closes."""
    linger_s: float = 0.5
    """A closing transport tries for so long to send what is queued."""

    ORDER: ClassVar[dict[str, str]] = {
        "heartbeat_timeout_s > 2 * heartbeat_interval_s": "One ping may be late.",
        "keepalive_s > heartbeat_timeout_s": "Where heartbeats go, nobody else need ask.",
        "connect_timeout_s > handshake_timeout_s": (
            "A connection proves its key before it can say whose it is."
        ),
        "longest_redial_s > redial_after_s": "The pause grows with each try.",
        "longest_reconnect_s > reconnect_s": "The pause grows with each try.",
    }


@dataclass(frozen=True, kw_only=True)
class RuntimeTimings(_Ordered):
    """How long actors may take, and how their runtime repeats itself."""

    stop_grace_s: float = 5.0
    """An actor that is stopped has so long for the message that it handles, and again for its
    `stopping` hook."""
    start_limit_s: float = 60.0
    """An actor must have started by then."""
    watch_renewal_s: float = 5.0
    """A watch of an actor elsewhere is repeated so often."""
    push_back_s: float = 0.05
    """Tells to an actor whose mailbox was full are refused for so long."""
    unreached_log_s: float = 600.0
    """Seconds between two lines that say that an address cannot be reached."""
    template_limit_s: float = 300.0
    """A process that others are forked from must have imported everything by then."""
    fork_limit_s: float = 10.0
    """It must have forked another one within this time."""
    exit_report_limit_s: float = 5.0
    """It reports the end of a process within this time, or is taken to hang."""


@dataclass(frozen=True, kw_only=True)
class DeliveryTimings(_Ordered):
    """How long is insisted on what must not be lost."""

    answer_limit_s: float = 5.0
    """A receiver acknowledges within this time, or is told again."""
    retry_pause_s: float = 1.0
    """The pause between two attempts."""
    away_limit_s: float = 120.0
    """A result is kept so long for a coordinator that is away."""

    ORDER: ClassVar[dict[str, str]] = {
        "away_limit_s > answer_limit_s + retry_pause_s": (
            "A first attempt that nobody answers must not be the last."
        ),
    }


@dataclass(frozen=True, kw_only=True)
class TransferTimings(_Ordered):
    """How long a bundle may take from or to a store."""

    connect_limit_s: float = 4.0
    """A store must be reached by then; the system tries again after 1 and 3 s."""
    header_limit_s: float = 10.0
    """Who connects to a store says what is wanted by then."""
    idle_limit_s: float = 60.0
    """A side that neither reads nor writes for so long is gone."""
    transfer_limit_s: float = 60.0
    """Whoever fetches or uploads gives up by then, and a second later for every 10 MB."""


@dataclass(frozen=True, kw_only=True)
class WeightsTimings(_Ordered):
    """How long a weights version may take from node to node."""

    shortest_limit_s: float = 10.0
    """A transfer of weights may take so long, and more for its bytes."""
    rests_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    """A node leaves a source alone for so long that has failed it once, twice, and so on."""


@dataclass(frozen=True, kw_only=True)
class CheckpointTimings(_Ordered):
    """How long nodes wait for each other's files of a checkpoint of the hub."""

    source_limit_s: float = 3600.0
    """A node has the checkpoint by then from where it was sent, or others need not wait for it."""
    unasked_s: float = 60.0
    """One that may not ask the hub waits for so long for one to join that has the checkpoint, or
    may ask."""
    look_s: float = 2.0
    """A node looks so often whether its workers have downloaded all of it."""
    retry_pause_s: float = 1.0
    """The pause before a transfer from another node goes on that broke off."""

    ORDER: ClassVar[dict[str, str]] = {
        "source_limit_s > unasked_s": "It is waited for longer, as it is under way.",
    }


@dataclass(frozen=True, kw_only=True)
class DispatchTimings(_Ordered):
    """When the table of requests takes something back."""

    lease_s: float = 15.0
    """A lease ends so long after its holder was heard."""
    tick_s: float = 1.0
    """Leases are looked at so often when nothing else happens."""
    ask_again_s: float = 1.0
    """Whether a lease has become too slow is looked at so often."""
    avoid_s: float = 10.0
    """A request is kept for so long from a worker where it failed."""
    hold_back_s: float = 120.0
    """A worker that fails one lease after the other gets nothing for so long: others may try."""

    ORDER: ClassVar[dict[str, str]] = {
        "lease_s > tick_s": "Its end would be noticed only with a later one.",
    }


@dataclass(frozen=True, kw_only=True)
class DepartureTimings(_Ordered):
    """How a node leaves after a notice."""

    unknown_lead_s: float = 25.0
    """Seconds that are taken to be left when a notice does not say: clouds give 30 s, some of it
    past."""
    longest_margin_s: float = 5.0
    """Denoising stops at most so long before the deadline, so that commits are delivered."""
    outlived_after_s: float = 60.0
    """A node that is there so long after its deadline is not taken."""

    ORDER: ClassVar[dict[str, str]] = {
        "unknown_lead_s > longest_margin_s": (
            "There must be time to denoise before the margin begins."
        ),
    }


@dataclass(frozen=True, kw_only=True)
class RejoinTimings(_Ordered):
    """How long a node that comes and goes must wait before it is given work."""

    memory_s: float = 300.0
    """A departure is remembered for so long."""
    first_wait_s: float = 2.0
    """The first departure that is not free costs so much; each further one, twice as much."""
    longest_wait_s: float = 60.0
    """A node never waits longer."""

    ORDER: ClassVar[dict[str, str]] = {
        "longest_wait_s > first_wait_s": "The wait grows with each departure.",
        "memory_s > longest_wait_s": "A wait would be forgotten before it is over.",
    }


@dataclass(frozen=True, kw_only=True)
class SharingTimings(_Ordered):
    """How jobs share the nodes of a fleet."""

    quantum_s: float = 1800.0
    """A node works for a job at least so long before another one may have it, and longer for a
    model that takes long to load."""
    first_after_s: float = 10.0
    """A job that has had no node for so long gets one of somebody who has had more; nodes of one
    that came back may be on their way."""
    backfill_limit_s: float = 3600.0
    """No later job begins before one that has waited for so long."""
    give_back_s: float = 30.0
    """A node that another job is to have stops after so long, with all work committed."""
    look_s: float = 5.0
    """Whether a node should move is looked at so often."""


@dataclass(frozen=True, kw_only=True)
class WorkerTimings(_Ordered):
    """How long the actors of a worker's process wait."""

    pull_s: float = 4.0
    """A leader says so often what its group holds, which renews its leases."""
    download_limit_s: float = 6 * 3600.0
    """The files of a model must be on the machine by then."""
    load_limit_s: float = 600.0
    """A member must have loaded a model, or weights, by then."""
    repeat_s: float = 1.0
    """What a member has told its group is told again so often, as it may be lost."""
    farewell_s: float = 1.0
    """A worker that ends by itself has so long to say why."""
    introduction_limit_s: float = 5.0
    """Members that have not introduced themselves for so long are reported as absent."""
    leave_limit_s: float = 60.0
    """A step that is under way when the group is to change may take so long."""
    meet_limit_s: float = 70.0
    """The ranks of a group must have exchanged their addresses by then."""
    peer_connect_s: float = 2.0
    """Gloo tries five times for so long to reach a peer that has said where it is."""
    connect_limit_s: float = 80.0
    """The ranks of a group must be connected by then."""
    order_limit_s: float = 150.0
    """A member waits so long for a group that forms."""
    group_collective_limit_s: float = 300.0
    """A collective of an SP group is given up by then."""
    trainer_collective_limit_s: float = 120.0
    """A collective of the trainer ranks is given up by then."""

    ORDER: ClassVar[dict[str, str]] = {
        "introduction_limit_s > 2 * repeat_s": (
            "An introduction that was lost must be repeated before anybody is reported."
        ),
        "meet_limit_s > leave_limit_s": "Others may have to end a step before they come.",
        "meet_limit_s > introduction_limit_s": (
            "Who is absent is reported before the group as a whole has failed."
        ),
        "connect_limit_s > meet_limit_s": "A rank whose address is known may yet be out of reach.",
        "order_limit_s > leave_limit_s + connect_limit_s": (
            "All members must leave one group and connect in the next."
        ),
        "group_collective_limit_s > leave_limit_s": "A step that may still end must not be broken.",
    }


@dataclass(frozen=True, kw_only=True)
class NodeTimings(_Ordered):
    """How long a node waits for its workers, its groups and its coordinator."""

    ask_alone_s: float = 2.0
    """A worker that is alone is asked so often whether it is there, and must answer within it."""
    ask_grouped_s: float = 0.5
    """The same for a worker in a group: one that hangs keeps all others of its group waiting."""
    silent_s: float = 10.0
    """A worker that has left questions unanswered for so long is ended."""
    start_limit_s: float = 300.0
    """A worker's process must be up by then."""
    restart_pause_s: float = 0.5
    """The pause before a worker that ended is started again, longer each time that it ended badly:
    the others regroup first, and a start keeps the node's loop, and then a processor, busy."""
    restart_window_s: float = 60.0
    """A worker that is killed too often within this time is given up."""
    join_limit_s: float = 5.0
    """The coordinator answers a node that joins within this time, or is asked again."""
    join_pause_s: float = 0.5
    """The pause between two attempts to join."""
    report_s: float = 4.0
    """A node that has joined reports so often when nothing has changed."""
    refused_limit_s: float = 15.0
    """A node that is refused for so long ends."""
    name_limit_s: float = 600.0
    """A node ends that is refused for so long since its name is kept for another that may come."""
    away_limit_s: float = 300.0
    """The job of a node without a coordinator ends after this time."""
    regroup_pause_s: float = 0.1
    """A group that breaks has mostly lost a process: the node hears of it within this time."""
    fault_s: float = 30.0
    """A worker with which no group forms is alone for so long."""
    failure_window_s: float = 300.0
    """Three failures of the same group within this time count as one fault."""
    logs_s: float = 10.0
    """It is looked so often whether the logs of workers are large."""

    ORDER: ClassVar[dict[str, str]] = {
        "silent_s > 3 * ask_alone_s": (
            "Three questions without an answer make a suspect, before it is ended."
        ),
        "silent_s > 3 * ask_grouped_s": (
            "Three questions without an answer make a suspect, before it is ended."
        ),
        "restart_window_s > 4 * restart_pause_s": (
            "Starts that fail at once must be counted together."
        ),
        "failure_window_s > fault_s": (
            "A worker that was alone for a while is still known to have failed."
        ),
    }


@dataclass(frozen=True, kw_only=True)
class CoordinatorTimings(_Ordered):
    """How long the coordinator's actors wait."""

    read_limit_s: float = 45.0
    """The files of a job must be read by then, also from a slow disk of the network."""
    submit_answer_s: float = 60.0
    """A user waits so long for the answer to a submission."""
    status_period_s: float = 0.2
    """The status of a job is told at most so often."""
    remind_s: float = 1.0
    """The job runner looks so often at what is late."""
    clock_s: float = 10.0
    """When nothing else was written for so long, the clock of the run is: what comes after it is
    lost when the coordinator is killed."""
    listen_s: float = 3.0
    """A runner that came back listens so long before it grants what nodes may still work on."""
    takeover_s: float = 0.5
    """One that takes another's place in the same coordinator, whose nodes are there."""
    lost_rank_pause_s: float = 2.0
    """When ranks have lost each other, mostly one of them has ended; its node says so by then."""
    ask_rank_limit_s: float = 5.0
    """A trainer rank answers a question within this time."""
    full_disk_s: float = 1800.0
    """A job whose disk is full waits so long for room in an iteration before it fails."""
    full_disk_pause_s: float = 5.0
    """It looks again after so long whether there is some."""
    trackers_close_s: float = 60.0
    """When a job ends its trackers, and then its mirror, may send what they hold for so long."""
    trackers_stop_s: float = 1.0
    """When its runner is stopped in the middle, so long."""
    states_kept_s: float = 3600.0
    """The states of workers stay on the disk one by one for at least so long."""
    ledger_s: float = 10.0
    """What workers did is written so often."""
    ledger_settles_s: float = 2.0
    """When a job has ended, the nodes say within this time what they did for it in the end."""
    ledger_quiet_s: float = 300.0
    """The ledger of a job that has ended is closed when nothing was said of it for so long."""
    session_away_s: float = 60.0
    """A session whose user has been out of reach for so long ends."""
    session_poll_s: float = 5.0
    """The question what is done is answered after so long if nothing is."""

    ORDER: ClassVar[dict[str, str]] = {
        "submit_answer_s > read_limit_s": "A user hears why the files of a job could not be read.",
        "listen_s > takeover_s": "Nodes that have to find the coordinator first take longer.",
        "clock_s > remind_s": "A reminder writes it.",
        "full_disk_s > full_disk_pause_s": "It tries more than once.",
        "ledger_quiet_s > ledger_s": "What is said of a job that has ended is written.",
        "remind_s > status_period_s": "What a reminder changes is in the next status.",
    }


@dataclass(frozen=True, kw_only=True)
class DoorTimings(_Ordered):
    """How long those who may come in are known."""

    node_key_s: float = 86_400.0
    """A node that was away for so long has to enroll again."""
    name_held_s: float = 360.0
    """A node that has just enrolled, or that an earlier coordinator knew, has so long to come
    before its name may be another's."""
    check_s: float = 5.0
    """Whoever is let in for a time is looked for so often once that is over."""
    note_s: float = 3600.0
    """When nodes were seen last is written down so often."""
    remembered_s: float = 30 * 86_400.0
    """Those who come with a token that has ended are told so for as long as this."""

    ORDER: ClassVar[dict[str, str]] = {
        "node_key_s > 2 * note_s": "A coordinator that comes back still knows who was there.",
        "node_key_s > name_held_s": "A key outlives the claim to a name.",
        "name_held_s > check_s": "Time that jumped back is noticed in between.",
    }


@dataclass(frozen=True, kw_only=True)
class Timings(_Ordered):
    """All limits, by who waits. `Timings()` is what runs; tests hand in others."""

    connections: ConnectionTimings = ConnectionTimings()
    runtime: RuntimeTimings = RuntimeTimings()
    delivery: DeliveryTimings = DeliveryTimings()
    transfers: TransferTimings = TransferTimings()
    weights: WeightsTimings = WeightsTimings()
    checkpoints: CheckpointTimings = CheckpointTimings()
    dispatch: DispatchTimings = DispatchTimings()
    departure: DepartureTimings = DepartureTimings()
    rejoin: RejoinTimings = RejoinTimings()
    sharing: SharingTimings = SharingTimings()
    worker: WorkerTimings = WorkerTimings()
    node: NodeTimings = NodeTimings()
    coordinator: CoordinatorTimings = CoordinatorTimings()
    door: DoorTimings = DoorTimings()

    ORDER: ClassVar[dict[str, str]] = {
        "door.name_held_s > runtime.template_limit_s": (
            "A node reports once it could have started its workers."
        ),
        "dispatch.lease_s > 3 * worker.pull_s": "Two renewals in a row may be lost or late.",
        "dispatch.lease_s > node.silent_s + node.ask_alone_s + dispatch.tick_s": (
            "The node ends a worker that hangs before its leases go to others."
        ),
        "worker.group_collective_limit_s > node.silent_s + node.ask_alone_s": (
            "The node notices first what has ended or hangs."
        ),
        "worker.trainer_collective_limit_s > node.silent_s + node.ask_alone_s": (
            "The node notices first what has ended or hangs."
        ),
        "node.failure_window_s > 3 * worker.connect_limit_s": (
            "Three groups that cannot connect must be counted together."
        ),
        "node.name_limit_s > door.name_held_s + node.refused_limit_s": (
            "A node is let in whose earlier self ended together with the coordinator."
        ),
        "node.refused_limit_s > 2 * connections.heartbeat_timeout_s": (
            "An earlier self of the node has been found gone by then."
        ),
        "node.away_limit_s > delivery.away_limit_s": (
            "A job does not end while its results are kept for the coordinator."
        ),
        "delivery.away_limit_s > node.report_s + node.join_limit_s": (
            "A node that was forgotten joins again before its results are given up."
        ),
        "coordinator.listen_s > connections.redial_after_s + 2 * node.join_pause_s": (
            "Nodes need a second or two to find the coordinator."
        ),
        "coordinator.lost_rank_pause_s > connections.heartbeat_timeout_s": (
            "A process that is gone has been found gone by then."
        ),
        "worker.download_limit_s > checkpoints.source_limit_s": (
            "Others wait for a download that may still end well, and not for longer."
        ),
        "runtime.start_limit_s > coordinator.read_limit_s": (
            "A coordinator that comes back reads the files of its job as it starts."
        ),
    }
