"""Prints series of values that are counted against quotas, the input of QuotaVectors.java.

tests/quotas/kafka_throttles.txt was made by piping this into QuotaVectors, run with Kafka 2.8.2 on
its class path.
"""

from random import Random

SERIES = 40
LENGTH = 30
# A bucket of Kafka is filled from time 0 on; by this time it is full.
START_MS = 1_000_000


def series(kind: str, random: Random) -> str:
    """Return one line: pauses within a sample, across some, and longer than the window."""
    limit = random.choice((0.5, 5.0, 100.0, 1024.0, 1_000_000.0))
    pauses = random.choice(((0, 1, 10), (0, 200, 999, 1000, 1001), (1, 5000, 10_999, 11_000)))
    now_ms, words = START_MS, [kind, str(limit)]
    for _ in range(LENGTH):
        now_ms += random.choice(pauses)
        value = round(limit * random.choice((0.01, 0.5, 1, 3, 12)), 3)
        words.append(f"{now_ms}:{value}")
    return " ".join(words)


def main() -> None:
    """Print all series."""
    random = Random(13)
    for kind in ("rate", "bucket", "strict"):
        for _ in range(SERIES // 2 if kind != "rate" else SERIES):
            print(series(kind, random))


if __name__ == "__main__":
    main()
