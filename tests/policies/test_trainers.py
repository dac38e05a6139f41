"""Who trains, what trainers are told, and what their answers mean."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trainers_kit import LISTENS_AT, NOTHING, PATIENCE_S, Worker, machine, offer, store

from spotlight.policies import trainer_orders as orders
from spotlight.policies.resume import ResumePoint
from spotlight.policies.trainers import (
    MOST_RECOVERIES,
    SEE_TRAINING,
    Facts,
    TrainerMachine,
    next_recovery,
)
from spotlight.record.run_events import (
    TrainerOutOfReach,
    TrainersBuilt,
    TrainersFound,
    TrainersLost,
    TrainingFailed,
)

TERM = 7
FIRST, SECOND = Worker("a/0", 10, "a"), Worker("b/0", 11, "b")
STATE = ((offer("state/1", "a"),),)
AHEAD = Facts(3, 0, 3, True, frozenset({3}), frozenset({3}), ())
"""Of a job whose third iteration is on record, with a state and weights that a node holds."""


def told(instructions: list[orders.Instruction]) -> list[tuple[int, orders.Order]]:
    return [(each.rank, each.order) for each in instructions if isinstance(each, orders.Tell)]


def appointed(*workers: Worker, is_sharded: bool = False) -> TrainerMachine[Worker]:
    """Ranks that begin with the job's model, and are told to start."""
    trainers = machine(wanted=len(workers), is_sharded=is_sharded)
    trainers.assemble(workers)
    trainers.found([], NOTHING, 0.0, TERM - 1)
    trainers.appointed(())
    return trainers


def ready(*workers: Worker, is_sharded: bool = False) -> TrainerMachine[Worker]:
    """Ranks that are built."""
    trainers = appointed(*workers, is_sharded=is_sharded)
    trainers.reported(0, TERM, None, LISTENS_AT)
    for rank in range(len(workers)):
        trainers.reported(rank, TERM, orders.Built())
    return trainers


def begun_without_trainers() -> TrainerMachine[Worker]:
    """The published weights carry the job, and nobody is there to train."""
    trainers = machine()
    trainers.assemble([])
    trainers.found([], AHEAD, 0.0, TERM - 1)
    return trainers


def trained(rank: int, iteration: int, seconds: float = 1.0, part="whole") -> orders.HasTrained:
    return orders.HasTrained(iteration, part, seconds, {"rank": float(rank)})


def saved(completed: int, *nodes: str) -> orders.HasSaved:
    return orders.HasSaved(completed, tuple(offer(f"state/{completed}", node) for node in nodes))


def published(version: int, rank: int) -> orders.HasPublished:
    return orders.HasPublished(version, (offer(f"{version}-{rank}"),), ())


# --- who trains ---


def test_the_first_reserved_workers_are_appointed_when_there_are_enough():
    trainers = machine()
    assert trainers.assemble([FIRST]) == [orders.AskStandings()]
    assert trainers.found([], NOTHING, 0.0, TERM - 1) == []
    assert "1 of 2 are there" in trainers.waits_for(1)
    third = Worker("c/0", 12, "c")
    trainers.assemble([FIRST, SECOND, third])
    at = ResumePoint(0, "checkpoint")
    assert trainers.found([], NOTHING, 0.0, TERM - 1) == [
        orders.GoOnFrom(at),
        orders.FetchState(at),
    ]
    start = orders.Start(TERM, 0, 2, "", 0, ())
    assert trainers.appointed(()) == [
        orders.KeepTrainers(),
        orders.Tell(0, start),
        orders.ReplaceOthers(TERM),
    ]
    assert trainers.on_record == (FIRST, SECOND)
    assert trainers.names == {"a/0", "b/0"}


def test_former_trainers_are_found_when_the_last_of_them_is_there():
    trainers = machine(former=[FIRST, SECOND])
    trainers.joined("a", {10})
    assert trainers.assemble([FIRST, Worker("c/0", 12, "c")]) == [], "nobody else is appointed"
    trainers.joined("b", {11})
    assert trainers.assemble([]) == [orders.AskStandings()]
    assert trainers.found([3, 3], AHEAD, 0.0, TERM - 1) == [
        orders.GoOnFrom(ResumePoint(3, "trainers")),
        orders.KeepTrainers(),
        orders.ReplaceOthers(TERM - 1),
        orders.Note(TrainersFound(iteration=3)),
        orders.Begin(can_save=True),
    ]
    assert trainers.ranks == (FIRST, SECOND)


