"""Virtual time, and the processes that run in it.

Every process has its own event loop, so it can be stopped, continued and killed like a real one. A
stopped process keeps messages that arrive, and runs late timers when it continues. The world always
runs one batch of callbacks of the process that is due first, and moves time to the next event. One
generator gives all random numbers, so a seed determines a schedule.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any

MOST_STEPS = 400_000
CLEANUP_ROUNDS = 50
THREAD_S = 0.01


class _Loop(asyncio.BaseEventLoop):
    """An event loop with the world's clock, which never waits."""

    # What the base class keeps for itself, and typeshed does not name.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _run_once: Callable[[], None]

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._selector = self
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self._world.now

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """Simulate work in a thread, while the loop goes on."""
        future = self.create_future()
        pause_s = self._world.chance.uniform(0, THREAD_S)
        self.call_later(pause_s, _settle, future, func, arguments)
        return future

    def due(self) -> float | None:
        """Return when this loop has something to run, None for never."""
        if self._ready:
            return self._world.now
        return self._scheduled[0].when() if self._scheduled else None

    def turn(self) -> None:
        """Run the callbacks that are due."""
        asyncio._set_running_loop(self)
        try:
            self._run_once()
        finally:
            asyncio._set_running_loop(None)


def _settle(
    future: asyncio.Future[Any], func: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Do the work of a thread; nobody may wait for it any more."""
    if future.done():
        return
    try:
        future.set_result(func(*arguments))
    except Exception as error:
        future.set_exception(error)


class Process:
    """Tasks that run, stop and die together."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.loop = _Loop(world)
        self.paused = False
        self.dead = False
        self.failure: BaseException | None = None
        world.processes.append(self)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task; its failure is the process's failure."""
        task = self.loop.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self.dead and not task.cancelled() and task.exception() is not None:
            self.failure = task.exception()

    def kill(self) -> None:
        """End all tasks; who keeps a reference to the process must check `dead`."""
        self.dead = True
        self.world.processes.remove(self)
        for _ in range(CLEANUP_ROUNDS):
            left = asyncio.all_tasks(self.loop)
            if not left:
                break
            for task in sorted(left, key=_age):
                task.cancel()
            self.loop.turn()
        self.loop.close()


def _age(task: asyncio.Task[Any]) -> tuple[int, str]:
    # A set of tasks is ordered by address; the default names are numbered.
    return len(task.get_name()), task.get_name()


class World:
    """The clock, the scheduled events, and the processes."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)
        self.processes: list[Process] = []
        self.trace: Callable[[str], None] | None = None
        self.running: Process | None = None
        self.steps = 0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Process | None, Callable[..., None], tuple[Any, ...]]]
        self._events = []

    def say(self, line: str) -> None:
        """Add a line to the trace, if one is kept."""
        if self.trace is not None:
            self.trace(f"{self.now:9.3f}  {line}")

    def clock_ms(self) -> int:
        """Return the monotonic clock of every process."""
        return int(self.now * 1000)

    def later(
        self, seconds: float, process: Process | None, call: Callable[..., None], *arguments: Any
    ) -> None:
        """Schedule a call in a process, unless it is dead by then; None: outside all processes."""
        event = (self.now + seconds, next(self._order), process, call, arguments)
        heapq.heappush(self._events, event)

    def run(self, done: Callable[[], bool], seconds: float) -> bool:
        """Advance time until `done()`; return False if `seconds` passed first."""
        until = self.now + seconds
        while not done():
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise RuntimeError("the schedule does not come to an end")
            chosen: Process | None = None
            at = self._events[0][0] if self._events else float("inf")
            for process in self.processes:
                due = None if process.paused else process.loop.due()
                if due is not None and due < at:
                    chosen, at = process, due
            if at > until:
                self.now = until
                return False
            self.now = max(self.now, at)
            self.running = chosen
            if chosen is not None:
                chosen.loop.turn()
            else:
                _, _, target, call, arguments = heapq.heappop(self._events)
                if target is None:
                    call(*arguments)
                elif not target.dead:
                    target.loop.call_soon(call, *arguments)
        return True

    def end(self) -> None:
        """Kill all processes."""
        for process in tuple(self.processes):
            process.kill()
