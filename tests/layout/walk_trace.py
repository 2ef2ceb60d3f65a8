"""A broker or an operator that writes down which of our functions call which, for `walks`.

    python -m tests.layout.walk_trace broker FILE.properties
    python -m tests.layout.walk_trace operator ZOOKEEPER

It runs the packages on PYTHONPATH, of whatever revision, and imports nothing of ours by a name that
may change: the broker starts by its command line, the operator by the handlers that it registers
with kopf. A broker records between SIGUSR1 and SIGUSR2. What is recorded goes to the file named by
ODRADEK_WALK.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

RESULT = "ODRADEK_WALK"
OURS = ("odradek", "odradek_operator", "odradek_spark")
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
COMMIT = ("kazoo.client", "TransactionRequest.commit")
WAIT_SECONDS = 120
SETTLED_SECONDS = 3


def _function(frame: FrameType) -> str | None:
    """Return `module:qualified name` of a function of ours, None for anything else.

    Left out is what a decorator wrote: constructors and comparisons of dataclasses and named
    tuples, and the codec's compiled functions. Nobody goes there to read.
    """
    code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
    if module.partition(".")[0] not in OURS or code.co_filename.startswith("<"):
        return None
    name = code.co_qualname
    for one in COMPREHENSIONS:
        name = name.replace(f".<locals>.{one}", "").replace(f".{one}", "").replace(one, "<module>")
    return f"{module}:{name}"


class Recorder:
    """Notes each call: where it ran (task or thread), who called, what."""

    def __init__(self) -> None:
        self.on = False
        self.calls: list[tuple[str, str | None, str]] = []
        self.committed_in: str | None = None
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.on or event != "call":
            return
        if (frame.f_globals.get("__name__"), frame.f_code.co_qualname) == COMMIT:
            self.committed_in, self.on = self._place(), False
            return
        callee = _function(frame)
        if callee is None:
            return
        above, caller = frame.f_back, None
        while above is not None and caller is None:
            caller, above = _function(above), above.f_back
        if caller != callee:
            self.calls.append((self._place(), caller, callee))

    @staticmethod
    def _place() -> str:
        thread = threading.current_thread().name
        task = None
        with contextlib.suppress(RuntimeError):
            task = asyncio.current_task()
        return f"{thread}/{task.get_name()}" if task is not None else thread

    def write(self) -> None:
        """Write what was recorded, and forget it."""
        found, self.calls = self.calls, []
        result = Path(os.environ[RESULT])
        part = result.with_suffix(".part")
        part.write_text(json.dumps({"calls": found, "committed_in": self.committed_in}))
        part.rename(result)


def run_broker(properties: str) -> None:
    """Run the broker's command line."""
    recorder = Recorder()

    def begin(*_: object) -> None:
        recorder.on = True

    def end(*_: object) -> None:
        recorder.on = False
        recorder.write()

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    sys.argv = ["odradek", "broker", properties]
    runpy.run_module("odradek", run_name="__main__", alter_sys=True)


