"""A partition at rest has no descriptor, and work for one topic looks at no other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from odradek.config import TopicConfig
from odradek.log.manager import LogManager, NewLog
from odradek.values import TopicPartition
from tests.log.conftest import Make
from tests.support import steps
from tests.support.logs import batch, new_log

pytestmark = pytest.mark.usefixtures("without_fsync")

PARTITIONS = 40
# Bytecodes each second, of each log: those of 20 000 take a twentieth of a processor.
MOST_STEPS_OF_A_ROUND = 220


def open_below(folder: Path) -> list[str]:
    """Return the files of partitions below a folder that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if path.startswith(f"{folder}/") and path.endswith((".log", "index")):
            found.append(path)
    return found


def create(manager: LogManager, topic: str, partitions: int) -> None:
    keys = [TopicPartition(topic, number) for number in range(partitions)]
    assert not manager.make_missing({key: NewLog(TopicConfig()) for key in keys})


def test_partition_that_nobody_uses_has_no_descriptor(make: Make, tmp_path: Path) -> None:
    manager = make()
    create(manager, "t", PARTITIONS)
    assert not open_below(tmp_path)
    manager.close()
    manager = make()
    manager.housekeep()  # retention too
    assert not open_below(tmp_path)
    for log in manager.logs().values():
        log.append_as_leader(batch(b"value"), 0)
    assert len(open_below(tmp_path)) <= PARTITIONS
    manager.close()
    assert not open_below(tmp_path)
    manager = make()
    assert len(manager.logs()) == PARTITIONS
    assert not open_below(tmp_path)


def test_recovery_leaves_no_descriptor_open(make: Make, tmp_path: Path) -> None:
    manager = make()
    create(manager, "t", PARTITIONS)
    for log in manager.logs().values():
        log.append_as_leader(batch(b"value"), 0)
        log.roll()
        log.append_as_leader(batch(b"value"), 0)
    manager.close()
    for folder in "ab":
        (tmp_path / folder / ".kafka_cleanshutdown").unlink()
    manager = make()
    assert {log.log_end_offset for log in manager.logs().values()} == {2}
    assert not open_below(tmp_path)


def test_settings_of_a_topic_are_given_to_its_own_logs_only(make: Make) -> None:
    manager = make()
    kept, changed = TopicConfig(), TopicConfig(max_message_bytes=10)
    log = new_log(manager, "changed", 0, kept)

    def change() -> None:
        manager.update_topic_configs({"changed": changed})

    alone = steps.count(change)
    create(manager, "other", PARTITIONS)
    assert steps.count(change) == alone
    assert log.config is changed
    other = manager.get("other", 0)
    assert other is not None
    assert other.config == kept
    assert not manager.remove([TopicPartition("changed", 0)])
    manager.update_topic_configs({"changed": kept})
    assert log.config is changed, "it is not a log of the broker any more"


def test_round_of_housekeeping_asks_a_log_at_rest_little(make: Make) -> None:
    manager = make()
    create(manager, "t", PARTITIONS)
    manager.housekeep()  # what is due less often, such as retention
    few = steps.count(manager.housekeep)
    create(manager, "t", 2 * PARTITIONS)
    each = (steps.count(manager.housekeep) - few) / PARTITIONS
    assert each < MOST_STEPS_OF_A_ROUND
