"""A job with two trainers whose messages, losses and answers a test lets happen in any order.

`School` carries out what the machine of trainers and that of iterations say, with trainers that do
what the real ones do, and refuses what must not be. Messages to a process, and those from it, stay
in their order; each may be lost.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from spotlight.policies import iteration as step
from spotlight.policies import trainer_orders as orders
from spotlight.policies.iteration import IterationMachine, Schedule
from spotlight.policies.trainers import MOST_RECOVERIES, Facts, TrainerMachine
from spotlight.record.run_events import TrainersLost
from spotlight.types import BundleOffer, StoreEndpoint

PATIENCE_S = 60.0
LISTENS_AT = "host:1234"


def store(node: str) -> StoreEndpoint:
    return StoreEndpoint("10.0.0.1", 1, "token", node, "/store")


def offer(key: str, node: str = "") -> BundleOffer:
    return BundleOffer(key, 1, 0, store(node or "folder"))


@dataclass(frozen=True)
class Worker:
    """A worker that can train; its node is named like it."""

    name: str
    epoch: int
    node: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "node", self.node or self.name)

    @property
    def store(self) -> StoreEndpoint:
        return store(self.node)


def machine(
    *,
    former: Sequence[Worker] = (),
    term: int = 7,
    wanted: int = 2,
    is_sharded: bool = False,
    listens_until: float = 0.0,
    last_recovery: tuple[int, int] | None = None,
) -> TrainerMachine[Worker]:
    return TrainerMachine(
        term,
        wanted,
        PATIENCE_S,
        is_sharded,
        listens_until,
        began_at=0.0,
        former=tuple(former),
        last_recovery=last_recovery,
    )


NOTHING = Facts(0, 0, 0, False, frozenset(), frozenset(), ())
"""Of a job that begins."""


@dataclass(frozen=True)
class Report:
    """What a rank says."""

    rank: int
    term: int
    answer: orders.Answer | None = None
    listens_at: str = ""


@dataclass
class Process:
    """A trainer as it is: it does what it is told once, and remembers its last answers."""

    worker: Worker
    term: int = 0
    rank: int = -1
    completed: int = -1
    """Iterations trained; -1: not built."""
    begins_at: int = -1
    answers: dict[str, tuple[object, orders.Answer]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    """Iterations in the states that its node's store has, by their places there."""
    is_cut_off: bool = False
    inbox: tuple[orders.Order, ...] = ()
    outbox: tuple[Report, ...] = ()

    def say(self, answer: orders.Answer | None, listens_at: str = "") -> None:
        self.outbox += (Report(self.rank, self.term, answer, listens_at),)


