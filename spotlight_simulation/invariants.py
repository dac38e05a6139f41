"""What must hold of every history, whatever was done to the cluster (design, section 6).

Each function looks at one finished run and returns what is wrong, in words. What can only be seen
while it happens is put into the history as a violation by whoever sees it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any, Protocol

from spotlight.actors.coordinator.tenant.job_journal import TERM_BITS
from spotlight.policies.advantages import group_advantages
from spotlight.policies.exploration.reuse import may_reuse
from spotlight.record.run_events import (
    GroupDropped,
    RunEvent,
    SamplesMadeAgain,
    SamplesOutdated,
    WorkerStateBegan,
    decode_event,
)
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics, decode_metrics
from spotlight.store.record_files import whole_event_lines, whole_state_lines
from spotlight_simulation import fingerprints
from spotlight_simulation.fake_hardware import LOST, UNCLEAR
from spotlight_simulation.faults import FaultKind
from spotlight_simulation.history import Happening, History

if TYPE_CHECKING:
    from spotlight_simulation.job_life import Run
    from spotlight_simulation.memory_cluster import Cluster

_MAY_END_A_JOB = (
    "recoveries without progress",
    "No space left on device",
    "every prompt group of the iteration failed",
    "could be scored",
    "no reserved worker can work",
)
"""Reasons for which a job may end unfinished: somebody has to resume it."""

_BOOT_LIMIT_S = 15.0
"""A node that was started, or has started a worker, so lately need not have joined."""
_COST_SAMPLES: tuple[FaultKind, ...] = ("poison", "scorer_error")
"""Faults after which samples may be given up."""


_OF_PROGRAMS = ("program ", "runs/session-")
"""The beginnings of the stores of a program, and of its sessions on the coordinator's disk."""


class HasHistory(Protocol):
    """A job or a session that was run."""

    @property
    def history(self) -> History:
        """What happened."""


def check(run: Run) -> None:
    """Put every violation into the history."""
    for invariant in INVARIANTS:
        for what in invariant(run):
            run.history.violation(f"{invariant.__name__}: {what}")
    run.cluster.ledgers.check()


def samples_are_functions_of_their_requests(run: Run) -> Iterable[str]:
    """Whoever made a sample, and however often it was resumed: weights, prompt, seed and settings
    decide what it is."""
    for train in run.history.all("train"):
        for (request, _, step, latents, _), expected in zip(
            train["samples"], train["expected"], strict=True
        ):
            if latents != expected:
                yield f"{request} is not what its request gives after {step} steps"


def nothing_mixes_weights(run: Run) -> Iterable[str]:
    """An iteration's samples were made with the weights that it trains, or all those of a prompt
    group with the weights before them."""
    before: dict[str, str] = {}
    for train in run.history.all("train"):
        newest = train["weights"]
        groups: dict[str, set[int]] = defaultdict(set)
        for request, weights, *_ in train["samples"]:
            lag = lag_of(request)
            groups[request.split("/")[3]].add(lag)
            if weights != (before.get(newest) if lag else newest):
                yield f"{request} was made with other weights than those it trains"
            if lag not in (0, 1):
                yield f"{request} is {lag} versions old"
        for group, lags in groups.items():
            if len(lags) > 1:
                yield f"group {group} of iteration {train['iteration']} has samples of two versions"
        before[train["after"]] = newest


def only_little_moved_weights_have_older_samples(run: Run) -> Iterable[str]:
    """Nobody trains on previews, or on samples of the weights before, unless the job says so, and
    the weights have moved little since."""
    job, drifts = run.scenario.job, dict[str, float | None]()
    for train in run.history.all("train"):
        drift = drifts.get(train["weights"])
        for request, *_ in train["samples"]:
            if request.startswith("preview/") and not job.trains_on_previews:
                yield f"{request} is trained on, though previews are not to be"
            if lag_of(request) and not job.trains_on_older:
                yield f"{request} is trained on, though it is too old"
            elif lag_of(request) and not may_reuse(drift):
                yield f"{request} is trained on after a drift of {drift}"
        drifts[train["after"]] = train["drift"]


def samples_count_once(run: Run) -> Iterable[str]:
    """An iteration trains whole prompt groups of its own samples, each once."""
    job = run.scenario.job
    for train in run.history.all("train"):
        ids = [row[0] for row in train["samples"]]
        yield from (f"{each} is trained {n} times" for each, n in Counter(ids).items() if n > 1)
        groups: Counter[str] = Counter()
        for each in ids:
            kind, iteration, _, group, _ = each.split("/")
            groups[group] += 1
            if kind not in job.trained_on or int(iteration) != train["iteration"]:
                yield f"iteration {train['iteration']} trains {each}"
        for group, count in groups.items():
            if count != job.group_size:
                yield f"iteration {train['iteration']} trains {count} samples of group {group}"
        missing = job.prompts.per_iteration - len(groups)
        if missing > len(_dropped(run, train["iteration"])):
            yield f"iteration {train['iteration']} lacks {missing} prompt groups"


