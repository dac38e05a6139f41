"""What the coordinator writes down before it acknowledges anything, so that it can be killed at any
instruction.

Its requests are the rows of the table of requests: how far each is saved, or how it ended; one that
is submitted again after a restart is answered from here. Progress is kept per iteration; the
checkpoint says where trainers that were lost as well begin again. What an iteration taught of its
prompts is in its progress, and up to the checkpoint in a record per prompt, so that no write grows
with the number of prompts that are known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import msgspec
import structlog

from spotlight.actors.coordinator.key_ring import OPERATOR
from spotlight.actors.coordinator.tenant.rank import Rank
from spotlight.actors.coordinator.tenant.request_plans import unexplored
from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.trainer import StateParts
from spotlight.errors import JournalError, RunFolderError
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.choice_worth import ChoiceWorth
from spotlight.policies.exploration.explored import Explored
from spotlight.policies.exploration.fidelity import Agreement, Gain
from spotlight.policies.exploration.reward_spread import Evidence, Knowledge, Population
from spotlight.policies.requests.rows import SavedRow
from spotlight.store.journal import Journal
from spotlight.store.run_folder import (
    PROGRESS,
    RECORDS_AHEAD,
    RunFolder,
    checkpoint_path,
    known_iterations,
)
from spotlight.transport.tensors import ArtifactStore
from spotlight.types import BundleOffer, RequestId, RequestKind

log = structlog.get_logger(__name__)

RecordT = TypeVar("RecordT", bound=msgspec.Struct | Evidence | Population | dict[str, str])

TERM_BITS = 32
"""A lease's number holds the term of the coordinator that granted it above these bits."""
_REQUESTS = "request/"
MADE_AGAIN = (_REQUESTS, "published/")
"""Beginnings of the records that mean nothing without the stores that they lead to."""
_BEFORE_LAST = "before_last"
"""The record of how the last iteration of a run began, which is over: see `begin_segment`."""
_OF_PROMPT, _OF_CATEGORY = "known/prompt/", "known/category/"


class SavedProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an iteration begins with, besides the weights."""

    completed: int
    """Iterations that are done."""
    explored: Explored
    """The seeds of the iteration and what chose them; with fresh weights those of the iteration
    before, whose exploration taught the most."""
    validated: tuple[int, ...]
    """Weights versions on record."""
    training_seconds: tuple[float, ...] = ()
    """Last training times, for the window prediction."""
    agreement: Agreement = Agreement()
    """How far previews and fresh rewards agree, as far as probes have shown it."""
    gain: Gain = Gain()
    """What kept seeds promised and brought."""
    worth: ChoiceWorth = ChoiceWorth()
    """The worth of a choice among previews, as far as was told before `explored`."""
    flat_iterations: int = 0
    """How many iterations in a row, up to this one, had nothing but equal rewards."""
    random_credit: float | None = None
    """Denoising steps that random groups may take before others; None before the first group."""
    least_previews: int = 0
    """How many previews the next exploration waits for, though training has ended."""


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The durable checkpoint from which lost trainers begin again."""

    completed: int
    path: str
    """The path inside the run folder."""


class TrainingState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of training that the trainers left in stores last."""

    completed: int
    """Iterations that it holds."""
    at_nodes: StateParts
    here: tuple[BundleOffer, ...] = ()
    """All parts in the run folder's store, if they are there."""


class Trainers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The processes that train, in the order of their ranks."""

    ranks: tuple[Rank, ...] = ()
    last_recovery: tuple[int, int] | None = None
    """Its number, and the iterations that it went on from."""


class Rewound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Trainers began again before what they had trained."""

    first_lease: int
    """The first lease of the coordinator that had them do so: earlier ones are of weights that may
    be others of the same version."""


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stays the same when a coordinator comes back to a run."""

    job_id: str
    token: str
    """The token of the run folder's bundle store."""
    sorts_prompts: bool = True
    """Every pass over the training prompts is sorted, however many they are: an earlier version
    began the run, and it goes on in that order."""
    owner: str = OPERATOR
    """Whose the run is: the id of a submitter's join token, or the operators'."""