@dataclass
class School:
    """See the module's docstring. `may` says how often each kind of fault may still come."""

    schedule: Schedule
    may: dict[str, int]
    is_reused: bool = False
    """Every iteration's samples are there when the one before is trained."""
    processes: list[Process] = field(default_factory=list)
    now: float = 0.0
    epochs: int = 10
    over: str = ""
    newest: int = 0
    state: int = 0
    checkpoint: int = 0
    published: set[int] = field(default_factory=set)
    last_recovery: tuple[int, int] | None = None
    on_record: tuple[Worker, ...] = ()
    is_writing: bool = False
    asked: tuple[int, ...] = ()
    problem: str = ""
    """Trainers are to be replaced for this after a pause."""
    recoveries: tuple[int, ...] = ()
    """From where each recovery went on."""
    begun: int = 0
    to_do: deque[step.Instruction] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.processes = [Process(Worker(f"w{number}", number + 1)) for number in range(2)]
        self.open(1, ())

    # --- the job ---

    def open(self, term: int, former: Sequence[Worker]) -> None:
        """A runner of the job begins."""
        self.begun, self.is_writing, self.asked, self.problem = 0, False, (), ""
        self.to_do.clear()
        self.trainers = TrainerMachine(
            term, 2, PATIENCE_S, False, 0.0, self.now, tuple(former), self.last_recovery
        )
        self.iterations = IterationMachine(self.schedule, self.newest)
        for process in self.processes:
            if not process.is_cut_off:
                self.carry_out(self.trainers.joined(process.worker.node, {process.worker.epoch}))
        self.assemble()

    def assemble(self) -> None:
        there = [process.worker for process in self.processes if not process.is_cut_off]
        self.carry_out(self.trainers.assemble(there))

    def facts(self) -> Facts:
        is_there = any(self.state in process.left.values() for process in self.processes)
        versions = frozenset(self.published)
        return Facts(self.newest, self.checkpoint, self.state, is_there, versions, versions, ())

    def carry_out(self, instructions: Iterable[orders.Instruction]) -> None:
        lets_go_on = False
        for instruction in instructions:
            assert not lets_go_on, f"{instruction} after the job went on"
            lets_go_on = isinstance(instruction, _LETS_GO_ON)
            if self.over:
                return
            self.do(instruction)

    def do(self, instruction: orders.Instruction) -> None:
        match instruction:
            case orders.Tell(rank, order):
                self.tell(rank, order)
            case orders.Ask(rank):
                self.asked += (self.trainers.there[rank].epoch,)
            case orders.AskStandings():
                standing = [self.standing(rank) for rank in self.trainers.ranks]
                self.carry_out(self.trainers.found(standing, self.facts(), self.now, 1))
            case orders.GoOnFrom(at, kept):
                self.newest = at.completed
                if at.origin != "trainers":
                    self.published &= set(kept)
                if at.origin == "checkpoint":
                    self.state = 0
                self.iterations = IterationMachine(
                    self.schedule,
                    at.completed,
                    committed=self.checkpoint,
                    validated=frozenset(range(at.completed + 1)),
                )
            case orders.FetchState(at):
                there = not at.completed or at.origin == "checkpoint" or self.facts().state_is_there
                parts = ((offer(f"state/{at.completed}"),),) if at.completed and there else ()
                self.carry_out(self.trainers.appointed(parts))
            case orders.KeepTrainers():
                self.on_record = self.trainers.on_record
                self.last_recovery = self.trainers.last_recovery
            case orders.Begin(can_save):
                self.begun += 1
                assert self.begun == 1, "a job begins once"
                self.go_on(can_save=can_save)
            case orders.IterationTrained(iteration):
                assert self.slowest >= iteration + 1, "not all have trained"
                self.follow(self.iterations.trained(iteration))
            case orders.VersionPublished(version, rollout):
                assert [each.key for each in rollout] == [f"{version}-0", f"{version}-1"]
                self.published = {version, version - 1} & (self.published | {version})
                self.follow(self.iterations.weights_published(version))
            case orders.WriteCheckpoint():
                self.is_writing = True
            case orders.Keep(completed):
                assert all(completed in each.left.values() for each in self.processes)
                assert completed > self.state
                self.state = completed
            case orders.Checkpointed(completed):
                self.follow(self.iterations.progress_saved(completed))
            case orders.KeepExport():
                self.follow(self.iterations.exported())
            case orders.RecoverLater(problem):
                self.problem = problem
            case orders.Recover(problem):
                self.recover(problem)
            case orders.Note(TrainersLost(goes_on_from=goes_on_from)):
                self.recoveries += (goes_on_from,)
            case orders.Replace():
                self.open(self.trainers.term + 1, self.on_record)
            case orders.Fail(reason):
                self.over = f"failed: {reason}"
                last = self.recoveries[-MOST_RECOVERIES:]
                assert len(last) == MOST_RECOVERIES and len(set(last)) == 1, "given up too early"

    def recover(self, problem: str) -> None:
        self.carry_out(self.trainers.recover(problem, self.facts().goes_on_from))

    def go_on(self, *, can_save: bool) -> None:
        """Once: as the job runner does."""
        completed, committed = self.iterations.completed, self.iterations.committed
        self.follow(self.iterations.start())
        if committed == completed:
            return
        if self.state != completed:
            if can_save:
                self.save(completed)
        elif self.schedule.saves(completed):
            self.follow(self.iterations.progress_saved(completed))

    def save(self, completed: int) -> None:
        saves = self.schedule.saves(completed)
        self.carry_out(self.trainers.order(orders.Save(completed, saves)))

    def follow(self, instructions: Iterable[step.Instruction]) -> None:
        """In order; what follows from one comes after all that were there before."""
        busy = bool(self.to_do)
        self.to_do += instructions
        while self.to_do and not busy and not self.over:
            runner = self.trainers
            self.follow_one(self.to_do[0])
            if self.trainers is not runner:
                return  # another runner has begun
            self.to_do.popleft()

    def follow_one(self, instruction: step.Instruction) -> None:
        match instruction:
            case step.PublishWeights(version):
                if version in self.published:
                    return self.follow(self.iterations.weights_published(version))
                self.carry_out(self.trainers.order(orders.Publish(version, evaluation=False)))
            case step.BeginRollout(iteration):
                self.follow(self.iterations.rolled_out(iteration))
            case step.BeginTraining(iteration):
                self.carry_out(self.trainers.order(orders.Train(iteration, 0, ())))
            case step.EndExploration(iteration):
                self.follow(self.iterations.explored(iteration, samples_are_there=True))
            case step.BeginValidation(version):
                self.follow(self.iterations.validation_done(version))
            case step.RecordIteration(iteration):
                self.newest = iteration + 1
            case step.SaveProgress(completed) | step.KeepState(completed):
                self.save(completed)
            case step.CommitProgress(completed):
                self.checkpoint = completed
            case step.ExportWeights():
                export = orders.Export(self.newest, self.checkpoint, offer("checkpoint"))
                self.carry_out(self.trainers.order(export))
            case step.Finish():
                self.over = "finished"

    # --- the trainers ---

    @property
    def slowest(self) -> int:
        return min(process.completed for process in self.processes)

    def process(self, worker: Worker) -> Process | None:
        found = [process for process in self.processes if process.worker == worker]
        return found[0] if found else None

    def standing(self, worker: Worker) -> int:
        process = self.process(worker)
        return -1 if process is None or process.is_cut_off else process.completed

    def tell(self, rank: int, order: orders.Order) -> None:
        process = self.process(self.trainers.ranks[rank])
        if isinstance(order, orders.Train):
            assert self.slowest >= order.iteration, "told to train on before all have trained"
            if self.schedule.saves(order.iteration) and self.slowest == order.iteration > 0:
                assert max(self.state, self.checkpoint) >= order.iteration, "no checkpoint is left"
        if isinstance(order, orders.Start) and order.completed:
            assert order.state, "it would begin with the job's model"
        if process is not None and order not in process.inbox:
            process.inbox += (order,)

    def obey(self, process: Process, order: orders.Order) -> None:
        match order:
            case orders.Start():
                return self.start(process, order)
            case orders.Train(publish=publish, save=save) if process.completed >= 0:
                for before in (publish, save):
                    if before is not None:
                        self.obey(process, before)
        if process.completed < 0:
            return
        kind, what = type(order).__name__, _as_told(order)
        known, answer = process.answers.get(kind, (None, None))
        if answer is None or known != what:
            answer = self.work(process, order)
            process.answers[kind] = what, answer
        process.say(answer)

    def start(self, process: Process, order: orders.Start) -> None:
        if (process.term, process.rank) != (order.term, order.rank):
            process.term, process.rank, process.completed = order.term, order.rank, -1
            process.answers = {}
        if process.completed >= 0:
            return process.say(orders.Built())
        process.begins_at = order.completed
        if order.rank == 0:
            return process.say(None, LISTENS_AT)
        assert order.rendezvous == LISTENS_AT
        both = [each for each in self.processes if each.term == order.term]
        if len(both) == 2:
            for each in both:
                each.completed = each.begins_at
                each.say(orders.Built())

    def work(self, process: Process, order: orders.Order) -> orders.Answer:
        number = process.rank
        match order:
            case orders.Publish(version):
                assert process.completed == version, "it cannot publish that any more"
                return orders.HasPublished(version, (offer(f"{version}-{number}"),), ())
            case orders.Save(completed, stores=stores):
                if process.completed > completed:
                    return orders.HasSaved(completed, ())
                assert process.completed == completed, "it has not got there"
                place = completed % 2
                kept = process.left.get(place)
                assert kept is None or kept != self.state, "the state on record is dropped"
                process.left[place] = completed
                return orders.HasSaved(
                    completed, tuple(offer(f"state/{completed}", each.machine) for each in stores)
                )
            case orders.Train(iteration, part=part):
                assert process.completed == iteration, "it cannot train on that"
                process.completed += 1
                return orders.HasTrained(iteration, part, 1.0, {"rank": float(number)})
            case orders.Export(checkpoint=checkpoint):
                return orders.HasExported(checkpoint)
        raise AssertionError(order)

    # --- what may happen ---

    def possible(self) -> list[tuple[str, int]]:
        """What may happen next, and with which process."""
        if self.over:
            return []
        moves: list[tuple[str, int]] = []
        for number, process in enumerate(self.processes):
            if process.inbox and not process.is_cut_off:
                moves += [("tell", number), ("lose word", number)]
            if process.outbox and not process.is_cut_off:
                moves += [("hear", number), ("lose answer", number)]
            moves += [("end", number), ("cut off", number), ("heal", number)]
        moves += [("remind", 0), ("write", 0), ("kill", 0), ("pause", 0), ("patience", 0)]
        moves += [("answer", number) for number in range(len(self.asked))]
        moves += [("no answer", number) for number in range(len(self.asked))]
        return [move for move in moves if self.may_happen(*move)]

    def may_happen(self, move: str, number: int) -> bool:
        is_quiet = not any(
            (each.inbox or each.outbox) and not each.is_cut_off for each in self.processes
        )
        match move:
            case "remind":
                return is_quiet or bool(self.may.get("remind"))
            case "write":
                return self.is_writing
            case "pause":
                return bool(self.problem)
            case "patience":
                return bool(self.may.get(move)) and any(each.is_cut_off for each in self.processes)
            case "cut off":
                return bool(self.may.get(move)) and not self.processes[number].is_cut_off
            case "heal":
                return self.processes[number].is_cut_off
            case "answer":
                process = self._asked(number)
                return process is not None
            case "lose word" | "lose answer" | "end" | "kill":
                return bool(self.may.get(move))
        return True

    def _asked(self, number: int) -> Process | None:
        found = [each for each in self.processes if each.worker.epoch == self.asked[number]]
        return found[0] if found else None

    def happen(self, move: str, number: int) -> None:
        if self.may.get(move):
            self.may = {**self.may, move: self.may[move] - 1}
        process = self.processes[number] if number < 2 else self.processes[0]
        match move:
            case "tell":
                order, process.inbox = process.inbox[0], process.inbox[1:]
                self.obey(process, order)
            case "lose word":
                process.inbox = process.inbox[1:]
            case "hear":
                report, process.outbox = process.outbox[0], process.outbox[1:]
                self.hear(process, report)
            case "lose answer":
                process.outbox = process.outbox[1:]
            case "remind":
                self.carry_out(self.trainers.watch(self.now))
                self.assemble()
                self.carry_out(self.trainers.remind())
            case "write":
                self.is_writing = False
                self.carry_out(self.trainers.checkpoint_written())
            case "pause":
                problem, self.problem = self.problem, ""
                self.recover(problem)
            case "end":
                self.end(process)
            case "kill":
                for each in self.processes:
                    each.inbox = each.outbox = ()
                self.open(self.trainers.term + 1, self.on_record)
            case "cut off":
                process.is_cut_off = True
                self.carry_out(
                    self.trainers.out_of_reach(
                        process.worker.node, "silence", self.now, announced=False
                    )
                )
            case "heal":
                process.is_cut_off = False
                self.carry_out(self.trainers.joined(process.worker.node, {process.worker.epoch}))
                self.assemble()
            case "patience":
                self.now += PATIENCE_S
                self.carry_out(self.trainers.watch(self.now))
            case "answer" | "no answer":
                epoch = self.asked[number]
                asked = self._asked(number)
                self.asked = self.asked[:number] + self.asked[number + 1 :]
                trains = None
                if move == "answer" and asked is not None:
                    trains = asked.term > 0
                self.carry_out(self.trainers.answered(epoch, trains, self.now))

    def hear(self, process: Process, report: Report) -> None:
        """Of whoever is a rank; the same again changes nothing."""
        ranks = self.trainers.ranks
        if not (0 <= report.rank < len(ranks)) or ranks[report.rank] != process.worker:
            return
        runner = self.trainers
        told = runner.reported(report.rank, report.term, report.answer, report.listens_at)
        is_old = report.term < max(each.term for each in self.processes)
        assert not (is_old and told), "an answer of an earlier term counts"
        self.carry_out(told)
        before = repr(runner)
        if not isinstance(report.answer, orders.HasFailed):
            again = runner.reported(report.rank, report.term, report.answer, report.listens_at)
            assert (again, repr(runner)) == ([], before), "an answer counts twice"

    def end(self, process: Process) -> None:
        """A process ends, and the other rank finds it gone; its node starts another one."""
        index, worker = self.processes.index(process), process.worker
        other = self.processes[1 - index]
        if other.rank >= 0 and other.term == process.term:
            other.say(orders.HasFailed("no answer", lost_others=True, lost_state=False))
        self.epochs += 1
        fresh = Process(Worker(worker.name, self.epochs), left=dict(process.left))
        self.processes[index] = fresh
        self.carry_out(self.trainers.joined(worker.node, {fresh.worker.epoch}))
        self.assemble()

    def key(self) -> str:
        """Schools with the same key go on alike."""
        return repr(self) + repr(self.trainers) + repr(self.iterations)


