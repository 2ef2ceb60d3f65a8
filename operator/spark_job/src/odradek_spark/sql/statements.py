"""The statements of `odradek sql` as values: KSQL's words; queries are left to Spark. Pure.

`split` cuts a text into statements at each `;` outside of quotes and comments, `parse` reads one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from odradek_spark.sql.errors import SqlError

Kind = Literal["TABLE", "STREAM"]


@dataclass(frozen=True, slots=True)
class CreateRelation:
    """CREATE TABLE or STREAM; `columns` is DDL for Spark, None where they are inferred."""

    kind: Kind
    name: str
    columns: str | None
    topic: str
    format: str
    key: str | None
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """DROP TABLE or STREAM."""

    kind: Kind
    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class Describe:
    """DESCRIBE a table, a stream or a topic."""

    name: str


@dataclass(frozen=True, slots=True)
class Show:
    """SHOW or LIST."""

    what: Literal["TOPICS", "ALL TOPICS", "TABLES", "STREAMS", "PROPERTIES"]


@dataclass(frozen=True, slots=True)
class Print:
    """PRINT the records of a topic as they are."""

    topic: str
    from_beginning: bool
    limit: int | None


@dataclass(frozen=True, slots=True)
class Assign:
    """SET a property; without a value UNSET it."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A query for Spark, without its EMIT CHANGES and without a LIMIT at its end."""

    text: str
    emit_changes: bool
    limit: int | None


@dataclass(frozen=True, slots=True)
class Help:
    """HELP."""


@dataclass(frozen=True, slots=True)
class Leave:
    """EXIT or QUIT."""


Statement = CreateRelation | Drop | Describe | Show | Print | Assign | RunQuery | Help | Leave

# The largest LIMIT of Spark.
_MOST_ROWS = 2**31 - 1
_QUOTED = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`"""
# A hint of Spark (/*+ ... */) is part of its statement.
_COMMENT = r"--[^\n]*|/\*(?!\+).*?\*/"
_PIECE = re.compile(
    rf"(?P<comment>{_COMMENT})|(?P<quoted>{_QUOTED})|(?P<open>['\"`]|/\*(?!\+))|(?P<end>;)|.", re.S
)
_NAME = r"`(?:[^`]|``)+`|\w+"
_QUERY = re.compile(r"\(|(?:SELECT|WITH|VALUES|FROM|EXPLAIN)\b", re.I)
_PROPERTIES = {
    "topic": "topic",
    "kafka_topic": "topic",
    "format": "format",
    "value_format": "format",
    "key": "key",
}
_FORMATS = {"json": "json", "csv": "csv", "delimited": "csv", "text": "text", "kafka": "text"}
# KSQL's names of types that Spark does not know without a length, or by another name.
_TYPES = (
    (re.compile(r"\bVARCHAR(?:\s*\(\s*STRING\s*\)|(?!\s*\(\s*\d))", re.I), "STRING"),
    (re.compile(r"\bBYTES\b", re.I), "BINARY"),
)


def split(text: str) -> tuple[list[str], str]:
    """Return the statements that end with `;`, without it and without comments, and the rest.

    The rest is empty if nothing but blanks and comments follows the last `;`.
    """
    found: list[str] = []
    current, start = "", 0
    for piece in _PIECE.finditer(text):
        match piece.lastgroup:
            case "open":
                return found, text[start:]
            case "end":
                found.append(current.strip())
                current, start = "", piece.end()
            case "comment":
                current += " "
            case _:
                current += piece[0]
    return [one for one in found if one], text[start:] if current.strip() else ""


