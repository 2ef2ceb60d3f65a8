"""Lets Ctrl-C end what Spark does for a statement.

A call to the JVM must not be cut short: the next one would take its answer. So such work runs in a
thread of its own, and the main thread, which gets the signals, cancels Spark's jobs and waits.
"""

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TypeVar

from pyspark.sql import SparkSession

T = TypeVar("T")

_CANCEL_INTERVAL_S = 0.5


def run(spark: SparkSession, work: Callable[[threading.Event], T]) -> T:
    """Return the result of work, which gets an event that is set as soon as it shall end.

    What ends the main thread's waiting, such as KeyboardInterrupt, is raised once the work ended.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        return work(interrupted)
    future: Future[T] = Future()
    thread = threading.Thread(target=_settle, args=(future, work, interrupted), daemon=True)
    thread.start()
    try:
        return future.result()
    except BaseException:
        interrupted.set()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            while not future.done():
                with suppress(Exception):  # the JVM may be gone
                    spark.sparkContext.cancelAllJobs()
                wait([future], _CANCEL_INTERVAL_S)
        finally:
            signal.signal(signal.SIGINT, before)
        raise


def _settle(
    future: "Future[T]", work: Callable[[threading.Event], T], interrupted: threading.Event
) -> None:
    try:
        future.set_result(work(interrupted))
    except BaseException as error:
        future.set_exception(error)
