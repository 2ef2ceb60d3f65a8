"""Checks a resource as the API server would, by the schema of its CRD, and fills in defaults. Pure.

Rules over several fields (x-kubernetes-validations) are the API server's alone: they are written
in a language of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Patterns of CRDs are in the language of Go, which this has.
import re2

Schema = Mapping[str, Any]

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
# What a schema bounds, by its keywords for the least and the largest.
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "object": ("minProperties", "maxProperties"),
    "array": ("minItems", "maxItems"),
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
}


class SchemaError(ValueError):
    """A value that the API server would refuse; the message begins with its path."""


def checked(schema: Schema, value: Any, path: str) -> Any:
    """Return the value with the schema's defaults. Raises SchemaError."""
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise SchemaError(f"{path} must be a number or a string, not {_shown(value)}")
        return value
    kind = schema.get("type")
    if kind is None:
        return value
    if not _is_of(kind, value):
        article = "an" if kind[0] in "aeio" else "a"
        advice = '; write it in quotes: "..."' if kind == "string" else ""
        raise SchemaError(f"{path} must be {article} {kind}, not {_shown(value)}{advice}")
    if kind == "string":
        value = _joined(value, path)
    elif kind == "object":
        value = _given(schema, value)
    _check_bounds(schema, kind, value, path)
    if "enum" in schema and value not in schema["enum"]:
        wanted = ", ".join(map(str, schema["enum"]))
        raise SchemaError(f"{path} {_shown(value)} is not one of {wanted}")
    if "pattern" in schema and not re2.search(schema["pattern"], value):
        raise SchemaError(f"{path} {_shown(value)} does not match {schema['pattern']}")
    if kind == "array":
        items = schema.get("items", {})
        return [checked(items, one, f"{path}[{index}]") for index, one in enumerate(value)]
    return _checked_object(schema, value, path) if kind == "object" else value


def _is_of(kind: str, value: Any) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _joined(text: str, path: str) -> str:
    """Return a text as JSON means it: its escapes have two halves, which YAML leaves apart."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise SchemaError(f"{path} {_shown(text)} is not Unicode text") from None


def _given(schema: Schema, value: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the fields that are given: as for the API server, null is one that is not."""
    fields = schema.get("properties", {})
    return {name: inner for name, inner in value.items() if inner is not None or name not in fields}


def _check_bounds(schema: Schema, kind: str, value: Any, path: str) -> None:
    least, largest = (schema.get(name) for name in _BOUNDS.get(kind, ("", "")))
    size = value if kind in ("integer", "number") else len(value) if kind != "boolean" else 0
    what = "" if kind in ("integer", "number") else "the size of "
    if least is not None and size < least:
        raise SchemaError(f"{what}{path} must be at least {least}, not {size}")
    if largest is not None and size > largest:
        raise SchemaError(f"{what}{path} must be at most {largest}, not {size}")


def _checked_object(schema: Schema, value: Mapping[Any, Any], path: str) -> dict[str, Any]:
    fields, others = schema.get("properties", {}), schema.get("additionalProperties")
    found: dict[str, Any] = {}
    for name, inner in value.items():
        where = f"{path}.{name}"
        if not isinstance(name, str):
            raise SchemaError(f"{where}: a name of a field must be a string")
        if name in fields:
            found[name] = checked(fields[name], inner, where)
        elif isinstance(others, Mapping):
            found[_joined(name, path)] = checked(others, inner, where)
        elif schema.get("x-kubernetes-preserve-unknown-fields") or (not fields and others is None):
            found[name] = inner
        else:
            raise SchemaError(f"{where} is unknown; known are {', '.join(sorted(fields))}")
    for name, inner_schema in fields.items():
        if name not in found and "default" in inner_schema:
            found[name] = checked(inner_schema, inner_schema["default"], f"{path}.{name}")
    missing = [name for name in schema.get("required", ()) if name not in found]
    if missing:
        raise SchemaError(f"{path}.{missing[0]} is missing")
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
