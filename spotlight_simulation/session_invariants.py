"""What must hold of every session of a program with a training loop of its own, whatever was done
to the cluster (docs/own-loop.md, "What is promised").

As `invariants` does for jobs: each function looks at one finished run and returns what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from spotlight.timings import Timings
from spotlight_simulation import fingerprints
from spotlight_simulation.fake_hardware import UNCLEAR
from spotlight_simulation.faults import FaultKind
from spotlight_simulation.history import Happening
from spotlight_simulation.invariants import (
    everybody_says_what_he_may,
    is_of_sickness,
    little_is_denoised_again,
)
from spotlight_simulation.loop_program import KEEP
from spotlight_simulation.memory_cluster import COORDINATOR

if TYPE_CHECKING:
    from spotlight_simulation.session_chaos import SessionRun

_COSTS_SAMPLES: tuple[FaultKind, ...] = ("poison", "scorer_error")
"""Faults after which samples may fail."""
_LOSES_MESSAGES: tuple[FaultKind, ...] = ("loss", "delay")
"""Faults under which who is in reach may not be heard."""
_HEARD_S = 16.0
"""Who is in reach for so long is heard: a question is repeated after 10 s."""
_LOOK_S = 1.0
"""It is looked so often who is in reach."""


def check_session(run: SessionRun) -> None:
    """Put every violation into the history."""
    for what in session_violations(run):
        run.history.violation(what)
    run.cluster.ledgers.check()


def session_violations(run: SessionRun) -> Iterator[str]:
    """What is wrong."""
    for invariant in INVARIANTS:
        for what in invariant(run):
            yield f"{invariant.__name__}: {what}"


def groups_come_once(run: SessionRun) -> Iterable[str]:
    """Who reads a call to its end gets each group that it asked for, once; and nobody gets one
    twice, or one that he did not ask for."""
    got = Counter((*_call(group), group["index"]) for group in run.history.all("group"))
    yield from (f"group {each} came {count} times" for each, count in got.items() if count > 1)
    asked = {_call(each): each for each in run.history.all("asked")}
    for session, call, index in got:
        if not 0 <= index < len(asked[(session, call)]["requests"]):
            yield f"group {index} of call {call} was never asked for"
    for read in run.history.all("read"):
        wanted = range(len(asked[_call(read)]["requests"]))
        missing = [index for index in wanted if (*_call(read), index) not in got]
        if read["until"] == "done" and missing:
            yield f"groups {missing} of call {_call(read)} did not come"


def groups_are_complete(run: SessionRun) -> Iterable[str]:
    """Of every seed there is a sample or a failure, and no other; samples in the order of seeds."""
    for group, request in _groups(run):
        seeds = request[1]
        made = [sample[0] for sample in group["samples"]]
        failed = [seed for seed, _ in group["failed"]]
        if sorted(made + failed) != sorted(seeds):
            yield f"{_name(group)} has samples {made} and failures {failed} for the seeds {seeds}"
        if made != [seed for seed in seeds if seed in made]:
            yield f"{_name(group)} has its samples in the order {made}"
        for seed, _, _, _, _, _, complete in group["samples"]:
            if not complete:
                yield f"the sample of seed {seed} of {_name(group)} lacks its image or its version"


def samples_are_what_was_asked_for(run: SessionRun) -> Iterable[str]:
    """A sample is a function of the version that its group names, prompt, seed and sampler."""
    for group, _ in _groups(run):
        for seed, latents, expected, weights, named, reward, _ in group["samples"]:
            if weights != named:
                yield f"the sample of seed {seed} of {_name(group)} was made with {weights}"
            elif latents != expected:
                yield f"the sample of seed {seed} of {_name(group)} is another"
            if reward != fingerprints.reward(latents):
                yield f"the reward of seed {seed} of {_name(group)} is {reward}"


def versions_are_those_wanted(run: SessionRun) -> Iterable[str]:
    """`Exactly` is that version, and `AtLeast` the newest when it is asked, or a later one."""
    asked = {_call(each): each for each in run.history.all("asked")}
    for group, (_, _, rule, wanted) in _groups(run):
        version, newest = group["version"], asked[_call(group)]["newest"]
        if rule == "Exactly" and version != wanted:
            yield f"{_name(group)} is of version {version}, not {wanted}"
        if rule == "AtLeast" and version < max(wanted, newest):
            yield f"{_name(group)} is of version {version}, below {wanted} or {newest}"


def weights_are_kept_while_they_are_wanted(run: SessionRun) -> Iterable[str]:
    """What is asked of weights that are there, or come, is made; and nothing is refused."""
    asked = {_call(each): each for each in run.history.all("asked")}
    for read in run.history.all("read"):
        call = asked[_call(read)]
        kept, newest = call["kept"], call["newest"]
        gone = [v for *_, rule, v in call["requests"] if rule == "Exactly" and v not in kept]
        if read["until"] == "refused":
            yield f"call {_call(read)} was refused: {read['reason']}"
        if read["until"] == "version gone" and not any(version < newest for version in gone):
            yield f"call {_call(read)} names weights that were there: {read['reason']}"
    for looked in run.history.all("looked"):
        if looked["told"] != looked["published"]:
            yield f"version {looked['told']} is the newest, after {looked['published']}"


def failures_have_a_reason(run: SessionRun) -> Iterable[str]:
    """A sample fails when its scorer does, or when it may be what ends the processes that take
    it."""
    given_up = run.cluster.logs.given_up
    for group, request in _groups(run):
        for seed, reason in group["failed"]:
            if UNCLEAR in reason and not is_of_sickness(run, reason):
                continue
            suspected = any(each.endswith(f"/{seed}") for each in given_up)
            if not suspected and not any(run.history.effective[kind] for kind in _COSTS_SAMPLES):
                yield f"seed {seed} of {request[0]} failed: {reason}"


def explorations_choose_by_previews(run: SessionRun) -> Iterable[str]:
    """As many seeds as wanted, with the rewards that their previews give."""
    for explored in run.history.all("explored"):
        seeds, rewards = explored["seeds"], explored["rewards"]
        if len(set(seeds)) != KEEP:
            yield f"exploration chose the seeds {seeds}"
        for seed, reward, may_be in zip(seeds, rewards, explored["may_be"], strict=True):
            if reward is not None and reward not in may_be:
                yield f"the preview of seed {seed} has the reward {reward}"


def sessions_end_for_a_reason(run: SessionRun) -> Iterable[str]:
    """A session is lost when somebody cancels it, when the disk is full, or when program and
    coordinator do not hear each other for as long as they wait. A coordinator that was killed
    since then has forgotten for which of these reasons, for a session leaves nothing on disk."""
    timings = Timings()
    for lost in run.history.all("session_lost"):
        reason = str(lost["reason"])
        cancelled = run.began_much or any(
            each["fault"] == "cancel_session" and each.time_s <= lost.time_s
            for each in run.history.all("fault")
        )
        disk_was_full = any(
            each["fault"] == "disk_error" and each.time_s <= lost.time_s
            for each in run.history.all("effect")
        )
        has_forgotten = any(
            each["process"] == COORDINATOR and each.time_s <= lost.time_s
            for each in run.history.all("killed")
        )
        silent_s = _latest_silence(run, lost.time_s) + _LOOK_S
        if "cancelled by the user" in reason:
            fine = cancelled
        elif "No space left on device" in reason:
            fine = disk_was_full
        elif "the coordinator is unreachable" in reason:
            fine = silent_s >= timings.delivery.away_limit_s
        elif "its program has been out of reach" in reason:
            fine = silent_s >= timings.coordinator.session_away_s
        else:
            away = silent_s >= timings.coordinator.session_away_s
            known = cancelled or disk_was_full or away
            fine = reason.endswith("it is over") and has_forgotten and known
        if not fine:
            yield f"the session was lost at {lost.time_s:.1f}: {reason}"


INVARIANTS: tuple[Callable[[SessionRun], Iterable[str]], ...] = (
    groups_come_once,
    groups_are_complete,
    samples_are_what_was_asked_for,
    versions_are_those_wanted,
    weights_are_kept_while_they_are_wanted,
    failures_have_a_reason,
    explorations_choose_by_previews,
    sessions_end_for_a_reason,
    little_is_denoised_again,
    everybody_says_what_he_may,
)


def _latest_silence(run: SessionRun, until_s: float) -> float:
    """For how long program and coordinator have not heard each other, but for moments; 0 if they
    have by now, long enough for both to know."""
    began = ended = 0.0
    there = False
    for each in run.history.all("reach"):
        if each.time_s > until_s or each["there"] == there:
            continue
        there = each["there"]
        if there:
            ended = each.time_s
        elif each.time_s - ended >= _HEARD_S:
            began = each.time_s - _unheard_s(run, each.time_s)
    if not there:
        ended = until_s
    return ended - began if until_s - ended < 2 * _HEARD_S else 0.0


def _unheard_s(run: SessionRun, lost_s: float) -> float:
    """For how long program and coordinator may not have heard each other already when one of them
    came out of reach: their last messages may have been lost, or too late."""
    were_lost = any(
        each["fault"] in _LOSES_MESSAGES
        and each.time_s <= lost_s <= each.time_s + each["s"] + _HEARD_S
        for each in run.history.all("fault")
    )
    return _HEARD_S if were_lost else 0.0


def _groups(run: SessionRun) -> Iterator[tuple[Happening, Any]]:
    """Each group that came, with the request that it answers."""
    asked = {_call(each): each["requests"] for each in run.history.all("asked")}
    for group in run.history.all("group"):
        yield group, asked[_call(group)][group["index"]]


def _call(happening: Happening) -> tuple[Any, Any]:
    return happening["session"], happening["call"]


def _name(group: Happening) -> str:
    return f"group {group['index']} of call {_call(group)}"