_LETS_GO_ON = (
    orders.Begin,
    orders.FirstPartTrained,
    orders.IterationTrained,
    orders.VersionPublished,
    orders.Checkpointed,
    orders.KeepExport,
    orders.Replace,
    orders.Fail,
)


def _as_told(order: orders.Order) -> object:
    """What makes it the same order; of training that is the iteration."""
    if isinstance(order, orders.Train):
        return order.iteration, order.part
    return order


def every_state(school: School, most: int = 10**9) -> tuple[int, set[str]]:
    """Visits every state that can be reached; returns how many there are, and how they end.

    Raises AssertionError, with the way there, where something happens that must not, or where no
    end can be reached.
    """
    first = school.key()
    ways: dict[str, tuple[str, tuple[str, int]] | None] = {first: None}
    before: dict[str, list[str]] = {first: []}
    ends: dict[str, str] = {}
    front: deque[tuple[str, School]] = deque([(first, school)])
    while front:
        key, here = front.popleft()
        saved = pickle.dumps(here, protocol=5)
        for move in here.possible():
            there: School = pickle.loads(saved)
            try:
                there.happen(*move)
            except AssertionError as error:
                raise AssertionError(f"{error}: after {_way(ways, key)} and then {move}") from error
            then = there.key()
            before.setdefault(then, []).append(key)
            if then in ways:
                continue
            assert len(ways) < most, "there are more states than expected"
            ways[then] = key, move
            if there.over:
                ends[then] = there.over
            else:
                front.append((then, there))
    can_end, to_see = set(ends), list(ends)
    while to_see:
        for key in before[to_see.pop()]:
            if key not in can_end:
                can_end.add(key)
                to_see.append(key)
    stuck = [key for key in ways if key not in can_end]
    assert not stuck, f"never ends after {_way(ways, stuck[0])}"
    return len(ways), set(ends.values())


def _way(ways: dict[str, tuple[str, tuple[str, int]] | None], key: str) -> list[tuple[str, int]]:
    moves: list[tuple[str, int]] = []
    while (last := ways[key]) is not None:
        key, move = last
        moves.append(move)
    return moves[::-1]
