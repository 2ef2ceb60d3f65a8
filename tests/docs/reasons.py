"""The reference of conditions: each reason that the operator gives, and what it says with it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.docs.literals import Scope, functions, known_texts, texts
from tests.docs.markdown import cell, code, table
from tests.layout.sources import PACKAGES
from tests.reconcile import statuses
from tests.reconcile.statuses import Truth

_OPERATOR = PACKAGES["odradek_operator"]
_REASON = re.compile(r"[A-Z][a-z]+(?:[A-Z][A-Za-z]*)*")
_KINDS = {
    "cluster": "KafkaCluster",
    "topic": "Topic",
    "group": "ConsumerGroup",
    "reassignment": "Reassignment",
    "user": "User",
}
_MEANING = {
    Truth.DONE: "Ready",
    Truth.UNDER_WAY: "not Ready yet; the operator goes on by itself",
    Truth.FAILED: "not Ready; somebody has to do something",
    Truth.AT_REST: "paused on purpose",
}
CONDITION = "Condition"
EVENT = "Event"
READY = ("Ready", "Reconciling", "Stalled")
# Of clients beside a cluster's brokers: the modules whose errors become reasons of the condition.
_CLIENTS = {
    "LagExporter": ("cluster/exporter.py", "shared/client_users.py", "shared/zookeeper_login.py"),
    "Console": ("cluster/console.py", "shared/client_users.py"),
}
_ERRORS = ("ClientUserError", "CredentialsError")


@dataclass(slots=True)
class Reason:
    """One reason: the kinds whose code names it, and the messages that go with it."""

    kinds: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)


def page() -> str:
    """Return the page."""
    known, others, events = ready_reasons(), conditions(), _found(EVENT)
    rows = [
        (code(name), _MEANING[truth], ", ".join(sorted(one.kinds)), _messages(one))
        for name, (truth, one) in sorted(known.items())
    ]
    of_conditions = [
        (code(kind), code(reason), ", ".join(sorted(one.kinds)), _messages(one))
        for (kind, reason), one in sorted(others.items())
    ]
    of_events = [
        (code(name), ", ".join(sorted(one.kinds)), _messages(one))
        for name, one in sorted(events.items())
    ]
    phases = [(code(phase), _MEANING[truth]) for phase, truth in statuses.PHASES.items()]
    return f"""# Conditions and reasons

Every resource has the conditions Ready, Reconciling and Stalled. Ready tells whether it is as its
spec wants, Reconciling whether the operator is at work, and Stalled whether somebody has to do
something first. `kubectl get -o wide` shows the reason and the message of Ready.
[Troubleshooting](../how-to/troubleshoot.md) begins with what you see. This page is made from the
operator's code; `...` stands for names and numbers, and several messages are separated by lines.

## Reasons of Ready

{table(("reason", "means", "of", "messages"), rows)}
## Phases of a Reassignment

{table(("phase", "means"), phases)}
## Other conditions

They may also have the reason of Ready, where that is why they are not met, or not known.

{table(("condition", "reason", "of", "messages"), of_conditions)}
## Events

{table(("event", "of", "messages"), of_events)}"""


def _messages(one: Reason) -> str:
    return "<br>".join(cell(text) for text in dict.fromkeys(one.messages))


def ready_reasons() -> dict[str, tuple[Truth, Reason]]:
    """Return each reason of Ready, with what is true of such a resource."""
    truths = (
        statuses.PHASES
        | dict.fromkeys(statuses.OF_REASSIGNMENTS, Truth.UNDER_WAY)
        | {reason: truth for truth, text in statuses.REASONS.items() for reason in text.split()}
        | dict.fromkeys(statuses.REFUSED_PLANS, Truth.FAILED)
    )
    found = _found(CONDITION)
    return {reason: (truth, found.get(reason, Reason())) for reason, truth in truths.items()}


def conditions() -> dict[tuple[str, str], Reason]:
    """Return the conditions beside Ready, Reconciling and Stalled, each with its reasons."""
    found: dict[tuple[str, str], Reason] = {}
    for kind, call, scope in _conditions():
        for type_ in texts(call.args[0], scope):
            if type_ in READY:
                continue
            for reason in texts(call.args[2], scope):
                one = found.setdefault((type_, reason), Reason())
                one.kinds |= kind
                one.messages += _sentences(call.args[3] if len(call.args) > 3 else None, scope)
    return found | _of_clients() | _of_reassignments()


def unknown(resources: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each condition of resources, beside Ready, that the page has no word on."""
    known, of_ready = conditions(), ready_reasons()
    found = {
        f"{one['kind']}: {told['type']}, {told['reason']}"
        for one in resources
        for told in one.get("status", {}).get("conditions", ())
        if told["type"] not in READY
        and (told["type"], told["reason"]) not in known
        and not (told["reason"] in of_ready and any(type_ == told["type"] for type_, _ in known))
    }
    return sorted(found)