class _Objects(BaseHTTPRequestHandler):
    """As much of an API server as one Topic needs: objects by path, merged as they are patched."""

    stored: dict[str, dict[str, Any]] = {}
    statuses = 0
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _reply(self, code: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _read(self) -> dict[str, Any]:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found: dict[str, Any] = json.loads(data) if data else {}
        return found

    def _place(self) -> tuple[str, bool]:
        """Return the path, without what is asked of it, and whether it names one object."""
        path = self.path.partition("?")[0].removesuffix("/status")
        parts = path.strip("/").split("/")[2 if path.startswith("/api/") else 3 :]
        if parts[0] == "namespaces" and len(parts) > 2:
            parts = parts[2:]
        return path, len(parts) > 1

    def do_GET(self) -> None:
        """Answer with an object or with those below a path."""
        path, one = self._place()
        if one and path in self.stored:
            return self._reply(200, self.stored[path])
        if one:
            return self._reply(404, {"message": "not found"})
        found = [body for key, body in self.stored.items() if key.startswith(f"{path}/")]
        return self._reply(200, {"items": found, "metadata": {}})

    def _write(self) -> None:
        path, one = self._place()
        body = self._read()
        path = path if one else f"{path}/{body['metadata']['name']}"
        before = self.stored.get(path, {})
        meta = {
            "uid": path,
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **before.get("metadata", {}),
            **body.get("metadata", {}),
            "resourceVersion": str(len(self.stored) + time.monotonic_ns() % 10**9),
        }
        if body.get("kind") == "KafkaCluster" and "status" in body:
            type(self).statuses += 1
        self.stored[path] = {**before, **body, "metadata": meta}
        self._reply(200, self.stored[path])

    do_POST = do_PUT = do_PATCH = _write  # noqa: N815


def _resource(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    meta = {
        "name": name,
        "namespace": "walk",
        "uid": f"{kind}-{name}",
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"apiVersion": "odradek.io/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


def _path(body: dict[str, Any], plural: str) -> str:
    name = body["metadata"]["name"]
    return f"/apis/odradek.io/v1alpha1/namespaces/walk/{plural}/{name}"


def _handlers() -> dict[str, Callable[..., Awaitable[None]]]:
    """Return the functions that the operator gives to kopf, by the resource or moment."""
    import kopf

    found: dict[str, Any] = {}
    on: Any = kopf.on

    def taking(moment: str) -> Callable[..., Any]:
        def decorator(*arguments: Any, **_: Any) -> Callable[[Any], Any]:
            def keep(function: Any) -> Any:
                found[arguments[-1] if moment == "event" else moment] = function
                return function

            return keep

        return decorator

    for moment in ("startup", "cleanup", "event"):
        setattr(on, moment, taking(moment))
    importlib.import_module("odradek_operator.handlers")
    return found


async def _walk_of_a_topic(recorder: Recorder, zookeeper: str) -> None:
    import kopf

    handlers = _handlers()
    settings, memo = kopf.OperatorSettings(), kopf.Memo()
    await handlers["startup"](settings=settings, memo=memo)
    cluster = _resource(
        "KafkaCluster",
        "main",
        zookeeper={"connect": zookeeper},
        brokers={"replicas": 3},
    )
    topic = _resource(
        "Topic",
        "views",
        clusterRef={"name": "main"},
        partitions=4,
        replicationFactor=3,
        config={"retention.ms": "1000000"},
    )
    for body, plural in ((cluster, "kafkaclusters"), (topic, "topics")):
        _Objects.stored[_path(body, plural)] = body
    await handlers["kafkaclusters"](event={"type": "ADDED", "object": cluster}, memo=memo)
    until = time.monotonic() + WAIT_SECONDS
    seen, settled = -1, time.monotonic()
    while _Objects.statuses == 0 or time.monotonic() - settled < SETTLED_SECONDS:
        if _Objects.statuses != seen:
            seen, settled = _Objects.statuses, time.monotonic()
        if time.monotonic() > until:
            raise TimeoutError("the cluster is not looked at")
        await asyncio.sleep(0.1)
    recorder.on = True
    await handlers["topics"](event={"type": "ADDED", "object": topic}, memo=memo)
    while recorder.committed_in is None:
        if time.monotonic() > until:
            raise TimeoutError("the topic's znodes are not written")
        await asyncio.sleep(0.05)
    recorder.write()


def run_operator(zookeeper: str) -> None:
    """Give the operator a cluster, and then a Topic, until that has its znodes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Objects)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kubeconfig = Path(os.environ[RESULT]).with_suffix(".kubeconfig")
    named = {"cluster": {"server": f"http://127.0.0.1:{server.server_port}"}, "name": "walk"}
    context = {"name": "walk", "context": {"cluster": "walk", "user": "walk"}}
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [named],
                "users": [{"name": "walk", "user": {}}],
                "contexts": [context],
                "current-context": "walk",
            }
        )
    )
    os.environ["KUBECONFIG"] = str(kubeconfig)
    recorder = Recorder()
    asyncio.run(_walk_of_a_topic(recorder, zookeeper))
    # Sessions and Leases end with the process; nothing here is kept.
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "broker":
        run_broker(sys.argv[2])
    else:
        run_operator(sys.argv[2])
