"""Reads and writes the JSON payloads of znodes, with checked types.

Writers of these znodes are many: this broker, its operator, Apache Kafka and people with a shell. A
reader therefore goes through `Fields`, whose getters check the type of what is there and raise
`ZnodeError` with the znode's path, and never let a KeyError or a TypeError out.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_LONGEST_INTEGER = 19  # digits of the largest 64-bit number
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_LONGEST_TEXT = 2**15 - 1


class ZnodeError(ValueError):
    """A znode's payload is not what its declaration says.

    `path` is the znode, `reason` what is wrong with it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"znode {path}: {reason}")
        self.path = path
        self.reason = reason


def dump(value: Mapping[str, Any]) -> bytes:
    """Return compact JSON in the order of the mapping, as Kafka's own writers produce it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def parse_text(path: str, data: bytes | None) -> str:
    """Return the payload as text without surrounding blanks."""
    if not data:
        raise ZnodeError(path, "is empty")
    try:
        return data.decode().strip()
    except UnicodeDecodeError as error:
        raise ZnodeError(path, f"is not UTF-8: {error}") from error


def parse_integer(path: str, data: bytes | None) -> int:
    """Return the payload read as one decimal integer of 64 bits."""
    text = parse_text(path, data)
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_INTEGER:
        number = int(text)
        if _LONG_MIN <= number <= _LONG_MAX:
            return number
    raise ZnodeError(path, f"{text[:40]!r} is not a decimal integer")


def parse_int32(path: str, data: bytes | None) -> int:
    """Return the payload read as one decimal integer of 32 bits."""
    number = parse_integer(path, data)
    if not _INT_MIN <= number <= _INT_MAX:
        raise ZnodeError(path, f"{number} is not an integer of 32 bits")
    return number


def check_part(path: str, text: str) -> None:
    """Raise ZnodeError for a text that is not one part of a path.

    ZooKeeper's client refuses `..`, and takes the parent for a child without a name.
    """
    if "/" in text or text in ("", ".", ".."):
        raise ZnodeError(path, f"{text[:80]!r} is no name of a znode")


def fits_an_answer(text: str) -> bool:
    """Return whether a request or an answer can hold a text as a string."""
    return len(text.encode()) <= _LONGEST_TEXT


def check_text(path: str, text: str) -> None:
    """Raise ZnodeError for a text that no answer can hold."""
    if not fits_an_answer(text):
        raise ZnodeError(path, f"{text[:40]!r}... has more than {_LONGEST_TEXT} bytes")


class Fields:
    """One JSON object of a znode, read field by field with checked types."""

    __slots__ = ("_path", "_values")

    def __init__(self, path: str, values: object) -> None:
        if not isinstance(values, dict):
            raise ZnodeError(path, f"expected a JSON object, found {type(values).__name__}")
        self._path = path
        self._values: dict[str, Any] = values

    @classmethod
    def parse(cls, path: str, data: bytes | None) -> "Fields":
        """Read a payload as one JSON object."""
        text = parse_text(path, data)
        try:
            values = json.loads(text)
            if "\\u" in text:
                # It may name half of a pair of surrogates, which no answer can hold.
                json.dumps(values, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise ZnodeError(path, f"is not JSON: {error}") from error
        return cls(path, values)

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def require_version(self, *known: int) -> int:
        """Return `version`, which must be one of `known`."""
        version = self.integer("version")
        if version not in known:
            raise ZnodeError(self._path, f"version {version} is not one of {list(known)}")
        return version

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an integer of 64 bits. A string of digits counts: some writers quote numbers."""
        value = self._get(name, default)
        if isinstance(value, str):
            return parse_integer(f"{self._path} field {name}", value.encode())
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not _LONG_MIN <= value <= _LONG_MAX
        ):
            raise self._wrong(name, "an integer", value)
        return value

    def int32(self, name: str, default: int | None = None) -> int:
        """Return an integer of 32 bits, which the protocol has for ids, epochs and ports: one
        beyond could not be told to any client or broker.
        """
        value = self.integer(name, default)
        if not _INT_MIN <= value <= _INT_MAX:
            raise self._wrong(name, "an integer of 32 bits", value)
        return value

    def string(self, name: str, default: str | None = None) -> str:
        """Return a string; a number counts, as some writers do not quote them."""
        value = self._get(name, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def optional_string(self, name: str) -> str | None:
        """Return a string, or None where the field is missing or null."""
        return self.string(name) if name in self else None

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a list of integers of 32 bits."""
        value = self._get(name, None)
        if not isinstance(value, list) or any(
            isinstance(item, bool) or not isinstance(item, int) or not _INT_MIN <= item <= _INT_MAX
            for item in value
        ):
            raise self._wrong(name, "a list of integers", value)
        return tuple(value)

    def strings(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        value = self._get(name, None)
        if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of strings", value)
        return tuple(value)

    def nested(self, name: str) -> "Fields":
        """Return a nested object."""
        return Fields(f"{self._path} field {name}", self._get(name, None))

    def nested_list(self, name: str) -> "list[Fields]":
        """Return a list of nested objects."""
        value = self._get(name, None)
        if not isinstance(value, list):
            raise self._wrong(name, "a list", value)
        return [
            Fields(f"{self._path} field {name}[{position}]", item)
            for position, item in enumerate(value)
        ]

    def string_map(self, name: str) -> dict[str, str]:
        """Return a nested object whose values are all strings; numbers and booleans count."""
        inner = self.nested(name)
        return {key: inner._scalar(key) for key in inner}

    def integer_map(self, name: str) -> dict[str, int]:
        """Return a nested object whose values are all integers."""
        inner = self.nested(name)
        return {key: inner.integer(key) for key in inner}

    def replica_map(self, name: str) -> dict[int, tuple[int, ...]]:
        """Return a nested object of partition number to list of replicas, by partition."""
        inner = self.nested(name)
        found = {}
        for key in inner:
            partition = parse_int32(f"{self._path} field {name}", key.encode())
            if partition < 0:
                raise ZnodeError(self._path, f"partition {partition} in {name} is negative")
            found[partition] = inner.integers(key)
        return dict(sorted(found.items()))

    def _scalar(self, name: str) -> str:
        value = self._get(name, None)
        if isinstance(value, bool):
            return "true" if value else "false"
        if not isinstance(value, str | int | float):
            raise self._wrong(name, "a string", value)
        return str(value)

    def _get(self, name: str, default: object) -> Any:
        value = self._values.get(name, default)
        if value is None:
            value = default
        if value is None:
            raise ZnodeError(self._path, f"has no field {name!r}")
        return value

    def _wrong(self, name: str, expected: str, value: object) -> ZnodeError:
        return ZnodeError(self._path, f"field {name!r} is not {expected}: {str(value)[:40]!r}")
