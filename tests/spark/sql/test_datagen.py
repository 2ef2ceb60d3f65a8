"""`odradek datagen`: what it writes, and how it is asked to (row S2)."""

from __future__ import annotations

from itertools import islice

import pytest

from odradek_spark.datagen import command
from odradek_spark.datagen.quickstarts import QUICKSTARTS
from tests.support import preloaded

FIELDS = {
    "users": ["registertime", "userid", "regionid", "gender"],
    "pageviews": ["viewtime", "userid", "pageid"],
    "orders": ["ordertime", "orderid", "itemid", "orderunits", "address"],
    "ratings": [
        *("rating_id", "user_id", "stars", "route_id", "rating_time", "channel", "message"),
    ],
    "clickstream": [
        *("ip", "userid", "remote_user", "time", "_time", "request", "status", "bytes"),
        *("referrer", "agent"),
    ],
}


@pytest.mark.parametrize("name", QUICKSTARTS)
def test_seed_repeats_records_with_the_fields_of_the_quickstart(name: str) -> None:
    kind = QUICKSTARTS[name]
    found = list(islice(kind.records(7), 200))
    assert found == list(islice(kind.records(7), 200))
    assert found != list(islice(kind.records(8), 200))
    assert all(list(record) == FIELDS[name] for record in found)
    assert kind.key in FIELDS[name]


def test_arguments_of_ksql_datagen_are_options() -> None:
    arguments = ["quickstart=users", "topic=a=b", "maxInterval=5", "--seed", "1", "other=1"]
    assert command._as_options(arguments) == [
        *("--quickstart", "users", "--topic", "a=b", "--max-interval", "5", "--seed", "1"),
        "other=1",
    ]
    # What follows an option is its value.
    assert command._as_options(["--topic", "topic=x"]) == ["--topic", "topic=x"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["quickstart=nothing"],
        ["quickstart=users", "--rate", "0"],
        ["quickstart=users", "--rate", "nan"],
        ["quickstart=users", "--iterations", "0"],
        ["quickstart=users", "--rate", "5/s", "maxInterval=1"],
        ["quickstart=users", "color=red"],
    ],
)
def test_bad_usage_is_2(arguments: list[str]) -> None:
    ended = preloaded.run("odradek", "datagen", *arguments)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
