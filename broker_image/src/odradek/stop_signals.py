"""What SIGTERM, SIGINT and SIGHUP mean to the program from its first moment to its last.

They ask a broker to stop, which ends with status 0. By default they would kill it, and the first
process of a container would not even hear them. So the program begins with `exit_at_once`, as there
is nothing to finish. The event loop of `server` takes the signals over, and behind it `hold_back`
lets a process exit that has only that to do.

Other commands end at Ctrl-C with the status that shells expect. While their modules are loaded,
`exit_at_interrupt` sees to it: an exception there may come out as another one.
"""

import os
import signal

INTERRUPTED = 130
"""The exit status of commands that Ctrl-C ends."""


def numbers() -> set[signal.Signals]:
    """Return the signals that ask a broker to stop: Kafka's, whose terminal may go (SIGHUP).

    SIGHUP that is ignored, as by nohup, stays so.
    """
    asking = {signal.SIGTERM, signal.SIGINT}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asking.add(signal.SIGHUP)
    return asking


def exit_at_once() -> None:
    """Let each of them end the process with status 0."""
    for number in numbers():
        signal.signal(number, lambda *_: os._exit(0))


def hold_back() -> None:
    """Let none of them come any more."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers())


def exit_at_interrupt() -> None:
    """Let Ctrl-C end the process, until `raise_interrupts`; not where it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_interrupted)


def raise_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, after `exit_at_interrupt`."""
    if signal.getsignal(signal.SIGINT) is _exit_interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit_interrupted(*_: object) -> None:
    os._exit(INTERRUPTED)