def advantages_come_from_these_rollouts(run: Run) -> Iterable[str]:
    """Rewards are those of the samples themselves, never of others, never a failed scorer's. Where
    an iteration is trained in two parts the first one's are scaled by what was chosen by then."""
    training = run.scenario.job.training
    for train in run.history.all("train"):
        rows, first = train["samples"], train["first"]
        expected = group_advantages(
            [fingerprints.reward(row[3]) for row in rows],
            [int(row[0].split("/")[3]) for row in rows],
            baseline=training.advantage_baseline,
            std=training.advantage_std,
            clip=training.largest_advantage,
        )
        for row, advantage in zip(rows[first:], expected[first:], strict=True):
            if abs(row[4] - advantage) > 1e-9:
                yield f"the advantage of {row[0]} is {row[4]}, not {advantage}"
        scales = [
            row[4] / advantage
            for row, advantage in zip(rows[:first], expected[:first], strict=True)
            if abs(advantage) > 1e-9 and abs(row[4]) < training.largest_advantage
        ]
        if scales and not 0 < max(scales) <= min(scales) * (1 + 1e-6):
            first_ones = [row[4] for row in rows[:first]]
            yield f"advantages {first_ones} of iteration {train['iteration']} have several scales"


def later_samples_are_of_whole_groups(run: Run) -> Iterable[str]:
    """Where an iteration is trained in two parts, no prompt group is in both."""
    for train in run.history.all("train"):
        groups = [row[0].split("/")[3] for row in train["samples"]]
        both = set(groups[: train["first"]]) & set(groups[train["first"] :])
        if both:
            yield f"group {min(both)} of iteration {train['iteration']} is in both parts"


def groups_share_their_settings(run: Run) -> Iterable[str]:
    """All samples of a prompt group are denoised alike."""
    for train in run.history.all("train"):
        settings = defaultdict(set)
        for group, those in train["settings"]:
            settings[group].add(those)
        for group, different in settings.items():
            if len(different) > 1:
                yield f"group {group} of iteration {train['iteration']} has several settings"


def iterations_are_trained_in_order(run: Run) -> Iterable[str]:
    """Every trainer trains each iteration once, from where it began."""
    following = None
    for happening in _by_trainers_in_charge(run):
        if happening.kind == "trainer":
            following = happening["completed"]
        else:
            if happening["iteration"] != following:
                yield f"iteration {happening['iteration']} is trained where {following} is due"
            following = int(happening["iteration"]) + 1


def checkpoints_wait_for_validations(run: Run) -> Iterable[str]:
    """A run that is gone on with from a checkpoint makes no earlier validation again, so all of
    them are on record when it counts."""
    job = run.scenario.job
    due = {*range(0, job.iterations, job.validation.every), job.iterations}
    for checkpoint in run.history.all("checkpoint"):
        completed, last = checkpoint["completed"], checkpoint["completed"] == job.iterations
        wanted = {version for version in due if version < completed + last}
        if missing := wanted - set(checkpoint["validated"]):
            yield f"the checkpoint of {completed} iterations counts before {sorted(missing)}"


def _by_trainers_in_charge(run: Run) -> Iterator[Happening]:
    """What trainers did, but for those in whose place others were built meanwhile: one that was
    paused in an update finishes it in vain."""
    term = 0
    for happening in run.history.happenings:
        if happening.kind in ("trainer", "train") and happening["term"] >= term:
            term = int(happening["term"])
            yield happening


def little_is_denoised_again(run: HasHistory) -> Iterable[str]:
    """A worker that is lost costs no more steps than there are between two commits, and the one
    that it takes, unless a commit was on its way."""
    for lost in run.history.all("lost_work"):
        again = int(lost["step"]) - int(lost["told"])
        if lost["every"] and not lost["on_its_way"] and again > int(lost["every"]) + 1:
            yield f"{lost['worker']} loses {again} steps, though it commits every {lost['every']}"


