"""Avro of a schema registry: values as the schema says, and hostile ones that take no memory.

The registry is a small HTTP server that answers as Confluent's does: no real one runs here.
"""

from __future__ import annotations

import asyncio
import io
import json
import threading
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer

from odradek_console import avro, show
from tests.console.running import HOSTILE, Running
from tests.support.broker import STEADY, Cluster
from tests.support.clients import QUIET, create_topic
from tests.support.schema_registry import FakeRegistry, serving

pytestmark = pytest.mark.timeout(900)

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": "bytes"},
    ],
}
WIDE = {
    "type": "record",
    "name": "Wide",
    "fields": [{"name": f"f{number}", "type": ["null", "long"]} for number in range(100)],
}
LIST = {
    "type": "record",
    "name": "List",
    "fields": [{"name": "next", "type": ["null", "List"]}],
}


def value(number: int, schema: Any, content: Any) -> bytes:
    """Return bytes as the serializers of registries write them."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), content)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def schema_of(definition: Any) -> avro.ValueSchema:
    return avro.read_answer(1, json.dumps({"schema": json.dumps(definition)}).encode())


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (LIST, "List contains itself"),
        ({"type": "array", "items": "null"}, "what repeats in it takes too few bytes"),
        ({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}, "too few bytes"),
        (
            {"type": "array", "items": {"type": "record", "name": "r", "fields": []}},
            "too few bytes",
        ),
    ],
)
def test_schemas_whose_bytes_bound_nothing_are_not_decoded(schema: Any, said: str) -> None:
    found = schema_of(schema)
    # 2**40 items, without a byte for any.
    bomb = b"\0\0\0\0\1" + b"\x80\x80\x80\x80\x80\x40" + b"\0" * 10
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=said):
            avro.decoded(bomb, found)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_schema_that_doubles_with_each_name_is_not_decoded() -> None:
    inner: Any = "null"
    for number in range(40):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"r{number - 1}"}]
        record = {"type": "record", "name": f"r{number}", "fields": fields[: 2 if number else 1]}
        inner = record
    assert "more than 10000 parts" in schema_of(inner).why


def test_a_name_or_a_mark_of_the_library_hides_no_type_without_bytes() -> None:
    large = {"type": "record", "name": "null", "fields": [{"name": "d", "type": "double"}]}
    fields: list[Any] = [{"name": "a", "type": large}]
    fields.append({"name": "b", "type": {"type": "array", "items": "null"}})
    assert "too few bytes" in schema_of({"type": "record", "name": "r", "fields": fields}).why
    empty = {"Large": {"type": "record", "name": "Large", "fields": []}}
    large["name"], fields[1]["type"]["items"] = "Large", "Large"
    marked = {
        **{"type": "record", "name": "r", "fields": fields},
        **{"__fastavro_parsed": True, "__named_schemas": empty},
    }
    with pytest.raises(ValueError, match="EOFError"):
        avro.decoded(b"\0\0\0\0\1" + bytes(8) + b"\x80\x80\x80\x80\x80\x40", schema_of(marked))


def test_a_schema_that_branches_with_each_name_is_looked_at_once() -> None:
    inner: Any = "int"
    for number in range(40):
        fields: list[Any] = [{"name": "a", "type": {"type": "array", "items": inner}}]
        if number:
            again = {"type": "map", "values": f"r{number - 1}"}
            fields.append({"name": "b", "type": again})
        inner = {"type": "record", "name": f"r{number}", "fields": fields}
    assert not schema_of(inner).why


def test_a_schema_that_is_too_deep_is_not_decoded() -> None:
    # Beside each other in the text, in each other in values.
    chain: list[Any] = [{"type": "record", "name": "r0", "fields": []}]
    for number in range(10_000):
        inner = {"name": "a", "type": {"type": "array", "items": ["null", f"r{number}"]}}
        chain.append({"type": "record", "name": f"r{number + 1}", "fields": [inner]})
    fields = [{"name": f"f{number}", "type": one} for number, one in enumerate(chain)]
    top = {"type": "record", "name": "top", "fields": fields}
    assert "more than 200 types are in each other" in schema_of(top).why


def test_usual_schemas_are_within_the_bounds() -> None:
    for definition in (
        *("string", ["null", "long"], ORDER),
        {"type": "array", "items": ORDER},
        {"type": "map", "values": {"type": "array", "items": "double"}},
        {"type": "enum", "name": "e", "symbols": ["A", "B"]},
        {"type": "array", "items": ["null", WIDE]},
    ):
        assert not schema_of(definition).why, definition


def test_the_largest_value_takes_little_memory_and_text() -> None:
    fields = [{"name": f"f{number}", "type": "null"} for number in range(14)]
    fields.append({"name": "last", "type": "boolean"})
    schema = schema_of(
        {"type": "array", "items": {"type": "record", "name": "r", "fields": fields}}
    )
    count = avro.MOST_BYTES - 4
    body = b"\xf8\xff\x07" + bytes(count) + b"\0"
    tracemalloc.start()
    try:
        shown = show.payload(b"\0\0\0\0\1" + body, schemas={1: schema})
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
    assert (shown.kind, shown.cut, len(shown.text)) == ("avro", True, show.CUT_BYTES)


def test_half_a_pair_of_surrogates_is_shown_as_it_was_written() -> None:
    text = rb'{"a": "\ud800"}'
    schema = avro.read_answer(8, b'{"schema": "{}", "schemaType": "JSON"}')
    for content in (text, b"\0\0\0\0\x08" + text):
        shown = show.payload(content, schemas={8: schema})
        assert (shown.kind, shown.text) == ("json", '{\n  "a": "\\ud800"\n}')
        assert shown.text.encode()


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"[]", b"{}", b'{"schema": 5}', b'{"schema": "{"}', b"\xff"),
        *(b'{"schema": "[]x"}', b'{"schema": "{}"}', b'{"schema": "\\"nothing\\""}'),
        b"[" * 100_000,
    ],
)
def test_a_registry_that_answers_nonsense_is_told(answer: bytes) -> None:
    assert avro.read_answer(1, answer).why


@pytest.mark.parametrize(
    "answer",
    [
        rb'{"schema": "{}", "schemaType": "\ud800"}',
        json.dumps(
            {"schema": r'{"type": "enum", "name": "\ud800", "symbols": ["a", "b"]}'}
        ).encode(),
        json.dumps(
            {
                "schema": r'{"type": "record", "name": "\ud800", "fields": ['
                r'{"name": "a", "type": "\ud800"}]}'
            }
        ).encode(),
    ],
    ids=["kind", "name", "name of a schema that is not safe"],
)
def test_half_a_pair_of_surrogates_in_a_schema_can_be_on_a_page(answer: bytes) -> None:
    found = avro.read_answer(1, answer)
    shown = show.payload(b"\0\0\0\0\1" + b"\2", schemas={1: found})
    assert "\\ud800" in shown.note
    assert shown.note.encode()
    assert shown.kind.encode()


async def test_pages_are_made_while_a_schema_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    began, made = threading.Event(), threading.Event()
    parsed = avro.ValueSchema(7, "AVRO")

    def parse(number: int, body: bytes) -> avro.ValueSchema:
        began.set()
        assert made.wait(60)
        return parsed

    monkeypatch.setattr(avro, "read_answer", parse)
    with serving() as fake:
        fake.schemas[7] = {"schema": "{}"}
        registry = avro.SchemaRegistry(fake.url)

        async def make_page() -> None:
            while not began.is_set():
                await asyncio.sleep(0)
            made.set()

        page = asyncio.create_task(make_page())
        assert await registry.schemas([b"\0\0\0\0\7x"]) == {7: parsed}
        await page
        await registry.close()


def test_bytes_that_are_not_of_their_schema_stay_bytes() -> None:
    schemas = {1: schema_of(ORDER)}
    whole = value(1, ORDER, {"id": 1, "note": None, "at": datetime.now(UTC), "raw": b""})
    for cut in (whole[:-2], whole + b"x", whole[:5] + b"\xff" * 20):
        shown = show.payload(cut, schemas=schemas)
        assert (shown.kind, "not decoded: " in shown.note) == ("registry", True)


@pytest.fixture(scope="module")
def registry() -> Iterator[FakeRegistry]:
    with serving() as running:
        running.schemas[7] = {"schema": json.dumps(ORDER)}
        running.schemas[8] = {"schema": "{}", "schemaType": "JSON"}
        running.schemas[9] = {"schema": "message M {}", "schemaType": "PROTOBUF"}
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 1, STEADY) as running:
        create_topic(running.bootstrap, "orders")
        at = datetime(2026, 1, 31, 12, tzinfo=UTC)
        order = {"id": 4711, "note": HOSTILE, "at": at, "raw": b"\1\2"}
        producer = Producer({"bootstrap.servers": running.bootstrap, **QUIET})
        for content in (
            value(7, ORDER, order),
            b'\0\0\0\0\x08{"a": 1}',
            b"\0\0\0\0\x09proto",
            b"\0\0\0\0\x0amissing",
            b"plain text",
        ):
            producer.produce("orders", content)
        assert producer.flush(300) == 0
        yield running


def test_values_of_a_registry_are_shown_as_what_they_are(
    cluster: Cluster, registry: FakeRegistry, tmp_path: Path
) -> None:
    console = Running(tmp_path, cluster.bootstrap, "--schema-registry", registry.url)
    for _ in range(2):
        page = console.page("/topics/orders/records?from=oldest")
        for text in (
            "value avro, ",
            "schema 7 (shop.Order) of the registry",
            "&#34;id&#34;: 4711",
            "2026-01-31 12:00:00+00:00",
            "&#34;raw&#34;: &#34;01 02&#34;",
            "schema 8 of the registry",
            "schema 9, not decoded: PROTOBUF is not decoded",
            "schema 10, not decoded: the registry has no such schema",
            "plain text",
        ):
            assert text in page
        assert HOSTILE not in page
    # Each schema is asked for once.
    assert registry.asked["/base/schemas/ids/7"] == 1
    assert "shop.Order" in console.page("/topics/orders/records/0/0")
    console.end()


def test_a_registry_that_is_away_is_told_and_records_are_shown(
    cluster: Cluster, tmp_path: Path
) -> None:
    console = Running(tmp_path, cluster.bootstrap, "--schema-registry", "http://127.0.0.1:1")
    page = console.page("/topics/orders/records")
    assert "schema 7, not decoded: the registry does not answer" in page
    assert "plain text" in page
    console.end()
    code, said = Running.mistake(tmp_path, ["--schema-registry", "nowhere"])
    assert (code, said) == (2, "odradek: --schema-registry nowhere is not like http://HOST:PORT\n")


async def test_large_schemas_make_room_for_those_that_were_asked_for_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(avro, "_MOST_KEPT_BYTES", 5_000)
    with serving() as running:
        for number in range(4):
            padded = {**ORDER, "doc": "x" * 2_000}
            running.schemas[number] = {"schema": json.dumps(padded)}
        registry = avro.SchemaRegistry(running.url)
        for number in (0, 1, 2, 3, 3):
            content = b"\0" + number.to_bytes(4) + b"x"
            assert (await registry.schemas([content]))[number].parsed
        await registry.close()
        asked = [running.asked[f"/base/schemas/ids/{number}"] for number in range(4)]
        assert asked == [1, 1, 1, 1]
        assert [*registry._kept] == [2, 3]
