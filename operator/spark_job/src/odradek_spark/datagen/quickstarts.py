"""The records of each quickstart: the fields and ranges of Confluent's, by our own rules. Pure.

The same seed gives the same records. Times advance by the number of the record, so that nothing
depends on the clock.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from time import gmtime, strftime
from typing import Any

Record = dict[str, Any]

_OLDEST_MS, _NEWEST_MS = 1_487_715_775_521, 1_519_273_364_600
_GENDERS = ("MALE", "FEMALE", "OTHER")
_CHANNELS = ("web", "ios", "iOS-test", "android")
_OPINIONS = (
    "the seat was fine, the queue was not",
    "would fly this route again",
    "an hour late and nobody said why",
    "the crew made up for the delay",
    "lost my luggage on the way",
    "best coffee above the clouds",
)
_ADDRESSES = tuple(
    f"{network}.{host}.{network % 100}.{host % 50 + 7}"
    for network in (111, 122, 222, 233)
    for host in (45, 90, 145, 168, 203, 245)
)
_REQUESTS = (
    "GET /index.html HTTP/1.1",
    "GET /site/login.html HTTP/1.1",
    "GET /site/user_status.html HTTP/1.1",
    "GET /images/track.png HTTP/1.1",
    "GET /images/logo-small.png HTTP/1.1",
)
_STATUSES = ("200", "302", "404", "405", "406", "407")
_SIZES = ("278", "1289", "2048", "4006", "4096", "4196", "14096")
_AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Mozilla/5.0 (compatible; odradek-datagen)",
)


@dataclass(frozen=True, slots=True)
class Quickstart:
    """`record` makes the record of a number from 0 on; `key` is the field that is its key too."""

    key: str
    record: Callable[[Random, int], Record]

    def records(self, seed: int | None) -> Iterator[Record]:
        """Yield records without end; None is a new seed."""
        random = Random(seed)  # noqa: S311 - test data
        number = 0
        while True:
            yield self.record(random, number)
            number += 1


def _user(random: Random, _: int) -> Record:
    return {
        "registertime": random.randint(_OLDEST_MS, _NEWEST_MS),
        "userid": f"User_{random.randint(1, 9)}",
        "regionid": f"Region_{random.randint(1, 9)}",
        "gender": random.choice(_GENDERS),
    }


def _pageview(random: Random, number: int) -> Record:
    return {
        "viewtime": _OLDEST_MS + 10 * number,
        "userid": f"User_{random.randint(1, 9)}",
        "pageid": f"Page_{random.randint(10, 99)}",
    }


def _order(random: Random, number: int) -> Record:
    return {
        "ordertime": random.randint(_OLDEST_MS, _NEWEST_MS),
        "orderid": number,
        "itemid": f"Item_{random.randint(1, 999)}",
        "orderunits": round(random.uniform(0.1, 10.0), 4),
        "address": {
            "city": f"City_{random.randint(1, 99)}",
            "state": f"State_{random.randint(1, 99)}",
            "zipcode": random.randint(10_000, 99_999),
        },
    }


def _rating(random: Random, number: int) -> Record:
    return {
        "rating_id": number + 1,
        "user_id": random.randint(1, 20),
        "stars": random.randint(1, 5),
        "route_id": random.randint(1, 10_000),
        "rating_time": _OLDEST_MS + 10 * number,
        "channel": random.choice(_CHANNELS),
        "message": random.choice(_OPINIONS),
    }


def _click(random: Random, number: int) -> Record:
    millis = _OLDEST_MS + 10 * number
    return {
        "ip": random.choice(_ADDRESSES),
        "userid": random.randint(1, 20),
        "remote_user": "-",
        "time": strftime("%d/%b/%Y:%H:%M:%S +0000", gmtime(millis // 1000)),
        "_time": millis,
        "request": random.choice(_REQUESTS),
        "status": random.choice(_STATUSES),
        "bytes": random.choice(_SIZES),
        "referrer": "-",
        "agent": random.choice(_AGENTS),
    }


QUICKSTARTS = {
    "users": Quickstart("userid", _user),
    "pageviews": Quickstart("viewtime", _pageview),
    "orders": Quickstart("orderid", _order),
    "ratings": Quickstart("rating_id", _rating),
    "clickstream": Quickstart("ip", _click),
}