class JobJournal:
    """Typed access to a run's journal. Every write but `stage_requests` is durable on return and
    raises `JournalError` when it cannot be.

    Args:
        store: the run folder's.
        failed: told of every write that fails, before it raises.
    """

    def __init__(
        self, journal: Journal, store: ArtifactStore, failed: Callable[[JournalError], None]
    ) -> None:
        self._journal = journal
        self._store = store
        self._failed = failed
        self._staged: dict[str, SavedRow | None] = {}

    @property
    def first_lease(self) -> int:
        """Above every lease that an earlier coordinator of this run can have granted."""
        return (self._journal.term << TERM_BITS) + 1

    @property
    def adopts_from(self) -> int:
        """Below every lease that somebody may still work on with the weights that there are."""
        rewound = self._one("rewound", Rewound)
        return rewound.first_lease if rewound is not None else 0

    @property
    def sorts_prompts(self) -> bool:
        """How passes over many training prompts are drawn: see `draw_prompts`."""
        identity = self._one("identity", Identity)
        return identity is not None and identity.sorts_prompts

    @property
    def term(self) -> int:
        """How often the run was opened."""
        return self._journal.term

    @property
    def dropped(self) -> str:
        """What of a torn tail was dropped when the run was opened; empty if nothing."""
        return self._journal.dropped

    def in_this_store(self, bundle: BundleOffer) -> BundleOffer:
        """Where a bundle of the run folder's store is now: the store has another address with every
        coordinator. What a node keeps stays where it is.
        """
        if bundle.keeper:
            return bundle
        return msgspec.structs.replace(bundle, store=self._store.readable(bundle.key))

    # --- requests ---

    def requests(self) -> dict[str, SavedRow]:
        """What is saved of requests, by id."""
        self.commit_staged()
        return {key: self._row_in_this_store(row) for key, row in self._all(_REQUESTS, SavedRow)}

    def stage_requests(self, rows: Mapping[str, SavedRow | None]) -> None:
        """How far these requests are, or how they ended; None of one that nobody wants. Durable
        with the next `commit_staged`, or before the next write of anything else."""
        log.debug("requests_saving", rows=rows)
        self._staged |= rows

    def commit_staged(self) -> None:
        """Make durable what was staged, in one write."""
        if self._staged:
            self._write_now(
                {
                    _REQUESTS + key: None if row is None else _encode(row)
                    for key, row in self._staged.items()
                }
            )
            rows, self._staged = self._staged, {}
            log.debug("requests_saved", rows=rows)

    def save_requests(self, rows: Mapping[str, SavedRow | None]) -> None:
        """Stage and commit. Of no rows there is nothing to write, and what others have staged is
        written once for all of them, when their turn ends."""
        if rows:
            self.stage_requests(rows)
            self.commit_staged()

    def forget_requests(self, kind: RequestKind, iteration: int) -> None:
        """The requests of a kind and iteration are used up."""
        prefix = RequestId.prefix(kind, iteration)
        log.debug("requests_forgotten", prefix=prefix)
        self._write({}, drop=(_REQUESTS + prefix,))

    def begin_again(self) -> None:
        """Somebody resumes a job that had ended: what was given up is tried again. Trainers that
        have trained without it meanwhile, and do not know of the end, cannot be gone on with: they
        need what was published. Recoveries are counted anew.
        """
        known = msgspec.structs.replace(self.trainers(), last_recovery=None)
        again = {key: None for key, row in self.requests().items() if row.given_up}
        self.save_requests(again)
        self._write({"trainers": _encode(known), "state": None}, drop=("published/",))

    # --- progress ---

    def progress(self) -> dict[int, SavedProgress]:
        """Where an iteration began, by the number of iterations completed; since the checkpoint."""
        return {int(key): record for key, record in self._all(PROGRESS, SavedProgress)}

    def knowledge(self, completed: int) -> Knowledge:
        """What so many iterations, of which the last ones' progress is there, taught of prompts."""
        known = Knowledge(
            dict(self._all(_OF_PROMPT, Evidence)), dict(self._all(_OF_CATEGORY, Population))
        )
        return known.after(_taught(self.progress(), completed))

    def checkpoint(self) -> Checkpoint | None:
        """The newest that may be resumed from."""
        return self._one("checkpoint", Checkpoint)

    def trainers(self) -> Trainers:
        """Who trained last; nobody in a new journal."""
        return self._one("trainers", Trainers) or Trainers()

    def save_trainers(self, trainers: Trainers) -> None:
        """A coordinator that comes back looks for these."""
        self._write({"trainers": _encode(trainers)})

    def state(self) -> TrainingState | None:
        """The newest that was left in stores; they may be gone."""
        found = self._one("state", TrainingState)
        if found is None:
            return None
        here = tuple(self.in_this_store(offer) for offer in found.here)
        return msgspec.structs.replace(found, here=here)

    def save_state(self, state: TrainingState | None) -> None:
        """Lost trainers go on from here; None: from the checkpoint."""
        completed = 0 if state is None else state.completed
        log.debug("state_saving", completed=completed)
        self._write({"state": None if state is None else _encode(state)})
        log.debug("state_saved", completed=completed)

    def bundles(self, kind: RequestKind, iteration: int) -> set[BundleOffer]:
        """What the requests of a kind and iteration have left in stores."""
        self.commit_staged()
        rows = self._all(_REQUESTS + RequestId.prefix(kind, iteration), SavedRow)
        return {row.commit.bundle for _, row in rows if row.commit is not None}

    def publications(self) -> dict[int, WeightsOffer]:
        """Where nodes pull the weights versions from that they may still need."""
        return {int(key): record for key, record in self._all("published/", WeightsOffer)}

    def save_progress(self, progress: SavedProgress) -> None:
        """An iteration begins."""
        self._write({f"{PROGRESS}{progress.completed:06d}": _encode(progress)})

    def save_checkpoint(
        self,
        checkpoint: Checkpoint,
        validated: tuple[int, ...],
        before_last: SavedProgress | None = None,
    ) -> None:
        """Lost trainers begin again here, with these versions on record; earlier progress is not
        needed, and what it taught is moved to where it is found prompt by prompt. `before_last`:
        how the last iteration of the run began, if a longer run is to do it again.
        """
        progress = self.progress()
        changes: dict[str, bytes | None] = dict.fromkeys(
            f"{PROGRESS}{key:06d}" for key in progress if key < checkpoint.completed
        )
        here = progress[checkpoint.completed]
        explored = msgspec.structs.replace(here.explored, knowledge=Knowledge())
        here = msgspec.structs.replace(here, validated=validated, explored=explored)
        changes[f"{PROGRESS}{checkpoint.completed:06d}"] = _encode(here)
        taught = _taught(progress, checkpoint.completed)
        changes |= {_OF_PROMPT + key: _encode(each) for key, each in taught.prompts.items()}
        changes |= {_OF_CATEGORY + key: _encode(each) for key, each in taught.categories.items()}
        log.debug("checkpoint_saved", completed=checkpoint.completed, validated=validated)
        changes[_BEFORE_LAST] = None if before_last is None else _encode(before_last)
        self._write({**changes, "checkpoint": _encode(checkpoint)})

    def save_publication(self, offer: WeightsOffer, keep: set[int]) -> None:
        """A version is there; those not in `keep` are gone."""
        gone = [key for key in self.publications() if key not in keep]
        changes: dict[str, bytes | None] = dict.fromkeys(f"published/{key:06d}" for key in gone)
        self._write({**changes, f"published/{offer.version:06d}": _encode(offer)})

    def drop_publication(self, version: int) -> None:
        """It cannot be had any more."""
        self._write({f"published/{version:06d}": None})

    def rewind(self, completed: int, published: Collection[int] = ()) -> None:
        """Trainers begin again after `completed` iterations: drop later progress, all publications
        but these, and the samples of later weights; and leases, as a worker that was out of reach
        may still work with weights that are trained again. Until `records_follow` the other files
        of the run may say more.
        """
        log.debug("journal_goes_back")
        changes: dict[str, bytes | None] = dict.fromkeys(
            f"{PROGRESS}{key:06d}" for key in self.progress() if key > completed
        )
        self.commit_staged()
        for key, _ in self._journal.items(_REQUESTS):
            request = RequestId.parse(key.removeprefix(_REQUESTS))
            if request is None or request.weights_version > completed:
                changes[key] = None
        gone = [version for version in self.publications() if version not in published]
        changes |= dict.fromkeys(f"published/{version:06d}" for version in gone)
        changes |= {"rewound": _encode(Rewound(self.first_lease)), RECORDS_AHEAD: b""}
        self._write(changes)
        log.debug("journal_went_back", leases_from=self.first_lease)

    def records_follow(self, progress: SavedProgress) -> None:
        """The run goes on from here, and its other files say no more than this."""
        self._write({f"{PROGRESS}{progress.completed:06d}": _encode(progress), RECORDS_AHEAD: None})

    # --- inside ---

    def _write(self, changes: Mapping[str, bytes | None], drop: Iterable[str] = ()) -> None:
        self.commit_staged()  # what came first is written first
        self._write_now(changes, drop)

    def _write_now(self, changes: Mapping[str, bytes | None], drop: Iterable[str] = ()) -> None:
        try:
            self._journal.write(changes, drop)
        except JournalError as error:
            self._failed(error)
            raise

    def _row_in_this_store(self, row: SavedRow) -> SavedRow:
        if row.commit is None:
            return row
        commit = msgspec.structs.replace(row.commit, bundle=self.in_this_store(row.commit.bundle))
        return msgspec.structs.replace(row, commit=commit)

    def _one(self, key: str, kind: type[RecordT]) -> RecordT | None:
        return _decode(self._journal, key, kind) if self._journal.get(key) is not None else None

    def _all(self, prefix: str, kind: type[RecordT]) -> list[tuple[str, RecordT]]:
        return [
            (key.removeprefix(prefix), _decode(self._journal, key, kind))
            for key, _ in self._journal.items(prefix)
        ]