def plans_outlive_the_coordinator(run: Run) -> Iterable[str]:
    """The rollouts of an iteration are decided once, until trainers begin again before it."""
    built = [(trainer["term"], trainer["completed"]) for trainer in run.history.all("trainer")]
    asked: dict[tuple[int, int], set[str]] = defaultdict(set)
    for granted in run.history.all("denoise"):
        for request in granted["requests"]:
            kind, iteration, *_ = request.split("/")
            if kind == "rollout" and not lag_of(request):
                term = _term(granted)
                again = [began for began, completed in built if completed < int(iteration)]
                decided = max((began for began in again if began <= term), default=0)
                asked[(int(iteration), decided)].add(request)
    job = run.scenario.job
    wanted = job.samples_per_iteration + job.exploration.probes
    for (iteration, _), requests in asked.items():
        if len(requests) > wanted:
            yield f"iteration {iteration} asked for {len(requests)} rollouts, not {wanted}"


def weights_follow_from_the_samples(run: Run) -> Iterable[str]:
    """Every iteration trains the weights that the one before it left, or a checkpoint brought
    back."""
    left: dict[int, set[str]] = defaultdict(set)
    for happening in _by_trainers_in_charge(run):
        if happening.kind == "trainer":
            began, weights = happening["completed"], happening["weights"]
            if began and weights not in left[int(began)]:
                yield f"the checkpoint of {began} iterations holds weights that nobody trained"
            now = weights
        else:
            if happening["weights"] != now:
                yield f"iteration {happening['iteration']} trains other weights than were left"
            now = happening["after"]
            left[int(happening["iteration"]) + 1].add(str(now))


def faults_change_nothing(run: Run) -> Iterable[str]:
    """Where training is exact and nothing had to be given up, every iteration leaves the weights
    that it leaves in an undisturbed run; unless samples that were made ahead were lost, and
    everybody who had the weights that they were made with, and the run says so."""
    if not run.undisturbed or any(run.history.effective[kind] for kind in _COST_SAMPLES):
        return
    if run.cluster.logs.abandoned or any(isinstance(it, GroupDropped) for it in _events(run)):
        return
    are_newer = {
        event.iteration
        for event in _events(run)
        if isinstance(event, SamplesMadeAgain) and event.weights_version == event.iteration
    }
    for train in run.history.all("train"):
        if train["iteration"] >= len(run.undisturbed):
            yield f"without faults iteration {train['iteration']} is not trained"
            return
        if train["iteration"] in are_newer:
            return
        if train["after"] != run.undisturbed[int(train["iteration"])]:
            yield f"iteration {train['iteration']} leaves other weights than without faults"


def sickness_costs_no_group(run: Run) -> Iterable[str]:
    """What a sick worker has failed, others do."""
    for event in _events(run):
        if isinstance(event, GroupDropped) and is_of_sickness(run, event.reason):
            yield f"a group of iteration {event.iteration} was dropped: {event.reason}"


def is_of_sickness(run: HasHistory, reason: str) -> bool:
    """Whether that must not be why a sample failed. Other faults may leave nobody but the sick
    worker for a while: then only an error that says that its accelerator is lost is none of the
    request's."""
    others = any(
        count for kind, count in run.history.effective.items() if kind != "sick_accelerator"
    )
    return LOST in reason or (UNCLEAR in reason and not others)


def jobs_end(run: Run) -> Iterable[str]:
    """A job is finished in the end, and stops before it only for a reason that it may stop for."""
    for outcome, reason in run.outcomes:
        if outcome != "finished" and not any(known in reason for known in _MAY_END_A_JOB):
            yield f"the job {outcome}: {reason}"


def records_are_complete(run: Run) -> Iterable[str]:
    """Every iteration and every validation is on record once, with what really was there."""
    if not _is_finished(run):
        return
    job, records = run.scenario.job, [decode_metrics(line) for line in _lines(run, "metrics.jsonl")]
    iterations = [record for record in records if isinstance(record, IterationMetrics)]
    numbers = [record.iteration for record in iterations]
    if numbers != list(range(job.iterations)):
        yield f"iterations {numbers} are on record"
    trained = {train["iteration"]: len(train["samples"]) for train in run.history.all("train")}
    for record in iterations:
        if record.samples != trained.get(record.iteration):
            yield f"iteration {record.iteration} has {record.samples} samples on record"
    validations = [record for record in records if isinstance(record, ValidationMetrics)]
    versions = [record.weights_version for record in validations]
    expected = sorted({*range(0, job.iterations + 1, job.validation.every), job.iterations})
    if sorted(versions) != expected:
        yield f"versions {versions} are validated, not {expected}"


def samples_are_made_in_time(run: Run) -> Iterable[str]:
    """All samples of an iteration are there before newer weights make them impossible."""
    for event in _events(run):
        if isinstance(event, SamplesOutdated):
            yield f"{event.samples} samples of iteration {event.iteration} cannot be made any more"


