"""The election of the controller as a table of states (rows C1, C2, C4).

Every broker runs this state machine. It tries to become controller when there is none, watches
/controller while another broker is controller, and stops being controller when its session expires
or it sees a newer controller. `loop` carries out the actions. A broker that is not registered must
not be controller: it would count itself as dead.

    event            UNREGISTERED  IDLE          ELECTING      ACTIVE
    REGISTERED       IDLE          IDLE          .             ACTIVE
    ZNODE_CHANGED    UNREGISTERED  IDLE          .             ACTIVE
    NO_CONTROLLER    .             ELECTING      .             ELECTING
    SELF_CONTROLLER  .             IDLE          .             ACTIVE
    OTHER_CONTROLLER .             IDLE          .             IDLE
    WON              .             .             ACTIVE        .
    LOST             .             .             IDLE          .
    FENCED           UNREGISTERED  IDLE          .             IDLE
    SESSION_EXPIRED  UNREGISTERED  UNREGISTERED  UNREGISTERED  UNREGISTERED
"""

import enum
from dataclasses import dataclass


class CandidateState(enum.Enum):
    """The state of a broker in the election of the controller."""

    UNREGISTERED = "unregistered"
    IDLE = "idle"  # watches /controller
    ELECTING = "electing"
    ACTIVE = "active"  # is the controller


class CandidateEvent(enum.Enum):
    """What a candidate learns."""

    REGISTERED = "registered"  # the broker is in /brokers/ids and may become controller
    ZNODE_CHANGED = "znode-changed"  # the watch on /controller fired, or its connection was lost
    NO_CONTROLLER = "no-controller"
    SELF_CONTROLLER = "self-controller"
    OTHER_CONTROLLER = "other-controller"
    WON = "won"
    LOST = "lost"
    FENCED = "fenced"  # a write failed the epoch check, or a broker knew a newer controller
    SESSION_EXPIRED = "session-expired"  # ZooKeeper has removed this session's /controller


class CandidateAction(enum.Enum):
    """What the broker must do."""

    READ_ZNODE = "read-znode"  # read /controller and watch it
    ELECT = "elect"  # try to create /controller
    START = "start"  # read all state and become the active controller
    STOP = "stop"  # stop everything that only the controller does
    RESIGN = "resign"  # delete /controller if this session created it


@dataclass(frozen=True, slots=True)
class CandidateTransition:
    """The next state and the actions."""

    state: CandidateState
    actions: tuple[CandidateAction, ...] = ()


_S, _E, _A, _T = CandidateState, CandidateEvent, CandidateAction, CandidateTransition

TABLE: dict[tuple[CandidateState, CandidateEvent], CandidateTransition] = {
    (_S.UNREGISTERED, _E.REGISTERED): _T(_S.IDLE, (_A.READ_ZNODE,)),
    (_S.UNREGISTERED, _E.ZNODE_CHANGED): _T(_S.UNREGISTERED),
    (_S.UNREGISTERED, _E.FENCED): _T(_S.UNREGISTERED),
    (_S.UNREGISTERED, _E.SESSION_EXPIRED): _T(_S.UNREGISTERED),
    (_S.IDLE, _E.REGISTERED): _T(_S.IDLE, (_A.READ_ZNODE,)),
    (_S.IDLE, _E.ZNODE_CHANGED): _T(_S.IDLE, (_A.READ_ZNODE,)),
    (_S.IDLE, _E.NO_CONTROLLER): _T(_S.ELECTING, (_A.ELECT,)),
    # The response to an election was lost with the connection: its controller epoch is unknown.
    (_S.IDLE, _E.SELF_CONTROLLER): _T(_S.IDLE, (_A.RESIGN, _A.READ_ZNODE)),
    (_S.IDLE, _E.OTHER_CONTROLLER): _T(_S.IDLE),
    (_S.IDLE, _E.FENCED): _T(_S.IDLE, (_A.READ_ZNODE,)),
    (_S.IDLE, _E.SESSION_EXPIRED): _T(_S.UNREGISTERED),
    (_S.ELECTING, _E.WON): _T(_S.ACTIVE, (_A.START,)),
    (_S.ELECTING, _E.LOST): _T(_S.IDLE, (_A.READ_ZNODE,)),
    (_S.ELECTING, _E.SESSION_EXPIRED): _T(_S.UNREGISTERED),
    (_S.ACTIVE, _E.REGISTERED): _T(_S.ACTIVE),
    (_S.ACTIVE, _E.ZNODE_CHANGED): _T(_S.ACTIVE, (_A.READ_ZNODE,)),
    (_S.ACTIVE, _E.SELF_CONTROLLER): _T(_S.ACTIVE),
    (_S.ACTIVE, _E.NO_CONTROLLER): _T(_S.ELECTING, (_A.STOP, _A.ELECT)),
    (_S.ACTIVE, _E.OTHER_CONTROLLER): _T(_S.IDLE, (_A.STOP,)),
    (_S.ACTIVE, _E.FENCED): _T(_S.IDLE, (_A.STOP, _A.RESIGN, _A.READ_ZNODE)),
    (_S.ACTIVE, _E.SESSION_EXPIRED): _T(_S.UNREGISTERED, (_A.STOP,)),
}


def transition(state: CandidateState, event: CandidateEvent) -> CandidateTransition:
    """Return what follows; a pair that is not in the table is a programmer's error."""
    assert (state, event) in TABLE, f"{event.value} while {state.value}"
    return TABLE[(state, event)]
