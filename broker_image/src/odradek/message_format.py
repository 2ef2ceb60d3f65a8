"""Message format versions, as configs name them, and their magic.

`message.format.version` is a version of Kafka, and each version wrote one of three formats: magic 0
before 0.10.0, magic 1 before 0.11.0, magic 2 since. A version may have a patch number (`2.8.1` is
`2.8`), or name one of the steps between two releases (`0.11.0-IV1`).
"""

from functools import lru_cache

# How many steps (IV0, IV1, ...) each release had; those before 0.10.0 had none.
_STEPS = {
    "0.8.0": 0, "0.8.1": 0, "0.8.2": 0, "0.9.0": 0,
    "0.10.0": 2, "0.10.1": 3, "0.10.2": 1, "0.11.0": 3,
    "1.0": 1, "1.1": 1, "2.0": 2, "2.1": 3, "2.2": 2, "2.3": 2, "2.4": 2, "2.5": 1, "2.6": 1,
    "2.7": 3, "2.8": 2,
}  # fmt: skip
_RELEASES = list(_STEPS)
_FIRST_WITH_MAGIC_1 = _RELEASES.index("0.10.0")
_FIRST_WITH_MAGIC_2 = _RELEASES.index("0.11.0")


@lru_cache(maxsize=64)
def magic_of(version: str) -> int:
    """Return the magic that a version of Kafka writes. Raises ValueError if it is unknown."""
    numbers = 3 if version.startswith("0.") else 2
    release, dash, step = ".".join(version.split(".")[:numbers]).partition("-IV")
    steps = _STEPS.get(release)
    if steps is None or (dash and step not in map(str, range(steps))):
        raise ValueError(f"Version `{version}` is not a valid version")
    place = _RELEASES.index(release)
    return int(place >= _FIRST_WITH_MAGIC_1) + int(place >= _FIRST_WITH_MAGIC_2)


def version(text: str) -> str:
    """Parse a version in a config. Raises ValueError."""
    magic_of(text)
    return text
