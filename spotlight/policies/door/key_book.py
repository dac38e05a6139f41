"""Whose keys the coordinator knows, and as what: those of join tokens, nodes and their workers.

Pure: every event says what time it is (`now`, seconds of the coordinator's wall clock); the clocks
of others are of no meaning. Whoever keeps the book `take_changed`s after each event, to learn which
keys may mean something else from then on. A clock that jumps back undoes nothing that somebody
decided: who was revoked stays so whatever the time.

Invariants: a key is one's alone; a name is one node's alone, and for ever that of a revoked one; no
node has the id of a token as its name, for both are shown out by name; each key that is let in as
that of a node has used up one use of its token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from spotlight.timings import DoorTimings
from spotlight.types import HIGHEST_PRIORITY, Pool, Role, TokenRole

MOST_WORKERS = 4096
"""Keys of workers that a node may vouch for."""
_TIME_ENDS = 253_402_300_799.0
"""The last second that can be written as a date."""


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A join token, without its secret."""

    id: str
    key: str
    """The public one of the pair that is derived from it."""
    role: TokenRole
    pool: Pool | None
    """The pool of nodes that join by it; None for users."""
    uses: int
    """How many nodes may join by it."""
    expires_at: float | None
    """Wall clock; None for never."""
    used: int = 0
    revoked_at: float | None = None
    priority: int = 0
    """The highest one that a submitter may give to its jobs. Tokens for others say 0."""


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node that was let in."""

    name: str
    key: str
    pool: Pool
    token: str
    """The id of the token by which it came; empty if an operator enrolled it."""
    last_seen: float
    workers: tuple[str, ...] = ()
    """Keys that it vouched for."""
    revoked_at: float | None = None


class SavedBook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is kept when the coordinator ends."""

    tokens: tuple[Token, ...] = ()
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Passport:
    """What the holder of a key is."""

    name: str
    """The name of the node, for a worker that of its node; or the id of the token."""
    role: Role
    pool: Pool | None
    token: str
    """The id of the token by which it came; empty if it needed none."""


@dataclass(frozen=True)
class Refusal:
    """Nothing was changed, and why: one line that says what to do."""

    reason: str
    soon: bool = False
    """Whether the same may be granted in a few minutes."""
    is_expected: bool = False
    """Whether it is, unless the node comes that is expected under the name."""
    token_ended: bool = False
    """Whether the token of whoever asks is used up, expired or revoked."""


@dataclass(frozen=True)
class Revocation:
    """A token or a node is let in no more."""

    tokens: tuple[str, ...]
    """Tokens by which the node could come under another name."""
    nodes: tuple[str, ...]
    """Nodes that came by the token, and stay."""


