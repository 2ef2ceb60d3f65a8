"""The throttle of a Reassignment (KIP-73) in the configuration of topics and brokers. Pure.

Topics list throttled replicas as `partition:broker`, brokers carry the rates. Only this plan's
entries change: those of other partitions stay, and so does a `*`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from odradek_operator.reassignment.decide import ReassignmentPlan
from odradek_operator.reassignment.placement import Replicas

LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")

Config = Mapping[str, str]


def brokers(plan: ReassignmentPlan) -> set[int]:
    """Return the brokers that send or receive."""
    layouts = (*plan.originals.values(), *plan.targets.values())
    return {one for replicas in layouts for one in replicas}


def topic_config(
    plan: ReassignmentPlan, topic: str, have: Config, *, on: bool, back: bool
) -> dict[str, str]:
    """Return a topic's entries with its throttled replicas, or without them.

    Followers are only those that copy: one that is in sync must not be held up by its throttle.
    """
    mine = {one.partition: one for one in plan.targets if one.topic == topic}
    lead: dict[int, Collection[int]] = {}
    follow: dict[int, Collection[int]] = {}
    if on:
        for number, partition in mine.items():
            sources: Replicas = plan.targets[partition] if back else plan.originals[partition]
            lead[number] = sources
            follow[number] = plan.added(partition, back=back)
    changed = dict(have)
    for key, wanted in ((LEADERS, lead), (FOLLOWERS, follow)):
        text = _merge(have.get(key, ""), mine, wanted)
        if text:
            changed[key] = text
        else:
            changed.pop(key, None)
    return changed


def _merge(have: str, mine: Collection[int], wanted: Mapping[int, Collection[int]]) -> str:
    if have.strip() == "*":
        return have
    entries = [one.strip() for one in have.split(",") if one.strip()]
    kept = [one for one in entries if one.partition(":")[0] not in map(str, mine)]
    added = [f"{number}:{one}" for number in sorted(wanted) for one in sorted(wanted[number])]
    return ",".join((*kept, *added))


def broker_config(have: Config, rate: int | None, before: Config) -> dict[str, str]:
    """Return a broker's entries with this rate in bytes a second, or with the rates of before."""
    if rate is None:
        return {**without(have), **before}
    return {**have, **dict.fromkeys(RATES, str(rate))}


def rates(have: Config) -> dict[str, str]:
    """Return the rates that a broker has."""
    return {name: have[name] for name in RATES if have.get(name, "").isdigit()}


def without(have: Config) -> dict[str, str]:
    """Return the entries of a topic or a broker without any throttle."""
    return {name: text for name, text in have.items() if name not in _ALL_KEYS}


_ALL_KEYS: Final = frozenset({LEADERS, FOLLOWERS, *RATES})
