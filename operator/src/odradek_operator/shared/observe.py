"""Reads znodes into the values that the planners work on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, product

from odradek.values import BrokerId
from odradek.zk import znodes
from odradek.zk.payload import ZnodeError
from odradek.zk.znodes import BrokerRegistration, PartitionState, TopicAssignment
from odradek_operator.shared.spec import Body
from odradek_operator.shared.views import Partitions, TopicView
from odradek_operator.shared.zookeeper import ZnodeReader

log = logging.getLogger(__name__)


def brokers(zookeeper: ZnodeReader) -> dict[BrokerId, BrokerRegistration]:
    """Return the registered brokers; one whose registration is unreadable counts as absent.

    Raises ZnodeError if all are.
    """
    registered, unreadable = registrations(zookeeper)
    if unreadable and not registered:
        raise next(iter(unreadable.values()))
    return registered


def registrations(
    zookeeper: ZnodeReader,
) -> tuple[dict[BrokerId, BrokerRegistration], dict[BrokerId, ZnodeError]]:
    """Return the registered brokers, and by id why registrations of others are unreadable."""
    names = zookeeper.children([znodes.BROKER_IDS_PATH])[znodes.BROKER_IDS_PATH] or []
    paths = {znodes.broker_path(one): one for one in znodes.broker_ids(names)}
    found = {path: one.data for path, one in zookeeper.read(paths).items() if one is not None}
    registered, unreadable = znodes.decode_brokers(found)
    for error in unreadable:
        log.warning("passing over the registration of a broker: %s", error)
    # Both in the order in which they were read.
    ids = [paths[path] for path in found if paths[path] not in registered]
    return registered, dict(zip(ids, unreadable, strict=True))


def addresses(
    registered: Mapping[BrokerId, BrokerRegistration], listener: str | None = None
) -> dict[int, str]:
    """Return host:port of each broker that has the listener; None: its first, for clients."""
    return {
        broker_id: f"{_bracket(host)}:{port}"
        for broker_id, (host, port) in endpoints(registered, listener).items()
    }


def endpoints(
    registered: Mapping[BrokerId, BrokerRegistration], listener: str | None = None
) -> dict[int, tuple[str, int]]:
    """Return host and port of each broker that has the listener; None: its first."""
    found: dict[int, tuple[str, int]] = {}
    for broker_id, one in sorted(registered.items()):
        first = one.endpoints[0] if one.endpoints else None
        endpoint = first if listener is None else one.endpoint(listener)
        if endpoint is not None:
            found[broker_id] = (endpoint.host, endpoint.port)
    return found


def nodes(
    cluster: Body, registered: Mapping[BrokerId, BrokerRegistration], listener: str | None
) -> dict[int, str]:
    """Return the node of each broker of a KafkaCluster: the host that it advertises to brokers.

    `listener` is that of brokers; of a broker that lacks it, and for None, the first one counts. Of
    one that is not registered it is the host of a broker beside it, as the cluster's status says.
    """
    found = {**endpoints(registered), **endpoints(registered, listener)}
    hosts = {one: host for one, (host, _) in found.items()}
    listed = cluster.get("status", {}).get("brokers", ())
    names = {one["id"]: one.get("node", one.get("lastNode")) for one in listed}
    by_name = {name: hosts[one] for one, name in names.items() if name and one in hosts}
    away = {one: by_name.get(name, name) for one, name in names.items() if name}
    return away | hosts


def share_nodes(cluster: Body) -> bool:
    """Return whether two brokers of a KafkaCluster are on one node, as its status says.

    They are until the last sets are emptied, although its spec asks for fewer per node.
    """
    listed = cluster.get("status", {}).get("brokers", ())
    found = [node for one in listed if (node := one.get("node", one.get("lastNode")))]
    return len(set(found)) < len(found)


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def controller(zookeeper: ZnodeReader) -> int | None:
    """Return the id of the controller; None while there is none."""
    found = zookeeper.read([znodes.CONTROLLER_PATH])[znodes.CONTROLLER_PATH]
    if found is None:
        return None
    return znodes.decode_controller(znodes.CONTROLLER_PATH, found.data).broker_id


def partitions(zookeeper: ZnodeReader) -> Partitions:
    """Count partitions that lack a leader or a replica in sync, over all topics.

    Of a topic that is being deleted only the holders count: they have to be there to delete it.
    """
    names, deleting = _listed(zookeeper)
    found = zookeeper.read(znodes.topic_path(name) for name in names)
    assigned: dict[str, TopicAssignment] = {}
    unreadable: list[str] = []
    for name in names:
        one = found[znodes.topic_path(name)]
        if one is None:
            continue
        try:
            assigned[name] = _decode_topic(name, one.data)
        except ZnodeError as error:
            unreadable.append(str(error))
    holders = {
        holder
        for topic in assigned.values()
        for replicas in topic.partitions.values()
        for holder in replicas
    }
    for name in deleting:
        assigned.pop(name, None)
    states = _states(zookeeper, assigned)
    under = offline = copying = 0
    widest = max(
        (
            (len(replicas) - len(one.adding.get(number, ())), name)
            for name, one in assigned.items()
            for number, replicas in one.partitions.items()
        ),
        default=(0, ""),
    )
    lagging: set[int] = set()
    lists: set[tuple[BrokerId, ...]] = set()
    swaps: set[frozenset[int]] = set()
    for name, topic in assigned.items():
        for partition, replicas in topic.partitions.items():
            state = states[name].get(partition)
            added, removed = topic.adding.get(partition, ()), topic.removing.get(partition, ())
            lists.add(tuple(one for one in replicas if one not in added) if added else replicas)
            lists.add(tuple(one for one in replicas if one not in removed) if removed else replicas)
            swaps.update(map(frozenset, product(added, removed)))
            # A partition without a state is new: no broker must go before it has its leader, but
            # nothing was lost.
            missing = set(replicas) - set(state.isr if state is not None else ())
            if missing <= set(removed):
                # All that stay are in sync: leaders know of no others, and the znode follows.
                missing = set()
            if state is not None and state.leader < 0:
                offline += 1
                lagging.update(replicas)
            elif state is None or missing:
                lasting_size = len(set(replicas) - set(added))
                is_under = state is None or len(state.isr) < lasting_size
                under += is_under
                copying += not is_under
                lagging |= missing
    # Many partitions have the same replicas.
    lasting = {frozenset(pair) for replicas in lists for pair in combinations(replicas, 2)}
    return Partitions(
        under,
        offline,
        frozenset(holders),
        widest,
        tuple(unreadable),
        frozenset(lagging),
        frozenset(lasting | swaps),
        frozenset(swaps - lasting),
        copying,
    )


# The same znodes are decoded again and again, and many have the same content.
_DECODED = 16384


@lru_cache(_DECODED)
def _decode_state(data: bytes) -> PartitionState:
    return znodes.decode_state("the state of a partition", data)


@lru_cache(_DECODED)
def _decode_topic(name: str, data: bytes) -> TopicAssignment:
    return znodes.decode_topic(znodes.topic_path(name), data)


def _states(
    zookeeper: ZnodeReader, assigned: Mapping[str, TopicAssignment]
) -> dict[str, dict[int, PartitionState]]:
    """Return the readable states; a missing or malformed one means no leader."""
    paths = {
        znodes.state_path(name, partition): (name, partition)
        for name, topic in assigned.items()
        for partition in topic.partitions
    }
    states: dict[str, dict[int, PartitionState]] = {name: {} for name in assigned}
    if not paths:
        return states
    for path, one in zookeeper.read(paths).items():
        if one is None:
            continue
        name, partition = paths[path]
        try:
            states[name][partition] = _decode_state(one.data)
        except ZnodeError:
            continue
    return states


def topics(zookeeper: ZnodeReader, names: Iterable[str]) -> dict[str, TopicView]:
    """Return each of these topics as it is."""
    wanted = list(names)
    parents = (znodes.TOPICS_PATH, znodes.TOPIC_CONFIGS_PATH, znodes.DELETE_TOPICS_PATH)
    listed = zookeeper.children(parents)
    there, configured, deleting = (frozenset(listed[one] or ()) for one in parents)
    paths = [znodes.topic_path(name) for name in wanted if name in there]
    paths += [znodes.topic_config_path(name) for name in wanted if name in configured]
    found = zookeeper.read(paths)
    views: dict[str, TopicView] = {}
    for name in wanted:
        topic = found.get(znodes.topic_path(name))
        config = found.get(path := znodes.topic_config_path(name))
        try:
            views[name] = TopicView(
                assignment=_decode_topic(name, topic.data) if topic else None,
                version=topic.version if topic else -1,
                incarnation=topic.created if topic else None,
                config=znodes.decode_config(path, config.data) if config else None,
                config_version=config.version if config else -1,
                deletion_requested=name in deleting,
            )
        except ZnodeError as error:
            views[name] = TopicView(unreadable=str(error))
    for name in set(wanted) - there:
        if "." in name or "_" in name:
            views[name] = replace(views[name], others=there)
    assigned = {name: one.assignment for name, one in views.items() if one.assignment is not None}
    states = _states(zookeeper, assigned)
    return {
        name: replace(view, states=states[name]) if name in states else view
        for name, view in views.items()
    }


def topic_names(zookeeper: ZnodeReader) -> list[str]:
    """Return the topics, without those that are being deleted."""
    names, deleting = _listed(zookeeper)
    return [name for name in names if name not in deleting]


def _listed(zookeeper: ZnodeReader) -> tuple[list[str], set[str]]:
    """Return all topics, and those that are being deleted."""
    found = zookeeper.children([znodes.TOPICS_PATH, znodes.DELETE_TOPICS_PATH])
    return sorted(found[znodes.TOPICS_PATH] or ()), set(found[znodes.DELETE_TOPICS_PATH] or ())