def test_trainers_that_are_ahead_cannot_save_where_the_job_stands():
    trainers = machine(former=[FIRST, SECOND])
    for worker in (FIRST, SECOND):
        trainers.joined(worker.node, {worker.epoch})
    trainers.assemble([])
    assert trainers.found([4, 4], AHEAD, 0.0, TERM - 1)[-1] == orders.Begin(can_save=False)


def test_former_trainers_that_have_not_trained_the_same_begin_anew_from_the_state():
    trainers = machine(former=[FIRST, SECOND])
    for worker in (FIRST, SECOND):
        trainers.joined(worker.node, {worker.epoch})
    trainers.assemble([])
    at = ResumePoint(3, "state")
    assert trainers.found([3, -1], AHEAD, 0.0, TERM - 1) == [
        orders.GoOnFrom(at, kept=(3,)),
        orders.FetchState(at),
    ]
    assert told(trainers.appointed(STATE)) == [(0, orders.Start(TERM, 0, 2, "", 3, STATE))]


def test_published_weights_carry_the_job_until_there_are_trainers():
    trainers = machine()
    trainers.assemble([])
    go_on = orders.GoOnFrom(ResumePoint(3, "state"), kept=(3,))
    assert trainers.found([], AHEAD, 0.0, TERM - 1) == [go_on, orders.Begin(can_save=False)]
    assert trainers.assemble([FIRST]) == []
    assert trainers.assemble([FIRST, SECOND]) == [orders.FetchState(ResumePoint(3, "state"))]
    assert orders.Begin(can_save=False) not in trainers.appointed(STATE), "it has begun"


def test_weights_that_no_node_holds_carry_nothing():
    trainers = machine()
    trainers.assemble([])
    lost = Facts(3, 0, 3, True, frozenset({3}), frozenset(), ())
    assert trainers.found([], lost, 0.0, TERM - 1) == []


def test_a_job_waits_for_whoever_may_have_its_state_while_it_listens():
    trainers = machine(listens_until=5.0)
    gone = Facts(3, 1, 3, False, frozenset(), frozenset(), ())
    trainers.assemble([FIRST, SECOND])
    assert trainers.found([], gone, 4.9, TERM - 1) == []
    trainers.assemble([FIRST, SECOND])
    at = ResumePoint(1, "checkpoint")
    assert trainers.found([], gone, 5.0, TERM - 1) == [orders.GoOnFrom(at), orders.FetchState(at)]


def test_it_waits_as_well_for_whoever_may_have_the_weights_of_samples_that_were_made_ahead():
    trainers = machine(listens_until=5.0)
    lost = replace(AHEAD, ahead_of_state=frozenset({2}))
    trainers.assemble([FIRST, SECOND])
    assert trainers.found([], lost, 4.9, TERM - 1) == []
    trainers.assemble([FIRST, SECOND])
    held = replace(lost, held=frozenset({2, 3}))
    at = ResumePoint(3, "state")
    go_on = orders.GoOnFrom(at, kept=(2, 3))
    assert trainers.found([], held, 4.9, TERM - 1) == [go_on, orders.FetchState(at)]


def test_weights_of_samples_that_were_made_ahead_are_done_without_when_nobody_has_them():
    trainers = machine(listens_until=5.0)
    lost = replace(AHEAD, ahead_of_state=frozenset({2}))
    trainers.assemble([FIRST, SECOND])
    at = ResumePoint(3, "state")
    go_on = orders.GoOnFrom(at, kept=(3,))
    assert trainers.found([], lost, 5.0, TERM - 1) == [go_on, orders.FetchState(at)]


def test_a_state_that_went_before_anybody_could_begin_from_it_is_no_model_to_begin_with():
    trainers = begun_without_trainers()
    trainers.assemble([FIRST, SECOND])
    (recover,) = trainers.appointed(())
    assert recover == orders.Recover("nobody has the state of training any more")
    assert trainers.recover(recover.problem, 1)[-1] == orders.Replace()


# --- how they are built ---


def test_the_other_ranks_are_built_where_the_first_one_listens():
    trainers = appointed(FIRST, SECOND)
    second = orders.Start(TERM, 1, 2, LISTENS_AT, 0, ())
    assert told(trainers.reported(0, TERM, None, LISTENS_AT)) == [(1, second)]
    assert trainers.reported(0, TERM, None, LISTENS_AT) == [], "they are told once"
    assert len(told(trainers.remind())) == 2