class KeyBook:
    """See the module's docstring.

    Args:
        own_key: the coordinator's, which is nobody else's.
        saved: what an earlier coordinator knew. Raises `ValueError` if it contradicts itself.
        now: when this one begins: nodes have a while to come back to their names.
    """

    def __init__(
        self,
        own_key: str,
        timings: DoorTimings = DoorTimings(),
        *,
        saved: SavedBook = SavedBook(),
        now: float = 0.0,
    ) -> None:
        self._own_key = own_key
        self._times = timings
        self._tokens: dict[str, Token] = {}
        self._nodes: dict[str, Node] = {}
        self._token_of: dict[str, str] = {}
        """Ids of tokens, by their keys."""
        self._node_of: dict[str, str] = {}
        """Names of nodes, by their keys and those of their workers."""
        self._there: set[str] = set()
        """Names of nodes that have reported, and were not found gone since."""
        self._held_since: dict[str, float] = {}
        """Names of nodes that are expected, and since when."""
        self._users_ended: set[str] = set()
        """Ids of users' tokens that had ended when this was looked at last."""
        self._changed: dict[str, None] = {}
        for token in saved.tokens:
            self.add_token(token)
        for node in saved.nodes:
            self._add_node(node)
            if node.revoked_at is None:
                self._held_since[node.name] = now
        self.sweep(now)

    def saved(self, now: float) -> SavedBook:
        """What the next coordinator has to know."""
        nodes = (
            msgspec.structs.replace(node, last_seen=now) if node.name in self._there else node
            for node in self._nodes.values()
        )
        return SavedBook(tuple(self._tokens.values()), tuple(nodes))

    # --- questions ---

    @property
    def tokens(self) -> tuple[Token, ...]:
        """All that are known, the oldest first."""
        return tuple(self._tokens.values())

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All that are known, by name."""
        return tuple(self._nodes[name] for name in sorted(self._nodes))

    def is_there(self, name: str) -> bool:
        """Whether a node of that name has reported, and was not found gone since."""
        return name in self._there

    def passport(self, key: str, now: float) -> Passport | None:
        """What the holder of a key is; None if it is nobody, or revoked as a node. Whoever has a
        token that has ended is a joiner, who is told so."""
        if (token_id := self._token_of.get(key)) is not None:
            token = self._tokens[token_id]
            is_user = token.role != "node" and not end_of(token, now)
            role: Role = token.role if is_user else "joiner"
            return Passport(token.id, role, token.pool, token.id)
        node = self._nodes.get(self._node_of.get(key, ""))
        if node is None or node.revoked_at is not None:
            return None
        if key == node.key:
            return Passport(node.name, "node", node.pool, node.token)
        worker: Role = "trainer" if node.pool == "reserved" else "worker"
        return Passport(node.name, worker, node.pool, node.token)

    def highest_priority(self, key: str, now: float) -> int:
        """The highest priority that the holder of a key may give to a job: any for operators, that
        of its token for a submitter, and 0 for all who may submit nothing."""
        passport = self.passport(key, now)
        if passport is None:
            return 0
        if passport.role == "operator":
            return HIGHEST_PRIORITY
        return self._tokens[passport.token].priority if passport.role == "submitter" else 0

    def take_changed(self) -> tuple[str, ...]:
        """The keys that may mean something else since this was asked last."""
        changed = tuple(self._changed)
        self._changed.clear()
        return changed

    # --- events ---

    def add_token(self, token: Token) -> None:
        """A token was made. Raises `ValueError` if its id or key is somebody's already."""
        if token.id in self._tokens:
            raise ValueError(f"there are two tokens `{token.id}`")
        if (token.role == "node") != (token.pool is not None):
            raise ValueError(f"the token `{token.id}` has a pool if, and only if, it is for nodes")
        if token.priority and token.role != "submitter":
            raise ValueError(f"the token `{token.id}` has a priority, and is not for a submitter")
        self._require_free(token.key)
        self._tokens[token.id] = token
        self._token_of[token.key] = token.id
        self._changed[token.key] = None

    def admit(self, name: str, key: str, pool: Pool, now: float, *, token: str = "") -> None:
        """A node is let in that nobody has refused. Raises `ValueError` if its name or key is
        somebody's already."""
        self._add_node(Node(name, key, pool, token, now))
        self._held_since[name] = now

    def enroll(self, by: str, name: str, key: str, pool: Pool | None, now: float) -> Pool | Refusal:
        """Whoever has the key `by` wants the node `name` with a fresh `key` to be let in; returns
        in which pool it is. The same again uses up nothing."""
        self.sweep(now)
        passport = self.passport(by, now)
        if passport is None or passport.role not in ("joiner", "operator"):
            return Refusal("whoever has this key lets no node in; join with a token for nodes")
        known = self._nodes.get(name)
        if known is not None and known.revoked_at is not None:  # whatever became of its token
            return Refusal(
                f"the node `{name}` was revoked {_on(known.revoked_at)}, and no node of that name"
                " is let in again; give this one another --name if it may come"
            )
        if known is not None and known.key == key:
            if pool is None or pool == known.pool:
                return known.pool
            return Refusal(f"the node `{name}` is in the pool {known.pool}, and not in {pool}")
        token = self._tokens[passport.token]
        if passport.role == "operator":
            if pool is None:
                return Refusal(f"`{name}`: say in which pool it is to be, reserved or spot")
            came_by, wanted = "", pool
        elif refusal := _refusal_of(token, name, pool, now):
            return refusal
        else:
            came_by, wanted = token.id, token.pool or "spot"
        if refusal := self._conflict(name, key, known, wanted, now):
            return refusal
        if came_by:
            self._tokens[token.id] = msgspec.structs.replace(token, used=token.used + 1)
        if known is not None:
            self._forget(known)
        self.admit(name, key, wanted, now, token=came_by)
        return wanted

    def report(self, key: str, workers: Iterable[str], now: float) -> Refusal | None:
        """The node with that key is there, and vouches for these keys of its workers. Those that
        it has vouched for stay its own, since each new process of a worker bears the same."""
        node = self._nodes.get(self._node_of.get(key, ""))
        if node is None or node.key != key or node.revoked_at is not None:
            return Refusal("this key is that of no node that may come in")
        known = {key, *node.workers}
        new = tuple(dict.fromkeys(each for each in workers if each not in known))
        for each in new:
            if owner := self._owner(each):
                return Refusal(
                    f"the node `{node.name}` has a worker whose key is {owner}; restart the node"
                )
        if len(node.workers) + len(new) > MOST_WORKERS:
            return Refusal(
                f"the node `{node.name}` has had more than {MOST_WORKERS:,} workers; restart it"
            )
        self._there.add(node.name)
        self._held_since.pop(node.name, None)
        self._nodes[node.name] = msgspec.structs.replace(
            node, last_seen=now, workers=node.workers + new
        )
        for each in new:
            self._node_of[each] = node.name
            self._changed[each] = None
        return None

    def gone(self, key: str, now: float) -> None:
        """No process with that key is there any more. Of a node: its name may be another's."""
        node = self._nodes.get(self._node_of.get(key, ""))
        if node is not None and node.key == key and node.name in self._there:
            self._there.discard(node.name)
            self._nodes[node.name] = msgspec.structs.replace(node, last_seen=now)

    def revoke(self, name: str, now: float) -> Revocation | None:
        """Let the node, or the token, of that name in no more; None if there is none. Again it
        changes nothing."""
        token, node = self._tokens.get(name), self._nodes.get(name)
        if token is not None:
            self._changed[token.key] = None
            if token.revoked_at is None:
                self._tokens[name] = msgspec.structs.replace(token, revoked_at=now)
        if node is not None:
            self._changed |= dict.fromkeys((node.key, *node.workers))
            if node.revoked_at is None:
                self._nodes[name] = msgspec.structs.replace(node, revoked_at=now)
            self._there.discard(name)
            self._held_since.pop(name, None)
        if token is None and node is None:
            return None
        came_by = self._tokens.get(node.token) if node is not None else None
        stay = (each for each in self.nodes if token is not None and each.token == token.id)
        return Revocation(
            () if came_by is None or end_of(came_by, now) else (came_by.id,),
            tuple(each.name for each in stay if each.revoked_at is None),
        )

    def sweep(self, now: float) -> None:
        """Time has passed, or jumped: forget nodes that were not seen for long, and tokens that
        ended long ago; users whose tokens have expired are none."""
        self._held_since = {
            name: min(since, now)  # a clock that jumped back holds no name for longer
            for name, since in self._held_since.items()
            if now - since < self._times.name_held_s
        }
        for node in self.nodes:
            if node.revoked_at is not None or node.name in self._there:
                continue
            if node.last_seen > now:
                self._nodes[node.name] = msgspec.structs.replace(node, last_seen=now)
            elif now - node.last_seen >= self._times.node_key_s:
                self._forget(node)
        for token in self.tokens:
            ends = [at for at in (token.expires_at, token.revoked_at) if at is not None]
            if ends and now - min(ends) >= self._times.remembered_s:
                del self._tokens[token.id], self._token_of[token.key]
                self._changed[token.key] = None
        users = [token for token in self.tokens if token.role != "node"]
        ended = {token.id for token in users if end_of(token, now)}
        for token in users:
            if token.id in ended ^ self._users_ended:
                self._changed[token.key] = None
        self._users_ended = ended

    # --- inside ---

    def _add_node(self, node: Node) -> None:
        if node.name in self._nodes:
            raise ValueError(f"there are two nodes `{node.name}`")
        for key in (node.key, *node.workers):
            self._require_free(key)
            self._node_of[key] = node.name
            self._changed[key] = None
        self._nodes[node.name] = node

    def _forget(self, node: Node) -> None:
        del self._nodes[node.name]
        self._there.discard(node.name)
        self._held_since.pop(node.name, None)
        for key in (node.key, *node.workers):
            del self._node_of[key]
            self._changed[key] = None

    def _require_free(self, key: str) -> None:
        if owner := self._owner(key):
            raise ValueError(f"the key `{key}` is {owner} as well")

    def _owner(self, key: str) -> str:
        """Whose a key is, in words; empty if it may be anybody's."""
        if not key:
            return "missing"
        if key == self._own_key:
            return "that of the coordinator"
        if key in self._token_of:
            return f"that of the join token `{self._token_of[key]}`"
        if key in self._node_of:
            return f"that of the node `{self._node_of[key]}` or of its workers"
        return ""

    def _conflict(
        self, name: str, key: str, known: Node | None, wanted: Pool, now: float
    ) -> Refusal | None:
        """Why a node cannot have that name, or that key."""
        if owner := self._owner(key):
            return Refusal(f"the key of the node `{name}` is {owner}; give it one of its own")
        if name in self._tokens:
            return Refusal(f"`{name}` is the id of a join token; give this node another --name")
        if known is None:
            return None
        if known.pool != wanted:
            return Refusal(
                f"a node `{name}` of the pool {known.pool} is known; give this one, which is to be"
                f" in the pool {wanted}, another --name"
            )
        if name in self._there:
            return Refusal(
                f"a node `{name}` is there; give this one another --name, or stop the other",
                soon=True,
            )
        if name in self._held_since:
            until = _day(self._held_since[name] + self._times.name_held_s)
            return Refusal(
                f"a node `{name}` is known and may yet come: unless it does, the name is free at"
                f" {until:%H:%M:%S} UTC; wait until then, or give this one another --name",
                soon=True,
                is_expected=True,
            )
        return None


