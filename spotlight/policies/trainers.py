"""The trainers of a job as a state machine: events in, instructions out. Pure: time is handed in,
in seconds of one clock.

  nobody --(former trainers, or enough reserved workers, are there)--> appointed
    appointed --(told to start; rank 0 first, then the others where it listens)--> ready
    ready --(orders, each repeated until all ranks have answered it)--> ready
    appointed or ready --(one is lost)--> over: another machine begins, of a later term

Any message may be lost, so an order is repeated until it is answered; ranks carry none out twice,
and an answer that comes twice, or to another order or term, changes nothing. What is ordered while
nobody is ready waits. The next state of training is left only when the one before is on record, as
it may take the place of the one before that. Training waits for what could not be had afterwards:
for a checkpoint, and for a state whose turn has not come. The order to train carries the orders to
publish and to save that are open, in case these were lost.

Out of reach is not dead: a machine that moves, a network that stalls and a process that was stopped
come back. A rank whose node is gone is asked itself, and given up when nobody has heard of it for
the patience of the job. A process that has ended is lost at once. Whoever is lost, the job goes on
from the state that the trainers left, or else from the last checkpoint, with others or the same;
but at most `MOST_RECOVERIES` times in a row without a trained iteration.

An instruction that lets the job go on comes last of those that an event gives.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from spotlight.policies.resume import ResumePoint, resume_point
from spotlight.policies.trainer_orders import (
    Answer,
    Ask,
    AskStandings,
    Begin,
    Built,
    Checkpointed,
    Export,
    Fail,
    FetchState,
    FirstPartTrained,
    ForgetState,
    GoOnFrom,
    HasExported,
    HasFailed,
    HasPublished,
    HasSaved,
    HasTrained,
    Instruction,
    IterationTrained,
    Keep,
    KeepExport,
    KeepTrainers,
    Note,
    Offers,
    Order,
    Publish,
    Recover,
    RecoverLater,
    Replace,
    ReplaceOthers,
    Save,
    Start,
    Stores,
    Tell,
    Train,
    VersionPublished,
    WriteCheckpoint,
)
from spotlight.policies.training_parts import Part
from spotlight.record.run_events import (
    TrainerOutOfReach,
    TrainersBuilt,
    TrainersFound,
    TrainersLost,
    TrainingFailed,
)
from spotlight.types import StoreEndpoint

SEE_TRAINING = "see events.jsonl, which has the traceback"
"""Where a job that ends for an error of its trainers leaves what went wrong."""
MOST_RECOVERIES = 3
"""How often in a row trainers are replaced without a trained iteration: a job whose training ends
every process that does it must end, too."""


class TrainingWorker(Protocol):
    """A worker that trains, or could."""

    @property
    def name(self) -> str:
        """The worker's name."""

    @property
    def epoch(self) -> int:
        """It differs for every process that ever bears the name."""

    @property
    def node(self) -> str:
        """Its node's name."""

    @property
    def store(self) -> StoreEndpoint:
        """The store of its node."""


RankT = TypeVar("RankT", bound=TrainingWorker)
CarriedT = TypeVar("CarriedT", Publish, Save)


@dataclass(frozen=True)
class Facts:
    """What the rest of the job knows when it is settled where to go on."""

    newest: int
    """Iterations completed according to the journal."""
    checkpoint: int
    """Iterations in the durable checkpoint; 0 for none."""
    state: int
    """Iterations in the state of training that is on record; 0 for none."""
    state_is_there: bool
    """Whether every part of that state can be had."""
    published: frozenset[int]
    """Weights versions that nodes can still pull."""
    held: frozenset[int]
    """Those that a node holds that is there."""
    unvalidated: tuple[int, ...]
    """Versions that are to be validated and have no score yet."""
    reuses: bool = True
    """Whether previews are trained on."""
    ahead_of_state: frozenset[int] = frozenset()
    """The weights version with which the samples after that state were made ahead; none where none
    are. Nobody publishes it again."""

    @property
    def goes_on_from(self) -> int:
        """Iterations that the next trainers go on after."""
        return max(self.state if self.state_is_there else 0, self.checkpoint)


@dataclass
class _Open:
    """The latest order of a kind, and what it says to the ranks that have not answered."""

    number: Hashable
    waiting: dict[int, Order]