@pytest.mark.parametrize(("rank", "term"), [(0, 6), (1, 7)])
def test_nobody_comes_where_another_rank_or_an_earlier_term_listens(rank, term):
    assert appointed(FIRST, SECOND).reported(rank, term, None, LISTENS_AT) == []


def test_a_job_begins_when_the_last_rank_is_built():
    trainers = appointed(FIRST, SECOND)
    trainers.reported(0, TERM, None, LISTENS_AT)
    assert trainers.reported(0, TERM, orders.Built()) == []
    assert trainers.reported(1, TERM - 1, orders.Built()) == [], "of an earlier term"
    built = TrainersBuilt(iteration=0, workers=("a/0", "b/0"), source="model")
    last = trainers.reported(1, TERM, orders.Built())
    assert last == [orders.Note(built), orders.Begin(can_save=False)]
    assert trainers.reported(1, TERM, orders.Built()) == []


def test_a_single_rank_needs_no_rendezvous():
    trainers = appointed(FIRST)
    assert trainers.reported(0, TERM, orders.Built())[-1] == orders.Begin(can_save=False)


def test_orders_wait_in_their_order_until_the_ranks_are_ready():
    trainers = begun_without_trainers()
    assert trainers.order(orders.Publish(3, evaluation=False)) == []
    assert trainers.order(orders.Train(3, 0, ())) == []
    assert not trainers.is_idle
    assert trainers.remind() == []
    trainers.assemble([FIRST, SECOND])
    trainers.appointed(STATE)
    trainers.reported(0, TERM, None, LISTENS_AT)
    trainers.reported(0, TERM, orders.Built())
    kinds = [type(order) for _, order in told(trainers.reported(1, TERM, orders.Built()))]
    assert kinds == [orders.Publish, orders.Publish, orders.Train, orders.Train]


# --- what they are told ---


def test_an_order_is_repeated_to_those_that_have_not_answered():
    trainers = ready(FIRST, SECOND)
    train = orders.Train(0, 0, ())
    assert told(trainers.order(train)) == [(0, train), (1, train)]
    trainers.reported(0, TERM, trained(0, 0))
    assert told(trainers.remind()) == [(1, train)]
    trainers.reported(1, TERM, trained(1, 0))
    assert trainers.remind() == []
    assert trainers.is_idle


def test_all_orders_that_are_not_answered_are_repeated():
    trainers = ready(FIRST)
    trainers.order(orders.Publish(1, evaluation=True))
    trainers.order(orders.Save(1, is_checkpoint=False))
    repeated = [type(order) for _, order in told(trainers.remind())]
    assert repeated == [orders.Publish, orders.Save]


def test_who_is_to_train_is_told_what_to_take_of_its_weights_before():
    trainers = ready(FIRST, SECOND)
    trainers.order(orders.Publish(1, evaluation=True))
    trainers.order(orders.Save(1, is_checkpoint=False))
    trainers.reported(0, TERM, published(1, 0))
    trainers.reported(1, TERM, saved(1, "b"))
    (_, first), (_, second) = told(trainers.order(orders.Train(1, 0, ())))
    save = orders.Save(1, is_checkpoint=False, stores=(store("a"),))
    assert first == orders.Train(1, 0, (), save=save)
    assert second == orders.Train(1, 0, (), publish=orders.Publish(1, evaluation=True))


def test_training_waits_for_a_checkpoint():
    trainers = ready(FIRST)
    trainers.order(orders.Save(1, is_checkpoint=True))
    assert trainers.order(orders.Train(1, 0, ())) == []
    assert [type(order) for _, order in told(trainers.remind())] == [orders.Save]
    assert trainers.reported(0, TERM, saved(1, "a")) == [orders.WriteCheckpoint(1, 1)]
    assert trainers.reported(0, TERM, saved(1, "a")) == [], "it is being written"
    keep = orders.Keep(1, ((offer("state/1", "a"),),))
    train = orders.Tell(0, orders.Train(1, 0, ()))
    assert trainers.checkpoint_written() == [keep, train, orders.Checkpointed(1)]


def test_the_next_state_and_training_wait_until_the_one_before_is_on_record():
    trainers = ready(FIRST)
    trainers.order(orders.Save(1, is_checkpoint=False))
    assert trainers.order(orders.Save(2, is_checkpoint=False)) == []
    assert trainers.order(orders.Train(2, 0, ())) == []
    keep, save, train = trainers.reported(0, TERM, saved(1, "a"))
    assert keep == orders.Keep(1, ((offer("state/1", "a"),),))
    ((_, next_save), (_, next_train)) = told([save, train])
    assert (next_save.completed, next_train.save) == (2, next_save)


