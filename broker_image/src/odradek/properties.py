"""Java properties files, and typed config keys declared as dataclass fields.

A settings class is a frozen dataclass whose fields are made by `key(...)`. The metadata of a field
has the name of the key, its parser and its aliases; the default of the field is the default of the
key. `read_fields` reads a mapping of strings by these declarations. They also list the keys, their
defaults and their valid values.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kazoo.hosts import collect_hosts

from odradek import given_files
from odradek.values import Principal, parse_principal

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

# The characters that Java's String.trim removes; Python's strip removes more.
_BLANKS = "".join(map(chr, range(ord(" ") + 1)))
_THROTTLED_REPLICA = re.compile("[0-9]+:[0-9]+")

Parser = Callable[[str], Any]
Settings = TypeVar("Settings")


class ConfigError(ValueError):
    """An invalid setting; the text is one line with the key and the reason."""


class ConflictError(ConfigError):
    """Settings that are valid by themselves but contradict each other."""


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigKey:
    """The declaration of a settings field: its name in files, and its parser."""

    name: str
    parse: Parser
    aliases: tuple[tuple[str, Parser], ...] = ()
    inherits: str | None = None


def key(
    name: str,
    default: Any,
    parse: Parser,
    *aliases: tuple[str, Parser],
    inherits: str | None = None,
) -> Any:
    """Declare one setting.

    Aliases are other names of it, the weakest first, each with its own parser. `inherits` names the
    field of another settings class that has the default.
    """
    return dataclasses.field(
        default=default, metadata={"key": ConfigKey(name, parse, aliases, inherits)}
    )


def keys_of(settings: type) -> Iterator[tuple[str, ConfigKey]]:
    """Yield (field name, key) for each setting of a settings class, in order of declaration."""
    for field in dataclasses.fields(settings):
        if "key" in field.metadata:
            yield field.name, field.metadata["key"]


def parse_value(declared: ConfigKey, name: str, text: str, parse: Parser | None = None) -> Any:
    """Return the value of `text`. Raises ConfigError with the key as the user wrote it."""
    try:
        return (parse or declared.parse)(text.strip(_BLANKS))
    except ValueError as error:
        raise ConfigError(f"Invalid value {text} for configuration {name}: {error}") from None


def read_fields(settings: type, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields whose keys are in `values`. Raises ConfigError for an invalid value."""
    fields: dict[str, Any] = {}
    for field, declared in keys_of(settings):
        for alias, parse in declared.aliases:
            if alias in values:
                fields[field] = parse_value(declared, alias, values[alias], parse)
        if declared.name in values:
            fields[field] = parse_value(declared, declared.name, values[declared.name])
    return fields


def known_names(settings: type) -> frozenset[str]:
    """Return every name, aliases included, of the settings of a class."""
    return frozenset(
        name
        for _, declared in keys_of(settings)
        for name in (declared.name, *(alias for alias, _ in declared.aliases))
    )


def parsed(values: Mapping[str, str], name: str, default: str, parse: Parser) -> Any:
    """Return the value of a setting, which counts as its default if it is empty.

    Raises ConfigError.
    """
    text = values.get(name, "").strip() or default
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"Invalid value {text} for configuration {name}: {error}") from None


