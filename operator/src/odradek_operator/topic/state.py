"""What a Topic's plan consists of: steps, status and timing. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from odradek.zk.znodes import TopicAssignment
from odradek_operator.shared.status import Condition, Event

# status.incarnation of a topic that this operator is about to create.
CREATING: Final = 0
STEADY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Write `/config/topics/T` and `/brokers/topics/T` in one transaction."""

    topic: str
    assignment: TopicAssignment
    config: Mapping[str, str]
    config_version: int | None


@dataclass(frozen=True, slots=True)
class GrowTopic:
    """Write `/brokers/topics/T` with more partitions if it still has this version."""

    topic: str
    assignment: TopicAssignment
    version: int


@dataclass(frozen=True, slots=True)
class SetConfig:
    """Write `/config/topics/T` and a notice; `version` None creates the znode."""

    topic: str
    config: Mapping[str, str]
    version: int | None


@dataclass(frozen=True, slots=True)
class RequestDeletion:
    """Create `/admin/delete_topics/T` if `/brokers/topics/T` still has this version."""

    topic: str
    version: int


@dataclass(frozen=True, slots=True)
class OwnMove:
    """A Reassignment that a Topic created: whether it has ended, and how, and its progress."""

    name: str
    finished: bool
    outcome: str
    completed: bool = False


@dataclass(frozen=True, slots=True)
class StartMove:
    """Create a Reassignment, unless another one of this Topic is still running."""

    wanted: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Add or remove the operator's finalizer."""

    present: bool


Step = CreateTopic | GrowTopic | SetConfig | RequestDeletion | StartMove | SetFinalizer


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What to do now. `requeue_after` is in seconds.

    With `status_first` the status is written before the steps, which are executed only if that
    succeeded. `awaits_leaders`: everything is done but the election of leaders.
    """

    steps: tuple[Step, ...] = ()
    conditions: tuple[Condition, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    requeue_after: float = STEADY_SECONDS
    status_first: bool = False
    awaits_leaders: bool = False