def test_a_state_that_a_rank_could_not_leave_any_more_is_none():
    trainers = ready(FIRST, SECOND)
    trainers.order(orders.Save(1, is_checkpoint=False))
    trainers.order(orders.Save(2, is_checkpoint=False))
    trainers.reported(0, TERM, saved(1, "a"))
    last = trainers.reported(1, TERM, orders.HasSaved(1, ()))
    assert [order.completed for _, order in told(last)] == [2, 2]
    assert len(last) == 2, "nothing is kept"


def test_an_answer_to_another_order_or_of_an_earlier_term_changes_nothing():
    trainers = ready(FIRST, SECOND)
    trainers.order(orders.Publish(2, evaluation=False))
    trainers.order(orders.Publish(3, evaluation=False))
    for rank in range(2):
        assert trainers.reported(rank, TERM, published(2, rank)) == []
        assert trainers.reported(rank, TERM - 1, published(3, rank)) == []
    trainers.reported(0, TERM, published(3, 0))
    whole = orders.VersionPublished(3, (offer("3-0"), offer("3-1")), ())
    assert trainers.reported(1, TERM, published(3, 1)) == [whole]


def test_an_iteration_is_trained_when_the_last_rank_says_so():
    trainers = ready(FIRST, SECOND)
    trainers.order(orders.Train(0, 0, (), "first"))
    trainers.reported(1, TERM, trained(1, 0, 2.0, "first"))
    first = trainers.reported(0, TERM, trained(0, 0, 1.0, "first"))
    assert first == [orders.FirstPartTrained(0)]
    trainers.order(orders.Train(0, 0, (), "rest"))
    assert trainers.reported(1, TERM, trained(1, 0, 2.0, "first")) == []
    trainers.reported(1, TERM, trained(1, 0, 3.0, "rest"))
    rest = trainers.reported(0, TERM, trained(0, 0, 1.0, "rest"))
    assert rest == [orders.IterationTrained(0, 5.0, {"rank": 0.0})]


def test_only_the_first_rank_exports():
    trainers = ready(FIRST, SECOND)
    export = orders.Export(1, 1, offer("checkpoint"))
    assert told(trainers.order(export)) == [(0, export)]
    assert trainers.reported(1, TERM, orders.HasExported(1)) == []
    assert trainers.reported(0, TERM, orders.HasExported(1)) == [orders.KeepExport(1)]
    assert trainers.reported(0, TERM, orders.HasExported(1)) == []


# --- who leaves the state where ---


def test_one_rank_of_each_node_leaves_the_state_in_its_nodes_store():
    workers = [Worker(f"{node}/{n}", n, node) for n, node in enumerate(("a", "a", "b", "b"))]
    save = told(ready(*workers).order(orders.Save(1, is_checkpoint=False)))
    assert [(rank, order.stores) for rank, order in save] == [
        (0, (store("a"),)),
        (2, (store("b"),)),
    ]
    assert not any(order.in_run_folder for _, order in save)


def test_the_first_rank_leaves_a_checkpoint_in_the_run_folders_store_too():
    save = told(ready(FIRST, SECOND).order(orders.Save(1, is_checkpoint=True)))
    assert [order.in_run_folder for _, order in save] == [True, False]


def test_while_only_one_node_trains_the_run_folders_store_has_the_state_too():
    workers = [Worker(f"a/{n}", n, "a") for n in range(2)]
    ((rank, order),) = told(ready(*workers).order(orders.Save(1, is_checkpoint=False)))
    assert (rank, order.in_run_folder) == (0, True)


def test_every_sharded_rank_leaves_its_part_in_its_nodes_store_and_another_nodes():
    workers = [Worker(f"{node}/{n}", n, node) for n, node in enumerate(("a", "a", "b", "c"))]
    trainers = ready(*workers, is_sharded=True)
    save = dict(told(trainers.order(orders.Save(1, is_checkpoint=False))))
    stores = {n: [each.machine for each in order.stores] for n, order in save.items()}
    assert stores == {0: ["a", "b"], 1: ["a", "b"], 2: ["b", "c"], 3: ["c", "a"]}
    assert [save[n].part for n in range(4)] == [0, 1, 2, 3]


