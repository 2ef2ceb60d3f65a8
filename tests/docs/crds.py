"""The reference of the resources: every field of every CRD, with what the API server checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tests.docs.markdown import cell, code, table
from tests.layout.sources import ROOT

CRDS = ROOT / "crds"
# Of each resource in Kubernetes; their fields are not ours.
_COMMON = ("apiVersion", "kind", "metadata")
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} entries",
    "maxProperties": "at most {} entries",
}

Schema = Mapping[str, Any]


def pages() -> Iterator[tuple[str, str]]:
    """Yield (file name, text) of one page per kind."""
    for path in sorted(CRDS.glob("*.yaml")):
        yield path.with_suffix(".md").name, _page(yaml.safe_load(path.read_text())["spec"])


def _page(crd: Schema) -> str:
    kind, (version,) = crd["names"]["kind"], crd["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    short = ", ".join(map(code, crd["names"].get("shortNames", ())))
    lines = [
        f"# {kind}",
        "",
        f"{schema.get('description', '')} It is {code(crd['group'] + '/' + version['name'])}, and "
        f"`kubectl` knows it as {code(crd['names']['plural'])}"
        + (f" or {short}." if short else "."),
        "",
        "A default is filled in by the API server. What a rule says, the API server refuses with "
        "that message. This page is made from the CRD.",
        "",
    ]
    rows = [(path, one, needed) for path, one, needed in _fields(schema, "")]
    for title, prefix in (("Spec", "spec"), ("Status", "status")):
        chosen = [row for row in rows if row[0] == prefix or row[0].startswith(f"{prefix}.")]
        lines += [f"## {title}", "", _table(chosen)]
    lines += ["## Rules of the whole resource", "", *_rules(schema), ""]
    lines += ["## Columns of kubectl get", "", _columns(version)]
    return "\n".join(lines)


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    """Yield (path, schema, required) of the fields below a schema, in order."""
    required = set(schema.get("required", ()))
    for name, one in schema.get("properties", {}).items():
        if not path and name in _COMMON:
            continue
        here = f"{path}.{name}" if path else name
        yield here, one, name in required
        yield from _below(one, here)


def _below(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    yield from _fields(schema, path)
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        inner = schema.get(key)
        if isinstance(inner, dict):
            yield from _below(inner, f"{path}{mark}")


def type_of(schema: Schema) -> str:
    """Return the type in words: "array of string", "map of integer (int32)"."""
    kind = schema.get("type") or ("integer or string" if _is_either(schema) else "any")
    inner = schema.get("items")
    if isinstance(inner, dict):
        return f"array of {type_of(inner)}"
    entries = schema.get("additionalProperties")
    if isinstance(entries, dict):
        return f"map of {type_of(entries)}"
    return f"{kind} ({schema['format']})" if "format" in schema else str(kind)


def _is_either(schema: Schema) -> bool:
    return bool(schema.get("x-kubernetes-int-or-string"))


def _bounds(schema: Schema) -> list[str]:
    found = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    if "enum" in schema:
        found.append("one of " + ", ".join(code(one) for one in schema["enum"]))
    if "pattern" in schema:
        found.append(f"matches {code(schema['pattern'])}")
    for key, mark in (("items", "each: "), ("additionalProperties", "each value: ")):
        inner = schema.get(key)
        if isinstance(inner, dict) and "properties" not in inner:
            found += [mark + one for one in _bounds(inner)]
    return found


def _told(rule: Schema) -> str:
    return cell(rule["message"]) if "message" in rule else code(rule["rule"])


def _table(rows: list[tuple[str, Schema, bool]]) -> str:
    shown = []
    for path, one, required in rows:
        default = _json(one["default"]) if "default" in one else ""
        notes = [cell(one.get("description", ""))] if one.get("description") else []
        notes += ["; ".join(_bounds(one))] if _bounds(one) else []
        notes += [f"rule: {_told(rule)}" for rule in one.get("x-kubernetes-validations", ())]
        shown.append(
            (
                code(path) + (" (required)" if required else ""),
                type_of(one),
                code(default),
                "<br>".join(notes),
            )
        )
    return table(("field", "type", "default", "meaning, bounds and rules"), shown)


def _json(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()


def _rules(schema: Schema) -> list[str]:
    rules = [f"- {_told(one)}" for one in schema.get("x-kubernetes-validations", ())]
    return rules or ["There are none but those of single fields above."]


def _columns(version: Schema) -> str:
    rows = [
        (one["name"], code(one["jsonPath"]), "`-o wide`" if one.get("priority") else "always")
        for one in version.get("additionalPrinterColumns", ())
    ]
    return table(("column", "from", "shown with"), rows)
