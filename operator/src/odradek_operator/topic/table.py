"""The table in which a Topic's records land: a ConsumerGroup that the Topic owns, and its state.

    spec.table + what exists -> TablePlan: the ConsumerGroup to apply or delete, condition, status

The ConsumerGroup is NAME-table. Its group is named after the table, too, so that another table gets
all records, and one that is taken up again goes on where it was. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from odradek_operator.shared import kube, status
from odradek_operator.shared.objects import MANAGED_BY, Object, belongs_to, digest, metadata
from odradek_operator.shared.spec import API_VERSION, Body, ResourceMeta
from odradek_operator.shared.status import Condition
from odradek_operator.topic.topic_spec import TopicSpec

READY: Final = "TableReady"
SUFFIX: Final = "-table"
_KIND: Final = "ConsumerGroup"
_NO_TOPIC: Final = Condition(
    READY, False, "WaitingForTopic", "the topic is not there yet, or not this resource's"
)
_PAUSED: Final = Condition(READY, False, "Paused", "a change of the table is pending")
_SPEC_HASH: Final = "odradek.io/spec-hash"
# Passed on to the job as they are.
_OF_THE_JOB: Final = (
    "schema",
    "schemaRegistry",
    "startingOffsets",
    "trigger",
    "volume",
    "driver",
    "executors",
    "sparkConf",
)


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What to do now: apply a ConsumerGroup, delete one, or neither.

    `condition` None: the Topic has no table. `fields` is status.table, empty for none.
    """

    apply: Object | None = None
    delete: Body | None = None
    condition: Condition | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Return whether nothing is to be waited for."""
        return self.condition is None or bool(self.condition.status)


class TablePlaces:
    """Topics with a table, by where these are: a Topic looks only at those that it may overlap."""

    def __init__(self, topics: Iterable[Body] = ()) -> None:
        self._topics = tuple(topics)
        self._at: dict[str, list[int]] = {}
        self._below: dict[str, list[int]] = {}
        for number, one in enumerate(self._topics):
            place = _place(one["spec"]["table"])
            self._at.setdefault(place, []).append(number)
            for above in _above(place):
                self._below.setdefault(above, []).append(number)

    def overlapping(self, place: str) -> list[Body]:
        """Return the Topics with a table at a place, above or below it, in their order."""
        numbers = [*self._at.get(place, ()), *self._below.get(place, ())]
        for above in _above(place):
            numbers += self._at.get(above, ())
        return [self._topics[number] for number in sorted(numbers)]


@dataclass(frozen=True, slots=True)
class TableContext:
    """What the tables of a batch share: Topics with a table, and the ConsumerGroups nearby.

    `groups` are those of the Topic's namespace, by name.
    """

    topics: TablePlaces = field(default_factory=TablePlaces)
    groups: Mapping[str, Body] = field(default_factory=dict)


def group_name(topic: str) -> str:
    """Return the name of the ConsumerGroup of a Topic resource."""
    return f"{topic}{SUFFIX}"


def plan(
    meta: ResourceMeta,
    spec: TopicSpec,
    body: Body,
    around: TableContext,
    *,
    exists: bool,
    paused: bool = False,
) -> TablePlan:
    """Plan the table of a Topic.

    `exists` says that the topic does, and is this resource's. Nothing changes while it is `paused`.
    """
    made = _plan(meta, spec, body, around, exists)
    if not paused or (made.apply is None and made.delete is None):
        return made
    waiting = None if made.condition is None else _PAUSED
    return replace(made, apply=None, delete=None, condition=waiting)


def _plan(
    meta: ResourceMeta, spec: TopicSpec, body: Body, around: TableContext, exists: bool
) -> TablePlan:
    found = around.groups.get(group_name(meta.name))
    own = found if found is not None and belongs_to(meta.uid, found) else None
    table = None if meta.deleting else spec.table
    if table is None:
        return TablePlan(delete=own)
    former = body.get("status", {}).get("table", {})
    rival = path_rival(body, table, around.topics)
    if rival is not None:
        text = f"{rival} writes to {table['path']}, or above or below it; give another path"
        return TablePlan(delete=own, condition=Condition(READY, False, "PathInUse", text))
    if found is not None and own is None:
        return TablePlan(condition=taken(meta))
    wanted = consumer_group(meta, spec, table)
    shown = {"format": table["format"], "path": table["path"]}
    if own is None:
        if not exists:
            return TablePlan(condition=_NO_TOPIC)
        return TablePlan(
            apply=wanted, condition=_waiting("the ConsumerGroup is created"), fields=shown
        )
    if own["spec"]["group"] != wanted["spec"]["group"]:
        return TablePlan(
            delete=own, condition=_waiting("the job of the former table ends"), fields=shown
        )
    same = {name: former.get(name) for name in shown} == shown
    return TablePlan(
        # While the topic is not there, its job is left as it is, and says so.
        apply=wanted if exists and kube.differs(wanted, own) else None,
        condition=_condition(own),
        fields={**shown, **_state(own, former if same else {})},
    )


def taken(meta: ResourceMeta) -> Condition:
    """Return the condition of a Topic whose ConsumerGroup's name is somebody else's."""
    text = f"ConsumerGroup {group_name(meta.name)} exists and does not belong to this Topic"
    return Condition(READY, False, "ResourceConflict", text)


def consumer_group(meta: ResourceMeta, spec: TopicSpec, table: Mapping[str, Any]) -> Object:
    """Return the ConsumerGroup whose job lands the topic in its table."""
    sink = {
        "path": table["path"],
        "mergeSchema": True,
        **_only(table, "partitionBy", "optimizeEvery"),
    }
    if not table["path"].startswith("/"):
        sink |= _only(table, "secretRef")
    job = {
        "format": table.get("valueFormat", "json"),
        **_only(table, *_OF_THE_JOB),
        "sink": {table["format"]: sink},
        # Named even where it is false, so that it is taken back.
        "suspend": table.get("suspend", False),
    }
    url = table.get("checkpoint", {}).get("url")
    if url is None and "volume" not in table:
        url = f"{table['path'].rstrip('/')}/_checkpoints"
    if url is not None:
        job["checkpoint"] = {"url": url, **_only(table, "secretRef")}
    name = group_name(meta.name)
    wanted = {
        "clusterRef": {"name": spec.cluster},
        "group": f"{name}-{digest([table['format'], _place(table)])[:8]}",
        "topics": [spec.topic],
        "job": job,
    }
    about = metadata(meta, name, {"app.kubernetes.io/managed-by": MANAGED_BY})
    # Without it nobody would see that a field is to be removed.
    about["annotations"] = {_SPEC_HASH: digest(wanted)}
    return {"apiVersion": API_VERSION, "kind": _KIND, "metadata": about, "spec": wanted}


def path_rival(body: Body, table: Mapping[str, Any], topics: TablePlaces) -> str | None:
    """Return another Topic with the same table, or one above or below it, that goes first.

    The one that has the table already goes first, and then the older one. Paths on volumes are
    different places, because each job has a claim of its own.
    """
    if table["path"].startswith("/"):
        return None
    mine = _precedence(body)
    for other in topics.overlapping(_place(table)):
        meta = other["metadata"]
        if meta["uid"] == body["metadata"]["uid"] or "deletionTimestamp" in meta:
            continue
        if _precedence(other) < mine:
            return f"Topic {meta['namespace']}/{meta['name']}"
    return None


def _precedence(body: Body) -> tuple[bool, str, str]:
    had = body.get("status", {}).get("table", {}).get("path")
    meta = body["metadata"]
    return had != body["spec"]["table"]["path"], meta["creationTimestamp"], meta["uid"]


def _place(table: Mapping[str, Any]) -> str:
    """Return the path as one that is written in one way only."""
    scheme, separator, rest = table["path"].rpartition("://")
    return f"{scheme}{separator}{'/'.join(part for part in rest.split('/') if part)}"


def _above(place: str) -> list[str]:
    return [place[:at] for at, character in enumerate(place) if character == "/"]


def _condition(group: Body) -> Condition:
    """Return whether the table's job is as wanted, and the reason that its ConsumerGroup has."""
    told = group.get("status", {})
    ready = status.condition_of(told, "Ready")
    if ready is None or told.get("observedGeneration") != group["metadata"].get("generation"):
        return _waiting("the ConsumerGroup has not been looked at yet")
    suspended = ready["reason"] == "Suspended"
    text = ready.get("message", "")
    return Condition(READY, ready["status"] == "True" and not suspended, ready["reason"], text)


def rejected(text: str) -> Condition:
    """Return the condition of a table whose ConsumerGroup the API server rejects."""
    return Condition(READY, False, "TableRejected", text)


def _waiting(text: str) -> Condition:
    return Condition(READY, False, "Pending", text)


def _state(group: Body, former: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the table; rows and last commit are facts that remain."""
    told = group.get("status", {})
    job = told.get("job", {})
    state = {
        "consumerGroup": group["metadata"]["name"],
        "rows": job.get("tableRows", former.get("rows")),
        "totalLag": told.get("totalLag"),
        "lastCommit": job.get("lastCommitTime", former.get("lastCommit")),
    }
    return {name: value for name, value in state.items() if value is not None}


def _only(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: table[name] for name in names if name in table}