def read_file(path: str | Path) -> dict[str, str]:
    """Return the settings in a properties file. Raises ConfigError with a one-line reason."""
    try:
        text = given_files.read_text(Path(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read {path}: it is not UTF-8 text") from None
    try:
        return load_properties(text)
    except ConfigError as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def load_properties(text: str) -> dict[str, str]:
    r"""Parse Java properties: `key=value`, `key: value`, # and ! comments, \ continuations."""
    values: dict[str, str] = {}
    pending = ""
    for raw in text.splitlines():
        line = pending + raw.lstrip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
            continue
        name, value = _split(line)
        values[name] = value
    if pending:
        name, value = _split(pending)
        values[name] = value
    for name, value in values.items():
        # No path may have it, and no text that somebody wrote has it.
        if "\0" in name + value:
            raise ConfigError(f"{name!r} has the character NUL")
    return values


def property_line(name: str, text: str) -> str:
    r"""Return the line of one property. A Java properties file takes \ for an escape and drops
    spaces in front; nothing else is escaped, so not every name can be read back.
    """
    escaped = text.replace("\\", "\\\\")
    if escaped.startswith((" ", "\t")):
        escaped = f"\\{escaped}"
    return f"{name}={escaped}\n"


def _split(line: str) -> tuple[str, str]:
    escaped = False
    for index, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char in "=: \t":
            rest = line[index:].lstrip(" \t")
            if rest[:1] in ("=", ":"):
                rest = rest[1:].lstrip(" \t")
            return _unescape(line[:index]), _unescape(rest)
    return _unescape(line), ""


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain: list[str] = []
    chars = iter(text)
    for char in chars:
        if char != "\\":
            plain.append(char)
            continue
        escape = next(chars, "")
        if escape == "u":
            plain.append(_unicode("".join(next(chars, "") for _ in range(4))))
        else:
            plain.append({"n": "\n", "t": "\t", "r": "\r", "f": "\f"}.get(escape, escape))
    try:
        # Java writes a character beyond \uFFFF as two.
        return "".join(plain).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ConfigError("half a character (\\u)") from None


def _unicode(digits: str) -> str:
    try:
        return chr(int(digits, 16))
    except ValueError:
        raise ConfigError(f"Malformed \\u{digits} in the properties file") from None


def _plain(number: str) -> str:
    """Return the text of a number that Java can read, too. Raises ValueError.

    Kafka brokers read the same configs in ZooKeeper.
    """
    if "_" in number or not number.isascii():
        raise ValueError(number)
    return number


def integer(at_least: int = -LONG_MAX - 1, at_most: int = LONG_MAX) -> Parser:
    """Return a parser of decimal integers within bounds, both included."""

    def parse(text: str) -> int:
        try:
            number = int(_plain(text))
        except ValueError:
            raise ValueError("Not a number") from None
        if number < at_least:
            raise ValueError(f"Value must be at least {at_least}")
        if number > at_most:
            raise ValueError(f"Value must be no more than {at_most}")
        return number

    return parse


def principals(text: str) -> str:
    """Check `User:a;User:b`, Kafka's form of super.users, and return it."""
    split_principals(text)
    return text


def split_principals(text: str) -> frozenset[Principal]:
    """Return the principals of `User:a;User:b`. Raises ValueError."""
    parts = text.rstrip("; ").split(";") if text.strip("; ") else []
    return frozenset(parse_principal(one.strip(_BLANKS)) for one in parts)


def is_utf8(text: str) -> bool:
    """Return whether a text from a command line or a file name was UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def retention(factor: int = 1) -> Parser:
    """Return a parser of how long to keep logs, in milliseconds of so many at once; -1: for ever.

    Kafka's `KafkaConfig` takes any negative number for -1, and refuses 0.
    """
    plain = integer()

    def parse(text: str) -> int:
        number: int = plain(text)
        if number == 0:
            raise ValueError("Value must be unlimited (-1), or at least 1")
        return -1 if number < 0 else min(number * factor, LONG_MAX)

    return parse


def scaled(factor: int, at_least: int = -LONG_MAX - 1) -> Parser:
    """Return a parser of numbers in a coarser unit (hours for milliseconds); -1 stays -1."""
    plain = integer(at_least)

    def parse(text: str) -> int:
        number: int = plain(text)
        return number if number < 0 else min(number * factor, LONG_MAX)

    return parse


def decimal(at_least: float, at_most: float = float("inf")) -> Parser:
    """Return a parser of floating-point numbers within bounds."""

    def parse(text: str) -> float:
        try:
            number = float(_plain(text))
        except ValueError:
            raise ValueError("Not a number") from None
        if not at_least <= number <= at_most:
            raise ValueError(f"Value must be between {at_least} and {at_most}")
        return number

    return parse


def boolean(text: str) -> bool:
    """Parse true or false, in any case."""
    match text.lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise ValueError("Expected value to be either true or false")


def one_of(*allowed: str) -> Parser:
    """Return a parser of one word out of a fixed list."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"String must be one of: {', '.join(allowed)}")
        return text

    return parse


def words(allowed: tuple[str, ...] = ()) -> Parser:
    """Return a parser of comma-separated words; with `allowed`, of those words only."""

    def parse(text: str) -> tuple[str, ...]:
        parts = [part.strip(_BLANKS) for part in text.split(",")] if text else []
        for part in parts:
            if allowed and part not in allowed:
                raise ValueError(f"String must be one of: {', '.join(allowed)}")
        return tuple(filter(None, parts))

    return parse


def throttled_replicas(text: str) -> tuple[str, ...]:
    """Parse `partition:broker,...`, `*` for every replica, or nothing."""
    listed: tuple[str, ...] = words()(text)
    if listed != ("*",) and not all(map(_THROTTLED_REPLICA.fullmatch, listed)):
        raise ValueError(
            "Value must be the literal '*' or a list of replicas in the form "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        )
    return listed


def numbers_by_host(text: str) -> tuple[str, ...]:
    """Parse `host:number,...`."""
    listed: tuple[str, ...] = words()(text)
    for entry in listed:
        host, _, number = entry.rpartition(":")
        try:
            non_empty(host)
            integer(0, INT_MAX)(number)
        except ValueError as error:
            raise ValueError(f"{entry} is not host:number: {error}") from None
    return listed


def non_empty(text: str) -> str:
    """Parse any text except the empty one."""
    if not text:
        raise ValueError("String must be non-empty")
    return text


def is_port(text: str) -> bool:
    """Return whether a text is the digits of a number from 0 to 65535."""
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535


def zookeeper_servers(text: str) -> str:
    """Parse `host:port,.../chroot`."""
    hosts, chroot = collect_hosts(non_empty(text))
    # kazoo would end at these when it is connected, in a thread of its own.
    if chroot and not ({".", ".."}.isdisjoint(chroot.split("/")) and is_utf8(chroot)):
        raise ValueError(f"{chroot!r} is not the path of a znode")
    for host, _port in hosts:
        try:
            host.encode("idna")
        except UnicodeError as error:
            raise ValueError(f"{host} is not a host name") from error
    return text
