"""How walks are counted, on calls written by hand; `walks` itself traces real processes."""

from __future__ import annotations

from pathlib import Path

from tests.layout import walks
from tests.layout.walks import Call, Walk
from tests.support import revision

CALLS: list[Call] = [
    ("t", None, "odradek.a.one:begin"),
    ("t", "odradek.a.one:begin", "odradek.b:work"),
    ("t", "odradek.b:work", "odradek.a.two:look"),
    ("t", "odradek.a.two:look", "odradek.a.two:leaf"),
    ("t", "odradek.a.one:begin", "odradek.b:work"),
    ("t", "odradek.a.one:begin", "odradek.a.two:end"),
    ("t", "odradek.a.two:end", "kept.elsewhere:leaf"),
]


def test_a_function_is_read_once_and_its_caller_is_come_back_to() -> None:
    found = walks.walk(CALLS, "odradek")
    assert found.steps == (
        "odradek.a.one:begin",
        "odradek.b:work",
        "odradek.a.two:look",
        "odradek.a.one:begin",
        "odradek.a.two:end",
    )
    assert walks.chain(found) == "a.one(begin) > b(work) > a.two(look) > a.one > a.two(end)"


def test_stays_are_counted_by_module_and_by_room() -> None:
    counts = walks.count(walks.walk(CALLS, "odradek"), frozenset({"odradek.a"}))
    assert (counts.stays, counts.modules) == (5, 3)
    assert (counts.room_stays, counts.rooms) == (3, 2)


def test_another_package_is_a_library() -> None:
    assert walks.walk(CALLS, "odradek_operator") == Walk(())


def test_rooms_are_the_folders_right_below_a_package() -> None:
    folders = walks.folders_below(revision.ROOT)
    assert "odradek.replica" in folders
    assert walks.room_of(folders, "odradek.replica.manager:ReplicaManager.close") == (
        "odradek.replica/"
    )
    assert walks.room_of(folders, "odradek.commands:broker") == "odradek.commands"


def test_calls_beside_a_request_are_left_out() -> None:
    request: list[Call] = [
        ("MainThread/connection 1", None, "odradek.handlers.fetch:fetch"),
        ("MainThread/sweep", None, "odradek.net.listener:sweep"),
        ("disk_0", None, "odradek.log.log:verify"),
        ("MainThread/connection 1", None, "odradek.net.connection:answer"),
        ("disk_0", None, "odradek.log.manager:housekeep"),
    ]
    assert walks.of_request(request) == [request[0], request[2], request[3]]


def test_the_document_has_a_place_for_the_walks() -> None:
    text = Path(walks.DOCUMENT).read_text()
    assert walks.BEGIN in text
    assert walks.END in text