def _of_clients() -> dict[tuple[str, str], Reason]:
    """Return the conditions of lag exporter and console, which say what is in their way."""
    found: dict[tuple[str, str], Reason] = {}
    for type_, files in _CLIENTS.items():
        for _, call, scope in (one for file in files for one in _calls_in(_OPERATOR / file)):
            if ast.unparse(call.func) in _ERRORS:
                reason, message = call.args[0], call.args[1]
            elif _makes_condition(call) and ast.unparse(call.args[0]) == "condition":
                reason, message = call.args[2], call.args[3]
            else:
                continue
            for name in texts(reason, scope):
                one = found.setdefault((type_, name), Reason({"KafkaCluster"}))
                one.messages += _sentences(message, scope)
    return found


def _of_reassignments() -> dict[tuple[str, str], Reason]:
    """Return the conditions of Reassignments that have a phase, or what ended it, as reason."""
    pairs = {
        (type_, phase)
        for type_ in ("InProgress", "Completed", "Cancelled")
        for phase in (*statuses.PHASES, "Refused")
    }
    pairs.add(("RollingBack", "NotRollingBack"))
    for _, scope in functions(_OPERATOR / "reassignment/decide.py"):
        for value in scope.get("rolling_back", ()):
            pairs |= {("RollingBack", reason) for reason in texts(value, {})}
    return {pair: Reason({"Reassignment"}) for pair in pairs}


# A function that makes a condition of what it is given: its parameters, the call, and its names.
_Helper = tuple[list[str], ast.Call, Scope]


def _conditions() -> Iterator[tuple[set[str], ast.Call, Scope]]:
    """Yield the calls that make a condition: what a helper is given stands for its parameters."""
    for path in sorted(_OPERATOR.rglob("*.py")):
        helpers = _helpers(path)
        for kind, call, scope in _calls_in(path):
            if _makes_condition(call):
                yield kind, call, scope
            for names, made, own in helpers.get(ast.unparse(call.func), ()):
                given = dict(zip(names, call.args, strict=False))
                known = {name: known_texts(one, scope) for name, one in given.items()}
                others = {name: value for name, value in own.items() if name not in names}
                yield kind, made, others | {name: one for name, one in known.items() if one}


def _helpers(path: Path) -> dict[str, list[_Helper]]:
    found: dict[str, list[_Helper]] = {}
    for function, scope in functions(path):
        for node in ast.walk(function):
            if not isinstance(node, ast.FunctionDef):
                continue
            names = [one.arg for one in node.args.args]
            for made in filter(_makes_condition, ast.walk(node)):
                assert isinstance(made, ast.Call)
                parts = (part for one in (made.args[0], made.args[2]) for part in ast.walk(one))
                if any(isinstance(part, ast.Name) and part.id in names for part in parts):
                    found.setdefault(node.name, []).append((names, made, scope))
    return found


def _makes_condition(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or len(node.args) < 3:
        return False
    return ast.unparse(node.func).split(".")[-1] == CONDITION


def _found(what: str) -> dict[str, Reason]:
    """Return the reasons in calls: of Events, or of anything else but Events."""
    found: dict[str, Reason] = {}
    for kind, call, scope in _calls():
        if (ast.unparse(call.func).split(".")[-1] == EVENT) != (what == EVENT):
            continue
        for reason, message in _pairs(call):
            for name in texts(reason, scope):
                if _REASON.fullmatch(name):
                    one = found.setdefault(name, Reason())
                    one.kinds |= kind
                    one.messages += _sentences(message, scope)
    return found


def _sentences(node: ast.expr | None, scope: Scope) -> list[str]:
    return [text for text in texts(node, scope) if not _REASON.fullmatch(text)]


def _pairs(call: ast.Call) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    arguments = [one for one in call.args if not isinstance(one, ast.Starred)]
    yield from zip(arguments, [*arguments[1:], None], strict=False)


def _calls() -> Iterator[tuple[set[str], ast.Call, Scope]]:
    for path in sorted(_OPERATOR.rglob("*.py")):
        yield from _calls_in(path)


def _calls_in(path: Path) -> Iterator[tuple[set[str], ast.Call, Scope]]:
    folder = path.relative_to(_OPERATOR).parts[0]
    kind = {_KINDS[folder]} if folder in _KINDS else set()
    for function, scope in functions(path):
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                yield kind, node, scope
            if isinstance(node, ast.Tuple):
                yield kind, ast.Call(ast.Name("pair"), list(node.elts), []), scope
