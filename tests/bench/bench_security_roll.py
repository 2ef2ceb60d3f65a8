"""How long a producer waits while brokers roll from plain text to TLS, SASL and ACLs.

    python -m tests.bench.bench_security_roll [ROUNDS]

Three brokers are restarted one by one, first with what they have (a usual roll), then with each of
the steps of docs/security.md, then once more with what they have at the end. A producer with
acks=all writes 60 records per second meanwhile. Printed is the longest time between two
acknowledgements of a partition in each roll, and its ratio to that of the first usual one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.fuzz.steady import SteadyProducer
from tests.support import security_roll
from tests.support.broker import wait_until
from tests.support.security_roll import LAST_STEP, PARTITIONS, PLAIN_STEP, Roll

BROKERS, ROUNDS = 3, 3
USUAL = "usual, plain"
STEPS: Mapping[str, int] = {
    USUAL: PLAIN_STEP,
    "1: second listener, authorizer": 1,
    "2: brokers move": 2,
    "3: no plain listener": LAST_STEP,
    "usual, secured": LAST_STEP,
}


def longest_gap_s(roll: Roll, step: int, producer: SteadyProducer) -> float:
    """Restart all brokers with a step; return the producer's longest wait."""
    began = time.monotonic()
    for broker in roll.brokers:
        roll.restart(broker, step)
    so_far = producer.acknowledged
    wait_until(lambda: producer.acknowledged > so_far + 60, "records are acknowledged")
    return producer.longest_gap_s(began)


def gaps_s() -> dict[str, float]:
    """Return the longest wait of each roll of one cluster."""
    found: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        security_roll.plain_brokers(Path(folder), BROKERS) as roll,
    ):
        bootstrap = roll.cluster.bootstrap
        roll.make_users()
        with SteadyProducer(bootstrap, security_roll.OF_PLAIN, PARTITIONS) as producer:
            wait_until(lambda: producer.in_motion, "the producer is in motion")
            for name, step in STEPS.items():
                if step != LAST_STEP:
                    found[name] = longest_gap_s(roll, step, producer)
        failures = producer.failures
        roll.give_rights()
        with SteadyProducer(
            bootstrap, security_roll.OF_SECURE, PARTITIONS, roll.secure()
        ) as producer:
            wait_until(lambda: producer.in_motion, "the producer is in motion")
            for name, step in STEPS.items():
                if step == LAST_STEP:
                    found[name] = longest_gap_s(roll, step, producer)
        failures += producer.failures
    if failures:
        raise SystemExit(f"records were not acknowledged: {failures[:5]}")
    return found


def main(arguments: list[str]) -> int:
    """Print the medians of all rounds."""
    rounds: dict[str, list[float]] = defaultdict(list)
    for _ in range(int(arguments[0]) if arguments else ROUNDS):
        for name, gap in gaps_s().items():
            rounds[name].append(gap)
    usual = statistics.median(rounds[USUAL])
    for name, gaps in rounds.items():
        middle = statistics.median(gaps)
        print(
            f"{name:32} longest wait {middle:5.2f} s ({min(gaps):.2f} to {max(gaps):.2f}), "
            f"{middle / usual:.2f} of a usual roll",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