@dataclass
class TrainerMachine(Generic[RankT]):
    """See the module's docstring. Methods are events; each returns the instructions that follow, in
    order.

    Args:
        term: of its orders to start.
        wanted: how many ranks the job has.
        patience_s: how long a rank may be out of reach.
        is_sharded: every rank holds a part of the state; else all hold the same.
        listens_until: nodes that are there have said so by then.
        began_at: when the machine was made.
        former: the ranks of an earlier coordinator of this run, which are looked for; none if
            others are to be appointed.
        last_recovery: the number of the last recovery, and the iterations that it went on from.
    """

    term: int
    wanted: int
    patience_s: float
    is_sharded: bool
    listens_until: float
    began_at: float
    former: tuple[RankT, ...] = ()
    last_recovery: tuple[int, int] | None = None
    ranks: tuple[RankT, ...] = field(default=(), init=False)
    """The workers that train, in the order of their ranks; nobody until they are appointed."""
    _at: ResumePoint | None = field(default=None, init=False)
    """The point from which the job goes on; None until that is settled."""
    _chosen: tuple[RankT, ...] = field(default=(), init=False)
    """They are appointed when it is known where their state is."""
    _ready: bool = field(default=False, init=False)
    """What trainers begin from can carry the job, with trainers or without."""
    _has_begun: bool = field(default=False, init=False)
    _is_over: bool = field(default=False, init=False)
    _silent: dict[int, float] = field(default_factory=dict, init=False)
    """When something was last heard of ranks that are out of reach, by epoch."""
    _asked: set[int] = field(default_factory=set, init=False)
    """Ranks, by epoch, whose answer is awaited."""
    _back: set[int] = field(default_factory=set, init=False)
    """Ranks, by epoch, that were out of reach and have not said since whether they still train:
    their node may have worked for another job meanwhile."""
    _announced: set[str] = field(default_factory=set, init=False)
    """Nodes that left after a notice."""
    _open: dict[type[Order], _Open] = field(default_factory=dict, init=False)
    _others: tuple[Start, ...] = field(default=(), init=False)
    """Orders to start for the ranks behind the first, until it is known where that one listens."""
    _later: list[Order] = field(default_factory=list, init=False)
    """Orders for when the ranks are ready."""
    _next_save: _Open | None = field(default=None, init=False)
    """It waits for the one before, and training for it."""
    _trained: dict[tuple[int, Part], HasTrained] = field(default_factory=dict, init=False)
    """These are the answers of this iteration, by rank and part."""
    _published: dict[int, HasPublished] = field(default_factory=dict, init=False)
    """These are the answers to the open order, by rank."""
    _saved: dict[int, HasSaved] = field(default_factory=dict, init=False)
    """These are the answers to the open order, by rank."""
    _is_writing: bool = field(default=False, init=False)
    """A checkpoint is being written; the last answer to the order to save counts when it is."""

    def __post_init__(self) -> None:
        self._silent = {rank.epoch: self.began_at for rank in self.former}

    # --- what others want to know ---

    @property
    def names(self) -> frozenset[str]:
        """The names of the workers that train."""
        return frozenset(rank.name for rank in self.ranks)

    @property
    def there(self) -> tuple[RankT, ...]:
        """The ranks, or those who are looked for."""
        return self.ranks or self.former

    @property
    def on_record(self) -> tuple[RankT, ...]:
        """Whom another coordinator is to look for: nobody, once some of them are lost."""
        return () if self._is_over else self.ranks

    @property
    def is_idle(self) -> bool:
        """Whether there are ranks, and nothing that they were told is still to be done."""
        return bool(self.ranks) and not self._open and not self._later

    def waits_for(self, reserved: int) -> str:
        """What the job waits for, in words; empty if for nothing.

        Args:
            reserved: how many workers that could train are there.
        """
        silent = [rank for rank in self.there if rank.epoch in self._silent]
        if silent:
            names = ", ".join(rank.name for rank in silent)
            if all(rank.node in self._announced for rank in silent):
                return (
                    f"{names} trains on, though its node has left after a notice; others take over"
                    " when its machine is gone"
                )
            return (
                f"{names} trains, and its node is out of reach; others take over when"
                f" nothing was heard of the trainer itself for {self.patience_s:g} s"
            )
        if not self.there:
            return f"waits for reserved workers for training: {reserved} of {self.wanted} are there"
        return ""

    # --- who trains ---

    def assemble(self, reserved: Sequence[RankT]) -> list[Instruction]:
        """Somebody may have come: the former ranks are found again when all are there, or else the
        first reserved workers are appointed when there are enough. While there are too few the job
        goes on without them as far as the published weights carry it.

        Args:
            reserved: workers that could train.
        """
        if self.ranks or self._is_over:
            return []
        ranks = self._candidates(reserved)
        if self._at is not None:
            return self._choose(ranks, self._at) if ranks else []
        if self.former and not ranks:
            return []  # they may be there in a moment
        self._chosen = ranks
        self.ranks = ranks if self.former else ()
        return [AskStandings()]

    def _candidates(self, reserved: Sequence[RankT]) -> tuple[RankT, ...]:
        if self.former:
            return () if self._silent else self.former
        return tuple(reserved[: self.wanted]) if len(reserved) >= self.wanted else ()

    def found(
        self, standing: Sequence[int], facts: Facts, now: float, term: int
    ) -> list[Instruction]:
        """The former ranks say how many iterations they have trained: -1 for one that is no trainer
        of the job, or does not answer; nothing if there are none.

        Args:
            term: of the coordinator that appointed those that are trainers. Others may still hold
                what they were appointed for before.
        """
        if self._is_over:
            return []
        state = facts.state if facts.state_is_there else None
        at = resume_point(
            facts.newest,
            facts.checkpoint,
            standing,
            facts.published,
            state=state,
            held=facts.held,
            unvalidated=facts.unvalidated,
            reuses=facts.reuses,
        )
        ranks, self._chosen = self._chosen, ()
        if at.origin == "trainers":
            self._at, self._ready = at, True
            found = Note(TrainersFound(iteration=at.completed))
            here = standing[0] == at.completed
            begins = self._begin(can_save=here)
            return [GoOnFrom(at), KeepTrainers(), ReplaceOthers(term), found, *begins]
        self.ranks = ()
        is_whole = at.origin == "state" and facts.ahead_of_state <= facts.held
        if facts.state and not is_whole and now < self.listens_until:
            return []  # who has the state, or these weights, may still come
        is_carried = at.origin == "state" and at.completed in facts.held
        if not ranks and not is_carried:
            return []
        self._at, self._ready = at, is_carried
        kept = tuple(sorted(version for version in facts.held if version <= at.completed))
        go_on = GoOnFrom(at, kept if at.origin == "state" else ())
        return [go_on, *(self._choose(ranks, at) if ranks else self._begin())]

    def _choose(self, ranks: tuple[RankT, ...], at: ResumePoint) -> list[Instruction]:
        self._chosen = ranks
        return [FetchState(at)]

    def appointed(self, state: tuple[Offers, ...]) -> list[Instruction]:
        """It is known where those who are to train now can have each part of their state; nothing
        if they begin with the job's model."""
        at, ranks, self._chosen = self._at, self._chosen, ()
        if self._is_over or not ranks:
            return []
        assert at is not None, "it is settled where to go on"
        if at.origin == "state" and not state:  # it went while too few were there to train
            return [Recover("nobody has the state of training any more")]
        self.ranks, world = ranks, len(ranks)
        starts = [Start(self.term, n, world, "", at.completed, state) for n in range(world)]
        self._others = tuple(starts[1:])
        self._open[Start] = _Open(self.term, {0: starts[0]})
        begins = self._begin() if self._ready else []
        return [KeepTrainers(), *self._tell(Start), ReplaceOthers(self.term), *begins]

    def _begin(self, *, can_save: bool = False) -> list[Instruction]:
        if self._has_begun:
            return []
        self._has_begun = True
        return [Begin(can_save)]

    # --- who is there ---

    def joined(self, node: str, epochs: Collection[int]) -> list[Instruction]:
        """A node is there, with the workers of these epochs."""
        self._announced.discard(node)
        lost: list[Instruction] = []
        for rank in self.there:
            if rank.node != node:
                continue
            if rank.epoch not in epochs:
                lost += self._lose(rank, "its process ended")
                continue
            was_silent = self._silent.pop(rank.epoch, None) is not None
            if was_silent and self.ranks and Start not in self._open:  # that is repeated anyway
                self._back.add(rank.epoch)
        return lost

    def out_of_reach(
        self, node: str, reason: str, now: float, *, announced: bool
    ) -> list[Instruction]:
        """A node is out of reach, or (`announced`) has left after a notice; its ranks may be well,
        and of those of one that left nothing else is to be expected."""
        self._announced.discard(node)
        if announced:
            self._announced.add(node)
        silent = [rank for rank in self.there if rank.node == node]
        for rank in silent:
            self._silent.setdefault(rank.epoch, now)
        if announced:
            return []
        return [
            Note(TrainerOutOfReach(worker=rank.name, reason=reason, patience_s=self.patience_s))
            for rank in silent
        ]

    def watch(self, now: float) -> list[Instruction]:
        """Time has passed: those that are out of reach, or were, are asked, unless an answer is
        awaited, and given up when they have been so for too long."""
        asks: list[Instruction] = []
        lost: list[Instruction] = []
        for number, rank in enumerate(self.there):
            is_open = rank.epoch in self._silent or rank.epoch in self._back
            if is_open and rank.epoch not in self._asked:
                self._asked.add(rank.epoch)
                asks.append(Ask(number))
            if now - self._silent.get(rank.epoch, now) >= self.patience_s:
                lost += self._lose(rank, f"nobody has heard of it for {self.patience_s:g} s")
        return [*asks, *lost]

    def answered(self, epoch: int, trains: bool | None, now: float) -> list[Instruction]:
        """A rank that was asked trains the job or not; None if it has not answered."""
        self._asked.discard(epoch)
        if trains is None or not (epoch in self._silent or epoch in self._back):
            return []
        self._back.discard(epoch)
        if trains:
            if epoch in self._silent:
                self._silent[epoch] = now
            return []
        lost = [rank for rank in self.there if rank.epoch == epoch]
        return self._lose(lost[0], "it does not train any more") if lost else []

    def _lose(self, rank: RankT, reason: str) -> list[Instruction]:
        if self._is_over:
            return []
        return [Recover(f"trainer rank on {rank.name} is lost ({reason})")]

    def recover(self, problem: str, goes_on_from: int) -> list[Instruction]:
        """Without these trainers the job goes on from what they left, with others or with the same,
        unless that was tried too often.

        Args:
            goes_on_from: iterations that the next trainers go on after.
        """
        if self._is_over or not (self.there or self._at):  # they were lost together
            return []
        recovery = next_recovery(self.last_recovery, goes_on_from)
        if recovery is None:
            self._is_over = True
            return [
                Fail(
                    f"{problem}; after {MOST_RECOVERIES} recoveries without progress the job does"
                    " not try again by itself; fix the cause, then resume the run"
                )
            ]
        number, completed = self.last_recovery = recovery
        lost = TrainersLost(reason=problem, recovery=number, goes_on_from=completed)
        self._is_over = bool(self.ranks or self._at)
        if not self._is_over:  # they were only looked for: this machine can appoint others
            self.former = ()
            self._silent.clear()
        return [Note(lost), KeepTrainers(), *([Replace()] if self._is_over else [])]

    # --- what they are told ---

    def order(self, order: Publish | Save | Train | Export) -> list[Instruction]:
        """Have the ranks do something, or rank 0 alone (`Export`); when they are ready.

        Of `Save` only `completed` and `is_checkpoint` are to be given, and of `Train` nothing that
        is to be done before: the machine knows the rest.
        """
        match order:
            case Train(part=part) if part != "rest":
                self._trained = {}
            case Publish():
                self._published = {}
        if not self.ranks or Start in self._open or self._later:
            self._later.append(order)
            return []
        return self._give(order)

    def _give(self, order: Order) -> list[Instruction]:
        opened = _Open(_number(order), self._words(order))
        if isinstance(order, Save) and Save in self._open:
            self._next_save = opened
            return []
        self._open[type(order)] = opened
        return self._tell(type(order))

    def _words(self, order: Order) -> dict[int, Order]:
        """What is said to each rank."""
        if isinstance(order, Save):
            return self._saves(order)
        if isinstance(order, Export):
            return {0: order}
        return dict.fromkeys(range(len(self.ranks)), order)

    def _saves(self, order: Save) -> dict[int, Order]:
        """Ranks that hold the same state leave it once per node, in the node's store. While only
        one node trains, and for a checkpoint, the first rank leaves it in the run folder's store,
        too. Of a sharded model every rank leaves its part twice: in its node's store, and in that
        of another node that trains, or the run folder's if there is none; and for a checkpoint in
        the run folder's, too."""
        nodes: dict[str, int] = {}
        for number, rank in enumerate(self.ranks):
            nodes.setdefault(rank.node, number)
        firsts = list(nodes.values())
        stores: dict[int, Stores] = {number: (self.ranks[number].store,) for number in firsts}
        if self.is_sharded:
            following = dict(zip(nodes, [*firsts[1:], firsts[0]], strict=True))
            for number, rank in enumerate(self.ranks):
                peer = self.ranks[following[rank.node]].store
                stores[number] = (rank.store, peer) if len(nodes) > 1 else (rank.store,)
        here = len(nodes) == 1 or order.is_checkpoint
        return {
            number: dataclasses.replace(
                order,
                stores=each,
                in_run_folder=here and (self.is_sharded or number == 0),
                part=number if self.is_sharded else 0,
            )
            for number, each in stores.items()
        }

    def remind(self) -> list[Instruction]:
        """Repeat what is not answered."""
        return [] if self._is_over else [tell for kind in self._open for tell in self._tell(kind)]

    def _tell(self, kind: type[Order]) -> list[Instruction]:
        """If the word to publish or save was lost, a trainer that is further could not obey it any
        more: so the one to train has it, too, or waits."""
        waiting = self._open[kind].waiting
        if kind is not Train:
            return [Tell(rank, order) for rank, order in waiting.items()]
        if self._training_waits:
            return []
        return [
            Tell(
                rank,
                dataclasses.replace(
                    order, publish=self._due(Publish, rank), save=self._due(Save, rank)
                ),
            )
            for rank, order in waiting.items()
            if isinstance(order, Train)
        ]

    @property
    def _training_waits(self) -> bool:
        """Nobody could ask for a checkpoint again, and no word says what to save next."""
        saves = self._open[Save].waiting.values() if Save in self._open else ()
        checkpoint = any(isinstance(order, Save) and order.is_checkpoint for order in saves)
        return self._next_save is not None or checkpoint

    def _due(self, kind: type[CarriedT], rank: int) -> CarriedT | None:
        order = self._open[kind].waiting.get(rank) if kind in self._open else None
        return order if isinstance(order, kind) else None

    # --- what they answer ---

    def reported(
        self, rank: int, term: int, answer: Answer | None, listens_at: str = ""
    ) -> list[Instruction]:
        """A rank has done what it was told. What comes late, or twice, or from a rank that was
        built for an earlier term, changes nothing.

        Args:
            term: of the order that built it.
            answer: None for one that is being built.
            listens_at: where rank 0 of several meets the others.
        """
        if self._is_over or not self._counts(term):
            return []
        if isinstance(answer, HasFailed):
            return self._fail(rank, answer)
        others = self._start_others(listens_at) if rank == 0 and listens_at else []
        return [*others, *self._take(rank, answer)]

    def _counts(self, term: int) -> bool:
        """Those that were found are of whatever term."""
        is_found = self._at is not None and self._at.origin == "trainers"
        return bool(self.ranks) and (is_found or term == self.term)

    def _start_others(self, listens_at: str) -> list[Instruction]:
        """Have the other ranks built as soon as rank 0 listens, where they meet it."""
        others, self._others = self._others, ()
        starts = [dataclasses.replace(order, rendezvous=listens_at) for order in others]
        for order in starts:
            self._open[Start].waiting[order.rank] = order
        return [Tell(order.rank, order) for order in starts]

    def _take(self, rank: int, answer: Answer | None) -> list[Instruction]:
        match answer:
            case Built():
                return self._built(rank)
            case HasTrained():
                return self._has_trained(rank, answer)
            case HasPublished():
                return self._has_published(rank, answer)
            case HasSaved():
                return self._has_saved(rank, answer)
            case HasExported(checkpoint) if self._is_last(Export, checkpoint, rank):
                return [KeepExport(checkpoint)]
        return []

    def _fail(self, rank: int, failed: HasFailed) -> list[Instruction]:
        problem = f"trainer rank {rank}: {failed.error}"
        worker, error = self.ranks[rank].name, failed.error
        note = Note(TrainingFailed(worker=worker, error=error, traceback=failed.traceback))
        forget: list[Instruction] = [ForgetState()] if failed.lost_state else []
        if failed.lost_others:
            return [note, *forget, RecoverLater(problem)]
        where = f"; {SEE_TRAINING}" if failed.traceback else ""
        return [note, *forget, Fail(f"{problem}{where}")]

    def _built(self, rank: int) -> list[Instruction]:
        if not self._is_last(Start, self.term, rank):
            return []
        at = self._at
        assert at is not None and at.origin != "trainers", "they were told where to begin"
        later, self._later = self._later, []
        tells = [tell for order in later for tell in self._give(order)]
        source = at.origin if at.completed else "model"
        workers = tuple(each.name for each in self.ranks)
        built = Note(TrainersBuilt(iteration=at.completed, workers=workers, source=source))
        return [*tells, built, *self._begin()]

    def _has_trained(self, rank: int, answer: HasTrained) -> list[Instruction]:
        number = answer.iteration, answer.part
        if self._awaits(Train, number, rank):
            self._trained[rank, answer.part] = answer
        if not self._is_last(Train, number, rank):
            return []
        if answer.part == "first":
            return [FirstPartTrained(answer.iteration)]
        by_rank: defaultdict[int, float] = defaultdict(float)
        for (each, _), one in self._trained.items():
            by_rank[each] += one.seconds
        metrics = self._trained[0, answer.part].metrics
        return [IterationTrained(answer.iteration, max(by_rank.values()), metrics)]

    def _has_published(self, rank: int, answer: HasPublished) -> list[Instruction]:
        if self._awaits(Publish, answer.version, rank):
            self._published[rank] = answer
        if not self._is_last(Publish, answer.version, rank):
            return []
        parts = [part for _, part in sorted(self._published.items())]
        rollout = tuple(offer for part in parts for offer in part.rollout)
        evaluation = tuple(offer for part in parts for offer in part.evaluation)
        return [VersionPublished(answer.version, rollout, evaluation)]

    def _has_saved(self, rank: int, answer: HasSaved) -> list[Instruction]:
        completed = answer.completed
        if self._is_writing or not self._awaits(Save, completed, rank):
            return []
        self._saved[rank] = answer
        waiting = self._open[Save].waiting
        order = waiting[rank]
        is_whole = all(each.offers for each in self._saved.values())
        is_checkpoint = isinstance(order, Save) and order.is_checkpoint
        if is_whole and is_checkpoint and len(waiting) == 1:
            self._is_writing = True
            return [WriteCheckpoint(completed, len(self.ranks) if self.is_sharded else 1)]
        if not self._is_last(Save, completed, rank):
            return []
        if not is_whole:  # one had gone on before it was told: the next state is left
            self._saved = {}
            return self._save_next()
        return self._keep(completed)

    def checkpoint_written(self) -> list[Instruction]:
        """The checkpoint that was to be written is in the run folder: the next state may take the
        place of the one before it in the store."""
        self._is_writing = False
        completed = self._open.pop(Save).number
        assert isinstance(completed, int), "states are numbered by iterations"
        return [*self._keep(completed), Checkpointed(completed)]

    def _keep(self, completed: int) -> list[Instruction]:
        """Everybody has answered: lost trainers go on from here now."""
        saved, self._saved = self._saved, {}
        parts = tuple(saved[rank].offers for rank in sorted(saved))
        if not self.is_sharded:
            parts = (tuple(offer for offers in parts for offer in offers),)
        return [Keep(completed, parts), *self._save_next()]

    def _save_next(self) -> list[Instruction]:
        """It is settled what was saved last: what waited for that can go on."""
        saves: list[Instruction] = []
        if self._next_save is not None:
            self._open[Save], self._next_save = self._next_save, None
            saves = self._tell(Save)
        return [*saves, *(self._tell(Train) if Train in self._open else [])]

    def _awaits(self, kind: type[Order], number: Hashable, rank: int) -> bool:
        """Whether that is an answer that is still to come."""
        opened = self._open.get(kind)
        return opened is not None and opened.number == number and rank in opened.waiting

    def _is_last(self, kind: type[Order], number: Hashable, rank: int) -> bool:
        """An answer has come; whether it was the last one that was still to come."""
        if not self._awaits(kind, number, rank):
            return False
        waiting = self._open[kind].waiting
        del waiting[rank]
        if waiting or (kind is Start and self._others):
            return False
        del self._open[kind]
        return True


def _number(order: Order) -> Hashable:
    """It tells one order from another of its kind."""
    match order:
        case Start(term=term):
            return term
        case Publish(version=version):
            return version
        case Save(completed=completed):
            return completed
        case Train(iteration=iteration, part=part):
            return iteration, part
        case Export(checkpoint=checkpoint):
            return checkpoint


def next_recovery(last: tuple[int, int] | None, completed: int) -> tuple[int, int] | None:
    """The number of a recovery, from 1, with the iterations that it goes on from; None if there
    were too many.

    Args:
        last: what this returned for the recovery before; None for the first.
        completed: iterations that the next trainers go on after.
    """
    count = last[0] + 1 if last is not None and last[1] == completed else 1
    return (count, completed) if count <= MOST_RECOVERIES else None
