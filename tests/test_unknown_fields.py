"""What another process or another version of Spotlight has written is taken whole or not at all:
no field is dropped in silence, in a record inside of another either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
import msgspec.inspect as types
import pytest

from benchmarks.staleness.staleness_plan import StalenessPlan
from benchmarks.staleness.staleness_record import StalenessRecord
from spotlight.actors.coordinator.session.session_folder import SavedSession
from spotlight.actors.coordinator.tenant.job_journal import (
    Checkpoint,
    Identity,
    Rewound,
    SavedProgress,
    Trainers,
    TrainingState,
)
from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.handed_keys import WorkerKeys
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.runtime.fork_template import Exited, Forked, ForkRequest, NotForked, Ready
from spotlight.actors.worker.engine import Origin
from spotlight.exports.plan import ExportPlan
from spotlight.jobs import JobSpec, ModelSpec, WorkSpec
from spotlight.jobs.hub_names import HubFile
from spotlight.permissions import Permissions
from spotlight.policies.door.key_book import SavedBook
from spotlight.policies.exploration.reward_spread import Evidence, Population
from spotlight.policies.requests.rows import SavedRow
from spotlight.rewards.schema import ScoreRequest
from spotlight.rewards.serving.settings import ServingSettings
from spotlight.rollouts.http_messages import WantedGroup
from spotlight.running.handed_keys import CoordinatorKeys, NodeKeys
from spotlight.store.mirror import Manifest
from spotlight.store.queued_job import QueuedJob
from spotlight.transport.control import ActorRef, BadInput, Envelope, Message, decode_message

IN_A_JOURNAL = (
    Checkpoint,
    Evidence,
    Identity,
    Population,
    QueuedJob,
    Rewound,
    SavedProgress,
    SavedRow,
    Trainers,
    TrainingState,
    WeightsOffer,
)
IN_FILES = (Manifest, SavedBook, SavedSession, StalenessRecord)
HANDED_OVER = (
    CoordinatorKeys,
    Exited,
    ExportPlan,
    ForkRequest,
    Forked,
    HubFile,
    JobSpec,
    ModelSpec,
    NodeKeys,
    NotForked,
    Origin,
    Permissions,
    Ready,
    ScoreRequest,
    ServingSettings,
    StalenessPlan,
    WantedGroup,
    WorkerKeys,
    WorkSpec,
)
ALL: tuple[type[msgspec.Struct], ...] = (Envelope, *MAY_SAY, *IN_A_JOURNAL, *IN_FILES, *HANDED_OVER)


def parts_of(kinds: Iterable[type]) -> list[type]:
    """All types of records that may be inside of these, and these."""
    found: dict[type, None] = {}

    def look(value: object) -> None:
        if isinstance(value, types.EnumType) or getattr(value, "cls", None) in found:
            return
        if isinstance(value, types.Type) and hasattr(value, "cls"):
            found[value.cls] = None
        if isinstance(value, types.Type | types.Field):
            for name in value.__struct_fields__:
                look(getattr(value, name))
        elif isinstance(value, tuple):
            for each in value:
                look(each)

    look(types.multi_type_info(kinds))
    return sorted(found, key=lambda kind: kind.__name__)


def with_a_strange_field(kind: type[msgspec.Struct]) -> Iterator[Callable[[], object]]:
    """As each format has it, and nothing else."""
    config = kind.__struct_config__
    tag = {config.tag_field: config.tag} if config.tag_field else {}
    strange = {**tag, "no_such_field": 1}
    yield lambda: msgspec.msgpack.decode(msgspec.msgpack.encode(strange), type=kind)
    yield lambda: msgspec.json.decode(msgspec.json.encode(strange), type=kind)
    yield lambda: msgspec.convert(strange, type=kind)


@pytest.mark.parametrize("kind", parts_of(ALL), ids=lambda kind: kind.__name__)
def test_a_field_that_a_record_has_not_is_refused(kind: type[msgspec.Struct]) -> None:
    assert issubclass(kind, msgspec.Struct), "only these can be told to refuse"
    if kind.__struct_config__.array_like:
        assert kind.__struct_config__.forbid_unknown_fields
        return
    for decode in with_a_strange_field(kind):
        with pytest.raises(msgspec.ValidationError, match="unknown field `no_such_field`"):
            decode()


@pytest.mark.parametrize("kind", MAY_SAY, ids=lambda kind: kind.__name__)
def test_a_field_that_a_message_has_not_is_refused_by_name(kind: type[Message]) -> None:
    raw = msgspec.msgpack.encode({"type": kind.__name__, "no_such_field": 1})
    with pytest.raises(BadInput, match=f"a message {kind.__name__} .* `no_such_field`"):
        decode_message(raw)


def test_an_element_too_many_of_a_reference_is_refused() -> None:
    raw = msgspec.msgpack.encode([*msgspec.structs.astuple(ActorRef("tcp://a:1", "a", 1)), 1])
    with pytest.raises(msgspec.ValidationError, match="at most length 3"):
        msgspec.msgpack.decode(raw, type=ActorRef)