def parse(text: str) -> Statement:
    """Return one statement, as `split` returns it. Raises SqlError."""
    words = text.split(None, 1)
    verb = words[0].upper() if words else ""
    rest = words[1].strip() if len(words) > 1 else ""
    match verb:
        case "CREATE":
            return _create(text)
        case "DROP":
            return _drop(rest)
        case "DESCRIBE" | "DESC":
            return Describe(_only_name(rest, "DESCRIBE name"))
        case "SHOW" | "LIST":
            return _show(rest)
        case "PRINT":
            return _print(rest)
        case "SET":
            return _set(rest)
        case "UNSET":
            return Assign(_unquoted(rest), None)
        case "EXIT" | "QUIT":
            return Leave()
        case "HELP":
            return Help()
    if not _QUERY.match(text):
        raise SqlError(f"{verb} is no statement of this shell; try HELP")
    return _query(text)


def _query(text: str) -> RunQuery:
    limit = None
    bare, emit_changes = _without(r"EMIT\s+CHANGES(?:\s+LIMIT\s+(\d+))?", text)
    if emit_changes is not None and emit_changes[1] is not None:
        limit = _limit(emit_changes[1])
    bare, limited = _without(r"LIMIT\s+(\d+)", bare)
    if limited is not None:
        inner = _limit(limited[1])
        limit = inner if limit is None else min(limit, inner)
    return RunQuery(bare, emit_changes is not None, limit)


def _limit(digits: str) -> int:
    # Of thousands of digits Python makes no number. Zeros before it change nothing.
    significant = digits.lstrip("0") or "0"
    if len(significant) > len(str(_MOST_ROWS)) or int(significant) > _MOST_ROWS:
        raise SqlError(f"LIMIT is at most {_MOST_ROWS}")
    return int(significant)


def _without(clause: str, text: str) -> tuple[str, re.Match[str] | None]:
    """Return the text without a clause at its end, and the clause."""
    found = re.search(rf"\s+{clause}\s*$", text, re.I)
    return (text if found is None else text[: found.start()]), found


def _create(text: str) -> CreateRelation:
    head = re.match(
        rf"CREATE\s+(?P<replace>OR\s+REPLACE\s+)?(?P<kind>TABLE|STREAM)\s+"
        rf"(?P<unless>IF\s+NOT\s+EXISTS\s+)?(?P<name>{_NAME})\s*",
        text,
        re.I,
    )
    if head is None:
        raise SqlError("expected: CREATE TABLE|STREAM name (columns) WITH (topic='...', ...)")
    if head["replace"] and head["unless"]:
        raise SqlError("OR REPLACE and IF NOT EXISTS exclude each other")
    rest, columns = text[head.end() :], None
    if rest.startswith("("):
        columns, rest = _in_parentheses(rest)
    if re.match(r"AS\b", rest, re.I):
        raise SqlError("CREATE ... AS SELECT is for jobs: see ConsumerGroup and its spec.job.sql")
    properties = re.fullmatch(r"\s*WITH\s*\((.*)\)\s*", rest, re.I | re.S)
    if properties is None:
        raise SqlError("expected after the columns: WITH (topic='...', format='json')")
    found = _properties(properties[1])
    name = _unquoted(head["name"])
    key, ddl = None, None
    if columns is not None:
        ddl, key = _columns(columns)
    format_ = _FORMATS.get(found.get("format", "json").lower())
    if format_ is None:
        raise SqlError(f"format is one of {', '.join(_FORMATS)}, not {found['format']!r}")
    if key and "key" in found and key != found["key"]:
        raise SqlError(f"the key is both {key} and {found['key']}")
    return CreateRelation(
        "TABLE" if head["kind"].upper() == "TABLE" else "STREAM",
        name,
        ddl,
        found.get("topic", name),
        format_,
        found.get("key", key),
        bool(head["unless"]),
        bool(head["replace"]),
    )


def _in_parentheses(text: str) -> tuple[str, str]:
    """Return what the parentheses that begin the text enclose, and what follows them."""
    depth = 0
    for piece in _PIECE.finditer(text):
        depth += {"(": 1, ")": -1}.get(piece[0], 0)
        if depth == 0:
            return text[1 : piece.start()], text[piece.end() :].strip()
    raise SqlError("a parenthesis is not closed")


