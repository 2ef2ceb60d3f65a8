"""Settings that running brokers take without a restart, by `/config/brokers/<default>`.

A broker also has them in its properties file, which it uses until its first contact with ZooKeeper.
If a setting leaves the spec, removing it from the znode would make brokers fall back to that file,
so it is set to its default. The status remembers the names that the spec once had; entries of
others in the znode stay.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from odradek import properties
from odradek.dynamic_config import CLUSTER_DEFAULT, DYNAMIC_KEYS
from odradek.topic_config import TopicConfig
from odradek.zk import admin, znodes
from odradek.zk.operations import TransactionFailedError
from odradek_operator.shared import apply, status_update, zookeeper_login
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.cluster_spec import ClusterSpec, read_config
from odradek_operator.shared.spec import Body
from odradek_operator.shared.status import Event
from odradek_operator.shared.zookeeper import RefusedError, UnreachableError, ZnodeReader

REMEMBERED = "dynamicConfig"

_TOPIC_DEFAULTS = {
    declared.inherits: getattr(TopicConfig(), field)
    for field, declared in properties.keys_of(TopicConfig)
}

log = logging.getLogger(__name__)


def names(body: Body, wanted: ClusterSpec) -> list[str]:
    """Return the names that the spec has, or once had."""
    remembered = body.get("status", {}).get(REMEMBERED, ())
    return sorted({*wanted.dynamic, *remembered} & DYNAMIC_KEYS.keys())


def entries(wanted: ClusterSpec, chosen: Collection[str]) -> dict[str, str]:
    """Return the values of the chosen settings: as in the spec, or their defaults.

    Brokers have no default of their own for some (log.flush.interval.ms); topics then have one.
    """
    static = {name: text for name, text in wanted.config.items() if name not in wanted.dynamic}
    settings = read_config(static, wanted.zookeeper)
    fields = {name: DYNAMIC_KEYS[name][0] for name in chosen}
    defaults = {name: getattr(settings, field) for name, field in fields.items()}
    known = {
        name: _text(_TOPIC_DEFAULTS[fields[name]] if value is None else value)
        for name, value in defaults.items()
    }
    return known | {name: text for name, text in wanted.dynamic.items() if name in chosen}


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def reconcile(
    context: ReconcileContext, body: Body, wanted: ClusterSpec
) -> tuple[Body, tuple[Event, ...]] | None:
    """Apply the settings and return the resource as it is then; None: requeue.

    While ZooKeeper is unreachable, or before the first broker has started, nothing is done. Raises
    RefusedError.
    """
    chosen = names(body, wanted)
    try:
        zookeeper = zookeeper_login.connected(context, body, wanted)
        found = _read(zookeeper.cached)
        if found is None:
            return body, ()
        have, version = found
        others = {name: text for name, text in have.items() if name not in chosen}
        target = {**others, **entries(wanted, chosen)}
        if target == have:
            return body, ()
        if not apply.still_wanted(context, body):
            return None
        # The status names them before the znode has them, so that none is left behind.
        body = status_update.write_status(context, body, (), {REMEMBERED: chosen})
        zookeeper.commit(admin.change_config("brokers", CLUSTER_DEFAULT, target, version))
    except RefusedError:
        raise
    except UnreachableError as error:
        log.info("%s", error)
        return body, ()
    except TransactionFailedError as error:
        log.info("%s: failed to commit: %s; retrying", body["metadata"]["name"], error)
        return None
    changed = [name for name in chosen if have.get(name) != target.get(name)]
    return body, (Event("BrokersConfigured", f"applied without a restart: {', '.join(changed)}"),)


def _read(reader: ZnodeReader) -> tuple[dict[str, str], int | None] | None:
    """Return the entries and their znode's version; None where brokers have no settings yet."""
    path = znodes.broker_config_path(CLUSTER_DEFAULT)
    names = reader.children([znodes.BROKER_CONFIGS_PATH])[znodes.BROKER_CONFIGS_PATH]
    if names is None:
        return None
    found = reader.read([path])[path] if CLUSTER_DEFAULT in names else None
    return ({}, None) if found is None else (znodes.decode_config(path, found.data), found.version)