def identify(journal: Journal, name: str, rng: random.Random, owner: str) -> Identity:
    """A run keeps its name, token and owner for as long as its folder lives; `owner` is that of a
    new one."""
    if journal.get("identity") is not None:
        return _decode(journal, "identity", Identity)
    job_id, token = f"{name}-{rng.getrandbits(48):012x}", f"{rng.getrandbits(128):032x}"
    identity = Identity(job_id, token, sorts_prompts=False, owner=owner)
    journal.write({"identity": _encode(identity)})
    return identity


def begin_segment(folder: RunFolder, iterations: int) -> None:
    """A run begins, or goes on, with the job that its folder was opened with, of so many
    iterations. A run that is to get longer than it was goes on before its last iteration, so that
    it explores for the one after that, as if it had been as long from the start."""
    journal = folder.journal
    if journal.get(_BEFORE_LAST) is not None:
        before = _decode(journal, _BEFORE_LAST, SavedProgress)
        completed = before.completed
        if iterations > completed + 1:
            checkpoint = Checkpoint(completed, checkpoint_path(completed))
            return folder.begin_segment(
                completed,
                {
                    f"{PROGRESS}{completed + 1:06d}": None,
                    f"{PROGRESS}{completed:06d}": _encode(before),
                    "checkpoint": _encode(checkpoint) if completed else None,
                    _BEFORE_LAST: None,
                    RECORDS_AHEAD: b"",
                },
            )
    folder.begin_segment(known_iterations(journal))


