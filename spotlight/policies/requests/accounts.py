"""The state of every request: its row, what is saved of it, and how it ended.

Every change adds the instructions that make it durable and known to `out`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spotlight.policies.requests.gathering import Gathering
from spotlight.policies.requests.instructions import (
    DeleteBundle,
    Instruction,
    Persist,
    RecordEvent,
    RequestsFinished,
    RequestsGivenUp,
)
from spotlight.policies.requests.rows import RequestState, Row, SavedRow
from spotlight.record.run_events import ResultsIgnored
from spotlight.types import BundleOffer, Commit, Request, RequestId, RequestKind, Result

_GRADIENT = "gradient/"
"""The ids of gradients begin with it."""


@dataclass
class Counters:
    """What happened so far."""

    commits: int = 0
    """How many commits counted."""
    scoring_s: float = 0.0
    """How many seconds scoring took, all workers together."""
    scoring_s_of: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """How many seconds it took by worker, since that was last asked for."""

    def pop_scoring_s(self, worker: str) -> float:
        """How many seconds scoring took this worker since this was called last."""
        return self.scoring_s_of.pop(worker, 0.0)


class BundleUse:
    """Which bundles of saved steps and samples are still needed: it counts the requests that need
    one. What is returned as unused may be deleted."""

    def __init__(self) -> None:
        self._users: Counter[str] = Counter()

    def remember(self, commit: Commit) -> None:
        """A request that an earlier table knew needs it."""
        self._users[commit.bundle.key] += 1

    def move(self, row: Row, commit: Commit | None) -> BundleOffer | None:
        """The row goes on from this commit; returns the bundle that nobody needs since."""
        before, row.commit = row.commit, commit
        if commit is not None:
            self._users[commit.bundle.key] += 1
        return self.leave(before) if before is not None else None

    def leave(self, commit: Commit) -> BundleOffer | None:
        """One request less needs it; returns the bundle if that was the last."""
        key = commit.bundle.key
        self._users[key] -= 1
        if self._users[key] > 0:
            return None
        del self._users[key]
        return commit.bundle

    def is_used(self, bundle: BundleOffer) -> bool:
        """Whether any request needs it."""
        return bundle.key in self._users


class Accounts:
    """See the module's docstring.

    Args:
        trained_on: kinds of requests whose samples are needed when they are done.
        gathering: where requests wait for others that are scored with them.
    """

    def __init__(self, trained_on: Collection[RequestKind], gathering: Gathering) -> None:
        self._trained_on = trained_on
        self._gathering = gathering
        self.counters = Counters()
        self.rows: dict[str, Row] = {}
        """All that are known, by the ids of their requests."""
        self.open: defaultdict[RequestKind, dict[str, Row]] = defaultdict(dict)
        """Requests that are queued or leased, by kind and id."""
        self.out: list[Instruction] = []
        """What is to be carried out, in this order; who calls takes it."""
        self._of_iteration: defaultdict[tuple[RequestKind, int], dict[str, Row]]
        self._of_iteration = defaultdict(dict)
        self._remembered: dict[str, SavedRow] = {}
        """What an earlier table left of requests, until they are submitted again."""
        self._bundles = BundleUse()

    # --- rows come and go ---

    def remember(self, saved: Mapping[str, SavedRow]) -> None:
        """Take up what an earlier table left."""
        self._remembered = dict(saved)
        for row in saved.values():
            if row.commit is not None:
                self._bundles.remember(row.commit)

    def submit(self, requests: Iterable[Request], now: float) -> list[Row]:
        """The rows of those that are new, in order. What an earlier table finished or gave up is
        told."""
        rows, restored = [], []
        for request in requests:
            if request.id in self.rows:
                continue
            row, saved = self._admit(request, now)
            rows.append(row)
            if saved.given_up:
                self.give_up([row], saved.given_up, now)
            elif saved.rewards is not None and saved.commit is not None:
                restored.append(self.end(row, saved.rewards, now))
        if restored:
            self.out.append(RequestsFinished(tuple(restored), restored=True))
        return rows

    def _admit(self, request: Request, now: float) -> tuple[Row, SavedRow]:
        """A new row, and what is known of it; its commit is the row's already."""
        row = self.rows[request.id] = Row(request)
        saved = self._remembered.pop(request.id, SavedRow())
        row.commit = saved.commit
        row.note(now, "submitted")
        self.open[request.kind][request.id] = row
        self._of_iteration[request.kind, request.iteration][request.id] = row
        self._gathering.submitted(row)
        return row, saved

    def drop(self, rows: Iterable[Row]) -> None:
        """Nobody wants these any more, finished or not."""
        rows = list(rows)
        self.persist(dict.fromkeys(row.request.id for row in rows))
        for row in rows:
            self.move(row, None)
            self._remove(row)

    def forget(self, kind: RequestKind, iteration: int) -> list[str]:
        """Drop what is over of an iteration; returns the ids. Samples that are trained on stay: who
        trained on them deletes them."""
        over = []
        for row in list(self._of_iteration[kind, iteration].values()):
            if row.state in (RequestState.DONE, RequestState.GIVEN_UP):
                if row.commit is not None:
                    self._bundles.leave(row.commit)
                self._remove(row)
                over.append(row.request.id)
        prefix = RequestId.prefix(kind, iteration)
        for request_id in [key for key in self._remembered if key.startswith(prefix)]:
            saved = self._remembered.pop(request_id)
            if saved.commit is not None:
                self._delete(self._bundles.leave(saved.commit))
        return over

    def _remove(self, row: Row) -> None:
        request = row.request
        for bundle in row.refused:
            self.delete_unused(bundle)
        del self.rows[request.id]
        if request.id in self.open[request.kind]:
            self._close(row)
        rows = self._of_iteration[request.kind, request.iteration]
        del rows[request.id]
        if not rows:
            del self._of_iteration[request.kind, request.iteration]

    # --- what is saved ---

    def save(self, rows: Mapping[int, Row], step: int, bundle: BundleOffer) -> None:
        """Requests have taken so many steps, and are saved in these rows of a bundle."""
        self.persist(
            {row.request.id: SavedRow(Commit(step, bundle, index)) for index, row in rows.items()}
        )
        for index, row in rows.items():
            self.move(row, Commit(step, bundle, index))

    def start_over(self, rows: Sequence[Row]) -> None:
        """Nothing is saved of these."""
        self.persist(dict.fromkeys(row.request.id for row in rows))
        for row in rows:
            self.move(row, None)

    def move(self, row: Row, commit: Commit | None) -> None:
        """The row goes on from this commit."""
        self._delete(self._bundles.move(row, commit))

    def delete_unused(self, bundle: BundleOffer) -> None:
        """What was delivered does not count, unless it is what counted before."""
        if not self._bundles.is_used(bundle):
            self.out.append(DeleteBundle(bundle))

    def refuse(
        self, request_ids: Sequence[str], bundle: BundleOffer, step: int | None = None
    ) -> None:
        """It does not count: it came without a lease, or is a commit of a `step` that others have
        taken. That of the last step may yet be what is completed."""
        row = next((self.rows[key] for key in request_ids if key in self.rows), None)
        if row is None or (step is not None and step < row.request.settings.steps):
            self.delete_unused(bundle)
        elif bundle not in row.refused:
            row.refused.append(bundle)

    def late(self, worker: str, lease: int) -> None:
        """What a worker says of a lease that it does not hold changes nothing, and is counted."""
        self.out.append(RecordEvent(ResultsIgnored(worker=worker, lease=lease)))

    def persist(self, rows: Mapping[str, SavedRow | None]) -> None:
        """Have the journal hold these; gradients are computed again after a restart, if anybody
        wants them then."""
        kept = {key: row for key, row in rows.items() if not key.startswith(_GRADIENT)}
        if kept:
            self.out.append(Persist(kept))

    # --- how it ends ---

    def finish(
        self,
        rows: Sequence[Row],
        bundle: BundleOffer,
        rewards: Sequence[tuple[float, ...]],
        now: float,
    ) -> None:
        """These are done: the rows of the bundle, with their rewards."""
        commits = [Commit(r.request.settings.steps, bundle, i) for i, r in enumerate(rows)]
        self.persist(
            {
                row.request.id: SavedRow(commit, scored)
                for row, commit, scored in zip(rows, commits, rewards, strict=True)
            }
        )
        for row, commit in zip(rows, commits, strict=True):
            self.move(row, commit)
        results = [self.end(row, scored, now) for row, scored in zip(rows, rewards, strict=True)]
        self.out.append(RequestsFinished(tuple(results)))

    def end(self, row: Row, rewards: tuple[float, ...], now: float) -> Result:
        """The row is done. Its samples stay if they are trained on."""
        assert row.commit is not None, "what is done has a sample"
        result = Result(
            row.request, rewards, row.commit.bundle, row.commit.row, row.attempts, row.resumed_at
        )
        row.state, row.done_by = RequestState.DONE, row.commit.bundle.key
        row.note(now, f"done, with {', '.join(f'{reward:.4f}' for reward in rewards)}")
        if row.request.kind in self._trained_on:
            row.result = result
        elif row.is_gradient:  # whoever adds it fetches it now
            self._bundles.leave(row.commit)
            row.commit = None
        else:
            self._delete(self._bundles.leave(row.commit))
            row.commit = None
        self._close(row)
        return result

    def sample_of(self, request: Request) -> Result | None:
        """How a request was done, perhaps by an earlier table, if its sample is there."""
        row, saved = self.rows.get(request.id), self._remembered.get(request.id)
        if row is not None:
            return row.result
        if saved is None or saved.rewards is None or saved.commit is None:
            return None
        return Result(request, saved.rewards, saved.commit.bundle, saved.commit.row)

    def give_up(self, rows: Sequence[Row], reason: str, now: float) -> None:
        """These failed for good."""
        self.persist({row.request.id: SavedRow(given_up=reason) for row in rows})
        for row in rows:
            row.state = RequestState.GIVEN_UP
            row.note(now, f"given up: {reason}")
            self.move(row, None)
            self._close(row)
        self.out.append(RequestsGivenUp(tuple(row.request for row in rows), reason))

    def _close(self, row: Row) -> None:
        """It is neither queued nor leased any more."""
        del self.open[row.request.kind][row.request.id]
        self._gathering.over(row)

    def delivered_by(self, request_ids: Sequence[str], bundle: BundleOffer) -> bool:
        """Whether these are done by that very bundle: it came before."""
        return bool(request_ids) and all(
            self._sample_of(request_id) == bundle.key for request_id in request_ids
        )

    def _sample_of(self, request_id: str) -> str:
        """The key of the bundle with which a request was done; empty if it is not known."""
        row, saved = self.rows.get(request_id), self._remembered.get(request_id)
        if row is not None:
            return row.done_by
        if saved is None or saved.rewards is None or saved.commit is None:
            return ""
        return saved.commit.bundle.key

    def _delete(self, unused: BundleOffer | None) -> None:
        if unused is not None:
            self.out.append(DeleteBundle(unused))
