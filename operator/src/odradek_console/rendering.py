"""Makes pages of templates: everything that comes from a cluster is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2
from aiohttp import web

from odradek_console import show
from odradek_console.avro import SchemaRegistry
from odradek_console.cluster import ClusterReader
from odradek_console.groups import GroupReader, LagHistory
from odradek_console.job_history import JobHistory
from odradek_console.resources import KubernetesError, ResourceReader
from odradek_console.sessions import Sessions
from odradek_console.settings import ConsoleSettings

FOLDER: Final = Path(__file__).parent
_LONGEST_NUMBER: Final = 19


@dataclass(slots=True)
class Console:
    """What the pages are made of. `tails` counts the live tails that are open, by owner."""

    settings: ConsoleSettings
    sessions: Sessions
    cluster: ClusterReader
    groups: GroupReader
    history: LagHistory
    resources: ResourceReader | None
    registry: SchemaRegistry
    jobs: JobHistory
    tails: Counter[str] = field(default_factory=Counter)


CONSOLE: Final = web.AppKey("console", Console)


def _part(text: str) -> str:
    """Return a text as one segment of a path."""
    return quote(text, safe="")


def _query(values: Mapping[str, object]) -> str:
    """Return a query with those values that are not empty."""
    return urlencode({name: value for name, value in values.items() if value not in ("", None)})


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        size=show.size,
        number=show.number,
        rate=show.rate,
        time=show.time_of,
        clock=show.clock,
        payload=show.payload,
        part=_part,
        query=_query,
    )
    return made


_TEMPLATES: Final = _environment()


def render(
    request: web.Request, template: str, *, status: int = 200, **values: Any
) -> web.Response:
    """Return a page."""
    console = request.app[CONSOLE]
    text = _TEMPLATES.get_template(template).render(
        path=request.path,
        user=request.get("user"),
        has_users=console.settings.users is not None,
        writable=console.settings.writable,
        has_records=console.settings.records,
        form_token=request.get("form_token", ""),
        **values,
    )
    return web.Response(text=text, status=status, content_type="text/html")


def fragment(template: str, **values: Any) -> str:
    """Return a part of a page."""
    return _TEMPLATES.get_template(template).render(**values)


def whole_number(request: web.Request, name: str, default: int, most: int) -> int:
    """Return a number of the query from 0 to `most`. Raises HTTPBadRequest."""
    text = request.query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        raise web.HTTPBadRequest(text=f"{name} is not a whole number.")
    found = int(text)
    if found > most:
        raise web.HTTPBadRequest(text=f"{name} is more than {most}.")
    return found


def choice(request: web.Request, name: str, choices: tuple[str, ...]) -> str:
    """Return one of the choices, the first if the query has none. Raises HTTPBadRequest."""
    text = request.query.get(name, "") or choices[0]
    if text not in choices:
        raise web.HTTPBadRequest(text=f"{name} is none of {', '.join(choices)}.")
    return text


def resources_of(console: Console) -> ResourceReader:
    """Return the reader of resources. Raises KubernetesError if there is none."""
    if console.resources is None:
        raise KubernetesError("this console does not look at it: see --kubernetes")
    return console.resources