def _columns(text: str) -> tuple[str, str | None]:
    """Return the columns as Spark's DDL, and the name of the one that is marked as KEY."""
    ddl, key = [], None
    for column in _at_commas(text):
        found = re.fullmatch(
            rf"(?P<name>{_NAME})\s+(?P<type>.+?)(?P<key>\s+(?:PRIMARY\s+)?KEY)?",
            column,
            re.I | re.S,
        )
        if found is None:
            raise SqlError(f"expected a column's name and type, not {column!r}")
        type_ = found["type"]
        for pattern, spark_type in _TYPES:
            type_ = pattern.sub(spark_type, type_)
        name = _unquoted(found["name"])
        ddl.append(f"`{name.replace('`', '``')}` {type_}")
        if found["key"]:
            if key is not None:
                raise SqlError("a table has one key")
            key = name
    return ", ".join(ddl), key


def _at_commas(text: str) -> Iterator[str]:
    """Yield what stands between the commas that are in no brackets."""
    depth, current = 0, ""
    for piece in _PIECE.finditer(text):
        depth += {"(": 1, "<": 1, ")": -1, ">": -1}.get(piece[0], 0)
        if piece[0] == "," and depth == 0:
            yield current.strip()
            current = ""
        else:
            current += piece[0]
    yield current.strip()


def _properties(text: str) -> Mapping[str, str]:
    """Return the properties of WITH under this shell's own names."""
    found: dict[str, str] = {}
    for one in _at_commas(text):
        pair = re.fullmatch(rf"(['\"`]?)([\w.]+)\1\s*=\s*({_QUOTED}|[\w.-]+)", one)
        if pair is None:
            raise SqlError(f"expected name='value', not {one!r}")
        name = _PROPERTIES.get(pair[2].lower())
        if name is None:
            raise SqlError(f"{pair[2]} is no property; there are {', '.join(_PROPERTIES)}")
        if name in found:
            raise SqlError(f"{name} is given twice")
        found[name] = _unquoted(pair[3])
    return found


def _drop(rest: str) -> Drop:
    found = re.fullmatch(rf"(TABLE|STREAM)\s+(IF\s+EXISTS\s+)?({_NAME})", rest, re.I)
    if found is None:
        raise SqlError("expected: DROP TABLE|STREAM [IF EXISTS] name")
    return Drop(
        "TABLE" if found[1].upper() == "TABLE" else "STREAM", _unquoted(found[3]), bool(found[2])
    )


def _show(rest: str) -> Show:
    match " ".join(rest.upper().split()):
        case ("TOPICS" | "ALL TOPICS" | "TABLES" | "STREAMS" | "PROPERTIES") as what:
            return Show(what)
    raise SqlError("expected: SHOW [ALL] TOPICS, TABLES, STREAMS or PROPERTIES")


def _print(rest: str) -> Print:
    found = re.fullmatch(
        rf"(?P<topic>{_QUOTED}|[\w.-]+)(?P<start>\s+FROM\s+BEGINNING)?(?:\s+LIMIT\s+(?P<limit>\d+))?",
        rest,
        re.I | re.S,
    )
    if found is None:
        raise SqlError("expected: PRINT 'topic' [FROM BEGINNING] [LIMIT n]")
    limit = None if found["limit"] is None else _limit(found["limit"])
    return Print(_unquoted(found["topic"]), bool(found["start"]), limit)


def _set(rest: str) -> Assign:
    found = re.fullmatch(rf"({_QUOTED}|[\w.]+)\s*=\s*({_QUOTED}|\S+)", rest, re.S)
    if found is None:
        raise SqlError("expected: SET 'property'='value'")
    return Assign(_unquoted(found[1]), _unquoted(found[2]))


def _only_name(rest: str, form: str) -> str:
    if not re.fullmatch(rf"{_NAME}|[\w.-]+", rest):
        raise SqlError(f"expected: {form}")
    return _unquoted(rest)


def _unquoted(text: str) -> str:
    if text[:1] in ("'", '"', "`") and text[-1:] == text[0] and len(text) > 1:
        return text[1:-1].replace(text[0] * 2, text[0])
    return text
