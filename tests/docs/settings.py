"""The reference of settings of brokers and topics: what the code declares, with its bounds."""

from __future__ import annotations

import dataclasses
import inspect
import io
import tokenize
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from odradek import config, config_loading, dynamic_config, properties, topic_config
from odradek.properties import LONG_MAX, ConfigKey
from tests.docs.markdown import cell, code, table

_KAFKA = "https://kafka.apache.org/28/documentation.html"
_INT_MAX, _LEAST = properties.INT_MAX, -LONG_MAX - 1
_PLAIN: Mapping[Callable[[str], Any], tuple[str, str]] = {
    properties.boolean: ("boolean", ""),
    properties.principals: ("list", "`User:a;User:b`"),
    properties.throttled_replicas: ("list", "`partition:broker,...` or `*`"),
    properties.numbers_by_host: ("list", "`host:number,...`"),
    properties.zookeeper_servers: ("string", "`host:port,.../chroot`"),
    properties.non_empty: ("string", "not empty"),
    str: ("string", ""),
}


def kind_and_bounds(parse: Callable[[str], Any]) -> tuple[str, str]:
    """Return type and bounds of what a parser takes, out of the parser itself.

    Raises LookupError for a parser that nobody has described here.
    """
    if parse in _PLAIN:
        return _PLAIN[parse]
    if parse.__module__ == "odradek.message_format":
        return "string", "a version of Kafka, such as `2.1`"
    if parse.__module__ == "odradek.config":
        return "string", "empty, or one of " + ", ".join(map(code, config.AUTHORIZERS))
    held = inspect.getclosurevars(parse).nonlocals
    match parse.__qualname__.split(".")[0]:
        case "integer":
            return "integer", _range(held["at_least"], held["at_most"])
        case "decimal":
            return "decimal", _range(held["at_least"], held["at_most"])
        case "scaled":
            return "integer", ""
        case "retention":
            return "integer", "-1, or at least 1"
        case "one_of":
            return "string", "one of " + ", ".join(map(code, held["allowed"]))
        case "words":
            allowed = held["allowed"]
            return "list", "of " + ", ".join(map(code, allowed)) if allowed else ""
    raise LookupError(f"no words for the parser {parse.__qualname__}")


def _range(least: float, most: float) -> str:
    words = [] if least == _LEAST else [f"at least {least}"]
    words += [] if most in (LONG_MAX, float("inf")) else [f"at most {most}"]
    return ", ".join(words)


def default_text(value: object) -> str:
    """Return a default as a properties file would have it."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(map(str, value))
        case float() if value == float("inf"):
            return "no limit"
    return "no limit" if value == LONG_MAX else str(value)


def comments(settings: type) -> dict[str, str]:
    """Return the comment above each field of a settings class."""
    found: dict[str, str] = {}
    pending: list[str] = []
    start = True
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(settings)).readline):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            pending.append(token.string.lstrip("# "))
        elif token.type == tokenize.NL and not token.line.strip():
            pending = []
        elif token.type in (tokenize.NEWLINE, tokenize.INDENT):
            start = True
        elif token.type == tokenize.NAME and start:
            found[token.string] = " ".join(pending)
            pending, start = [], False
    return found


def broker_page() -> str:
    """Return the page of the settings of brokers."""
    inert = sorted(config_loading.INERT_KEYS)
    unsupported = [*sorted(config_loading.UNSUPPORTED), "listener.name.NAME.max.connections"]
    return f"""# Settings of brokers

The keys of `server.properties`, which a KafkaCluster has in `spec.brokers.config`. Names, defaults
and meanings are those of [Kafka 2.8]({_KAFKA}#brokerconfigs); where a default differs,
[compatibility](../compatibility.md#limits) says why. A value out of bounds ends the start, by name.

"At run time" says which settings a broker takes while it runs: `odradek configs alter --broker N`
or `--broker-defaults`, and `spec.brokers.config` of a KafkaCluster. Settings of TLS and SASL are in
[security](../security.md). This page is made from `config.py`.

{_table(config.BrokerConfig, _of_broker)}
## Settings without an effect

Kafka has them, and a file made for Kafka may: {", ".join(map(code, inert))}.

## Settings that are not supported

Kafka has these, too: {", ".join(map(code, unsupported))}.
A value other than Kafka's default is ignored with a warning. So are settings that neither Kafka 2.8
nor a broker here has.
"""


def topic_page() -> str:
    """Return the page of the settings of topics."""
    return f"""# Settings of topics

What `spec.config` of a Topic, `odradek configs alter --topic` and Kafka's tools take. A topic
without an entry follows the setting of the broker in the last column. Meanings are those of
[Kafka 2.8]({_KAFKA}#topicconfigs). This page is made from `topic_config.py`.

{_table(topic_config.TopicConfig, _of_topic)}"""


def _of_broker(declared: ConfigKey) -> tuple[str, str]:
    return "at run time", "yes" if declared.name in dynamic_config.DYNAMIC_KEYS else ""


def _of_topic(declared: ConfigKey) -> tuple[str, str]:
    fields = dict(properties.keys_of(config.BrokerConfig))
    return "default of the broker", code(
        fields[declared.inherits].name if declared.inherits else ""
    )


def _table(settings: type, last: Callable[[ConfigKey], tuple[str, str]]) -> str:
    notes = comments(settings)
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    rows = list(_rows(settings, defaults, notes, last))
    heading = last(next(iter(properties.keys_of(settings)))[1])[0]
    return table(("key", "type", "default", "bounds", "notes", heading), rows)


def _rows(
    settings: type,
    defaults: Mapping[str, object],
    notes: Mapping[str, str],
    last: Callable[[ConfigKey], tuple[str, str]],
) -> Iterator[tuple[str, ...]]:
    for field, declared in properties.keys_of(settings):
        kind, bounds = kind_and_bounds(declared.parse)
        note = notes.get(field, "")
        # A comment in lower case is the heading of what follows, not a note on one key.
        shown = [cell(note)] if note[:1].isupper() else []
        aliases = [code(name) for name, _ in declared.aliases]
        shown += [f"also {', '.join(aliases)}"] if aliases else []
        yield (
            code(declared.name),
            kind,
            code(default_text(defaults[field])),
            bounds,
            "<br>".join(shown),
            last(declared)[1],
        )
