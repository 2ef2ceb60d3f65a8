"""Whom a quota is for, and which of several counts."""

import pytest

from odradek.quotas import entities
from odradek.quotas.entities import (
    DEFAULT,
    QuotaEntity,
    QuotaKey,
    Share,
    desanitize,
    find,
    of_path,
    parse_limits,
    sanitize,
)

# The most specific first, with who shares the limit (Kafka's ClientQuotaManager).
PRECEDENCE = [
    (QuotaEntity("u", "c"), Share("u", "c")),
    (QuotaEntity("u", DEFAULT), Share("u", "c")),
    (QuotaEntity("u"), Share("u", None)),
    (QuotaEntity(DEFAULT, "c"), Share("u", "c")),
    (QuotaEntity(DEFAULT, DEFAULT), Share("u", "c")),
    (QuotaEntity(DEFAULT), Share("u", None)),
    (QuotaEntity(client_id="c"), Share(None, "c")),
    (QuotaEntity(client_id=DEFAULT), Share(None, "c")),
]
OF_OTHERS = {
    QuotaEntity("v", "c"): 1.0,
    QuotaEntity("u", "d"): 1.0,
    QuotaEntity("v"): 1.0,
    QuotaEntity(client_id="d"): 1.0,
    QuotaEntity(DEFAULT, "d"): 1.0,
}


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_most_specific_quota_counts(first: int) -> None:
    limits = {entity: 10.0 + place for place, (entity, _) in enumerate(PRECEDENCE)}
    for entity, _ in PRECEDENCE[:first]:
        del limits[entity]
    assert find({**OF_OTHERS, **limits}, "u", "c") == (PRECEDENCE[first][1], 10.0 + first)


def test_quotas_of_others_do_not_count() -> None:
    assert find(OF_OTHERS, "u", "c") is None


@pytest.mark.parametrize(
    ("name", "sanitized"),
    [
        ("CN=a,O=b/c", "CN%3Da%2CO%3Db%2Fc"),
        ("a b*~+%", "a%20b%2A%7E%2B%25"),
        ("Az09.-_", "Az09.-_"),
        ("ä", "%C3%A4"),
        ("<default>", "%3Cdefault%3E"),
        ("", ""),
    ],
)
def test_names_are_sanitized_as_kafka_does(name: str, sanitized: str) -> None:
    assert sanitize(name) == sanitized
    assert desanitize(sanitized) == name


@pytest.mark.parametrize("entity", [entity for entity, _ in PRECEDENCE])
def test_path_names_the_entity(entity: QuotaEntity) -> None:
    assert of_path(entity.entity_type, entity.name) == entity


@pytest.mark.parametrize(
    ("entity_type", "name"),
    [
        ("topics", "t"),
        ("clients", "a/b"),
        ("users", "u/clients"),
        ("users", "u/clients/"),
        ("users", "/clients/c"),
        ("users", "u/clients/c/d"),
        ("users", "u/groups/g"),
        ("ips", "a/b"),
    ],
)
def test_other_paths_name_none(entity_type: str, name: str) -> None:
    assert of_path(entity_type, name) is None


def test_invalid_limits_are_told_and_other_configs_are_passed_over() -> None:
    entries = {
        "producer_byte_rate": "1024",
        "consumer_byte_rate": "0",
        "request_percentage": "12.5",
        "controller_mutation_rate": "nan",
        "SCRAM-SHA-256": "salt=",
    }
    assert parse_limits(entries) == (
        {QuotaKey.PRODUCE: 1024.0, QuotaKey.REQUEST: 12.5},
        ["consumer_byte_rate", "controller_mutation_rate"],
    )
    for text in ("-1", "inf", "x", ""):
        assert parse_limits({"producer_byte_rate": text}) == ({}, ["producer_byte_rate"])


def test_addresses_have_one_name() -> None:
    assert of_path("ips", "127.0.0.1") == QuotaEntity(ip="127.0.0.1")
    entity = QuotaEntity(ip=entities.sanitized_address("0:0::1"))
    assert (entity.entity_type, entity.name) == ("ips", "%3A%3A1")
    assert entities.plain_address(entity.name) == "::1"
    assert entities.plain_address("%3A%3Affff%3A10.0.0.1") == "10.0.0.1"
    assert entities.plain_address("<default>") == "<default>"
    for wrong in ("localhost", "", "10.0.0", "10.0.0.1/8"):
        with pytest.raises(ValueError):  # noqa: PT011  whatever ipaddress says
            entities.plain_address(wrong)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "nan", "inf", ""])
def test_creation_rates_are_whole_and_positive(text: str) -> None:
    assert entities.parse_creation_rate({"connection_creation_rate": "7"}) == 7
    assert entities.parse_creation_rate({}) is None
    with pytest.raises(ValueError):  # noqa: PT011  of float or of ours
        entities.parse_creation_rate({"connection_creation_rate": text})
