"""Decisions, filters and znodes of ACLs against Apache Kafka's own classes, in one JVM."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import pytest

from odradek.security import acl_znodes
from odradek.security.acls import (
    AclEntry,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.security.decisions import Acls, plain_host
from odradek.values import Principal
from tests.support import jvm, kafka_peer
from tests.support.sampling import how_many

PROGRAM: Final = Path(__file__).parents[1] / "support" / "AclJudge.java"
ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
PRINCIPALS = [ALICE, ALICE, ALICE, BOB, Principal("Team", "alice")]
WRITTEN_PRINCIPALS = [*PRINCIPALS, Principal("User", "*"), Principal("User", "CN=a,O=b:c")]
HOSTS = ["10.0.0.1", "10.0.0.2", "::1", "::ffff:10.0.0.1"]
WRITTEN_HOSTS = ["*", "*", "*", "10.0.0.1", "10.0.0.2", "0:0:0:0:0:0:0:1"]
NAMES = ["a", "ab", "abc", "b", "grün"]
WRITTEN_NAMES = [*NAMES, "*"]
TYPES: Sequence[ResourceType] = acl_znodes.RESOURCE_TYPES
OPERATIONS = [one for one in AclOperation if one > AclOperation.ALL]
IMPLIED = [AclOperation.DESCRIBE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS]
PERMISSIONS = [PermissionType.ALLOW] * 5 + [PermissionType.DENY]
ASKED_PER_TABLE = 40

Number = TypeVar("Number", bound=IntEnum)


class Judge:
    """Collects questions for Apache Kafka, with our answers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ours: list[str] = []

    def tell(self, *words: object) -> None:
        """Add a line without an answer."""
        self.lines.append("\t".join(_word(one) for one in words))

    def ask(self, ours: object, *words: object) -> None:
        """Add a line, and what we say to it."""
        self.tell(*words)
        self.ours.append(_word(ours))

    def differences(self) -> list[tuple[str, str, str]]:
        """Return the questions to which Kafka has another answer: question, ours, Kafka's."""
        classpath = kafka_peer.classpath()
        classes = jvm.compiled(PROGRAM, classpath)
        done = subprocess.run(
            [*kafka_peer.JAVA, "-Xmx256m", "-cp", f"{classes}:{classpath}", PROGRAM.stem],
            input="\n".join(self.lines),
            capture_output=True,
            text=True,
            timeout=kafka_peer.LIMIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        theirs = done.stdout.splitlines()
        asked = [line for line in self.lines if not line.startswith(("new", "acls"))]
        return [one for one in zip(asked, self.ours, theirs, strict=True) if one[1] != one[2]]


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, IntEnum):
        return value.name
    return "-" if value is None else str(value)


def _entries(random: Random, number: int, *, few: bool = False) -> tuple[AclEntry, ...]:
    """Draw entries; with `few`, about one thing only, allowed here and denied there."""
    if few:
        return tuple(
            AclEntry(
                Principal("User", "*"), random.choice(list(PermissionType)[1:]), AclOperation.WRITE
            )
            for _ in range(min(number, 1))
        )
    drawn = (
        AclEntry(
            random.choice(WRITTEN_PRINCIPALS),
            random.choice(PERMISSIONS),
            random.choice([AclOperation.ALL, *OPERATIONS, AclOperation.DELETE, AclOperation.ALTER]),
            random.choice(WRITTEN_HOSTS),
        )
        for _ in range(number)
    )
    return tuple(dict.fromkeys(drawn))


def _table(judge: Judge, random: Random) -> tuple[Acls, list[ResourceType]]:
    """Draw ACLs, and tell them to both; return ours, and the types that they are about."""
    allow_if_none = random.random() < 0.3
    ours = Acls(allow_if_none)
    judge.tell("new", allow_if_none)
    types: list[ResourceType] = random.sample(TYPES, 2)
    few = random.random() < 0.3
    for _ in range(random.choice((2, 4, 8, 16))):
        pattern = ResourcePattern(
            random.choice(types),
            random.choice(WRITTEN_NAMES),
            random.choice(acl_znodes.PATTERN_TYPES),
        )
        entries = _entries(random, random.choice((0, 1, 2, 5)), few=few)
        data = acl_znodes.encode_acls(entries)
        ours.set(pattern, acl_znodes.decode_acls("/acl", data))
        judge.tell("acls", pattern.resource_type, pattern.pattern_type, pattern.name, data.decode())
    return ours, types


def _any_of(random: Random, numbers: Sequence[Number], anything: Number) -> Number:
    return random.choice([anything, anything, *numbers])


def _ask(judge: Judge, random: Random, ours: Acls, types: list[ResourceType]) -> None:
    who, host = random.choice(PRINCIPALS), random.choice(HOSTS)
    operation = random.choice([*OPERATIONS, *IMPLIED * 3, *[AclOperation.WRITE] * 5])
    kind = random.choice([*types, *types, random.choice(TYPES)])
    name = random.choice(NAMES)
    sort = random.random()
    if sort < 0.6:
        allowed = ours.allow(who, plain_host(host), operation, kind, name)
        judge.ask(allowed, "may", who, host, operation, kind, name)
    elif sort < 0.85 and kind not in (ResourceType.CLUSTER, ResourceType.DELEGATION_TOKEN):
        allowed = ours.allow_anywhere(who, plain_host(host), operation, kind)
        judge.ask(allowed, "any", who, host, operation, kind)
    else:
        wanted = AclFilter(
            _any_of(random, TYPES, ResourceType.ANY),
            random.choice([None, *WRITTEN_NAMES]),
            random.choice(list(PatternType)),
            random.choice([None, None, *map(str, WRITTEN_PRINCIPALS)]),
            random.choice([None, None, *WRITTEN_HOSTS]),
            _any_of(random, list(AclOperation), AclOperation.ANY),
            _any_of(random, PERMISSIONS, PermissionType.ANY),
        )
        found = sum(1 for _ in ours.find(wanted))
        judge.ask(found, "find", *wanted)


@pytest.mark.parametrize("seed", [1])
def test_decisions_and_filters_are_those_of_kafka(seed: int) -> None:
    random = Random(seed)
    judge = Judge()
    for _ in range(how_many(40, full=350)):
        ours, types = _table(judge, random)
        for _ in range(ASKED_PER_TABLE):
            _ask(judge, random, ours, types)
    # Entries of a set of more than four have no order that one could foresee.
    for _ in range(40):
        pattern = ResourcePattern(
            random.choice(TYPES),
            random.choice(WRITTEN_NAMES),
            random.choice(acl_znodes.PATTERN_TYPES),
        )
        data = acl_znodes.encode_acls(_entries(random, random.randint(1, 4)))
        notice = acl_znodes.change_notice(pattern)
        ours_written = (acl_znodes.acl_path(pattern), data.decode(), notice.path)
        judge.ask(
            "\t".join((*ours_written, notice.data.decode())),
            *("write", pattern.resource_type, pattern.pattern_type, pattern.name, data.decode()),
        )
    counts = Counter(judge.ours)
    decisions = counts["true"] + counts["false"]
    assert decisions >= how_many(1000, full=10_000)
    assert min(counts["true"], counts["false"]) > 0.2 * decisions
    assert not judge.differences()
