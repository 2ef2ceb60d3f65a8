"""A broker whose code raises exceptions that nobody foresaw, while a file is there.

`python -m tests.support.faulty_broker FILE broker PROPERTIES`: work for the topic `sick` raises.
Nothing that a client, a peer or a disk does is known to cause that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from odradek.__main__ import main
from odradek.controller import requests
from odradek.controller.events import LeaderAndIsr
from odradek.group.group import Group
from odradek.log.partition.log import Log
from odradek.replica.partition import Partition

SICK = "sick"


def _break(owner: Any, name: str, faults: Path, is_sick: Callable[[Any], bool]) -> None:
    real = getattr(owner, name)

    def work(subject: Any, *arguments: Any, **options: Any) -> Any:
        if is_sick(subject) and faults.exists():
            raise KeyError("unforeseen")
        return real(subject, *arguments, **options)

    work.__name__ = name
    setattr(owner, name, work)


def _names_sick(message: object) -> bool:
    return isinstance(message, LeaderAndIsr) and any(
        one.partition.topic == SICK for one in message.roles
    )


if __name__ == "__main__":
    faults = Path(sys.argv.pop(1))
    for method in ("append_as_follower", "delete_due", "apply_retention"):
        _break(Log, method, faults, lambda log: log.topic == SICK)
    _break(Partition, "propose_shrink", faults, lambda partition: partition.key.topic == SICK)
    _break(Group, "expire", faults, lambda group: group.group_id == SICK)
    _break(requests, "build", faults, _names_sick)
    main()