def time_adds_up(run: Run) -> Iterable[str]:
    """A worker is in one state after the other, without a gap, from its coming to its going."""
    states: dict[str, tuple[float, str]] = {}
    last = 0.0
    for event in _events(run):
        if event.time_s < last:
            yield f"time goes back from {last} to {event.time_s}"
        last = event.time_s
    last = 0.0
    for event in map(decode_event, whole_state_lines(run.run_folder)):
        if event.time_s < last:
            yield f"time of states goes back from {last} to {event.time_s}"
        last = event.time_s
        if not isinstance(event, WorkerStateBegan) or event.again:
            continue
        worker, state = event.worker, event.state
        before = states.get(worker, (0.0, "gone"))[1]
        if before == "gone" and state != "starting":
            yield f"{worker} is {state} before it starts"
        states[worker] = (event.time_s, state)


def leaves_nothing_in_stores(run: Run) -> Iterable[str]:
    """After the job no store holds samples, commits or weights."""
    if not _is_finished(run):
        return
    for folder, disk in run.cluster.stores.all_in_use().items():
        if folder.startswith(_OF_PROGRAMS):
            continue  # whoever looks at the session knows when they go
        left = [key for key in disk.bundles if not key.startswith("validation/")]
        if left:
            yield f"{len(left)} bundles are left in the store of {folder}, such as {left[0]}"


def nothing_needed_is_deleted(run: Run) -> Iterable[str]:
    """A trainer finds every sample that it is told to train on."""
    for failed in run.history.all("trainer_failed"):
        if "no such bundle" in str(failed["error"]):
            yield f"{failed['error']}"


def workers_are_free_again(cluster: Cluster, joined: Set[str]) -> Iterable[str]:
    """Some time after a job, while the cluster is still there: all nodes have `joined`, and nothing
    holds on to the job or to a notice that was withdrawn."""
    long_ago = cluster.loop.time() - _BOOT_LIMIT_S
    new = {start["process"] for start in cluster.history.all("started") if start.time_s > long_ago}
    for node in cluster.nodes:
        if cluster.cloud.has_notice(node.name) or not cluster.is_up(node.name):
            continue
        has_workers = any(map(cluster.is_up, node.processes[1:]))
        if has_workers and new.isdisjoint(node.processes) and node.name not in joined:
            yield f"{node.name} has not joined again"
        for process in map(cluster.processes.get, filter(cluster.is_up, node.processes)):
            assert process is not None, "it is up"
            for actor in sorted(cluster.logs.jobs[process.identity]):
                yield f"the {actor} of {process.name} holds on to the job"
            if cluster.logs.workers[process.identity].draining:
                yield f"{process.name} takes nothing more"


def everybody_says_what_he_may(run: HasHistory) -> Iterable[str]:
    """No process says what the role of its key may not."""
    for each in run.history.all("not_allowed"):
        yield f"{each['at']} refuses {each['message']} of {each['by']}"


INVARIANTS: tuple[Callable[[Run], Iterable[str]], ...] = (
    samples_are_functions_of_their_requests,
    nothing_mixes_weights,
    only_little_moved_weights_have_older_samples,
    samples_count_once,
    advantages_come_from_these_rollouts,
    later_samples_are_of_whole_groups,
    groups_share_their_settings,
    iterations_are_trained_in_order,
    checkpoints_wait_for_validations,
    little_is_denoised_again,
    plans_outlive_the_coordinator,
    weights_follow_from_the_samples,
    faults_change_nothing,
    sickness_costs_no_group,
    jobs_end,
    records_are_complete,
    samples_are_made_in_time,
    time_adds_up,
    leaves_nothing_in_stores,
    nothing_needed_is_deleted,
    everybody_says_what_he_may,
)


def _term(granted: Any) -> int:
    """Of the coordinator that granted a lease: how often the run had been opened."""
    return int(granted["lease"]) >> TERM_BITS


def lag_of(request: str) -> int:
    """How many versions the weights of a sample are older than those of its iteration."""
    _, iteration, version, *_ = request.split("/")
    return int(iteration) - int(version)


def _is_finished(run: Run) -> bool:
    return bool(run.outcomes) and run.outcomes[-1][0] == "finished"


def _dropped(run: Run, iteration: Any) -> set[str]:
    dropped = (event for event in _events(run) if isinstance(event, GroupDropped))
    return {event.prompt for event in dropped if event.iteration == iteration}


def _events(run: Run) -> Iterable[RunEvent]:
    return map(decode_event, whole_event_lines(run.run_folder))


def _lines(run: Run, name: str) -> list[bytes]:
    path = run.run_folder / name
    if not path.exists():
        return []
    return path.read_bytes().split(b"\n")[:-1]