def forked(
    source: Journal, job: JobSpec, completed: int, validated: tuple[int, ...], rng: random.Random
) -> dict[str, bytes]:
    """What a new run has on record that begins where another one stood after so many iterations.

    Args:
        source: the journal of the other one.
        validated: weights versions on record by then.
        rng: source of its name and token.
    """
    identity = _decode(source, "identity", Identity)
    job_id, token = f"{job.name}-{rng.getrandbits(48):012x}", f"{rng.getrandbits(128):032x}"
    own = msgspec.structs.replace(identity, job_id=job_id, token=token)
    records = {"identity": _encode(own), "prompts": source.get("prompts") or b"{}"}
    progress = _progress_at(source, completed)
    if progress is None:
        progress = SavedProgress(completed, unexplored(job, completed), ())
    else:
        known = (_OF_PROMPT, _OF_CATEGORY)
        records |= {key: body for prefix in known for key, body in source.items(prefix)}
    progress = msgspec.structs.replace(progress, validated=validated)
    records[f"{PROGRESS}{completed:06d}"] = _encode(progress)
    if completed:
        records["checkpoint"] = _encode(Checkpoint(completed, checkpoint_path(completed)))
    return records


def _progress_at(journal: Journal, completed: int) -> SavedProgress | None:
    """With what a run went on after so many iterations, if that can be told from its journal."""
    for key in (_BEFORE_LAST, f"{PROGRESS}{completed:06d}"):
        if journal.get(key) is not None:
            progress = _decode(journal, key, SavedProgress)
            if progress.completed == completed:
                return progress
    return None


def require_same_prompts(journal: Journal, digests: Mapping[str, str]) -> None:
    """A run has the prompts that it began with, of which these are digests by the field of the job
    that names them. A new run, or one of a version that kept none, keeps these.

    Raises `RunFolderError` naming the field whose prompts are others.
    """
    if journal.get("prompts") is None:
        journal.write({"prompts": msgspec.json.encode(digests)})
        return
    kept = _decode(journal, "prompts", dict[str, str])
    for field, digest in digests.items():
        if kept.get(field) != digest:
            raise RunFolderError(
                f"{field}: these are other prompts than those that the run began with; put them"
                " back to go on with it, or begin a new run with these, in another run folder"
            )


def _taught(progress: Mapping[int, SavedProgress], completed: int) -> Knowledge:
    """What these iterations taught, each by numbers that take the place of those before."""
    prompts: dict[str, Evidence] = {}
    categories: dict[str, Population] = {}
    for each in (progress[key].explored.knowledge for key in sorted(progress) if key <= completed):
        prompts |= each.prompts
        categories |= each.categories
    return Knowledge(prompts, categories)


def _encode(record: msgspec.Struct | Evidence | Population) -> bytes:
    return msgspec.json.encode(record)


def _decode(journal: Journal, key: str, kind: type[RecordT]) -> RecordT:
    try:
        return msgspec.json.decode(journal.get(key) or b"", type=kind)
    except msgspec.MsgspecError as error:
        version = journal.version_of(key)
        raise JournalError(
            f"the journal's record {key} cannot be read ({error})",
            f"Spotlight {version} wrote it: resume with that version",
        ) from error
