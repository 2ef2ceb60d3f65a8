"""The race for the office of controller as a table (rows C1, C2, C4).

Every broker runs this little machine. It claims the office when it finds nobody in it, watches
whoever has it, and gives it up when its session is lost or another controller is seen. The effects
(one transaction that creates /controller and bumps /controller_epoch, reading, watching) are those
of `loop`. A broker that is not registered stays OUT: it would take itself for dead.

              REGISTERED  CHANGED  SEEN_VACANT    WON       LOST     DEPOSED         EXPIRED
    OUT       IDLE look   -        -              -         -        -               -
    IDLE      look        look     CLAIMING       -         -        look            OUT
    CLAIMING  -           -        -              ACTIVE    IDLE     -               OUT
    ACTIVE    -           look     CLAIMING       -         -        IDLE            OUT
"""

import enum
from dataclasses import dataclass


class Duty(enum.Enum):
    """What a broker is in the race."""

    OUT = "out"  # not registered
    IDLE = "idle"  # watching whoever is controller
    CLAIMING = "claiming"
    ACTIVE = "active"


class Signal(enum.Enum):
    """What happens to it."""

    REGISTERED = "registered"  # the broker is in /brokers/ids and may be elected
    CHANGED = "changed"  # the watch on /controller fired, or was lost with a connection
    SEEN_VACANT = "seen-vacant"
    SEEN_SELF = "seen-self"
    SEEN_OTHER = "seen-other"
    WON = "won"
    LOST = "lost"
    DEPOSED = "deposed"  # a write was fenced off, or a broker knew a newer controller
    EXPIRED = "expired"  # the session is gone, and the claim with it


class Order(enum.Enum):
    """What is to be done about it."""

    LOOK = "look"  # read /controller and watch it
    CLAIM = "claim"
    ENTER = "enter"  # read everything, become controller
    RESIGN = "resign"  # stop everything that only a controller does
    YIELD = "yield"  # remove a claim of this session that it cannot use


@dataclass(frozen=True, slots=True)
class Move:
    """The next duty and the orders."""

    duty: Duty
    orders: tuple[Order, ...] = ()


_D, _S, _O = Duty, Signal, Order

TABLE: dict[tuple[Duty, Signal], Move] = {
    (_D.OUT, _S.REGISTERED): Move(_D.IDLE, (_O.LOOK,)),
    (_D.OUT, _S.CHANGED): Move(_D.OUT),
    (_D.OUT, _S.DEPOSED): Move(_D.OUT),
    (_D.OUT, _S.EXPIRED): Move(_D.OUT),
    (_D.IDLE, _S.REGISTERED): Move(_D.IDLE, (_O.LOOK,)),
    (_D.IDLE, _S.CHANGED): Move(_D.IDLE, (_O.LOOK,)),
    (_D.IDLE, _S.SEEN_VACANT): Move(_D.CLAIMING, (_O.CLAIM,)),
    # A claim whose answer was lost with the connection: which epoch it made is not known for sure.
    (_D.IDLE, _S.SEEN_SELF): Move(_D.IDLE, (_O.YIELD, _O.LOOK)),
    (_D.IDLE, _S.SEEN_OTHER): Move(_D.IDLE),
    (_D.IDLE, _S.DEPOSED): Move(_D.IDLE, (_O.LOOK,)),
    (_D.IDLE, _S.EXPIRED): Move(_D.OUT),
    (_D.CLAIMING, _S.WON): Move(_D.ACTIVE, (_O.ENTER,)),
    (_D.CLAIMING, _S.LOST): Move(_D.IDLE, (_O.LOOK,)),
    (_D.CLAIMING, _S.EXPIRED): Move(_D.OUT),
    (_D.ACTIVE, _S.REGISTERED): Move(_D.ACTIVE),
    (_D.ACTIVE, _S.CHANGED): Move(_D.ACTIVE, (_O.LOOK,)),
    (_D.ACTIVE, _S.SEEN_SELF): Move(_D.ACTIVE),
    (_D.ACTIVE, _S.SEEN_VACANT): Move(_D.CLAIMING, (_O.RESIGN, _O.CLAIM)),
    (_D.ACTIVE, _S.SEEN_OTHER): Move(_D.IDLE, (_O.RESIGN,)),
    (_D.ACTIVE, _S.DEPOSED): Move(_D.IDLE, (_O.RESIGN, _O.YIELD, _O.LOOK)),
    (_D.ACTIVE, _S.EXPIRED): Move(_D.OUT, (_O.RESIGN,)),
}


def move(duty: Duty, signal: Signal) -> Move:
    """Return what follows; a pair that the table does not know is a programmer's error."""
    assert (duty, signal) in TABLE, f"{signal.value} while {duty.value}"
    return TABLE[(duty, signal)]