def test_the_parts_of_a_sharded_state_are_kept_in_the_order_of_the_ranks():
    trainers = ready(FIRST, SECOND, is_sharded=True)
    trainers.order(orders.Save(1, is_checkpoint=False))
    trainers.reported(1, TERM, saved(1, "b", "a"))
    (keep,) = trainers.reported(0, TERM, saved(1, "a", "b"))
    assert [[each.store.machine for each in part] for part in keep.parts] == [
        ["a", "b"],
        ["b", "a"],
    ]


# --- who is there ---


def test_a_trainer_whose_process_ended_is_lost_at_once():
    (recover,) = ready(FIRST, SECOND).joined("a", {99})
    assert recover == orders.Recover("trainer rank on a/0 is lost (its process ended)")


def test_a_trainer_whose_node_is_out_of_reach_is_asked_until_the_patience_is_over():
    trainers = ready(FIRST, SECOND)
    (note,) = trainers.out_of_reach("a", "silence", 100.0, announced=False)
    out = TrainerOutOfReach(worker="a/0", reason="silence", patience_s=PATIENCE_S)
    assert note == orders.Note(out)
    assert trainers.watch(101.0) == [orders.Ask(0)]
    assert trainers.watch(102.0) == [], "an answer is awaited"
    trainers.answered(10, None, 106.0)
    ask, recover = trainers.watch(160.0)
    assert ask == orders.Ask(0)
    assert recover == orders.Recover(
        "trainer rank on a/0 is lost (nobody has heard of it for 60 s)"
    )


def test_a_trainer_that_answers_itself_is_not_given_up():
    trainers = ready(FIRST, SECOND)
    trainers.out_of_reach("a", "silence", 100.0, announced=False)
    trainers.watch(101.0)
    assert trainers.answered(10, True, 150.0) == []
    assert trainers.watch(209.0) == [orders.Ask(0)]


def test_a_trainer_that_says_that_it_trains_no_more_is_lost():
    trainers = ready(FIRST, SECOND)
    trainers.out_of_reach("a", "silence", 100.0, announced=False)
    trainers.watch(101.0)
    assert trainers.answered(10, False, 102.0) == [
        orders.Recover("trainer rank on a/0 is lost (it does not train any more)")
    ]


def test_losing_sight_of_a_trainer_again_does_not_begin_its_time_anew():
    trainers = ready(FIRST, SECOND)
    trainers.out_of_reach("a", "silence", 100.0, announced=False)
    trainers.out_of_reach("a", "silence", 150.0, announced=False)
    assert len(trainers.watch(160.0)) == 2


def test_a_trainer_whose_node_is_back_is_there():
    trainers = ready(FIRST, SECOND)
    trainers.out_of_reach("a", "silence", 100.0, announced=False)
    assert trainers.joined("a", {10}) == []
    assert trainers.watch(1000.0) == [orders.Ask(0)], "it is asked, and not given up"
    assert trainers.waits_for(0) == ""
    assert trainers.answered(10, True, 1001.0) == []
    assert trainers.watch(2000.0) == []


def test_a_trainer_whose_node_is_back_is_asked_until_it_says_whether_it_trains():
    trainers = ready(FIRST, SECOND)
    trainers.out_of_reach("a", "silence", 100.0, announced=True)
    trainers.joined("a", {10})
    assert trainers.watch(101.0) == [orders.Ask(0)]
    trainers.answered(10, None, 106.0)
    assert trainers.watch(107.0) == [orders.Ask(0)]


def test_a_trainer_whose_node_worked_for_another_job_meanwhile_is_lost():
    trainers = ready(FIRST, SECOND)
    trainers.out_of_reach("a", "works for another job", 100.0, announced=True)
    trainers.joined("a", {10})
    trainers.watch(101.0)
    assert trainers.answered(10, False, 102.0) == [
        orders.Recover("trainer rank on a/0 is lost (it does not train any more)")
    ]


def test_a_trainer_that_is_still_to_begin_is_not_asked_when_its_node_is_back():
    trainers = appointed(FIRST, SECOND)
    trainers.out_of_reach("a", "silence", 100.0, announced=False)
    trainers.joined("a", {10})
    assert trainers.watch(101.0) == []


def test_a_node_that_has_left_after_a_notice_is_not_told_to_be_out_of_reach():
    trainers = ready(FIRST, SECOND)
    assert trainers.out_of_reach("a", "left after a notice", 100.0, announced=True) == []


