"""Reset of the offsets of a group with a job."""

from __future__ import annotations

from dataclasses import replace

from odradek_operator.group import conditions as group_conditions
from odradek_operator.group import driver as drivers
from odradek_operator.group import observe as group_observe
from odradek_operator.group import reset, reset_step
from odradek_operator.group.job import JobRun, remembered
from odradek_operator.group.observe import WAIT_SECONDS
from odradek_operator.group.reset import Reset
from odradek_operator.group.reset_step import Outcome, ResetStep
from odradek_operator.shared import status, status_update
from odradek_operator.shared.broker_client import BrokerError, OperatorClient
from odradek_operator.shared.objects import Object
from odradek_operator.shared.spec import Body
from odradek_operator.shared.views import Owner
from odradek_operator.shared.zookeeper import RefusedError, UnreachableError


def reconcile(run: JobRun, body: Body, request: Reset) -> float:
    """Reset the offsets of a group with a job: check, stop the driver, commit, restart.

    The driver is a member of the group, so offsets move only after it has gone. It is not stopped
    for a request that is refused, nor for one that has to wait for others anyway.
    """
    pod = run.driver()
    if pod is not None and reset.begun(request, body) is None and run.refuses_change(body, pod):
        return run.reconcile(body)
    try:
        outcome = _next_step(run, body, request, pod)
    except RefusedError as error:
        outcome = Outcome(problem=status.stalled("ZooKeeperRefuses", str(error)))
    except UnreachableError as error:
        outcome = reset_step.waits("ZooKeeperUnreachable", str(error))
    except BrokerError as error:
        outcome = reset_step.waits("BrokersUnreachable", str(error))
    stopped = pod is None and not request.dry_run
    if outcome.problem and (outcome.refused or not stopped or run.around.cluster.paused):
        return run.reconcile(body, instead=outcome.problem)
    if not stopped and not request.dry_run:
        text = f"the driver is stopped for reset {request.request_id}"
        return run.reconcile(body, hold=status.progressing("Resetting", text))
    if request.dry_run:
        status_update.write_status(run.context, body, (), {"lastReset": outcome.last})
        return 0.0
    fields = remembered(body)
    if outcome.last is not None:
        fields["lastReset"] = outcome.last
    # The driver was stopped on purpose: it restarts like a suspended one.
    stopped_job = drivers.suspended(body.get("status", {}))
    fields["job"] = drivers.status_fields(stopped_job, run.driver_name, None)
    text = f"resetting offsets for request {request.request_id}"
    told = outcome.problem or status.progressing("Resetting", text)
    status_update.write_status(
        run.context, body, (*told, status.paused(False)), fields, outcome.events
    )
    return WAIT_SECONDS if outcome.problem else 0.0


def _next_step(run: JobRun, body: Body, request: Reset, pod: Object | None) -> Outcome:
    around, wanted = run.around, run.wanted
    if around.cluster.owner is not Owner.PRESENT:
        return Outcome(problem=group_conditions.judge_absent(wanted, around.cluster.owner))
    if around.zookeeper is None:
        raise UnreachableError(around.cluster.away)
    with OperatorClient(around.endpoints, around.security) as brokers:
        view = group_observe.view_group(around.zookeeper, brokers, wanted)
        leaders = group_observe.find_leaders(around.zookeeper, wanted, view)
        step = ResetStep(run.context, around.zookeeper, brokers, wanted, request, view, leaders)
        if pod is None:
            return step.run(body, around.cluster.paused)
        others = max(0, view.members - 1)
        if not request.dry_run and (others or around.cluster.paused):
            without = replace(step, view=replace(view, members=others))
            return without.run(body, around.cluster.paused)
        return Outcome() if reset.begun(request, body) is not None else step.begin()
