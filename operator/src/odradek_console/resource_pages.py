"""The pages of jobs and reassignments: resources of Kubernetes."""

from __future__ import annotations

from aiohttp import web

from odradek.tools.errors import ToolError
from odradek_console import job_history
from odradek_console.groups import LagSample
from odradek_console.pages import PAGE, chart_of, cut
from odradek_console.rendering import CONSOLE, render, resources_of, whole_number
from odradek_console.resources import Resource

_MOST_PAGE = 10**9


async def jobs(request: web.Request) -> web.Response:
    """Show the ConsumerGroups that have a job."""
    problem, found = "", []
    try:
        found = [one for one in await resources_of(request.app[CONSOLE]).groups() if one.has_job]
    except ToolError as error:
        problem = str(error)
    shown, page = cut(found, whole_number(request, "page", 1, _MOST_PAGE), PAGE)
    return render(request, "jobs.html", jobs=shown, page=page, problem=problem)


async def job(request: web.Request) -> web.Response:
    """Show one job: its state, its rates, its query, and how to see its log and Spark's page."""
    found = await _found(request, "ConsumerGroup")
    if not found.has_job:
        raise web.HTTPNotFound(text="This ConsumerGroup has no job.")
    samples = request.app[CONSOLE].jobs.of(found)
    lags = [LagSample(one.at, one.lag) for one in samples]
    return render(
        request,
        "job.html",
        job=found,
        batches=job_history.rate(samples, lambda one: one.batch),
        rows=job_history.rate(samples, lambda one: one.rows),
        **chart_of(lags),
    )


async def reassignments(request: web.Request) -> web.Response:
    """Show the Reassignments."""
    problem, found = "", []
    try:
        found = await resources_of(request.app[CONSOLE]).reassignments()
    except ToolError as error:
        problem = str(error)
    shown, page = cut(found, whole_number(request, "page", 1, _MOST_PAGE), PAGE)
    return render(request, "reassignments.html", reassignments=shown, page=page, problem=problem)


async def reassignment(request: web.Request) -> web.Response:
    """Show one Reassignment: its plan, the hash of it, and how far it is."""
    found = await _found(request, "Reassignment")
    moves, problem = [], ""
    try:
        moves = await resources_of(request.app[CONSOLE]).plan(found)
    except ToolError as error:
        problem = str(error)
    return render(request, "reassignment.html", reassignment=found, moves=moves, problem=problem)


async def approve(request: web.Request) -> web.Response:
    """Approve the plan that was shown, and no other."""
    found = await _changeable(request)
    fields = await request.post()
    plan = fields.get("hash", "")
    if not found.is_awaiting_approval:
        raise web.HTTPConflict(text="This Reassignment does not wait for an approval.")
    if plan != found.status["planHash"]:
        raise web.HTTPConflict(text="The plan is another one by now: look at it again.")
    await resources_of(request.app[CONSOLE]).change(found, {"approvedPlanHash": plan})
    raise web.HTTPSeeOther(request.path.rpartition("/")[0])


async def cancel(request: web.Request) -> web.Response:
    """Cancel a Reassignment."""
    found = await _changeable(request)
    if found.has_ended:
        raise web.HTTPConflict(text="This Reassignment has ended.")
    await resources_of(request.app[CONSOLE]).change(found, {"cancel": True})
    raise web.HTTPSeeOther(request.path.rpartition("/")[0])


async def _changeable(request: web.Request) -> Resource:
    if not request.app[CONSOLE].settings.writable:
        raise web.HTTPForbidden(text="This console is read-only: see --writable.")
    return await _found(request, "Reassignment")


async def _found(request: web.Request, kind: str) -> Resource:
    found = await resources_of(request.app[CONSOLE]).get(
        kind, request.match_info["namespace"], request.match_info["name"]
    )
    if found is None:
        raise web.HTTPNotFound(text=f"There is no such {kind}.")
    return found