def test_what_the_job_waits_for_says_whether_a_node_is_away_or_has_left():
    trainers = ready(FIRST, SECOND)
    trainers.out_of_reach("a", "silence", 100.0, announced=False)
    assert "a/0 trains, and its node is out of reach" in trainers.waits_for(0)
    trainers.out_of_reach("a", "notice", 101.0, announced=True)
    assert "a/0 trains on, though its node has left after a notice" in trainers.waits_for(0)


# --- when they are lost ---


def test_lost_trainers_are_replaced_and_nothing_that_they_say_counts_any_more():
    trainers = ready(FIRST, SECOND)
    trainers.order(orders.Publish(0, evaluation=False))
    lost = TrainersLost(reason="why", recovery=1, goes_on_from=4)
    assert trainers.recover("why", 4) == [
        orders.Note(lost),
        orders.KeepTrainers(),
        orders.Replace(),
    ]
    assert (trainers.on_record, trainers.last_recovery) == ((), (1, 4))
    for rank in range(2):
        assert trainers.reported(rank, TERM, published(0, rank)) == []
    assert trainers.remind() == trainers.recover("again", 4) == []


def test_others_are_appointed_where_former_trainers_are_lost():
    trainers = machine(former=[FIRST, SECOND])
    trainers.joined("b", {11})
    assert trainers.recover("why", 0)[-1] == orders.KeepTrainers(), "nothing is to be replaced"
    assert trainers.assemble([FIRST, SECOND]) == [orders.AskStandings()]


def test_former_trainers_that_are_lost_together_are_lost_once():
    both = [Worker("a/0", 10, "a"), Worker("a/1", 11, "a")]
    trainers = machine(former=both)
    first, second = trainers.joined("a", {98, 99})
    trainers.recover(first.problem, 4)
    assert trainers.recover(second.problem, 4) == []
    assert trainers.last_recovery == (1, 4)


def test_a_former_trainer_that_was_given_up_and_is_appointed_again_is_there():
    trainers = machine(former=[FIRST, SECOND])
    trainers.joined("b", {11})
    trainers.recover("a/0 is lost", 0)
    trainers.joined("a", {10})
    trainers.assemble([FIRST, SECOND])
    trainers.found([], NOTHING, 100.0, TERM - 1)
    trainers.appointed(())
    assert trainers.watch(1000.0) == []


@pytest.mark.parametrize("lost_state", [False, True])
def test_a_failure_is_the_jobs_unless_others_were_out_of_reach(lost_state):
    trainers = ready(FIRST)
    failed = orders.HasFailed("no memory", lost_others=False, lost_state=False)
    _, *follows = trainers.reported(0, TERM, failed)
    assert follows == [orders.Fail("trainer rank 0: no memory")]
    alone = orders.HasFailed("no answer", lost_others=True, lost_state=lost_state)
    later = orders.RecoverLater("trainer rank 0: no answer")
    _, *follows = trainers.reported(0, TERM, alone)
    assert follows == [orders.ForgetState()] * lost_state + [later]


@pytest.mark.parametrize("lost_others", [False, True])
def test_a_failure_is_written_down_with_where_the_loss_raised(lost_others):
    trainers = ready(FIRST)
    where = "Traceback ...\nKeyError: 'mask'"
    failed = orders.HasFailed("LossFailed: it raised", lost_others, False, where)
    note, end = trainers.reported(0, TERM, failed)
    event = TrainingFailed(worker="a/0", error="LossFailed: it raised", traceback=where)
    assert note == orders.Note(event)
    if not lost_others:
        assert end == orders.Fail(f"trainer rank 0: LossFailed: it raised; {SEE_TRAINING}")


def test_a_job_whose_trainers_are_always_lost_ends():
    last = None
    for number in range(1, MOST_RECOVERIES + 1):
        trainers = machine(former=[FIRST], last_recovery=last)
        trainers.recover("why", 4)
        last = trainers.last_recovery
        assert last == (number, 4)
    (fail,) = machine(former=[FIRST], last_recovery=last).recover("why", 4)
    assert isinstance(fail, orders.Fail)
    assert fail.reason.startswith("why; after 3 recoveries without progress")


@pytest.mark.parametrize("count", [1, MOST_RECOVERIES])
def test_a_trained_iteration_lets_recoveries_begin_again(count):
    assert next_recovery((count, 4), 5) == (1, 5)