def _refusal_of(token: Token, name: str, pool: Pool | None, now: float) -> Refusal | None:
    """Why a node of that pool cannot join by a token."""
    if end := end_of(token, now):
        said = f"the join token `{token.id}` {end}; {_ask_for(token.role, token.pool)}"
        return Refusal(said, token_ended=True)
    if pool is not None and pool != token.pool:
        return Refusal(
            f"the join token `{token.id}` is for the pool {token.pool}, and the node `{name}` wants"
            f" to be in {pool}: change its --pool, or {_ask_for('node', pool)}"
        )
    return None


def end_of(token: Token, now: float) -> str:
    """How a token has ended; empty if it has not."""
    if token.revoked_at is not None:
        return f"was revoked {_on(token.revoked_at)}"
    if token.expires_at is not None and now >= token.expires_at:
        return f"expired {_on(token.expires_at)}"
    if token.role == "node" and token.used >= token.uses:
        nodes = "node has" if token.uses == 1 else "nodes have"
        return f"is used up, as {token.uses:,} {nodes} joined by it"
    return ""


def _ask_for(role: TokenRole, pool: Pool | None) -> str:
    options = f"--role {role}" if pool is None else f"--role {role} --pool {pool}"
    return f"ask whoever runs the coordinator for another: `spotlight token new {options}`"


def _on(wall: float) -> str:
    day = _day(wall)
    return f"on {day:%Y-%m-%d} at {day:%H:%M} UTC"


def _day(wall: float) -> datetime:
    return datetime.fromtimestamp(min(max(wall, 0.0), _TIME_ENDS), UTC)
